"""
An engine that crashes by itself: what it says of that stands where an error stands.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.domain.events.journal import Journal
from orchestrator.engine.process.environment import child_environment
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import Apply, CallResult, CallSpec, EngineInfo
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


def crashed(place: Path, stderr: str) -> CallResult:
    (place / "said").write_text(stderr)
    program = place / "engine"
    program.write_text(f"#!/bin/sh\ncat {place}/said >&2\nexit 11\n")
    program.chmod(0o755)
    engine = TerraformEngine(
        EngineInfo("tofu", "1.12.6", (str(program),), "option", ""),
        environment=child_environment({"PATH": "/usr/bin:/bin"})[0],
    )
    spec = CallSpec(place, place / "evidence", "apply")
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
