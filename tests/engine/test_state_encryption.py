"""
State encryption of OpenTofu, by the module and by TF_ENCRYPTION: whatever reads, keeps, asks with
or saves a provider state works with the key, and nothing of ours holds in clear what the engine
does not.

Run against the program that stands for OpenTofu, which tells a state's key by a mark.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.engine.programs import standin_tofu
from tests.project import Project, eventually, finish, require_engine

pytestmark = pytest.mark.engine

FIRST, SECOND = "correct-horse-battery", "another-horse-battery"
BLOCK = """
terraform {
  encryption {
    key_provider "pbkdf2" "k" {
      passphrase = var.pass
    }
    KEYS
    method "aes_gcm" "m" {
      keys = key_provider.pbkdf2.k
    }
    state {
      method   = method.aes_gcm.m
      enforced = true
    }
  }
}
variable "pass" {
  type      = string
  sensitive = true
}
variable "old" {
  type      = string
  sensitive = true
  default   = ""
}
"""
OBJECTS = 'resource "thing_object" "a" {\n}\nresource "thing_object" "b" {\n}\n'
BLUEPRINT = """
version: 1
name: b
inputs:
  pass: {type: string, sensitive: true}
  old: {type: string, default: ""}
steps:
  s:
    module: ../modules/m
    verify_absence: provider
    inputs: {pass: "${inputs.pass}", old: "${inputs.old}"}
"""
PLAIN = (
    BLUEPRINT.partition("inputs:")[0]
    + BLUEPRINT[BLUEPRINT.index("steps:") :].partition("    inputs:")[0]
)


class Encrypted(Project):
    """
    A project whose one step has two objects.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root / "project", engine=str(standin_tofu(root / "bin")))
        self.cloud = root / "cloud"
        self.cloud.mkdir()
        self.environ["TOFU_OBJECTS"] = str(self.cloud)
        self.write("orchestrator.yaml", "project: encrypted\n")

    def by_module(self, *, old: str | None = None) -> None:
        """
        The module encrypts, with the passphrase in an input and ``old`` as its fallback.
        """
        fallback = 'key_provider "pbkdf2" "old" {\n      passphrase = var.old\n    }'
        self.write("modules/m/main.tf", BLOCK.replace("KEYS", fallback if old else "") + OBJECTS)
        self.write("blueprints/b.yaml", BLUEPRINT)
        self.environ |= {"ORCHESTRATOR_INPUT_pass": FIRST}
        if old:
            self.environ |= {"ORCHESTRATOR_INPUT_pass": SECOND, "ORCHESTRATOR_INPUT_old": old}

    def by_environment(self, *passphrases: str, clear: bool = False) -> None:
        """
        The environment encrypts; without passphrases nothing does.
        """
        self.write("modules/m/main.tf", OBJECTS)
        self.write("blueprints/b.yaml", PLAIN)
        keys = (
            f'key_provider "pbkdf2" "k{n}" {{\n passphrase = "{text}"\n}}'
            for n, text in enumerate(passphrases)
        )
        also = '\nmethod "unencrypted" "none" {}' if clear else ""
        self.environ["TF_ENCRYPTION"] = "\n".join(keys) + also if passphrases else ""

    @property
    def stored(self) -> dict[str, object]:
        """
        The stored provider state.
        """
        found: dict[str, object] = json.loads((self.own / "state/b/default/s.tfstate").read_text())
        return found

    @property
    def key(self) -> object:
        """
        The mark of the key that the stored state is encrypted with.
        """
        meta = self.stored["meta"]
        assert isinstance(meta, dict)
        return meta["key"]

    def clear_texts(self) -> list[Path]:
        """
        Files of ours, but for the stored state, that hold a state or a passphrase in clear.
        """
        words = (b'"terraform_version"', FIRST.encode(), SECOND.encode())
        state = self.own / "state"
        files = [p for p in self.own.rglob("*") if p.is_file() and not p.is_relative_to(state)]
        return [p for p in files if any(word in p.read_bytes() for word in words)]

    def secrets_in_store(self) -> bool:
        database = sqlite3.connect(self.own / "operations.db")
        try:
            return FIRST in "\n".join(database.iterdump())
        finally:
            database.close()


EITHER_WAY = pytest.mark.parametrize("project", ["module", "environment"], indirect=True)


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Encrypted:
    """
    A project whose state is encrypted by the first passphrase, by its module or its environment.
    """
    made = Encrypted(tmp_path)
    if getattr(request, "param", "module") == "module":
        made.by_module()
    else:
        made.by_environment(FIRST)
    return made


@EITHER_WAY
def test_an_encrypted_state_lives_through_every_command(project: Encrypted) -> None:
    """
    Apply, repeat, reconcile, and a destroy that has its absence confirmed by the provider; nowhere
    is a state or a passphrase kept in clear.
    """
    project.ok("apply", "b", "--yes")
    assert project.ok("apply", "b", "--yes", "--json").row["reason"] is None
    project.ok("reconcile", "b", "--yes")
    assert "encrypted_data" in project.stored
    done = project.ok("destroy", "b", "--yes", "--json").row
    assert (done["status"], done["absence"]["method"]) == ("destroyed", "provider")
    assert project.clear_texts() == []
    assert not project.secrets_in_store()
    assert list(project.cloud.iterdir()) == []


def test_a_state_that_waits_for_the_provider_is_kept_encrypted(project: Encrypted) -> None:
    """
    Where a destroy cannot be confirmed, the state from before stays, encrypted; the next command
    asks with it.
    """
    project.ok("apply", "b", "--yes")
    script = Path(project.environ["ORCHESTRATOR_ENGINE"])
    working = script.read_text()
    script.write_text(working.replace("exec", 'case "$*" in *-refresh-only*) exit 1;; esac\nexec'))
    assert project.run("destroy", "b", "--yes").code in (10, 11)
    (kept,) = project.own.rglob("before.tfstate")
    assert "encrypted_data" in json.loads(kept.read_text())
    assert project.clear_texts() == []
    script.write_text(working)
    assert project.ok("destroy", "b", "--yes", "--json").statuses == {"s": "destroyed"}
    assert not kept.exists()


@pytest.mark.parametrize("given", ["", SECOND], ids=["missing", "wrong"])
def test_a_missing_or_wrong_key_is_called_that(tmp_path: Path, given: str) -> None:
    """
    No lock is spoken of, whichever command meets it; nothing was changed, and no secret is shown.
    """
    project = Encrypted(tmp_path)
    project.by_environment(FIRST)
    project.ok("apply", "b", "--yes")
    before = project.entries("s")
    project.by_environment(*filter(None, [given]))
    for command in ("apply", "destroy", "reconcile"):
        ended = project.run(command, "b", "--yes")
        assert ended.code == 10, ended.said
        assert "the state cannot be decrypted" in ended.said
        assert "TF_ENCRYPTION" in ended.said
        assert "locked" not in ended.said
        assert "-lock=false" not in ended.said
        assert SECOND not in ended.said
    assert project.entries("s") == before


def test_a_new_key_takes_effect_at_the_next_apply(tmp_path: Path) -> None:
    """
    With the former key as fallback the empty plan is applied once: the state is written with the
    new one, and the fallback can go.
    """
    project = Encrypted(tmp_path)
    project.by_module()
    project.ok("apply", "b", "--yes")
    former = project.key
    project.by_module(old=FIRST)
    planned = project.ok("plan", "b")
    assert "only provider state changes" in planned.out
    assert "rewritten" in planned.out
    project.ok("apply", "b", "--yes")
    changed = project.key
    assert changed != former
    serial = project.stored["serial"]
    project.ok("apply", "b", "--yes")
    assert project.stored["serial"] == serial, "an unchanged key is no reason to write"
    project.by_module()
    project.environ["ORCHESTRATOR_INPUT_pass"] = SECOND
    project.ok("apply", "b", "--yes")
    assert project.key == changed


def test_encryption_is_switched_on_and_off_by_an_apply_without_changes(tmp_path: Path) -> None:
    """
    A clear state is encrypted as soon as an apply is told so, and clear again where none is.
    """
    project = Encrypted(tmp_path)
    project.by_environment()
    project.ok("apply", "b", "--yes")
    assert "resources" in project.stored
    project.by_environment(FIRST, clear=True)
    project.ok("apply", "b", "--yes")
    assert "encrypted_data" in project.stored


def test_steps_that_are_planned_together_are_written_anew_one_by_one(tmp_path: Path) -> None:
    """
    Without TF_ENCRYPTION unchanged steps are proven so by one plan, which nobody can apply: those
    whose states were encrypted are planned on their own.
    """
    project = Encrypted(tmp_path)
    project.by_environment()
    project.environ["TF_ENCRYPTION"] = 'method "unencrypted" "none" {}'
    project.write("blueprints/b.yaml", PLAIN + "  t: {module: ../modules/m}\n")
    project.ok("apply", "b", "--yes")
    serial = project.stored["serial"]
    project.environ["TF_ENCRYPTION"] = ""
    done = project.ok("apply", "b", "--yes", "--json")
    assert done.statuses == {"s": "ok", "t": "ok"}
    assert project.stored["serial"] != serial
    serial = project.stored["serial"]
    project.ok("apply", "b", "--yes")
    assert project.stored["serial"] == serial


def test_what_depends_on_a_state_that_is_only_written_anew_is_planned(tmp_path: Path) -> None:
    """
    No output of it changes: nothing of its dependents waits for it, or may be another way then.
    """
    project = Encrypted(tmp_path)
    project.by_environment()
    project.environ["TF_ENCRYPTION"] = 'method "unencrypted" "none" {}'
    project.write("blueprints/b.yaml", PLAIN + "  t: {module: ../modules/m, needs: [s]}\n")
    project.ok("apply", "b", "--yes")
    project.environ["TF_ENCRYPTION"] = ""

    rows = project.ok("plan", "b", "--json").rows

    assert {step: row["status"] for step, row in rows.items()} == {"s": "planned", "t": "planned"}
    for row in rows.values():
        assert (
            row["reason"] == "its provider state is to be encrypted in another way: it is rewritten"
        )


def test_a_state_that_could_not_be_saved_is_pushed_although_it_is_encrypted(
    project: Encrypted,
) -> None:
    """
    It is read with the step's key, and pushed; a key that does not fit says so, and nothing advises
    to put the file aside.
    """
    (project.cloud / "unsaved").touch()
    failed = project.run("apply", "b", "--yes", "--json")
    assert failed.row["error"]["code"] == "errored_state"
    (project.cloud / "unsaved").unlink()
    (errored,) = project.own.rglob("errored.tfstate")
    assert "encrypted_data" in errored.read_text()
    key = project.environ
    project.environ = {
        name: value.replace(FIRST, "no-such-passphrase") for name, value in key.items()
    }
    refused = project.run("reconcile", "b", "--push-errored-state", "--yes")
    assert refused.code == 10, refused.said
    assert "the state cannot be decrypted" in refused.said
    assert "dismiss" not in refused.said
    project.environ = key
    pushed = project.ok("reconcile", "b", "--push-errored-state", "--yes", "--json")
    assert pushed.statuses == {"s": "ok"}
    assert len(list(project.cloud.glob("thing_object.*"))) == 2
    assert "encrypted_data" in project.stored
    assert project.clear_texts() == []


def test_a_file_that_was_put_aside_is_not_offered_any_more(tmp_path: Path) -> None:
    """
    Once the unsaved state was dismissed, no text names its former place or says to push it.
    """
    project = Encrypted(tmp_path)
    project.by_environment(FIRST)
    project.run("apply", "b", "--yes")
    project.write("modules/m/main.tf", OBJECTS + 'resource "thing_object" "c" {\n}\n')
    (project.cloud / "unsaved").touch()
    project.run("apply", "b", "--yes")
    (project.cloud / "unsaved").unlink()
    dismissed = project.run("reconcile", "b", "--dismiss-errored-state", "looked at", "--yes")
    assert dismissed.code == 11, dismissed.said
    for said in (dismissed.said, project.ok("recover", "b").said):
        assert "--push-errored-state" not in said
        assert "work/b/default/s/errored.tfstate" not in said


def test_what_went_with_its_parent_is_emptied_although_it_is_encrypted(tmp_path: Path) -> None:
    """
    Its state is read and emptied with the module's key, without its providers; what is kept of it
    is encrypted.
    """
    project = Encrypted(tmp_path)
    project.by_module()
    project.write("modules/parent/main.tf", 'resource "thing_object" "p" {\n}\n')
    owned = "  s:\n    owned_by: parent\n    needs: [parent]\n"
    parent = "steps:\n  parent: {module: ../modules/parent}\n"
    text = BLUEPRINT.replace("steps:\n", parent).replace("  s:\n", owned)
    project.write("blueprints/b.yaml", text)
    project.ok("apply", "b", "--yes")
    done = project.ok("destroy", "b", "--yes", "--json").statuses
    assert done == {"parent": "destroyed", "s": "destroyed"}
    (saved,) = project.own.rglob("saved.tfstate")
    assert "encrypted_data" in saved.read_text()
    assert project.clear_texts() == []


def test_an_encrypted_state_is_adopted(project: Encrypted) -> None:
    """
    Somebody else's root with an encrypted state is taken under records, with its key.
    """
    project.ok("apply", "b", "--yes")
    state = project.own / "state/b/default/s.tfstate"
    text = state.read_bytes()
    shutil.rmtree(project.own)
    state.parent.mkdir(parents=True)
    state.write_bytes(text)
    project.ok("adopt", "b", "--yes")
    assert project.record("s")["status"] == "ok"
    project.ok("apply", "b", "--yes")


@EITHER_WAY
def test_a_failed_apply_is_retried_from_its_snapshot(project: Encrypted) -> None:
    """
    The stored snapshot knows how its state is encrypted, whatever the module says by now.
    """
    (project.cloud / "refuse").touch()
    assert project.run("apply", "b", "--yes").code == 10
    (project.cloud / "refuse").unlink()
    project.write("modules/m/main.tf", "this is no module\n")
    retried = project.ok("retry", "b", "--yes", "--reason", "room again", "--json")
    assert retried.statuses == {"s": "ok"}
    assert "encrypted_data" in project.stored


def test_a_lost_state_is_rebuilt_encrypted(project: Encrypted) -> None:
    """
    What the record knows is imported into a new state, which is encrypted as the lost one was.
    """
    project.ok("apply", "b", "--yes")
    (project.own / "state/b/default/s.tfstate").unlink()
    project.ok("reconcile", "b", "--rebuild-state", "--yes")
    assert "encrypted_data" in project.stored
    assert project.ok("apply", "b", "--yes", "--json").statuses == {"s": "ok"}
    assert len(list(project.cloud.glob("thing_object.*"))) == 2


def test_terraform_is_not_let_at_an_encrypted_state(tmp_path: Path) -> None:
    """
    It cannot read one, whoever accepts the change of engines.
    """
    terraform = require_engine("terraform")
    project = Encrypted(tmp_path)
    project.by_environment(FIRST)
    project.ok("apply", "b", "--yes")
    refused = project.run("destroy", "b", "--yes", "--engine", terraform, "--allow-engine-change")
    assert refused.code == 4, refused.said
    assert "its provider state is encrypted" in " ".join(refused.said.split())


@EITHER_WAY
def test_a_key_service_that_fails_in_the_middle_leaves_doubts(project: Encrypted) -> None:
    """
    What was made while the state could not be saved or read is in doubt, with its id; nothing calls
    it absent.
    """
    project.ok("apply", "b", "--yes")
    project.write("modules/m/more.tf", 'resource "thing_object" "c" {\n}\n')
    (project.cloud / "hold").touch()
    process = project.start("apply", "b", "--yes")
    begun = project.own / "runs"
    eventually(
        lambda: any(
            b"apply_start" in path.read_bytes() for path in begun.rglob("raw/apply.stdout")
        ),
        "the create begins",
        process,
    )
    (project.cloud / "keyless").touch()
    (project.cloud / "hold").unlink()
    ended = finish(process)
    assert ended.code == 11, ended.said
    (made,) = (path.suffix[1:] for path in project.cloud.glob("thing_object.c.*"))
    doubts = {item["address"]: item for item in project.record("s")["resources"]["in_doubt"]}
    assert doubts["thing_object.c"]["id"] == made
    assert project.run("destroy", "b", "--yes").code in (10, 11)
    assert project.record("s")["status"] == "error"
    (project.cloud / "keyless").unlink()
    assert made in project.run("reconcile", "b", "--yes").said


def test_a_state_that_moves_to_another_backend_stays_encrypted(project: Encrypted) -> None:
    """
    Read with the step's key where it is, and encrypted where it goes; no clear copy is left.
    """
    project.ok("apply", "b", "--yes")
    blueprint = (project.root / "blueprints/b.yaml").read_text()
    place = 'backend: {type: local, config: {path: "elsewhere/s.tfstate"}}\n'
    project.write("blueprints/b.yaml", blueprint.replace("steps:\n", f"{place}steps:\n"))
    project.ok("backend", "move", "b/default/s", "--yes", "--reason", "a better place")
    moved = json.loads((project.root / "elsewhere/s.tfstate").read_text())
    assert "encrypted_data" in moved
    assert project.clear_texts() == []
    assert project.ok("apply", "b", "--yes", "--json").statuses == {"s": "ok"}
