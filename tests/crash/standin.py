# Runs as a script, twice per step of each of many runs: its start is what these tests cost.
# ruff: noqa: PTH100, PTH102, PTH106, PTH110, PTH118, PTH123
"""
A program in Terraform's place: the same arguments, files and ``-json`` lines, started in no time.

It knows one module, the keeper of `tests.crash.scenes`: ``terraform_data.object``, whose real
object is a directory named for the step and the object's id. What it did is a line in
``<place>/log``, written together with the deed. The tests that use it are repeated, at fewer
points, on real Terraform.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
import zipfile
from typing import Any

ADDRESS, TYPE = "terraform_data.object", "terraform_data"
PROVIDER = 'provider["terraform.io/builtin/terraform"]'
STATE = "terraform.tfstate"


def main(arguments: list[str]) -> int:
    """
    Do what the verb says; the exit code.
    """
    verb = next(item for item in arguments if not item.startswith("-"))
    options = dict(item.lstrip("-").partition("=")[::2] for item in arguments if item[0] == "-")
    match verb:
        case "version":
            print("Terraform v1.11.4")
        case "init":
            os.makedirs(".terraform", exist_ok=True)
        case "plan":
            plan(options)
        case "apply":
            return apply(arguments[-1])
        case "state":
            print(json.dumps(read_state()) if os.path.exists(STATE) else "")
        case _:
            raise SystemExit(f"unknown: {verb}")
    return 0


def plan(options: dict[str, str]) -> None:
    """
    Write a plan file and say what is in it.
    """
    state = read_state()
    known = identity_of(state)
    with open(options["var-file"]) as file:
        variables = json.load(file)
    wanted = "destroy" not in options
    action = None
    if wanted != (known is not None):
        action = "create" if wanted else "delete"
    if action:
        resource = {"addr": ADDRESS, "resource_type": TYPE}
        say("planned_change", change={"resource": resource, "action": action})
        say("outputs", outputs={"id": {"sensitive": False, "action": action}})
    else:
        say("outputs", outputs={})
    with zipfile.ZipFile(options["out"], "w") as archive:
        archive.writestr("tfstate", json.dumps(state))
        archive.writestr("tfstate-prev", json.dumps(state))
        archive.writestr("standin", json.dumps({"action": action, "variables": variables}))


def apply(file: str) -> int:
    """
    Carry a plan out; 1 where the state has moved since.
    """
    with zipfile.ZipFile(file) as archive:
        planned = json.loads(archive.read("standin"))
        before = json.loads(archive.read("tfstate"))
    state = read_state()
    if state["serial"] != before["serial"]:
        say("diagnostic", diagnostic={"severity": "error", "summary": "Saved plan is stale"})
        return 1
    action, variables = planned["action"], planned["variables"]
    if action:
        known = identity_of(state) or uuid.uuid4().hex
        hook = {"resource": {"addr": ADDRESS}, "action": action}
        say("apply_start", hook=hook)
        path = os.path.join(variables["place"], f"{variables['name']}.{known}")
        with open(os.path.join(variables["place"], "log"), "a") as log:
            log.write(f"{action} {variables['name']}\n")
        time.sleep(variables.get("seconds") or 0)
        (os.mkdir if action == "create" else os.rmdir)(path)
        write_state(state, known if action == "create" else None)
        say("apply_complete", hook=hook | {"id_key": "id", "id_value": known})
    counts = {"add": action == "create", "change": 0, "remove": action == "delete"}
    say("change_summary", changes={**counts, "operation": "apply"})
    return 0


def say(kind: str, **fields: Any) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    line = {"@level": "info", "@message": kind, "@timestamp": now, "type": kind, **fields}
    print(json.dumps(line), flush=True)


def read_state() -> dict[str, Any]:
    """
    The state in the working directory; one without lineage where there is none yet.
    """
    try:
        with open(STATE) as file:
            found: dict[str, Any] = json.load(file)
            return found
    except FileNotFoundError:
        return {"version": 4, "serial": 0, "lineage": "", "outputs": {}, "resources": []}


def identity_of(state: dict[str, Any]) -> str | None:
    for resource in state["resources"]:
        identity: str = resource["instances"][0]["attributes"]["id"]
        return identity
    return None


def write_state(state: dict[str, Any], identity: str | None) -> None:
    """
    Write the next state, whole or not at all.
    """
    instance = {"attributes": {"id": identity}}
    resource = {
        "mode": "managed",
        "type": TYPE,
        "name": "object",
        "provider": PROVIDER,
        "instances": [instance],
    }
    after = state | {
        "serial": state["serial"] + 1,
        "lineage": state["lineage"] or uuid.uuid4().hex,
        "outputs": {"id": {"value": identity, "type": "string"}} if identity else {},
        "resources": [resource] if identity else [],
    }
    with open(f"{STATE}.tmp", "w") as file:
        json.dump(after, file)
    os.rename(f"{STATE}.tmp", STATE)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
