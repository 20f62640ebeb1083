"""
Why a target is in ``error``: evidence and checks put into a `Fault`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Doubt, PlannedAction, Resources
from orchestrator.domain.record.record import CRASHED, SURGERY, Command, Fault, Phase, Verification
from orchestrator.domain.record.state_lock import StateLock
from orchestrator.domain.transitions.absence import AbsenceFinding

#: Why a step is in ``error`` whose checks a signal cut short: they neither held nor failed.
STOPPED_CHECKS = Fault(
    code="stopped",
    phase="verify",
    summary="applied; stopped by a signal before its checks held",
    retriable=True,
)


#: What the engine says where a plan was made on an older provider state; nothing has begun then.
_STALE = "Saved plan is stale"


class MutationEvidence(Struct, frozen=True):
    """
    What is known of a mutating engine call, lived through or found on disk.

    ``exit_code`` is None where the engine left no answer; ``state`` None where the provider state
    could not be read, with ``state_error`` saying why. ``errored_state`` names a file. ``stopped``:
    a signal came, to the engine or during the checks. ``not_started`` says why the engine could not
    be started at all. ``stderr`` is masked: what there is of an error without diagnostic.
    ``absence_findings`` is what the provider says of objects that a destroy removed. Unless
    ``secrets_known``, the secrets that the call was given cannot be had: any output may hold one.
    """

    exit_code: int | None
    journal: Journal
    state: PulledState | None
    stopped: bool = False
    timed_out: bool = False
    lock: StateLock | None = None
    state_error: str | None = None
    errored_state: str | None = None
    not_started: str | None = None
    stderr: str = ""
    absence_findings: tuple[AbsenceFinding, ...] = ()
    secrets_known: bool = True

    @property
    def never_began(self) -> bool:
        """
        Whether it is certain that the program did not run at all.
        """
        return self.exit_code is None and self.journal.extent == "complete"

    @property
    def touched_nothing(self) -> bool:
        """
        Whether a complete journal proves that no create, update or delete began.
        """
        return self.exit_code != 0 and self.journal.extent == "complete" and not self.journal.began

    @property
    def clean(self) -> bool:
        """
        Whether the engine said that it did everything, and nothing contradicts it.
        """
        return self.exit_code == 0 and self.journal.extent == "complete" and self.state is not None


def check_fault(verification: Verification) -> Fault:
    """
    The fault of a step whose checks do not hold.
    """
    failed = [check for check in verification.checks if not check.passed]
    summary = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    return Fault(
        code="check_failed", phase="verify", summary=summary or "a check failed", retriable=True
    )


def targeted_fault(undone: Sequence[PlannedAction]) -> Fault:
    """
    The fault of a target of which only a part was applied, as it was asked for.
    """
    names = tuple(item.address for item in undone)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    summary = f"a targeted apply: left undone {shown or 'changed outputs'}"
    return Fault(code="targeted", phase="apply", summary=summary, resources=names, retriable=True)


def unapplied_fault(resources: Resources, why: str = "") -> Fault:
    """
    The fault of a target whose provider state holds objects that were never applied as described.
    """
    names = tuple(ref.address for ref in resources.inventory)
    summary = f"taken over, not applied: {', '.join(names)}{why}; an apply or reconcile makes it ok"
    return Fault(
        code="unapplied", phase="surgery", summary=summary, resources=names, retriable=True
    )


def engine_fault(command: Command, evidence: MutationEvidence, doubts: Sequence[Doubt]) -> Fault:
    phase: Phase = "destroy" if command == "destroy" else "apply"
    if command in SURGERY:
        phase = "surgery"
    errors = evidence.journal.errors
    code, summary = _reason(evidence, doubts)
    if evidence.lock is not None:
        phase = "lock"
    if errors and code == "engine_failed":
        first = errors[0]
        summary = f"{first.address}: {first.summary}" if first.address else first.summary
        if first.summary == _STALE:
            code, summary = "stale_plan", "the provider state has moved since it was planned"
    return Fault(
        code=code,
        phase=phase,
        summary=summary,
        resources=tuple(dict.fromkeys(d.address for d in errors if d.address)),
        diagnostics=errors,
        retriable=not doubts,
    )


def _reason(evidence: MutationEvidence, doubts: Sequence[Doubt]) -> tuple[str, str]:
    if evidence.not_started is not None:
        return "not_started", evidence.not_started
    if evidence.lock is not None:
        return "state_locked", f"the provider state is locked: {evidence.lock}"
    if evidence.errored_state is not None:
        return "errored_state", (
            f"the engine could not save the provider state; it lies in {evidence.errored_state}"
        )
    if evidence.timed_out:
        return "deadline", "its timeout passed; the engine was stopped"
    if evidence.stopped:
        return "stopped", "stopped by a signal"
    crashed = any(error.summary.startswith(CRASHED) for error in evidence.journal.errors)
    if evidence.exit_code is None and not crashed:
        return "killed", "the engine ended without leaving its answer"
    if evidence.state is None:
        why = evidence.state_error or "no reason given"
        return "state_unreadable", f"the provider state could not be read afterwards: {why}"
    if evidence.exit_code == 0 and doubts:
        names = ", ".join(doubt.address for doubt in doubts)
        return "in_doubt", f"in doubt: {names}"
    stderr = " ".join(evidence.stderr.split())[:300]
    return "engine_failed", stderr or f"the engine ended with exit code {evidence.exit_code}"
