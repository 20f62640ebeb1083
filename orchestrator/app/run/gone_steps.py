"""
Steps that are recorded as gone, held against their provider state before that is believed.

Law: a record that has gone back is noticed. No provider is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.app.run.prepared_steps import PreparedSteps, backend_only
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.preparation import pull
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.errors import Busy, EngineFailed, InDoubt, Invalid, OrchestratorError, Refused


def check_gone_steps(steps: PreparedSteps, names: Iterable[str]) -> dict[str, OrchestratorError]:
    """
    Of the steps that are recorded as absent or destroyed, those whose provider state holds objects,
    each with its refusal. A state that cannot be looked at is told of, and refuses nothing.
    """
    gone = [name for name in names if steps.status(name) in NOTHING_THERE]
    unread = steps.prepare_all(gone, backend_only)
    found: dict[str, OrchestratorError] = {}
    for name in gone:
        if name in unread:
            continue
        target = str(steps.deployment.target(name))
        try:
            root = steps.prepared[name].work_dir
            state = pull(steps.services, root, steps.evidence(name), "pull-gone")
            check_state(target, steps.records[name], state)
        except Refused as exc:
            found[name] = exc
        except (Busy, EngineFailed, InDoubt, Invalid) as exc:
            unread[name] = exc
    for name, error in unread.items():
        why = error.message.splitlines()[0]
        steps.services.note(
            f"recorded as {steps.status(name)}; its provider state could not be looked at: {why}",
            level="warning",
            step=name,
        )
    return found
