"""
A program in OpenTofu's place: what OpenTofu 1.12.6 was recorded to do, for machines without it.

It knows resources of type ``thing_object``, whose real objects are files ``ADDRESS.ID`` in the
directory that ``TOFU_OBJECTS`` names, and ``terraform_data``, which lives in provider state only;
each call is a line of JSON in the file ``TOFU_CALLS``. Files named for a fault, beside the objects,
arm it: ``hold``, ``refuse``, ``unsaved``, ``keyless``, and those that planning and asking know. It
needs the variables on which module sources and encryption depend, as OpenTofu does; it keeps
encrypted states by a mark of the passphrase. ``test_standin_tofu`` holds it against the recordings.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import sys
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any, NoReturn

VERSION = os.environ.get("TOFU_VERSION", "1.12.6")
PROVIDERS = {"thing_object": 'provider["registry.opentofu.org/hashicorp/thing"]'}
BUILT_IN = 'provider["terraform.io/builtin/terraform"]'
ENCRYPTED = (
    "Unsupported state file format: This state file is encrypted and can not be read without an "
    "encryption configuration"
)
WRONG_KEY = (
    "decryption failed for all provided methods: attempted decryption failed for state: decryption "
    "failed: cipher: message authentication failed"
)
NO_KEY = "Unable to fetch encryption key data: the service is unavailable"
CLEAR = "encountered unencrypted payload without unencrypted method configured"
QUESTION = """
Do you want to perform these actions?
  OpenTofu will perform the actions described above.
  Only 'yes' will be accepted to approve.

  Enter a value: """
#: An address, what is done to it, and the id of its object, "" where it is to be made.
Deed = tuple[str, str, str]
ACCEPT_VARIABLES = {
    "apply", "force-unlock", "import", "init", "output", "plan", "providers", "show", "state list",
    "state pull", "state push", "state rm", "untaint", "validate",
}  # fmt: skip


def address_of(resource: dict[str, Any]) -> str:
    return f"{resource['type']}.{resource['name']}"


def id_of(resource: dict[str, Any]) -> str:
    return str(resource["instances"][0]["attributes"]["id"])


def resource_of(address: str, id_: str) -> dict[str, Any]:
    type_, name = address.split(".")
    return {
        "mode": "managed",
        "type": type_,
        "name": name,
        "provider": PROVIDERS.get(type_, BUILT_IN),
        "instances": [{"attributes": {"id": id_}, "schema_version": 0}],
    }


class Tofu:
    """
    One call.
    """

    def __init__(self, words: list[str]) -> None:
        size = 2 if words[0] in ("state", "workspace") else 1
        self.verb = " ".join(words[:size])
        self.options = [word for word in words[size:] if word.startswith("-")]
        self.arguments = [word for word in words[size:] if not word.startswith("-")]
        self.json = "-json" in self.options or bool(self.option("json-into"))
        into = self.option("json-into")
        self.out = open(into, "w") if into else sys.stdout  # noqa: SIM115, PTH123
        self.text = "".join(path.read_text() for path in sorted(Path().glob("*.tf")))
        self.variables: dict[str, Any] = {
            name.removeprefix("TF_VAR_"): value
            for name, value in os.environ.items()
            if name.startswith("TF_VAR_")
        }
        self.note_call(words)

    def option(self, name: str) -> str | None:
        found = [o.partition("=")[2] for o in self.options if o.startswith(f"-{name}=")]
        return found[-1] if found else None

    def note_call(self, words: list[str]) -> None:
        file = self.option("var-file")
        call: dict[str, Any] = {"argv": words, "mode": None, "given": None}
        if file is not None:
            if self.verb not in ACCEPT_VARIABLES:
                self.fail("flag provided but not defined: -var-file")
            self.variables |= json.loads(Path(file).read_text())
            call |= {"mode": oct(Path(file).stat().st_mode & 0o777), "given": self.variables}
        if calls := os.environ.get("TOFU_CALLS"):
            with Path(calls).open("a") as log:
                log.write(json.dumps(call) + "\n")

    # What it says

    def say(self, type_: str, message: str, **fields: Any) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"@level": "info", "@message": message, "@timestamp": now, "type": type_, **fields}
        print(json.dumps(line), file=self.out, flush=True)

    def fail(self, summary: str, detail: str = "", *, address: str | None = None) -> NoReturn:
        if self.json:
            said = {"severity": "error", "summary": summary, "detail": detail, "address": address}
            self.say("diagnostic", f"Error: {summary}", diagnostic=said)
        if not self.json or self.option("json-into"):
            print(f"╷\n│ Error: {summary}\n│ \n│ {detail}\n╵", file=sys.stderr)
        sys.exit(1)

    def locked(self, why: str) -> NoReturn:
        self.fail("Error acquiring the state lock", f"Error message: {why}\n\nOpenTofu acquires a")

    # Configuration

    def evaluate(self, text: str) -> str:
        """
        The text with its variables, without which the configuration is not loaded.
        """

        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self.variables:
                self.fail(
                    f"Failed to request input from user for variable var.{name}",
                    f"module.k.source depends on var.{name} which is not available",
                )
            return str(self.variables[name])

        return re.sub(r"(?:\$\{)?\bvar\.(\w+)\}?", value, text)

    def load(self) -> None:
        configured = self.verb not in ("output", "state list")
        configured &= not (self.verb == "apply" and self.arguments)
        for source in re.findall(r'^\s*source\s*=\s*"(\.[^"]*)"', self.text, re.M):
            if not configured:
                continue
            place = self.evaluate(source)
            if not Path(place).is_dir():
                self.fail(f"Unreadable module directory {place}")
        encryption = os.environ.get("TF_ENCRYPTION", "")
        if block := re.search(r"^  encryption \{\n(.*?)^  \}", self.text, re.M | re.S):
            encryption += block[1]
        found = re.findall(r"passphrase\s*=\s*(\S+)", encryption)
        self.keys = [self.mark(self.evaluate(text).strip('"')) for text in found]
        self.enforced = bool(found) and 'method "unencrypted"' not in encryption

    def mark(self, passphrase: str) -> str:
        return hashlib.sha256(passphrase.encode()).hexdigest()[:16]

    def resources(self) -> list[str]:
        found = re.findall(r'^resource "(thing_object|terraform_data)" "(\w+)"', self.text, re.M)
        return [".".join(labels) for labels in found]

    def outputs(self) -> dict[str, Any]:
        return {
            name: {"value": self.evaluate(text), "type": "string"}
            for name, text in re.findall(
                r'^output "(\w+)" \{\s*value\s*=\s*"([^"]*)"', self.text, re.M
            )
        }

    # State

    @property
    def place(self) -> Path:
        return Path(self.backend()["path"])

    def backend(self) -> dict[str, str]:
        """
        The settings of the local backend: those that `init` is given, or has noted, else as the
        configuration has them.
        """
        given, note = self.option("backend-config"), Path(".terraform/terraform.tfstate")
        if given is None and note.exists():
            noted: dict[str, str] = json.loads(note.read_text())["backend"]["config"]
            return noted
        text = Path(given).read_text() if given else self.text
        found = re.search(r'path\s*=\s*(".*")', text)
        return {"path": json.loads(found[1]) if found else "terraform.tfstate"}

    def decrypted(self, raw: bytes, keys: list[str]) -> Any:
        """
        The state in ``raw``; ValueError with what OpenTofu says where it cannot be read.
        """
        data = json.loads(raw)
        if "encrypted_data" not in data:
            if self.enforced:
                raise ValueError(CLEAR)
            return data
        if not keys:
            raise ValueError(ENCRYPTED)
        if self.armed("keyless"):
            raise ValueError(NO_KEY)
        if data["meta"]["key"] not in keys:
            raise ValueError(WRONG_KEY)
        return json.loads(base64.b64decode(data["encrypted_data"]))

    def read(self) -> Any:
        if not self.place.exists() or not self.place.read_bytes():
            return None
        return self.decrypted(self.place.read_bytes(), self.keys)

    def state(self) -> Any:
        """
        The state, for a command that does not lock it.
        """
        try:
            return self.read()
        except ValueError as exc:
            self.fail(f"Failed to refresh state: {exc}")

    def locked_state(self) -> Any:
        try:
            found = self.read()
        except ValueError as exc:
            self.locked(f"failed to write backup file: {exc}")
        return found or {"version": 4, "serial": 0, "lineage": "", "outputs": {}, "resources": []}

    def write(self, state: Any, *, place: Path | None = None) -> None:
        state |= {"terraform_version": VERSION, "lineage": state["lineage"] or str(uuid.uuid4())}
        text = json.dumps(state)
        if self.keys:
            packed = {key: state[key] for key in ("serial", "lineage")}
            hidden = base64.b64encode(text.encode()).decode()
            packed |= {"meta": {"key": self.keys[0]}, "encrypted_data": hidden}
            text = json.dumps(packed | {"encryption_version": "v0"})
        place = place or self.place
        if self.armed("keyless"):
            self.fail("Failed to persist state to backend", NO_KEY)
        try:
            if self.armed("unsaved"):
                raise OSError("no room")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        except OSError as exc:
            Path("errored.tfstate").write_text(text)
            self.fail("Failed to save state", f"Error saving state: {exc}")

    # Objects

    def armed(self, fault: str) -> bool:
        return (Path(os.environ.get("TOFU_OBJECTS", ".")) / fault).exists()

    def imports(self) -> list[dict[str, str]]:
        found = [json.loads(file.read_text()) for file in Path().glob("*.tf.json")]
        return [block for content in found for block in content.get("import", ())]

    def is_alive(self, address: str, id_: str) -> bool:
        """
        An object may be asked for at another address than the one that it was made at.
        """
        if address.startswith("terraform_data."):
            return True
        return any(Path(os.environ["TOFU_OBJECTS"]).glob(f"*.{id_}"))

    def planned(self, state: Any) -> tuple[Any, list[Deed], list[str]]:
        """
        The state refreshed, what is to be done to which resource, and what the refresh lost.
        """
        if self.armed("locked"):
            self.locked(
                "resource temporarily unavailable\nLock Info:\n  ID:        0-1\n  Who:       she"
            )
        if self.armed("unplannable"):
            self.fail("Invalid value for input variable", "it is too long")
        known = {address_of(item): id_of(item) for item in state["resources"]}
        lost = [address for address, id_ in known.items() if not self.is_alive(address, id_)]
        kept = [item for item in state["resources"] if address_of(item) not in lost]
        refreshed = state | {"resources": kept}
        names = {address_of(item) for item in kept}
        if "-refresh-only" in self.options:
            return refreshed, [], lost
        if "-destroy" in self.options:
            return refreshed, [(name, "delete", known[name]) for name in sorted(names)], lost
        taken = {block["to"]: block["id"] for block in self.imports() if block["to"] not in names}
        for address, id_ in taken.items():
            if not self.is_alive(address, id_):
                said = f'While attempting to import an existing object to "{address}", the provider'
                self.fail("Cannot import non-existent remote object", f"{said} detected none.")
        wanted = [name for name in self.resources() if name not in names]
        if targets := [o.partition("=")[2] for o in self.options if o.startswith("-target=")]:
            wanted = [name for name in wanted if name in targets]
        deeds = [(n, "import", taken[n]) if n in taken else (n, "create", "") for n in wanted]
        gone = [(n, "delete", known[n]) for n in names if n not in self.resources()]
        return refreshed, [*deeds, *gone], lost

    def show_plan(self, deeds: list[Deed], lost: list[str], outputs: bool) -> None:
        for name in lost:
            change = {"resource": self.resource(name), "action": "delete"}
            self.say("resource_drift", f"{name}: drift", change=change)
        if self.armed("novel"):
            self.say("planned_novelty", "a record of a type that nobody knows")
        for name, action, id_ in deeds:
            change = {"resource": self.resource(name), "action": action}
            change |= {"importing": {"id": id_}} if action == "import" else {}
            self.say("planned_change", f"{name}: Plan to {action}", change=change)
        self.summarise("plan", deeds)
        if outputs:
            said = {name: {"sensitive": False, "action": "create"} for name in self.outputs()}
            self.say("outputs", f"Outputs: {len(said)}", outputs=said)

    def resource(self, name: str) -> dict[str, Any]:
        return {"addr": name, "resource_type": name.split(".")[0]}

    def summarise(self, operation: str, deeds: list[Deed]) -> None:
        done = [action for _, action, _ in deeds]
        add = done.count("create") + self.armed("miscounted")
        changes = {"add": add, "remove": done.count("delete"), "change": 0}
        more = {"import": done.count("import"), "forget": 0, "operation": operation}
        self.say("change_summary", "Plan", changes=changes | more)

    def carry_out(self, state: Any, deeds: list[Deed]) -> None:
        cloud = Path(os.environ.get("TOFU_OBJECTS", "."))
        for name, action, id_ in deeds:
            if action == "import":
                state["resources"].append(resource_of(name, id_))
                continue
            hook: dict[str, Any] = {"resource": self.resource(name), "action": action}
            self.say("apply_start", f"{name}: {action}", hook=hook)
            while (cloud / "hold").exists():
                time.sleep(0.02)
            if action == "create" and self.armed("refuse"):
                self.say("apply_errored", f"{name}: failed", hook=hook)
                self.write(state | {"serial": state["serial"] + 1})
                self.fail("InstanceLimitExceeded: no room for more", address=name)
            if action == "create":
                id_ = f"srv-{uuid.uuid4().hex[:12]}"
                if name.split(".")[0] in PROVIDERS:
                    (cloud / f"{name}.{id_}").touch()
                state["resources"].append(resource_of(name, id_))
            else:
                (cloud / f"{name}.{id_}").unlink(missing_ok=True)
                state["resources"] = [r for r in state["resources"] if address_of(r) != name]
            hook |= {"id_key": "id", "id_value": id_, "elapsed_seconds": 0}
            self.say("apply_complete", f"{name}: done", hook=hook)
        state["outputs"] = {} if "-destroy" in self.options else self.outputs()
        self.write(state | {"serial": state["serial"] + 1})
        self.summarise("apply", deeds)

    # Commands

    def run(self) -> int:
        if self.verb == "version":
            print(f"OpenTofu v{VERSION}\non linux_amd64")
            return 0
        self.load()
        command = getattr(self, self.verb.replace(" ", "_").replace("-", "_"))
        return int(command() or 0)

    def init(self) -> None:
        Path(".terraform").mkdir(exist_ok=True)
        note = {"backend": {"type": "local", "config": self.backend()}}
        Path(".terraform/terraform.tfstate").write_text(json.dumps(note))

    def plan(self) -> int:
        if self.json:
            self.say("version", f"OpenTofu {VERSION}", tofu=VERSION, ui="1.2")
        state = self.locked_state()
        refreshed, deeds, lost = self.planned(state)
        changed = "-destroy" not in self.options and self.outputs() != state["outputs"]
        self.show_plan(deeds, lost, changed)
        if out := self.option("out"):
            prior = {key: state[key] for key in state if key not in ("serial", "lineage")}
            if self.keys:
                content = {"before": state, "after": refreshed, "deeds": deeds}
                text = base64.b64encode(json.dumps(content).encode()).decode()
                Path(out).write_text(text + json.dumps(self.options))
            else:
                with zipfile.ZipFile(out, "w") as archive:
                    archive.writestr("tfstate", json.dumps(refreshed))
                    archive.writestr("tfstate-prev", json.dumps(prior))
                    plan = [deeds, self.options, self.variables]
                    archive.writestr("deeds", json.dumps(plan))
        return 2 if (deeds or changed) and "-detailed-exitcode" in self.options else 0

    def planned_in(self, file: Path) -> tuple[Any, list[Deed]]:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                after = json.loads(archive.read("tfstate"))
                deeds, self.options, self.variables = json.loads(archive.read("deeds"))
            return after, deeds
        packed, _, options = file.read_text().partition("[")
        content = json.loads(base64.b64decode(packed))
        self.options = json.loads("[" + options)
        return content["after"], content["deeds"]

    def apply(self) -> int:
        self.say("version", f"OpenTofu {VERSION}", tofu=VERSION, ui="1.2")
        if self.arguments:
            after, deeds = self.planned_in(Path(self.arguments[0]))
            if self.locked_state()["serial"] != after["serial"]:
                self.fail("Saved plan is stale")
            self.carry_out(after, deeds)
            return 0
        state = self.locked_state()
        refreshed, deeds, lost = self.planned(state)
        changed = "-destroy" not in self.options and self.outputs() != state["outputs"]
        self.show_plan(deeds, lost, changed)
        asks = (deeds or changed) and "-auto-approve" not in self.options
        if asks and not self.armed("unasked"):
            self.ask()
        self.carry_out(refreshed, deeds)
        return 0

    def ask(self) -> None:
        """
        Go on where the answer is yes. It asks otherwise than OpenTofu where a fault is armed.
        """
        if self.armed("mute"):
            os.close(1)
        elif self.armed("in-other-words"):
            print("Shall I? (yes/no) ", end="", flush=True)
        else:
            print(QUESTION, end="", flush=True)
        if self.armed("dead-at-question"):
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(2 if self.armed("asks-twice") else 1):
            answer = sys.stdin.readline()
            if not answer:
                self.fail("error asking for approval: EOF")
            if answer.strip() != "yes":
                self.say("log", "Apply cancelled")
                sys.exit(1)
        if self.armed("dead-after-yes"):
            os.kill(os.getpid(), signal.SIGKILL)

    def state_pull(self) -> None:
        state = self.state()
        if state is not None:
            print(json.dumps(state))

    def state_list(self) -> None:
        for item in (self.state() or {}).get("resources", ()):
            print(f"{item['type']}.{item['name']}")

    def state_rm(self) -> None:
        state = self.locked_state()
        if not state["serial"]:
            self.fail("No state file was found!")

    def state_push(self) -> None:
        try:
            keys, enforced, self.enforced = self.keys, self.enforced, False
            given = self.decrypted(Path(self.arguments[0]).read_bytes(), [])
            self.enforced = enforced
        except ValueError as exc:
            self.fail(f'Failed to read source state "{self.arguments[0]}"', str(exc))
        self.keys = keys
        held = self.locked_state()
        if "-force" not in self.options:
            if held["lineage"] not in ("", given["lineage"]):
                self.fail("Failed to write the imported state", "cannot import state with lineage")
            if given["serial"] < held["serial"]:
                self.fail("Failed to write the imported state", "cannot import serial")
        self.write(given)

    def show(self) -> None:
        if self.arguments:
            _, deeds = self.planned_in(Path(self.arguments[0]))
            changes = [
                {
                    "address": name,
                    "type": name.split(".")[0],
                    "change": {"actions": [action]},
                }
                for name, action, _ in deeds
            ]
            print(json.dumps({"format_version": "1.2", "resource_changes": changes}))
            return
        self.state()
        print(json.dumps({"format_version": "1.0", "terraform_version": VERSION}))

    def output(self) -> None:
        print(json.dumps((self.state() or {}).get("outputs", {})))

    def providers(self) -> None:
        print('{"format_version":"1.0"}')

    def validate(self) -> None:
        print('{"format_version":"1.0","valid":true}')

    def force_unlock(self) -> None:
        print("OpenTofu state has been successfully unlocked!")


if __name__ == "__main__":
    sys.exit(Tofu(sys.argv[1:]).run())
