"""
Commands about steps as they are recorded, on the use cases themselves: no engine is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from orchestrator.app.commands.backend_move import move_state
from orchestrator.app.commands.compensate import compensate
from orchestrator.app.commands.reconcile import reconcile
from orchestrator.app.commands.retain import release, retain
from orchestrator.app.commands.verify import verify
from orchestrator.app.run.request import (
    CompensateRequest,
    MoveRequest,
    ReconcileRequest,
    ReleaseRequest,
    RetainRequest,
    RunOptions,
    VerifyRequest,
)
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.domain.blueprint.blueprint import CommandHook, ModuleHook
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.events.events import StepFinished
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.objects import Doubt, Resources
from orchestrator.domain.record.record import Fault, HookResult
from orchestrator.domain.record.states import Status, StepStatus
from orchestrator.domain.target import hook_step_name
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.hooks import hook_begun
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry
from tests.fakes.services import Premises

OPTIONS = RunOptions(reason="audit", plan=PlanOptions(approved=True))


@pytest.fixture
def there() -> Iterator[Premises]:
    found = Premises({"web": []})
    yield found
    found.close()


def finished(there: Premises) -> StepFinished:
    """
    What was reported of the step by the only command, or by the last one.
    """
    *_, last = (event for event in there.told.events if isinstance(event, StepFinished))
    return last


def test_a_step_is_retained_and_released(there: Premises) -> None:
    """
    Both are changes of the record, and reported as such.
    """
    there.has("web")

    retained = retain(
        there.services,
        there.deployment,
        RetainRequest(options=OPTIONS, owner="ops", review_by="2999-01-01"),
    )
    kept = finished(there)
    released = release(there.services, there.deployment, ReleaseRequest(options=OPTIONS))
    free = finished(there)

    assert (retained, released) == (0, 0)
    assert (kept.status, kept.changed) == (StepStatus.RETAINED, True)
    assert (free.status, free.changed) == (StepStatus.OK, True)
    history = there.history("web")
    assert [entry.status for entry in history] == ["ok", "retained", "ok"]
    assert not history[1].retained_as_declared


@pytest.mark.parametrize(("status", "why"), [(None, "never applied"), ("destroyed", "`destroyed`")])
def test_where_nothing_is_no_provider_state_is_moved(
    there: Premises, status: str | None, why: str
) -> None:
    """
    The next apply writes it where the blueprint says.
    """
    if status:
        there.has("web", status=status)

    code = move_state(there.services, there.deployment, MoveRequest(options=OPTIONS))

    error = finished(there).error
    assert code == 4
    assert error is not None
    assert error.code == "nothing_there"
    assert why in error.summary
    assert there.world.requests == []


DONE = HookResult(verdict="done", by="undo", run_id="R1", at=START, on=("fake_object.web",))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (None, "no record here"),
        ({"status": "destroyed"}, "already destroyed"),
        (
            {"status": "error", "failed_command": "apply", "resources": Resources()},
            "nothing was completed",
        ),
        ({"compensation": DONE}, "compensated already, by run R1"),
    ],
)
def test_where_nothing_is_to_be_undone_nothing_is_compensated(
    there: Premises, fields: dict[str, Json] | None, why: str
) -> None:
    """
    The step is skipped with the reason, and that is no error.
    """
    if fields is not None:
        there.has("web", **fields)
    step = replace(
        there.deployment.steps["web"], compensate=CommandHook(Template(["undo"]), Template({}))
    )
    deployment = replace(there.deployment, steps={"web": step})

    code = compensate(there.services, deployment, CompensateRequest(options=OPTIONS))

    row = finished(there)
    assert (code, row.status, row.result.reason) == (0, StepStatus.SKIPPED, why)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (None, "no record here"),
        ({"status": "destroyed"}, "nothing to check: destroyed"),
        ({"status": "error", "failed_command": "apply"}, "nothing to check: error"),
    ],
)
def test_what_is_not_applied_is_not_verified(
    there: Premises, fields: dict[str, Json] | None, why: str
) -> None:
    """
    The step is skipped with the reason, and its engine is not asked.
    """
    if fields is not None:
        there.has("web", **fields)

    code = verify(there.services, there.deployment, VerifyRequest(options=OPTIONS))

    row = finished(there)
    assert (code, row.status, row.result.reason) == (0, StepStatus.SKIPPED, why)
    assert there.world.requests == []


@pytest.mark.parametrize(
    ("asked", "reason", "code", "why"),
    [
        ({"unlock": "7f-1"}, "its holder is dead", 3, "--unlock is for one step, not web, db"),
        ({"unlock": "7f-1"}, None, 4, "--unlock needs a reason"),
        ({"forget": ("a_host.x",)}, None, 4, "--forget needs a reason"),
        ({"forget": ("a_host.x",)}, "it is gone", 3, "a_host.x"),
        ({"untaint": ("a_host.x",)}, None, 3, "a_host.x"),
        ({"push_errored_state": True}, None, 4, "there is no errored.tfstate"),
        (
            {"push_errored_state": True, "dismiss_errored_state": "it is old"},
            None,
            3,
            "either pushed or dismissed",
        ),
    ],
)
def test_what_reconcile_cannot_do_is_refused_for_all_steps(
    asked: dict[str, Json], reason: str | None, code: int, why: str
) -> None:
    """
    Before anything of it is done: no record changes.
    """
    there = Premises({"web": [], "db": ["web"]})
    try:
        for step in ("web", "db"):
            there.has(step)
        options = RunOptions(reason=reason, plan=PlanOptions(approved=True))
        request = ReconcileRequest(options=options, **asked)

        ended = reconcile(there.services, there.deployment, request)

        (run_id,) = there.services.files.runs()
        record = there.services.files.read_run(run_id)
        assert ended == code
        assert record is not None
        assert record.error is not None
        assert why in record.error.summary
        assert [len(there.history(step)) for step in ("web", "db")] == [1, 1]
    finally:
        there.close()


def test_nothing_is_forgotten_before_the_state_lock_is_looked_for(there: Premises) -> None:
    """
    Law: evidence before a person's word.
    Whoever held it might be making the very object; this engine fails to tell.
    """
    address = "fake_object.lost"
    doubt = Doubt(address=address, action="create", why="no answer", at=START - timedelta(hours=1))
    there.has("web", status="error", failed_command="apply", resources=Resources(in_doubt=(doubt,)))
    options = RunOptions(reason="it is gone", plan=PlanOptions(approved=True))
    request = ReconcileRequest(options=options, forget=(address,))

    code = reconcile(there.services, there.deployment, request)

    record = there.record("web")
    assert record is not None
    assert [item.address for item in record.resources.in_doubt] == [address]
    assert code == EngineFailed.exit_code


@pytest.mark.parametrize(
    ("status", "run_id", "ends"),
    [
        ("ok", "R2", (Status.OK, "done")),
        ("error", "R2", (Status.ERROR, "failed")),
        ("ok", "R1", (Status.OK, None)),
        (None, "", (Status.OK, None)),
    ],
)
def test_a_killed_action_that_is_a_module_ends_as_its_module_did(
    there: Premises, status: str | None, run_id: str, ends: tuple[Status, str | None]
) -> None:
    """
    Law: an outlived run is settled from evidence.
    What the killed run has recorded of the module decides; an earlier record of it does not.
    """
    name = hook_step_name("web", "compensate")
    step = there.deployment.steps["web"]
    action = ModuleHook(replace(step, name=name))
    steps = {"web": replace(step, compensate=action)}
    deployment = replace(there.deployment, steps=steps)
    there.has("web", run_id="R1")
    before = there.record("web")
    assert before is not None
    stamp, target = EntryStamp(at=START, entry_id="marker", actor=ACTOR), deployment.target(name)
    there.store.append(
        hook_begun(before, "compensate", stamp, by="module", run_id="R2", target=str(target))
    )
    if status is not None:
        failed = status == "error"
        module = entry(
            target,
            status=status,
            run_id=run_id,
            failed_command="apply" if failed else None,
            error=Fault(code="engine_failed", phase="apply", summary="no capacity")
            if failed
            else None,
        )
        there.store.append(module)

    reconcile(there.services, deployment, ReconcileRequest(options=OPTIONS))

    settled = there.record("web")
    assert settled is not None
    verdict = settled.compensation.verdict if settled.compensation else None
    assert (settled.status, verdict) == ends
