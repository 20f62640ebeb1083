"""
What forbids to do a run again, as a table: each case carries the reason it must give.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from orchestrator.domain.record.record import Attempt, Fault, OperationRecord, Verification
from orchestrator.domain.record.run_record import RunRecord, StepRun
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.recovery.rerun_rules import (
    deployment_blob,
    failed_run,
    promotion_blocker,
    retry_blocker,
    rollback_blocker,
    run_blocker,
    run_to_repeat,
    snapshot_blob,
)
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.errors import Refused
from tests.fakes.clock import START
from tests.fakes.entries import entry, run_record

BEFORE = "20300102T030400000Z-000001"
RUN = "20300102T030500000Z-000002"
AFTER = "20300102T030600000Z-000003"
STORED = {snapshot_blob("sha256:a"), deployment_blob("sha256:d")}


def row(step: str, status: str, verdict: str | None = None, **fields: Json) -> StepRun:
    checks = Verification.model_validate({"verdict": verdict, "at": START}) if verdict else None
    return StepRun(
        step=step,
        target=f"web/prod/{step}",
        status=StepStatus(status),
        verification=checks,
        **{"module_digest": "sha256:a", **fields},
    )


def run(*rows: StepRun, **fields: Json) -> RunRecord:
    return run_record(fields.pop("run_id", RUN), *rows, **fields)


def record(
    status: str, run_id: str = RUN, *, step: str = "server", **fields: Json
) -> OperationRecord:
    return entry(Target("web", "prod", step), status=status, run_id=run_id, **fields)


def reason(found: Refused | str | None) -> str:
    """
    The reason code; "left alone" or "possible" where nothing forbids it.
    """
    match found:
        case Refused():
            return found.reason
        case str():
            return "left alone"
        case None:
            return "possible"


# Which run


LOCKED = Fault(code="state_locked", phase="lock", summary="locked")


def attempt(run_id: str, **fields: Json) -> Attempt:
    """
    An apply that met a lock.
    """
    filled: dict[str, Json] = {"command": "apply", "run_id": run_id, "at": START, "error": LOCKED}
    return Attempt.model_validate(filled | fields)


RECORDS = [
    ([record("error")], RUN),
    ([record("running")], RUN),
    ([record("ok", BEFORE, last_attempt=attempt(RUN))], RUN),
    ([record("absent", last_attempt=attempt(RUN))], RUN),
    ([record("ok", BEFORE, last_attempt=attempt(RUN, error=None))], "unknown_run"),
    ([record("ok", BEFORE, last_attempt=attempt(RUN, command="import"))], "unknown_run"),
    ([record("error"), record("ok", BEFORE, step="network")], RUN),
    ([record("error"), record("error", step="network")], RUN),
    ([record("error"), record("error", BEFORE, step="network")], "several_runs"),
    ([record("ok")], "unknown_run"),
    ([record("destroyed")], "unknown_run"),
    ([], "unknown_run"),
]


@pytest.mark.parametrize(("records", "expected"), RECORDS)
def test_only_a_run_that_the_records_name_is_repeated(
    records: list[OperationRecord], expected: str
) -> None:
    """
    Law: no guessing.
    Where the records of failed steps name one run it is that one; else it must be named.
    """
    found = run_to_repeat(records)
    assert (found.reason if isinstance(found, Refused) else found) == expected


def test_several_runs_are_all_named() -> None:
    """
    The reader can choose: each failed step with its run.
    """
    found = run_to_repeat([record("error"), record("error", BEFORE, step="network")])
    assert isinstance(found, Refused)
    assert f"server in {RUN}" in found.message
    assert f"network in {BEFORE}" in found.message


def test_an_attempt_that_changed_nothing_does_not_hide_the_error_that_stands() -> None:
    """
    The record of an error names the run that made it, even where a later one was stopped by a lock.
    """
    assert failed_run(record("error", BEFORE, last_attempt=attempt(RUN))) == BEFORE


@dataclass(frozen=True)
class Named:
    """
    A run that somebody named, and what is said of it.
    """

    reason: str
    found: RunRecord | None
    environment: str | None = "prod"
    stored: frozenset[str] = frozenset(STORED)


NAMED = [
    Named("unknown_run", None),
    Named("foreign_record", run(project="others")),
    Named("other_blueprint", run(blueprint="db")),
    Named("other_blueprint", run(environment="staging")),
    Named("possible", run(environment="staging"), environment=None),
    Named("other_blueprint", run(blueprint="db"), environment=None),
    Named("other_command", run(command="destroy")),
    Named("other_command", run(command="reconcile")),
    Named("snapshot_missing", run(deployment=None)),
    Named("snapshot_missing", run(), stored=frozenset()),
    *(Named("possible", run(command=verb)) for verb in ("apply", "retry", "redeploy", "rollback")),
]


@pytest.mark.parametrize("case", NAMED)
def test_a_run_that_cannot_be_done_again_is_told_why(case: Named) -> None:
    """
    Only an applying run of the same blueprint and environment whose deployment is kept will do.
    """
    found = run_blocker(
        RUN,
        case.found,
        case.stored,
        project="acme",
        blueprint="web",
        environment=case.environment,
    )
    assert reason(found) == case.reason


# Retry


@dataclass(frozen=True)
class Retried:
    expected: str
    row: StepRun
    record: OperationRecord | None
    stored: frozenset[str] = frozenset(STORED)


RETRIED = [
    Retried("possible", row("server", "error"), record("error")),
    Retried("possible", row("server", "error"), record("running")),
    Retried("possible", row("server", "pending"), None),
    # Ok from an earlier run is not what the failed run meant to make of it.
    Retried("possible", row("server", "pending"), record("ok", BEFORE)),
    Retried("possible", row("server", "error"), record("error", BEFORE)),
    Retried("possible", row("server", "error"), record("absent")),
    Retried("possible", row("server", "ok"), record("error")),  # a check failed since
    Retried("left alone", row("server", "ok"), record("ok")),
    Retried("left alone", row("server", "ok"), record("retained")),
    Retried("left alone", row("server", "skipped"), record("ok", BEFORE)),
    # The run was killed before it could write down that the step was done.
    Retried("left alone", row("server", "pending"), record("ok")),
    Retried("left alone", row("server", "error"), record("ok", AFTER)),
    Retried("superseded", row("server", "error"), record("error", AFTER)),
    # A `backend move` since: the run names the place where its provider state was.
    Retried("moved", row("server", "error"), record("error", deployment="sha256:moved")),
    Retried("possible", row("server", "error"), record("error", deployment="sha256:d")),
    Retried("superseded", row("server", "ok"), record("destroyed", AFTER)),
    Retried("snapshot_missing", row("server", "pending", module_digest=None), None),
    Retried("snapshot_missing", row("server", "error"), record("error"), stored=frozenset()),
    Retried("not_in_run", row("network", "ok"), None),
]


@pytest.mark.parametrize("case", RETRIED)
def test_a_retry_does_what_the_failed_run_left_undone(case: Retried) -> None:
    """
    Steps still ok are left alone, whoever brought them there after the failure; nothing
    that another run has done since is overwritten.
    """
    found = retry_blocker(run(case.row), "server", case.record, case.stored)
    assert reason(found) == case.expected


# Rollback and promotion


@dataclass(frozen=True)
class Wanted:
    rollback: str
    promotion: str
    row: StepRun
    stored: frozenset[str] = frozenset(STORED)


WANTED = [
    Wanted("possible", "possible", row("server", "ok", "verified")),
    Wanted("unverified", "possible", row("server", "ok", "unverified")),
    Wanted("unverified", "possible", row("server", "ok")),
    Wanted("possible", "possible", row("server", "retained", "verified")),
    Wanted("possible", "possible", row("server", "skipped", "verified")),
    Wanted("not_ok", "not_ok", row("server", "skipped", "verified", module_digest=None)),
    Wanted("not_ok", "not_ok", row("server", "error", "failed")),
    Wanted("not_ok", "not_ok", row("server", "pending")),
    Wanted("not_ok", "not_ok", row("server", "running")),
    Wanted("not_in_run", "not_in_run", row("network", "ok", "verified")),
    Wanted("snapshot_missing", "snapshot_missing", row("server", "ok", "verified"), frozenset()),
]


@pytest.mark.parametrize("case", WANTED)
def test_only_what_ended_well_is_gone_back_to_or_promoted(case: Wanted) -> None:
    """
    A rollback goes to a run in which the step ended ok and was verified; a promotion
    takes what ended ok.
    """
    found = run(case.row)
    assert reason(rollback_blocker(found, "server", case.stored, unverified=False)) == case.rollback
    assert reason(promotion_blocker(found, "server", case.stored)) == case.promotion


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (row("server", "ok", "unverified"), "possible"),
        (row("server", "error", "failed"), "not_ok"),
        (row("server", "ok", "unverified", module_digest="sha256:b"), "snapshot_missing"),
    ],
)
def test_a_reason_for_the_unverified_accepts_nothing_else(given: StepRun, expected: str) -> None:
    """
    `--unverified REASON` stands for missing checks only.
    """
    assert reason(rollback_blocker(run(given), "server", STORED, unverified=True)) == expected
