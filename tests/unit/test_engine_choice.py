"""
Which engine is used, with which arguments, in which environment, and whether it fits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.steps.preparation import check_engine
from orchestrator.domain.blueprint.blueprint import Constraint, EngineRequirement
from orchestrator.domain.record.record import EngineRef
from orchestrator.domain.values import replace
from orchestrator.engine.arguments import argument_vector
from orchestrator.engine.choose import BadConstraint, EngineFinder, satisfies, version_problem
from orchestrator.engine.process.environment import child_environment
from orchestrator.errors import EngineFailed, Location, Refused
from orchestrator.ports.engine import (
    Apply,
    EngineInfo,
    Exec,
    Import,
    Init,
    Plan,
    PlanAndAsk,
    Pull,
    Push,
    Request,
    Unlock,
    Untaint,
)
from tests.fakes.entries import entry

INFO = EngineInfo("terraform", "1.11.4", ("/bin/terraform",), "path", "found on PATH")


class Installed:
    """
    A machine with these programs on PATH; each is a script that says its version.
    """

    def __init__(self, directory: Path, **said: str) -> None:
        self.cache = directory / "cache"
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name, text in said.items():
            self.program(name, f'echo "{text}"')

    def program(self, name: str, script: str) -> Path:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\necho ran >> {self._bin}/runs\n{script}\n")
        path.chmod(0o755)
        return path

    @property
    def runs(self) -> int:
        return len((self._bin / "runs").read_text().splitlines())

    def choose(
        self, option: str | None = None, *, wish: Any = None, recorded: str | None = None
    ) -> EngineInfo:
        environ = {**os.environ, "PATH": str(self._bin)}
        finder = EngineFinder(environ, self.cache, library=lambda: None)
        last = (
            EngineRef.model_validate({"kind": recorded, "version": "1.0.0"}) if recorded else None
        )
        return finder.choose(option, EngineRequirement(wish), last)


BOTH: Mapping[str, str] = {"terraform": "Terraform v1.11.4", "tofu": "OpenTofu v1.8.0"}


@pytest.mark.parametrize(
    ("arguments", "kind", "source"),
    [
        ({}, "terraform", "path"),
        ({"recorded": "tofu"}, "tofu", "record"),
        ({"recorded": "tofu", "wish": "terraform"}, "terraform", "blueprint"),
        ({"option": "tofu", "wish": "terraform"}, "tofu", "option"),
    ],
)
def test_the_option_beats_blueprint_beats_record_beats_path(
    tmp_path: Path, arguments: dict[str, str], kind: str, source: str
) -> None:
    """
    Whoever is nearer to the person decides, and the answer says who it was.
    """
    info = Installed(tmp_path, **BOTH).choose(**arguments)

    assert (info.kind, info.source) == (kind, source)


def test_a_program_says_its_kind_and_version_itself(tmp_path: Path) -> None:
    """
    A path may have any name: what it says counts.
    """
    machine = Installed(tmp_path)
    path = machine.program("terraform-next", "echo 'OpenTofu v1.10.0-beta1'; echo on linux_amd64")

    info = machine.choose(str(path))

    assert (info.kind, info.version, info.program) == ("tofu", "1.10.0-beta1", (str(path),))


def test_warnings_before_the_version_are_passed_over(tmp_path: Path) -> None:
    """
    OpenTofu warns on stdout of a CLI configuration file that is missing, before its version.
    """
    place = Path(__file__).parent.parent / "recordings" / "opentofu" / "version-config-missing.json"
    said = tmp_path / "said"
    said.write_text(json.loads(place.read_text())["stdout"])
    machine = Installed(tmp_path)
    machine.program("tofu", f"/bin/cat {said}")

    info = machine.choose()

    assert (info.kind, info.version) == ("tofu", "1.12.6")


def test_a_shim_is_asked_every_time(tmp_path: Path) -> None:
    """
    A version manager's shim stays the same file while the version behind it changes.
    """
    machine = Installed(tmp_path, terraform="Terraform v1.11.4")
    machine.choose()

    machine.choose()

    assert machine.runs == 2


def test_the_version_of_a_binary_is_remembered(tmp_path: Path) -> None:
    """
    A binary is asked once; another build of it is asked again.
    """
    machine = Installed(tmp_path)
    binary = tmp_path / "terraform"
    binary.write_bytes(Path("/bin/echo").read_bytes())
    binary.chmod(0o755)
    machine.cache.mkdir()
    stat = binary.stat()
    remembered = f'{{"{binary}:{stat.st_mtime_ns}:{stat.st_size}": ["Terraform", "1.2.3"]}}'
    (machine.cache / "engines.json").write_text(remembered)

    known = machine.choose(str(binary))
    os.utime(binary, ns=(1, 1))

    assert known.version == "1.2.3"
    with pytest.raises(EngineFailed):
        machine.choose(str(binary))


def test_without_any_engine_the_extra_is_named(tmp_path: Path) -> None:
    """
    Where nothing is found the error says how to get one.
    """
    with pytest.raises(EngineFailed) as caught:
        Installed(tmp_path).choose()

    assert "orchestrator[embedded]" in caught.value.hint
    assert caught.value.phase == "engine"


@pytest.mark.parametrize("arguments", [{"wish": "tofu"}, {"recorded": "tofu"}, {"option": "tofu"}])
def test_another_kind_is_never_taken_instead(tmp_path: Path, arguments: dict[str, str]) -> None:
    """
    Where tofu is asked for, or wrote the state, terraform is not used in its place.
    """
    machine = Installed(tmp_path, terraform="Terraform v1.11.4")

    with pytest.raises(EngineFailed, match="tofu") as caught:
        machine.choose(**arguments)
    assert "terraform" not in caught.value.hint, "what does not help is not advised"


@pytest.mark.parametrize("script", ["echo 'GNU coreutils 9'", "exit 3", "echo 'Terraformer v1'"])
def test_a_program_that_is_no_engine_is_refused(tmp_path: Path, script: str) -> None:
    """
    A path to something else is an error that shows what it said.
    """
    machine = Installed(tmp_path)
    path = machine.program("other", script)

    with pytest.raises(EngineFailed, match="neither terraform nor tofu"):
        machine.choose(str(path))


def test_a_path_to_nothing_is_refused(tmp_path: Path) -> None:
    """
    A path that cannot be run is an error, not a traceback.
    """
    with pytest.raises(EngineFailed, match="No such file"):
        Installed(tmp_path).choose("./missing/terraform")


@pytest.mark.parametrize(
    ("version", "constraint", "fits"),
    [
        ("1.11.4", "1.11.4", True),
        ("1.11.4", "= 1.11", False),
        ("1.11.0", "= 1.11", True),
        ("1.11.4", "!= 1.11.4", False),
        ("1.11.4", ">= 1.6, < 2.0", True),
        ("2.0.0", ">= 1.6, < 2.0", False),
        ("1.11.4", "> 1.11.4", False),
        ("1.11.4", "<= 1.11.4", True),
        ("1.11.4", "~> 1.11.0", True),
        ("1.12.0", "~> 1.11.0", False),
        ("1.12.0", "~> 1.11", True),
        ("2.0.0", "~> 1.11", False),
        ("2.0.0", "~> 1", True),
        ("1.10.9", "~> 1.11", False),
        ("1.12.0-beta1", ">= 1.12", True),
        ("1.12.0-dev", "~> 1.12", True),
        ("1.9.0", ">= 1.10", False),
    ],
)
def test_constraints_mean_what_terraform_means(version: str, constraint: str, fits: bool) -> None:
    """
    Operators, comma lists and ``~>`` as in Terraform; a pre-release counts as its release.
    """
    assert satisfies(version, constraint) is fits


@pytest.mark.parametrize("constraint", ["", "latest", ">> 1", "1.x", ">= 1.2.0-beta1", "1.0,"])
def test_what_is_no_constraint_is_refused(constraint: str) -> None:
    """
    What Terraform refuses in ``required_version`` is refused here, early.
    """
    with pytest.raises(BadConstraint):
        satisfies("1.11.4", constraint)


def test_a_mismatch_names_engine_module_and_place() -> None:
    """
    The problem says who requires what, what the engine is, and where that stands
    [opentofu 2301].
    """
    at = Location("modules/net/versions.tf", 2, 3)

    problems = [
        version_problem(INFO, "module modules/net", Constraint(">= 99", at)),
        version_problem(INFO, "blueprint", Constraint("latest")),
        version_problem(INFO, "module modules/ok", Constraint(">= 1")),
    ]

    assert [problem and str(problem) for problem in problems] == [
        "modules/net/versions.tf:2:3: module modules/net requires terraform >= 99; "
        "the engine is terraform 1.11.4 (found on PATH)",
        "blueprint: version constraint 'latest': 'latest' is no version",
        None,
    ]


def test_what_changes_where_or_what_is_refused() -> None:
    """
    TF_WORKSPACE and TF_CLI_ARGS* stop the command, all of them named at once.
    """
    with pytest.raises(Refused, match="TF_CLI_ARGS_plan, TF_WORKSPACE") as caught:
        child_environment({"TF_WORKSPACE": "x", "TF_CLI_ARGS_plan": "-target=a", "HOME": "/"})

    assert caught.value.reason == "environment"


def test_what_settings_allow_passes() -> None:
    """
    A variable that settings name passes; others of its kind do not.
    """
    environ = {"TF_WORKSPACE": "x"}

    assert child_environment(environ, allow={"TF_WORKSPACE"})[0]["TF_WORKSPACE"] == "x"


def test_providers_that_do_not_come_from_where_the_lock_file_says_are_told(tmp_path: Path) -> None:
    """
    Running ones, and those of a CLI configuration; what is a comment there, or nothing that can be
    read, says nothing.
    """
    file = tmp_path / "dev.tfrc"
    environ = {"TF_CLI_CONFIG_FILE": str(file), "TF_REATTACH_PROVIDERS": "{}"}
    os.mkfifo(file)
    plain = child_environment(environ)[1]
    file.unlink()
    file.write_text("# dev_overrides {}\n")
    commented = child_environment(environ)[1]
    file.write_text('provider_installation {\n  dev_overrides { "a/b" = "/c" }\n}\n')
    notes = child_environment(environ)[1]

    assert [note.split()[0] for note in plain] == ["TF_REATTACH_PROVIDERS"]
    assert commented == plain
    assert notes[:-1] == plain
    assert notes[-1].startswith(f"dev_overrides in {file}: ")
    assert "have any version of it in a mirror" in notes[-1]


@pytest.mark.parametrize(("own", "expected"), [({}, "300"), ({"GOGC": "off"}, "off")])
def test_engines_collect_garbage_seldom_unless_the_user_says(
    own: dict[str, str], expected: str
) -> None:
    assert child_environment(own, gogc=300)[0]["GOGC"] == expected


def test_the_child_environment_is_quiet_and_clean() -> None:
    """
    Data directory, variables and inputs stay out and are named; credentials and logs pass.
    """
    environ = {
        "TF_DATA_DIR": "/shared",
        "TF_VAR_size": "9",
        "ORCHESTRATOR_INPUT_password": "hunter22",
        "TF_LOG": "debug",
        "TF_TOKEN_example": "t",
        "TF_CLI_ARGS": "",
        "TF_CLI_CONFIG_FILE": "/missing/terraform.rc",
        "AWS_PROFILE": "p",
        "TF_INPUT": "1",
    }

    kept, notes = child_environment(environ)

    assert set(environ) - set(kept) == {"TF_DATA_DIR", "TF_VAR_size", "ORCHESTRATOR_INPUT_password"}
    assert (kept["TF_IN_AUTOMATION"], kept["TF_INPUT"], kept["CHECKPOINT_DISABLE"]) == (
        "1",
        "0",
        "1",
    )
    assert notes == [
        "not passed on to the engine: TF_DATA_DIR, TF_VAR_size",
        "TF_CLI_CONFIG_FILE names a file that does not exist: /missing/terraform.rc",
    ]


@pytest.mark.parametrize(
    ("request_", "arguments"),
    [
        (Init(), "init -no-color -input=false -reconfigure"),
        (
            Init(upgrade=True),
            "init -no-color -input=false -reconfigure -upgrade",
        ),
        (Plan(Path("p")), "plan -no-color -json -input=false -out=p"),
        (
            Plan(
                Path("p"),
                mode="destroy",
                var_file=Path("v"),
                refresh=False,
                replace=("a.b[0]",),
                targets=("c.d", "e.f"),
                parallelism=3,
                lock_timeout="5s",
            ),
            "plan -no-color -json -input=false -out=p -destroy -refresh=false -replace=a.b[0] "
            "-target=c.d -target=e.f -parallelism=3 -lock-timeout=5s -var-file=v",
        ),
        (
            Plan(Path("p"), mode="refresh-only"),
            "plan -no-color -json -input=false -out=p -refresh-only",
        ),
        (
            Apply(Path("p"), parallelism=2, lock_timeout="1s"),
            "apply -no-color -json -input=false -parallelism=2 -lock-timeout=1s p",
        ),
        (
            PlanAndAsk(Path("v"), parallelism=2, lock_timeout="1s"),
            "apply -no-color -parallelism=2 -lock-timeout=1s -var-file=v",
        ),
        (Pull(), "state pull -no-color"),
        (
            Import("a.b[0]", "id-1", var_file=Path("v"), lock_timeout="1s"),
            "import -no-color -input=false -lock-timeout=1s -var-file=v a.b[0] id-1",
        ),
        (Untaint("a.b"), "untaint -no-color a.b"),
        (Push(Path("s")), "state push -no-color s"),
        (Push(Path("s"), force=True), "state push -no-color -force s"),
        (Unlock("lock-1"), "force-unlock -no-color -force lock-1"),
        (Exec(("state", "list")), "state list"),
    ],
)
def test_a_request_is_its_arguments(request_: Request, arguments: str) -> None:
    """
    Every verb never asks, prints no colour, and takes its values from files.
    """
    assert argument_vector(INFO, request_) == ["/bin/terraform", *arguments.split()]


def test_opentofu_is_told_that_forgetting_is_meant() -> None:
    """
    From the version on that knows the option; before that its error is recognised.
    """
    option = {
        version: "-suppress-forget-errors"
        in argument_vector(replace(INFO, kind="tofu", version=version), Apply(Path("p")))
        for version in ("1.11.7", "1.12.0-rc1", "1.12.6", "2.0.0")
    }

    assert option == {"1.11.7": False, "1.12.0-rc1": True, "1.12.6": True, "2.0.0": True}


@pytest.mark.parametrize(
    ("kind", "version", "fields", "allow_change", "warns"),
    [
        ("terraform", "1.11.4", {}, False, False),
        ("terraform", "99.0.0", {}, False, True),
        ("tofu", "1.9.0", {}, True, False),
        ("tofu", "1.9.0", {"status": "destroyed"}, False, False),
        ("tofu", "1.9.0", {}, False, None),
    ],
)
def test_a_target_is_left_to_the_kind_of_engine_that_wrote_it(
    kind: str, version: str, fields: dict[str, Any], allow_change: bool, warns: bool | None
) -> None:
    """
    Unless the change is accepted, or nothing of it is left; an older version is only warned of.
    """
    writer = EngineRef.model_validate({"kind": kind, "version": version})
    record = entry(engine=writer, **fields)

    if warns is None:
        with pytest.raises(Refused, match=r"last written by tofu 1\.9\.0"):
            check_engine(INFO, record, allow_change=allow_change)
    else:
        assert (check_engine(INFO, record, allow_change=allow_change) is not None) is warns
