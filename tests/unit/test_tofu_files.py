"""
The files and the version constraints that an engine heeds, by its kind: as OpenTofu 1.12.6 did when
it was recorded, and as Terraform does.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.blueprint.blueprint import (
    Deployment,
    EngineKind,
    EngineRequirement,
    Module,
    Step,
)
from orchestrator.engine.choose import check_accepted
from orchestrator.errors import Invalid
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.modules import read_module
from orchestrator.ports.engine import EngineInfo
from orchestrator.project import BlueprintSelection, ProjectContext, Settings
from tests.fakes.project import ProjectOnDisk


def calls(case: str) -> list[dict[str, Any]]:
    place = Path(__file__).parents[1] / "recordings/opentofu" / f"{case}.json"
    found: list[dict[str, Any]] = json.loads(place.read_text())["calls"]
    return found


RECORDED: dict[str, str] = calls("tofu-files")[0]["files"]
VERSION = 'terraform {\n  required_version = ">= 99"\n}\n'
FITS = VERSION.replace("99", "1")
AS_JSON = {"language": {"compatible_with": {"opentofu": ">= 99"}}}
LANGUAGE = 'language {\n  compatible_with {\n    opentofu = ">= 99"\n  }\n}\n'


def write(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def read(directory: Path, engine: EngineKind) -> Module:
    return read_module(directory, shown="m", engine=engine)


def places(module: Module) -> dict[str, str]:
    return {name: item.at.file for name, item in module.outputs.items() if item.at}


def test_each_engine_has_its_files(tmp_path: Path) -> None:
    """
    For OpenTofu x.tofu stands in for x.tf, x.tofu.json for x.tf.json, and further .tofu files are
    read as well; for Terraform there are none of them.
    """
    write(tmp_path, RECORDED)
    tofu, terraform = read(tmp_path, "tofu"), read(tmp_path, "terraform")
    said = json.loads(calls("tofu-files")[-1]["stdout"])  # each output is named for its file
    assert places(tofu) == {name: f"m/{output['value']}" for name, output in said.items()}
    assert places(terraform) == {"from": "m/main.tf", "j": "m/j.tf.json"}
    assert (list(tofu.variables), list(terraform.variables)) == (["only_tofu"], ["only_terraform"])
    assert (tofu.read_for, terraform.read_for) == ("tofu", "terraform")


def test_an_override_file_of_opentofu_is_one(tmp_path: Path) -> None:
    """
    Its arguments replace those of the block that it overrides, and its providers count.
    """
    providers = 'terraform {\n  required_providers {\n    a = { source = "acme/a" }\n  }\n}\n'
    files = {
        "main.tf": 'variable "a" {}\n',
        "x_override.tofu": 'variable "a" { default = 1 }\n' + providers,
    }
    write(tmp_path, files)
    tofu, terraform = read(tmp_path, "tofu"), read(tmp_path, "terraform")
    assert (tofu.variables["a"].required, terraform.variables["a"].required) == (False, True)
    assert (tofu.provider_sources, terraform.provider_sources) == ({"a": "acme/a"}, {})


def test_a_local_module_is_read_alike(tmp_path: Path) -> None:
    """
    What a call leads to is read for the same engine.
    """
    write(tmp_path / "m", {"main.tf": 'module "c" { source = "../c" }\n'})
    write(tmp_path / "c", {"main.tofu": 'provider "x" {}\n'})
    assert "module.x" in read(tmp_path / "m", "tofu").provider_reach
    with pytest.raises(Invalid, match=r"only \.tofu files") as caught:
        read(tmp_path / "m", "terraform")
    assert "kind: tofu" in caught.value.problems[0].hint


def test_a_module_without_such_files_is_read_for_any_engine(tmp_path: Path) -> None:
    """
    Then nothing depends on the kind.
    """
    write(tmp_path, {"main.tf": 'output "a" { value = 1 }\n'})
    assert read(tmp_path, "tofu") == read(tmp_path, "terraform")


@pytest.mark.parametrize(
    ("files", "kind", "version", "fits"),
    [
        ({"main.tf": VERSION}, "tofu", "1.12.6", True),
        ({"main.tf": VERSION}, "tofu", "1.11.0", False),
        ({"main.tf": VERSION}, "terraform", "1.12.6", False),
        ({"main.tf": LANGUAGE}, "tofu", "1.12.6", False),
        ({"main.tf": "", "versions.tofu": VERSION}, "tofu", "1.12.6", False),
        ({"main.tf": "", "versions.tofu": VERSION}, "terraform", "1.12.6", True),
        ({"main.tofu": VERSION, "main.tf": ""}, "tofu", "1.12.6", False),
        ({"main.tf.json": json.dumps(AS_JSON)}, "tofu", "1.12.6", False),
        ({"main.tf": LANGUAGE}, "terraform", "1.12.6", True),
        ({"main.tf": LANGUAGE, "x_override.tf": FITS}, "tofu", "1.12.6", False),
        ({"main.tf": LANGUAGE, "x_override.tofu": FITS}, "tofu", "1.12.6", False),
        ({"main.tofu": VERSION, "x_override.tf": FITS}, "tofu", "1.12.6", False),
        ({"main.tofu": VERSION, "x_override.tofu": FITS}, "tofu", "1.12.6", True),
        ({"main.tf": VERSION, "x_override.tf": FITS}, "terraform", "1.12.6", True),
    ],
)
def test_the_constraints_that_count_are_those_that_the_engine_heeds(
    tmp_path: Path, files: dict[str, str], kind: EngineKind, version: str, *, fits: bool
) -> None:
    """
    `required_version` in a .tf file is nothing to OpenTofu from 1.12 on; in a .tofu file, and as
    `language.compatible_with`, it is. All of that is known before an engine is started.
    """
    project = ProjectOnDisk(tmp_path)
    write(tmp_path / "modules/m", files)
    project.blueprint("steps: {s: {module: ../modules/m}}")
    deployment = loaded(tmp_path, kind)
    try:
        check_accepted(lambda _: engine(kind, version), deployment)
    except Invalid as exc:
        assert ">= 99" in str(exc)
        assert not fits
    else:
        assert fits


@pytest.mark.parametrize(
    "call", calls("required-version"), ids=lambda call: " ".join(call["files"])
)
def test_a_module_is_accepted_where_opentofu_was_recorded_to_accept_it(
    tmp_path: Path, call: dict[str, Any]
) -> None:
    """
    Held against what its init said of the same files.
    """
    project = ProjectOnDisk(tmp_path)
    write(tmp_path / "modules/m", call["files"])
    project.blueprint("steps: {s: {module: ../modules/m}}")
    refused = pytest.raises(Invalid, match=">= 99") if call["exit"] else nullcontext()
    with refused:
        check_accepted(lambda _: engine("tofu", "1.12.6"), loaded(tmp_path, "tofu"))


def engine(kind: EngineKind, version: str) -> EngineInfo:
    return EngineInfo(kind, version, ("x",), "option", "asked for")


def loaded(root: Path, option: str | None) -> Deployment:
    return load_deployment(
        ProjectContext(root, Settings(project_dir=root), {}),
        BlueprintSelection("web", engine_option=option),
    )


def test_a_module_that_was_read_for_another_engine_is_refused(tmp_path: Path) -> None:
    """
    Where the engine that is chosen in the end reads other files, nothing is run with what was
    checked for the first.
    """
    project = ProjectOnDisk(tmp_path)
    write(tmp_path / "modules/m", RECORDED)
    project.blueprint("steps: {s: {module: ../modules/m, inputs: {only_terraform: 1}}}")
    deployment = loaded(tmp_path, "terraform")
    with pytest.raises(Invalid, match=r"has \.tofu files"):
        check_accepted(lambda _: engine("tofu", "1.12.6"), deployment)
    with pytest.raises(Invalid, match="no variable 'only_terraform'"):
        loaded(tmp_path, "/opt/bin/tofu")


def test_the_engine_of_the_blueprint_decides(tmp_path: Path) -> None:
    """
    Without an option the blueprint's `engine.kind` tells which files count.
    """
    project = ProjectOnDisk(tmp_path)
    write(tmp_path / "modules/m", RECORDED)
    steps = "steps: {s: {module: ../modules/m, inputs: {only_tofu: 1}}}"
    project.blueprint("engine: {kind: tofu}\n" + steps)
    assert loaded(tmp_path, None).engine == EngineRequirement("tofu")
    step: Step = loaded(tmp_path, None).steps["s"]
    assert step.module.read_for == "tofu"
