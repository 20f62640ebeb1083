"""
Commands about steps as they are recorded, on the use cases themselves: no engine is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.app.commands.backend_move import move_state
from orchestrator.app.commands.compensate import compensate
from orchestrator.app.commands.retain import release, retain
from orchestrator.app.commands.verify import verify
from orchestrator.app.run.request import (
    CompensateRequest,
    MoveRequest,
    ReleaseRequest,
    RetainRequest,
    RunOptions,
    VerifyRequest,
)
from orchestrator.app.steps.planned_step import PlanOptions
from orchestrator.domain.blueprint.blueprint import CommandHook
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.events.events import StepFinished
from orchestrator.domain.record.objects import Resources
from orchestrator.domain.record.record import HookResult
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from tests.fakes.clock import START
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
    assert [entry.status for entry in there.history("web")] == ["ok", "retained", "ok"]


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
