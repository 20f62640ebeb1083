"""
The lock of a step's provider state, asked for.
"""

from __future__ import annotations

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import call, call_spec, failure
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.record.state_lock import PASSING_LOCKS, StateLock
from orchestrator.errors import Busy
from orchestrator.ports.engine import Exec

#: Takes the lock for a moment, changes nothing, and loads no provider.
_ASK = ("state", "rm", "-no-color", "-dry-run", "-lock-timeout=0s", "terraform_data.nobody")
_EMPTY = "No state file was found"


def state_lock_of(
    services: Services, prepared: PreparedStep, step: str, run_id: str
) -> StateLock | None:
    """
    The lock on a step's provider state; None where it is not locked.
    """
    number = services.ids.entry_id()[:8]
    evidence = services.files.attempt(run_id, step, 1)
    spec = call_spec(services, prepared.work_dir, evidence, f"lock-{number}")
    result = call(services, Exec(_ASK), spec, stop=services.stop)
    if result.lock is None and result.exit_code != 0 and _EMPTY not in result.stderr_text:
        raise failure(result, "lock", services.stop)
    return result.lock


def check_engine_gone(services: Services, prepared: PreparedStep, run_id: str) -> None:
    """
    Busy where somebody holds the lock of the step's provider state, and it is of a kind that ends
    with the process that holds it: whatever is said of the run that began, an engine is alive.
    """
    if prepared.work_dir.backend_type not in PASSING_LOCKS:
        return
    lock = state_lock_of(services, prepared, prepared.step.name, run_id)
    if lock is not None:
        raise Busy(
            f"{prepared.step.name}: an engine that is alive holds the lock of its state: {lock}",
            hint="wait for its end; nothing was changed",
        )
