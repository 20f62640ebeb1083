"""
Whatever stands in a file that the tool reads: it is read, or told to be wrong, at its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engine.workdir.snapshot import pack, unpack
from orchestrator.errors import Invalid, StoreUnavailable
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.notes import stray_files, unread_files
from orchestrator.loading.summary import load_summary
from orchestrator.project import BlueprintSelection, ProjectContext, read_settings
from orchestrator.stores.project_store import project_key
from orchestrator.stores.sqlite import MemoryStore

BLUEPRINT = """\
version: 1
name: web
inputs: {a: {type: number, default: 1}, f: {from: {file: ../secret}, sensitive: true}}
environments: {default: {inputs_from: [values.yaml]}}
steps:
  one: {module: ../modules/m, inputs: {a: "${inputs.a}", f: "${inputs.f}"}}
"""
MODULE = """\
variable "a" {
  type = number
}
variable "f" {}
locals { l = [for x in ["${var.a}"] : <<-EOT
  ${x}
  EOT
] }
provider "p" { region = local.l }
output "o" { value = var.a }
"""
#: Every file that loading and packing read, with a valid content.
FILES: dict[str, str] = {
    "orchestrator.yaml": "project: shop\njobs: 2\noperations: {url: ops.db}\ntimeout: 1m\n",
    "blueprints/web.yaml": BLUEPRINT,
    "blueprints/values.yaml": "a: 2\n",
    "blueprints/other.yaml": BLUEPRINT.replace("web", "other"),
    "secret": "s\n",
    "given.json": '{"a": 3}',
    "given.tfvars": "a = 4\n",
    "modules/m/main.tf": MODULE,
    "modules/m/more.tf.json": '{"output": {"j": {"value": "${var.a}"}}, "locals": [{"x": 1}]}',
    "modules/m/more.tofu": 'language {\n  compatible_with { opentofu = ">= 1.6" }\n}\n',
    "modules/m/x_override.tf": 'variable "a" { default = 1 }\n',
    "modules/m/module.yaml": "timeout: 1m\nretry: {on: [busy]}\n",
    "modules/m/.terraformignore": "*.md\n!keep.md\n",
    "modules/m/.terraform.lock.hcl": "# lock\n",
    "modules/m/terraform.tfstate": '{"resources": [{"type": "x"}]}',
    ".orchestrator/key": "00" * 32 + "\n",
}


@dataclass(frozen=True)
class Place:
    """
    A project on disk with these files; one of them is damaged at a time.
    """

    root: Path

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def read_all(self) -> None:
        """
        Read everything that a command reads before it works.
        """
        project = ProjectContext(self.root, read_settings(self.root), {"PATH": ""})
        stray_files(project)
        load_summary(project, BlueprintSelection("web"))
        for engine in ("terraform", "tofu"):
            for given_file in ("given.json", "given.tfvars"):
                selection = BlueprintSelection(
                    "web", input_files=(Path(given_file),), engine_option=engine
                )
                deployment = load_deployment(project, selection, InputPolicy.REQUIRED)
        unread_files(project, deployment)
        pack(deployment.steps["one"].module)
        project_key(MemoryStore(), self.root, {}, create=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("files"))
    for name, text in FILES.items():
        place.write(name, text.encode())
    return place


def test_the_files_are_valid(place: Place) -> None:
    """
    What is damaged below is valid before.
    """
    place.read_all()


def _inserted(data: bytes, at: int, more: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + more + data[at:]


def _cut(data: bytes, at: int, more: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + data[at + len(more) + 1 :]


def _replaced(data: bytes, at: int, more: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + more + data[at + len(more) :]


DAMAGES: list[Callable[[bytes, int, bytes], bytes]] = [_inserted, _cut, _replaced]
TOKENS = '\0|\r|\n|\\|${|}|"|/*|<<|<<EOT\n|!!x|&a [*a]|null|1e400|\u202e|\ufeff|{{{{{{|9999999999'
PIECES = st.binary(max_size=6) | st.sampled_from([item.encode() for item in TOKENS.split("|")])


@given(st.data())
def test_no_content_of_a_file_is_a_traceback(place: Place, data: st.DataObject) -> None:
    """
    Damaged anywhere, a file gives Invalid with a message; its neighbours stay as they are.
    """
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = FILES[name].encode()
    for _ in range(data.draw(st.integers(1, 3))):
        damage = data.draw(st.sampled_from(DAMAGES))
        content = damage(content, data.draw(st.integers(0, 400)), data.draw(PIECES))
    place.write(name, content)
    try:
        place.read_all()
    except Invalid as exc:
        assert all(problem.message for problem in exc.problems)
    finally:
        place.write(name, FILES[name].encode())


@given(st.data())
def test_no_stored_snapshot_is_a_traceback(place: Place, data: st.DataObject) -> None:
    """
    A damaged archive is an unreadable store, whatever is damaged in it.
    """
    project = ProjectContext(place.root, read_settings(place.root), {"PATH": ""})
    deployment = load_deployment(project, BlueprintSelection("web"), InputPolicy.REQUIRED)
    archive = pack(deployment.steps["one"].module).archive
    damage = data.draw(st.sampled_from(DAMAGES))
    damaged = damage(archive, data.draw(st.integers(0, len(archive))), data.draw(st.binary()))
    try:
        assert json.dumps(sorted(unpack(damaged).variables)) == '["a", "f"]'
    except StoreUnavailable as exc:
        assert "snapshot" in exc.message
