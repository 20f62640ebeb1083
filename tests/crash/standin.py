# Runs as a script, in many runs many times: importing json alone would double its start.
# ruff: noqa: PTH103, PTH104, PTH118, PTH123
"""
A program in Terraform's place: the same arguments, files and ``-json`` lines, started in no time.

It knows one module, the keeper of `tests.crash.scenes`: ``terraform_data.object``, whose real
object is a directory named for the step and the object's id; each deed that began is a line in the
file ``log`` beside it. The tests that use it are repeated, at fewer points, on real Terraform.
"""

from __future__ import annotations

import os
import sys
import time

ADDRESS = "terraform_data.object"
RESOURCE = f'{{"addr": "{ADDRESS}", "resource_type": "terraform_data"}}'
STATE = "terraform.tfstate"
NOTE = "standin"  # the member of a plan file that tells what to do


def main(arguments: list[str]) -> int:
    """
    Do what the verb says; the exit code.
    """
    verb = next(item for item in arguments if not item.startswith("-"))
    match verb:
        case "version":
            print("Terraform v1.11.4")
        case "init":
            os.makedirs(".terraform", exist_ok=True)
        case "plan":
            pairs = (item.lstrip("-").partition("=") for item in arguments)
            plan({name: value for name, _, value in pairs})
        case "apply":
            return apply(arguments[-1])
        case "state":
            print(read_state())
        case _:
            raise SystemExit(f"unknown: {verb}")
    return 0


def plan(options: dict[str, str]) -> None:
    """
    Write a plan file and say what is in it.
    """
    import json
    import zipfile

    state = read_state()
    with open(options["var-file"]) as file:
        variables = json.load(file)
    there, wanted = bool(field(state, "id")), "destroy" not in options
    action = "" if there == wanted else "create" if wanted else "delete"
    if action:
        say("planned_change", f'"change": {{"resource": {RESOURCE}, "action": "{action}"}}')
        say("outputs", f'"outputs": {{"id": {{"sensitive": false, "action": "{action}"}}}}')
    text = state or state_text(0, "", "")
    seconds = variables.get("seconds", 0)
    note = [action, variables["name"], variables["place"], str(seconds)]
    with zipfile.ZipFile(options["out"], "w") as archive:
        archive.writestr("tfstate", text)
        archive.writestr("tfstate-prev", text)
        archive.writestr(NOTE, "".join(f"\n{NOTE} {item}\n" for item in (serial(state), *note)))


def apply(file: str) -> int:
    """
    Carry a plan out; 1 where the state has moved since.
    """
    with open(file, "rb") as archive:
        pieces = archive.read().decode("latin-1").split(f"\n{NOTE} ")[1:]
    before, action, name, place, seconds = (piece.partition("\n")[0] for piece in pieces)
    state = read_state()
    if int(before) != serial(state):
        say("diagnostic", '"diagnostic": {"severity": "error", "summary": "Saved plan is stale"}')
        return 1
    identity = field(state, "id") or os.urandom(8).hex()
    hook = f'"resource": {RESOURCE}, "action": "{action}"'
    say("apply_start", f'"hook": {{{hook}}}')
    with open(os.path.join(place, "log"), "a") as log:
        log.write(f"{action} {name}\n")
    time.sleep(float(seconds))
    (os.mkdir if action == "create" else os.rmdir)(os.path.join(place, f"{name}.{identity}"))
    lineage = field(state, "lineage") or os.urandom(8).hex()
    after = state_text(serial(state) + 1, lineage, identity if action == "create" else "")
    with open(f"{STATE}.tmp", "w") as new:
        new.write(after)
    os.rename(f"{STATE}.tmp", STATE)
    say("apply_complete", f'"hook": {{{hook}, "id_key": "id", "id_value": "{identity}"}}')
    return 0


def say(kind: str, more: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f'{{"@message": "{kind}", "@timestamp": "{now}", "type": "{kind}", {more}}}', flush=True)


def read_state() -> str:
    """
    The state in the working directory; nothing where there is none yet.
    """
    try:
        with open(STATE) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def field(state: str, name: str) -> str:
    return state.partition(f'"{name}": "')[2].partition('"')[0]


def serial(state: str) -> int:
    return int(state.partition('"serial": ')[2].partition(",")[0] or 0)


def state_text(number: int, lineage: str, identity: str) -> str:
    """
    A state of version 4 with the object, or without any where the identity is empty.
    """
    resource = (
        '{"mode": "managed", "type": "terraform_data", "name": "object", '
        '"provider": "provider[\\"terraform.io/builtin/terraform\\"]", '
        f'"instances": [{{"attributes": {{"id": "{identity}"}}}}]}}'
    )
    outputs = f'"id": {{"value": "{identity}", "type": "string"}}'
    return (
        f'{{"version": 4, "serial": {number}, "lineage": "{lineage}", '
        f'"resources": [{resource if identity else ""}], '
        f'"outputs": {{{outputs if identity else ""}}}}}'
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
