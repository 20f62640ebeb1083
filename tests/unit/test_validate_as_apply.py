"""
What an apply would refuse before it starts, `validate` refuses; what nobody reads is named by it.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.domain.blueprint.blueprint import Module
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.engine.workdir.workdir import DirectoryWorkDirs
from orchestrator.ports.workdir import WorkDirConfig

BLUEPRINT = "version: 1\nname: web\nsteps: {one: {module: ../modules/m}}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "blueprints").mkdir(parents=True)
    (root / "modules/m").mkdir(parents=True)
    (root / "blueprints/web.yaml").write_text(BLUEPRINT)
    (root / "modules/m/main.tf").write_text('resource "terraform_data" "a" { input = 1 }\n')
    return root


@dataclass(frozen=True)
class Ended:
    exit_code: int
    output: str


def validate(place: Path, *options: str) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["-C", str(place), "validate", *options])
    return Ended(code, out.getvalue() + err.getvalue())


def test_the_project_is_valid(place: Path) -> None:
    """
    The one that is damaged below.
    """
    assert validate(place).exit_code == 0


def test_a_module_is_checked_as_the_engine_asked_for_reads_it(place: Path) -> None:
    """
    With the option that `apply` takes; what Terraform does not read is named for it.
    """
    (place / "modules/m/main.tf").rename(place / "modules/m/main.tofu")
    refused = validate(place, "--engine", "terraform")
    assert (refused.exit_code, "which Terraform does not read" in refused.output) == (3, True)
    assert validate(place, "--engine", "tofu").exit_code == 0


@pytest.mark.parametrize("file", ["blueprints/web.yaml", "orchestrator.yaml"])
@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("sqlite:", "not a SQLite path"),
        ("sqlite://host/ops.db", "not a SQLite path"),
        ("s3://", "names no bucket"),
        ("gs:///prefix", "names no bucket"),
        ("https://x", "unknown kind 'https'"),
        ("postgres://", "names no database"),
        ("postgres://u:hunter2@db:port/ops", "its host or port is none"),
    ],
)
def test_an_address_of_no_store_is_refused_where_it_stands(
    place: Path, file: str, url: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Every other command would end with it; no password in it is shown.
    """
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    with (place / file).open("a") as text:
        text.write(f'operations: {{url: "{url}"}}\n')
    line = (place / file).read_text().count("\n")

    ended = validate(place)

    assert ended.exit_code == 3, ended.output
    said = " ".join(ended.output.split())
    assert f"operations.url: {wrong} at {file}:{line}:19" in said
    assert "hunter2" not in said


def test_links_out_of_a_module_are_refused(place: Path) -> None:
    """
    With the way out: the package that takes along what the link leads to.
    """
    (place / "shared.txt").write_text("x")
    (place / "modules/m/link.txt").symlink_to(place / "shared.txt")
    ended = validate(place)
    assert ended.exit_code == 3
    assert "a symlink out of the module" in ended.output
    assert "//" in ended.output


def test_links_in_a_circle_are_refused(place: Path) -> None:
    """
    A directory that holds itself has no end.
    """
    (place / "modules/m/loop").symlink_to(".")
    ended = validate(place)
    assert ended.exit_code == 3
    assert "a symlink leads back" in ended.output


def test_a_cloud_block_is_refused(place: Path) -> None:
    """
    It decides by itself where the state is.
    """
    text = 'terraform {\n  cloud {\n    organization = "acme"\n  }\n}\n'
    (place / "modules/m/cloud.tf").write_text(text)
    ended = validate(place)
    assert ended.exit_code == 3
    assert "cloud block" in ended.output


def test_a_backend_without_an_address_is_refused(place: Path) -> None:
    """
    What its environment variables say is in no record: an apply could not name the state.
    """
    text = BLUEPRINT.replace("steps:", "backend: {type: http, config: {}}\nsteps:")
    (place / "blueprints/web.yaml").write_text(text)
    ended = validate(place)
    assert ended.exit_code == 3
    assert 'backend "http" needs `address`' in ended.output


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\x02",
        b"a\x00b: 1\n",
        BLUEPRINT.encode("utf-16"),
        b"version: 1\nname: x\n",
        b"version: 1\nsteps: {}\n",
        b"- 1\n",
        b"{version: 1, steps: {}}",
    ],
)
def test_a_damaged_blueprint_is_not_passed_over(place: Path, content: bytes) -> None:
    """
    Emptied, binary, in another encoding, without name or steps: each is an error that names the
    file, never "nothing to check".
    """
    (place / "blueprints/web.yaml").write_bytes(content)
    ended = validate(place)
    assert ended.exit_code == 3, ended.output
    assert "blueprints/web.yaml" in ended.output


def test_a_file_of_input_values_is_no_blueprint(place: Path) -> None:
    """
    It may lie beside them, and hold an input called name.
    """
    (place / "blueprints/staging.yaml").write_text("name: acme\nsize: 3\n")
    assert validate(place).exit_code == 0


@pytest.mark.parametrize("name", ["terraform.tfvars", "x.auto.tfvars", "x.auto.tfvars.json"])
def test_values_beside_a_module_are_named(place: Path, name: str) -> None:
    """
    An engine would read them by itself; here they are not, and that is said.
    """
    (place / "modules/m" / name).write_text("")
    ended = validate(place)
    assert ended.exit_code == 0
    assert f"modules/m/{name} is not read" in ended.output
    assert "--input-file" in ended.output


@pytest.mark.parametrize("name", ["terraform.tfstate", "terraform.tfstate.d/w/terraform.tfstate"])
@pytest.mark.parametrize("resources", [[{"type": "x"}], []])
def test_a_provider_state_beside_a_module_is_named(
    place: Path, name: str, resources: list[Json]
) -> None:
    """
    Of earlier plain use: an apply would make its objects again. One without objects is nothing.
    """
    path = place / "modules/m" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 4, "resources": resources}))
    ended = validate(place)
    assert ended.exit_code == 0
    assert (f"modules/m/{name} is a provider state of earlier use" in ended.output) == bool(
        resources
    )
    assert ("orchestrator adopt" in ended.output) == bool(resources)


def test_a_provider_state_beside_a_called_module_is_named(place: Path) -> None:
    """
    Somebody applied that one by itself: the step makes its objects again, at other addresses.
    """
    (place / "modules/m/part").mkdir()
    (place / "modules/m/part/main.tf").write_text("")
    (place / "modules/m/part/terraform.tfvars").write_text("")
    with (place / "modules/m/main.tf").open("a") as main:
        main.write('\nmodule "part" { source = "./part" }\n')
    for directory in ("m", "m/part", "m/not_called"):
        path = place / "modules" / directory / "terraform.tfstate"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"version": 4, "resources": [{"type": "x"}]}))

    said = " ".join(validate(place).output.split())

    assert said.count("is a provider state of earlier use") == 2
    assert "modules/m/part/terraform.tfstate is a provider state" in said
    assert "terraform.tfvars is not read" not in said, "an engine does not read it either"
    assert said.count("orchestrator adopt") == 1 and "orchestrator import" in said


def test_a_lock_file_that_the_module_took_away_does_not_live_on(place: Path) -> None:
    """
    It was the module's, and so is its end; what an init has written since stays.
    """
    directory, lock = place / "modules/m", place / "modules/m/.terraform.lock.hcl"
    dirs = DirectoryWorkDirs(place / "work", place)
    setup = WorkDirConfig("local", {"path": "s.tfstate"})

    def laid_out() -> Path:
        module = Module(directory=str(directory), variables={}, outputs={})
        snapshot = dirs.snapshot(module)
        work_dir = dirs.prepare(Target("w", "d", "s"), snapshot, setup, "terraform 1")
        return work_dir.directory / ".terraform.lock.hcl"

    lock.write_text("bad")
    assert laid_out().read_text() == "bad"
    lock.unlink()
    assert not laid_out().exists()

    lock.write_text("bad")
    laid_out().write_text("of init")
    lock.unlink()
    assert laid_out().read_text() == "of init"
