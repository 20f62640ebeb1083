"""
Absence: the provider's answers about the objects that a destroy removed, and their summary.

A delete request is no absence: an object is gone once the provider configuration that managed it
was queried and did not find it. An object without an answer is not gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_query.query import Answer, QueryResult, Verdict
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import (
    PERSON,
    Absence,
    AbsenceMethod,
    CheckedObject,
    CheckedState,
    Doubt,
    ObjectKey,
    ObjectRef,
    PlannedAction,
    Readback,
    Resources,
    SavedState,
    SettledDoubt,
)
from orchestrator.domain.record.record import (
    CRASHED,
    SURGERY,
    Command,
    Fault,
    OperationRecord,
    Phase,
    Verification,
)
from orchestrator.domain.record.run_record import StateLock
from orchestrator.domain.values import replace

#: Seconds in which an accepted delete may still be under way, where a step does not say.
ABSENCE_TIMEOUT = 300.0

#: Providers whose objects live in provider state only: nobody else could be asked for them.
_LOCAL = re.compile(r"(?:^|/)(?:builtin/terraform|hashicorp/(?:null|random|time|tls))$")

#: States of objects that nobody needs to be asked for again.
FINISHED: tuple[CheckedState, ...] = ("gone", "forgotten")

_STATES: Mapping[Verdict, CheckedState] = {
    "absent": "gone",
    "exists": "terminating",
    "unknown": "unknown",
}


def has_remote_side(provider: str) -> bool:
    """
    Return whether objects of a provider (source address) exist anywhere but in state.

    >>> has_remote_side("registry.terraform.io/hashicorp/random")
    False
    """
    return _LOCAL.search(provider) is None


def absence_method(
    requested: AbsenceMethod | None, declared: AbsenceMethod | None, record: OperationRecord | None
) -> AbsenceMethod:
    """
    Return how to confirm absence: by the command's option, else the blueprint, else what was
    declared at the last apply.
    """
    return requested or declared or (record.verify_absence if record else None) or "provider"


class AbsenceFinding(Struct, frozen=True):
    """
    The answer about the absence of one object, and ``why`` it proves no more. ``saved`` is the
    provider state that contains the object.
    """

    ref: ObjectRef
    state: CheckedState
    why: str = ""
    saved: SavedState | None = None

    @property
    def key(self) -> ObjectKey:
        return self.ref.key


def absence_findings(
    refs: Iterable[ObjectRef], result: QueryResult, saved: SavedState
) -> tuple[AbsenceFinding, ...]:
    """
    Return the finding for each object: gone; terminating if the provider still has it; or unknown,
    with the reason.
    """
    unanswered = Answer("unknown", why="the saved provider state lacks it")
    return tuple(
        AbsenceFinding(ref, _STATES[answer.verdict], answer.why, saved)
        for ref in refs
        for answer in [result.saved.get(ref.key, unanswered)]
    )


_EXPLANATIONS: Mapping[CheckedState, str] = {
    "requested": "its delete was requested, and its absence was not checked yet",
    "terminating": "its delete was accepted, and the provider still has it",
    "remaining": "its delete was reported done, and the provider still has it",
    "unknown": "it is unknown whether it is gone: {}",
}


def with_explanation(finding: AbsenceFinding) -> AbsenceFinding:
    explanation = _EXPLANATIONS.get(finding.state, "{}")
    return replace(finding, why=explanation.format(finding.why))


def update_doubts(
    resources: Resources, findings: Collection[AbsenceFinding], *, run_id: str, at: datetime
) -> tuple[tuple[Doubt, ...], tuple[SettledDoubt, ...]]:
    """
    Return the doubts, with findings replacing those that they answer, and the doubts that the
    findings settle: a finding about an object also tells how its delete ended.
    """
    doubts = resources.in_doubt
    keys = {item.key for item in findings}
    leaving = [d for d in doubts if d.action in ("delete", "forget")]
    by_key = {d.key: d for d in leaving}
    remaining = [d for d in doubts if d not in leaving or d.key not in keys]
    settled = []
    for item in findings:
        earlier = by_key.get(item.key)
        if item.state != "gone":
            since = earlier.at if earlier else at
            remaining.append(
                Doubt(
                    address=item.ref.address,
                    action="forget",
                    at=since,
                    id=item.ref.id,
                    why=item.why,
                    saved=item.saved,
                    readback=_readback(item, resources.inventory, at),
                )
            )
        elif earlier is not None:
            settled.append(SettledDoubt(doubt=earlier, how="gone", run_id=run_id, at=at))
    return tuple(remaining), tuple(settled)


def _readback(
    finding: AbsenceFinding, inventory: Iterable[ObjectRef], at: datetime
) -> Readback | None:
    """
    Return a readback for an object of which the provider could not tell, or which exists although
    its delete was reported done: that one can be imported and destroyed again, unless another
    object of the ``inventory`` has its address. None for other findings and for deposed objects.
    """
    if finding.state == "unknown":
        return Readback(verdict="unknown", method="id", why=finding.why, at=at)
    ref = finding.ref
    occupied = any(
        other.address == ref.address and other.id != ref.id and other.deposed is None
        for other in inventory
    )
    if finding.state != "remaining" or ref.id is None or ref.deposed is not None:
        return None
    return Readback(
        verdict="exists",
        method="id",
        ids=(ref.id,),
        adoptable=not occupied,
        why=finding.why,
        at=at,
        ownership="ours",
        evidence="it is the one that this target had, by its id",
    )


def absence(
    findings: Sequence[AbsenceFinding],
    remaining: Iterable[ObjectRef],
    at: datetime,
    *,
    earlier: Absence | None = None,
) -> Absence:
    """
    Return the summary of the provider's answers and of the objects known ``earlier`` to be gone;
    ``remaining`` are objects still in provider state.
    """
    keys = {item.key for item in findings}
    before = earlier.checked if earlier and earlier.method in ("provider", PERSON) else ()
    checked = [c for c in before if c.state in FINISHED and c.key not in keys]
    checked += [
        CheckedObject(
            address=item.ref.address, id=item.ref.id, state=item.state, why=item.why or None
        )
        for item in findings
    ]
    checked += [
        CheckedObject(address=ref.address, id=ref.id, state="remaining")
        for ref in remaining
        if ref.key not in keys
    ]
    sure = all(item.state in FINISHED for item in checked)
    return Absence(
        verdict="confirmed" if sure else "unconfirmed",
        method=weakest_method("provider", checked),
        checked=tuple(checked),
        at=at,
    )


def weakest_method(method: str, checked: Iterable[CheckedObject]) -> str:
    """
    Return the method by which all objects are known to be gone: person if one rests on a person's
    word.
    """
    return PERSON if any(item.state == "forgotten" for item in checked) else method


def absence_with_forgotten(
    earlier: Absence | None, settled: Iterable[SettledDoubt], at: datetime
) -> Absence | None:
    """
    Return the ``earlier`` absence with the objects that a person has forgotten: they are gone by
    that person's word only.
    """
    doubts = {s.doubt.key: s for s in settled if s.how == "forgotten"}
    if not doubts:
        return earlier
    checked = earlier.checked if earlier else ()
    forgotten = (
        CheckedObject(
            address=address, id=id_, state="forgotten", why=item.reason, run_id=item.run_id
        )
        for (address, id_), item in doubts.items()
    )
    return Absence(
        verdict="unconfirmed",
        method=PERSON,
        checked=(*(c for c in checked if c.key not in doubts), *forgotten),
        at=at,
    )


def describe_remaining(findings: Iterable[AbsenceFinding]) -> str:
    """
    List the objects that the provider still has, with ids; empty for none.
    """
    return ", ".join(
        f"{item.ref.name} ({item.ref.id})" if item.ref.id else item.ref.name
        for item in findings
        if item.state in ("remaining", "terminating")
    )


def unconfirmed_objects(
    record: OperationRecord | None, doubts: Iterable[Doubt]
) -> tuple[ObjectRef, ...]:
    """
    Return the objects of a record that left the provider state without being confirmed gone; the
    record keeps them.
    """
    keys = {doubt.key for doubt in doubts if doubt.action == "forget"}
    inventory = record.resources.inventory if record else ()
    return tuple(ref for ref in inventory if ref.key in keys)


# Why a target is in ``error``: evidence and checks put into a `Fault`.


#: Why a step is in ``error`` whose checks a signal cut short: they neither held nor failed.
STOPPED_CHECKS = Fault(
    code="stopped",
    phase="verify",
    summary="applied; stopped by a signal before its checks held",
    retriable=True,
)


#: What the engine says where a plan was made on an older provider state; nothing has begun then.
_STALE = "Saved plan is stale"
#: What it says where a run had ended before it approved the plan; nothing has begun then.
_UNAPPROVED = "error asking for approval"


class MutationEvidence(Struct, frozen=True):
    """
    The evidence of a mutating engine call, observed or found on disk.

    ``exit_code`` is None if the engine left no answer; ``state`` is None if the provider state
    could not be read, for the reason ``state_error``. ``errored_state`` names a file. ``stopped``:
    a signal came, to the engine or during the checks. ``not_started`` says why the engine could not
    be started. ``stderr`` is masked; it holds errors without a diagnostic. ``absence_findings`` are
    the provider's answers about objects that a destroy removed. Unless ``secrets_known``, the
    secrets passed to the call are not available, so that any output may contain one.
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
        Whether it is certain that the program did not run.
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
        Whether the engine reported success and nothing contradicts it.
        """
        return self.exit_code == 0 and self.journal.extent == "complete" and self.state is not None


def check_fault(verification: Verification) -> Fault:
    failed = [check for check in verification.checks if not check.passed]
    summary = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    return Fault(
        code="check_failed", phase="verify", summary=summary or "a check failed", retriable=True
    )


def targeted_fault(undone: Sequence[PlannedAction]) -> Fault:
    """
    Return the fault of a target that was applied only in part, as requested.
    """
    names = tuple(item.address for item in undone)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    summary = f"a targeted apply: left undone {shown or 'changed outputs'}"
    return Fault(code="targeted", phase="apply", summary=summary, resources=names, retriable=True)


def unapplied_fault(resources: Resources, why: str = "") -> Fault:
    """
    Return the fault of a target whose provider state holds objects that were never applied as
    declared.
    """
    names = tuple(ref.address for ref in resources.inventory)
    summary = f"taken over, not applied: {', '.join(names)}{why}; an apply or reconcile makes it ok"
    return Fault(
        code="unapplied", phase="surgery", summary=summary, resources=names, retriable=True
    )


def engine_fault(command: Command, evidence: MutationEvidence, doubts: Sequence[Doubt]) -> Fault:
    phase: Phase = "destroy" if command == "destroy" else "apply"
    if evidence.lock is not None:
        phase = "lock"
    elif command in SURGERY:
        phase = "surgery"
    errors = evidence.journal.errors
    code, summary = _reason(evidence, doubts)
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
            f"the engine could not save the provider state; it is in {evidence.errored_state}"
        )
    if evidence.timed_out:
        return "deadline", "its timeout passed; the engine was stopped"
    if evidence.stopped:
        return "stopped", "stopped by a signal"
    errors = evidence.journal.errors
    crashed = any(error.summary.startswith(CRASHED) for error in errors)
    if evidence.exit_code is None and not crashed:
        return "killed", "the engine ended without leaving its answer"
    if evidence.state is None:
        why = evidence.state_error or "no reason given"
        return "state_unreadable", f"the provider state could not be read afterwards: {why}"
    if evidence.exit_code == 0 and doubts:
        names = ", ".join(doubt.address for doubt in doubts)
        return "in_doubt", f"in doubt: {names}"
    if errors:
        first = errors[0]
        if first.summary == _STALE:
            return "stale_plan", "the provider state has moved since it was planned"
        if first.summary.startswith(_UNAPPROVED):
            return "never_started", "the engine requested approval and got none"
        where = f"{first.address}: " if first.address else ""
        return "engine_failed", f"{where}{first.summary}"
    stderr = " ".join(evidence.stderr.split())[:300]
    return "engine_failed", stderr or f"the engine ended with exit code {evidence.exit_code}"
