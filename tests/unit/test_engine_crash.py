"""
An engine that crashes by itself: what it says of that stands where an error stands.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.domain.events.journal import Journal
from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.recovery.messages import hint_of
from orchestrator.domain.transitions.absence import MutationEvidence, engine_fault
from orchestrator.engine.process.environment import child_environment
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import Apply, CallResult, CallSpec, EngineInfo
from orchestrator.run_files import RunFiles
from tests.fakes.journals import state
from tests.fakes.stops import Stop

TERRAFORM = """
!!!!!!!!!!!!!!!!!!!!!!!!!!! TERRAFORM CRASH !!!!!!!!!!!!!!!!!!!!!!!!!!!!

Terraform crashed! This is always indicative of a bug within Terraform.

!!!!!!!!!!!!!!!!!!!!!!!!!!! TERRAFORM CRASH !!!!!!!!!!!!!!!!!!!!!!!!!!!!

runtime error: invalid memory address or nil pointer dereference
goroutine 72 [running]:
main.boom()
"""
BARE = "panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.boom()\n"


def recorded(name: str) -> str:
    place = Path(__file__).parent.parent / "recordings" / "opentofu" / f"{name}.json"
    return str(json.loads(place.read_text())["stderr"])


def crashed(
    place: Path, stderr: str, ending: str = "exit 11", crash_log: Path | None = None
) -> CallResult:
    (place / "said").write_text(stderr)
    program = place / "engine"
    told = "case $1 in version) echo OpenTofu v1.12.6; exit;; esac"
    program.write_text(f"#!/bin/sh\n{told}\ncat {place}/said >&2\n{ending}\n")
    program.chmod(0o755)
    engine = TerraformEngine(
        EngineInfo("tofu", "1.12.6", (str(program),), "option", ""),
        environment=child_environment({"PATH": "/usr/bin:/bin"})[0],
    )
    spec = CallSpec(
        place,
        place / "evidence",
        "apply",
        mask=lambda text: text.replace("hunter2", "***"),
        crash_log=crash_log,
    )
    return engine.call(Apply(place / "p"), spec, stop=Stop(), observe=lambda _: None)


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        (recorded("engine-panic"), "Can't use value lower than 20 for env variable"),
        (TERRAFORM, "runtime error: invalid memory address"),
        (BARE, "panic: assignment to entry in nil map"),
    ],
    ids=["opentofu", "terraform", "go"],
)
def test_the_cause_of_a_crash_is_its_error(tmp_path: Path, stderr: str, cause: str) -> None:
    """
    Not the banner, and not the stack: the first line that says why.
    """
    result = crashed(tmp_path, stderr)
    (error,) = Journal.of(result.messages, whole=result.complete).errors
    assert result.exit_code == 11
    assert error.summary.startswith(f"the engine crashed: {cause}")
    assert "goroutine" not in error.detail
    log = place_of_log(tmp_path)
    assert f"all of it: {log}" in error.detail
    assert stderr.strip().splitlines()[-1].strip() in log.read_text()


def place_of_log(place: Path) -> Path:
    return place / "evidence" / "apply.log"


@pytest.mark.parametrize("ending", ["exit 11", "kill -SEGV $$", "kill -ABRT $$"])
@pytest.mark.parametrize("stderr", ["abort: hunter2 at 0x7f\nregisters\n", ""])
def test_a_crash_in_no_known_form_is_one_all_the_same(
    tmp_path: Path, stderr: str, ending: str
) -> None:
    """
    By the way the engine ended: the first lines of what it said, masked, stand where an error does,
    and the rest is in the log.
    """
    result = crashed(tmp_path, stderr, ending)
    (error,) = Journal.of(result.messages, whole=result.complete).errors
    first = "abort: *** at 0x7f" if stderr else "it says no reason"
    assert error.summary == f"the engine crashed: {first}"
    log = place_of_log(tmp_path).read_text()
    assert "hunter2" not in log
    assert ("registers" in log) == bool(stderr)


def test_what_a_crash_says_is_kept_where_the_evidence_of_its_call_goes(tmp_path: Path) -> None:
    """
    Reading commands leave no evidence: one private file beside the runs has all of it, masked.
    """
    files = RunFiles(tmp_path / "runs")
    with files.scratch() as evidence:
        kept = files.crash_log(evidence / "s")
        result = crashed(tmp_path, "panic: hunter2\n\ngoroutine 1 [running]:\n", crash_log=kept)

    (error,) = Journal.of(result.messages, whole=result.complete).errors
    assert kept is not None
    assert f"all of it: {kept}" in error.detail
    assert kept.read_text() == "panic: ***\n\ngoroutine 1 [running]:\n"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert files.crash_log(files.attempt("R1", "s", 1)) is None, "evidence of a run stays"


@pytest.mark.parametrize("ending", ["exit 1", "kill -KILL $$"])
def test_not_every_end_is_a_crash(tmp_path: Path, ending: str) -> None:
    """
    One that somebody else kills, or that fails, has not crashed.
    """
    result = crashed(tmp_path, "Killed\n", ending)
    assert not Journal.of(result.messages, whole=result.complete).errors


@pytest.mark.parametrize(("exit_code", "code"), [(11, "engine_failed"), (None, "engine_failed")])
def test_the_advice_after_a_crash_is_about_the_engine(
    tmp_path: Path, exit_code: int | None, code: str
) -> None:
    """
    Neither what the provider said nor a kill by somebody: nobody else ended it.
    """
    said = crashed(tmp_path, BARE, "exit 11" if exit_code else "kill -ABRT $$")
    told = Journal.of(said.messages, whole=said.complete)
    fault = engine_fault("apply", MutationEvidence(exit_code, told, state()), ())
    assert fault.code == code
    assert "the engine itself crashed" in str(hint_of(fault))
    doubt = Doubt(address="s.a", action="create", why="it began")
    assert "reconcile" in str(hint_of(fault, (doubt,)))
