#!/bin/sh
# A program in Terraform's place: the same arguments, files and -json lines, started in no time. Named
# tofu, it stands for OpenTofu, and asks before it applies what it has planned itself.
#
# It knows one module, the keeper of scenes.py: terraform_data.object, whose real object is a
# directory named for the step and the object's id; each deed that began is a line in the file "log"
# beside it. The tests that use it are repeated, at fewer points, on real Terraform.
set -eu

resource='{"addr": "terraform_data.object", "resource_type": "terraform_data"}'
# Where `init` was told that the state is, as Terraform's local backend has it.
config='' file='' state='' now=''

# field NAME TEXT: `value` is that of the field, the last of its name, in JSON. No process is started
# for it: thousands of calls are made.
field() {
    value='' name="\"$1\": "
    case $2 in
    *"$name"*)
        value=${2##*"$name"}
        value=${value#\"}
        value=${value%%[\",\}]*}
        ;;
    esac
}

# say TYPE FIELDS
say() {
    now=${now:-$(date -u +%Y-%m-%dT%H:%M:%SZ)}
    echo "{\"@message\": \"$1\", \"@timestamp\": \"$now\", \"type\": \"$1\", $2}"
}

if [ -e .terraform/terraform.tfstate ]; then
    read -r config <.terraform/terraform.tfstate || :
    field path "$config"
    file=$value
fi
file=${file:-terraform.tfstate}
if [ -e "$file" ]; then state=$(cat "$file"); fi

# write ID: the next state, with this object in it, or none
write() {
    objects='' outputs=''
    if [ "$1" ]; then
        instance="{\"attributes\": {\"id\": \"$1\"}}"
        provider='provider[\"terraform.io/builtin/terraform\"]'
        objects="{\"mode\": \"managed\", \"type\": \"terraform_data\", \"name\": \"object\", \"provider\": \"$provider\", \"instances\": [$instance]}"
        outputs="\"id\": {\"value\": \"$1\"}"
    fi
    field lineage "$state"
    lineage=$value
    field serial "$state"
    serial=$value
    echo "{\"version\": 4, \"serial\": $((${serial:-0} + 1)), \"lineage\": \"${lineage:-$$-lineage}\", \"outputs\": {$outputs}, \"resources\": [$objects]}" >"$file.tmp"
    mv "$file.tmp" "$file"
}

plan() {
    for argument; do
        case $argument in
        -out=*) out=${argument#-out=} ;;
        -var-file=*) variables=$(cat "${argument#-var-file=}") ;;
        -destroy) wanted=no ;;
        esac
    done
    field id "$state"
    case ${wanted:-yes},${value:+there} in
    yes,) action=create ;;
    no,there) action=delete ;;
    *) action= ;;
    esac
    add=0 remove=0
    case $action in
    create) add=1 ;;
    delete) remove=1 ;;
    esac
    if [ "$action" ]; then
        say planned_change "\"change\": {\"resource\": $resource, \"action\": \"$action\"}"
        say outputs "\"outputs\": {\"id\": {\"sensitive\": false, \"action\": \"$action\"}}"
    fi
    say change_summary "\"changes\": {\"add\": $add, \"change\": 0, \"remove\": $remove, \"operation\": \"plan\"}"
    field serial "$state"
    echo "{\"serial\": \"$value\", \"action\": \"$action\", ${variables#?}" >"$out"
    case $*,$action in
    *-detailed-exitcode*,?*) exit 2 ;;
    esac
}

apply() {
    plan=$(cat "$1")
    field serial "$state"
    serial=$value
    field serial "$plan"
    if [ "$value" != "$serial" ]; then
        say diagnostic '"diagnostic": {"severity": "error", "summary": "Saved plan is stale"}'
        exit 1
    fi
    field action "$plan"
    action=$value
    field name "$plan"
    step=$value
    field place "$plan"
    place=$value
    field id "$state"
    id=${value:-$$-$(date +%s)}
    hook="\"resource\": $resource, \"action\": \"$action\", \"id_key\": \"id\", \"id_value\": \"$id\""
    say apply_start "\"hook\": {$hook}"
    echo "$action $step" >>"$place/log"
    left=1200
    while [ -e "$place/hold" ] && [ $left -gt 0 ]; do
        sleep 0.05
        left=$((left - 1))
    done
    case $action in
    create)
        mkdir "$place/$step.$id"
        write "$id"
        ;;
    delete)
        rmdir "$place/$step.$id"
        write ''
        ;;
    esac
    say apply_complete "\"hook\": {$hook}"
}

# ask: plan, and apply it once that is approved; events go into a file, the question to stdout
ask() {
    for argument; do
        case $argument in
        -json-into=*) into=${argument#-json-into=} ;;
        esac
    done
    exec 3>&1 >"$into"
    plan "$@" -out=.asked
    if [ "$action" ]; then
        printf "\n  Only 'yes' will be accepted to approve.\n\n  Enter a value: " >&3
        if ! read -r answer; then
            say diagnostic '"diagnostic": {"severity": "error", "summary": "error asking for approval: EOF"}'
            exit 1
        fi
        if [ "$answer" != yes ]; then exit 1; fi
        apply .asked
    fi
}

case $1 in
version)
    case $0 in
    */tofu) echo 'OpenTofu v1.12.6' ;;
    *) echo 'Terraform v1.11.4' ;;
    esac
    ;;
init)
    mkdir -p .terraform
    for argument; do
        case $argument in
        -backend-config=*) path=$(sed -n 's/^path *= //p' "${argument#-backend-config=}") ;;
        esac
    done
    echo "{\"backend\": {\"type\": \"local\", \"config\": {\"path\": $path}}}" >.terraform/terraform.tfstate
    ;;
plan) plan "$@" ;;
apply)
    for plan; do :; done
    case $plan in
    -*) ask "$@" ;;
    *) apply "$plan" ;;
    esac
    ;;
import)
    for id; do :; done
    write "$id"
    ;;
state)
    case $2 in
    pull) echo "$state" ;;
    rm)
        case $* in
        *-dry-run*) ;;
        *) write '' ;;
        esac
        ;;
    push)
        for pushed; do :; done
        cat "$pushed" >"$file.tmp"
        mv "$file.tmp" "$file"
        ;;
    esac
    ;;
*)
    echo "unknown: $1" >&2
    exit 64
    ;;
esac
