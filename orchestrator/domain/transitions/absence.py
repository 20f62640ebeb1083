"""
Absence: the provider's answers about the objects that a destroy removed, and their sum.

A delete request is not absence: an object is gone once the provider configuration that managed it
was asked for it and did not find it. An object without an answer is not gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from orchestrator.domain.provider_query.query import Answer, ObjectKey, QueryResult, Verdict
from orchestrator.domain.record.objects import (
    PERSON,
    Absence,
    AbsenceMethod,
    CheckedObject,
    CheckedState,
    Doubt,
    ObjectRef,
    Readback,
    SavedState,
    SettledDoubt,
)
from orchestrator.domain.record.record import OperationRecord
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
    Whether the objects of a provider, by its source address, exist anywhere but in state.

    >>> has_remote_side("registry.terraform.io/hashicorp/random")
    False
    """
    return _LOCAL.search(provider) is None


def absence_method(
    requested: AbsenceMethod | None, declared: AbsenceMethod | None, record: OperationRecord | None
) -> AbsenceMethod:
    """
    How absence is to be confirmed: by the command's option, else by the blueprint, else by what the
    record says was declared when the target was applied.
    """
    return requested or declared or (record.verify_absence if record else None) or "provider"


class AbsenceFinding(Struct, frozen=True):
    """
    The answer about the absence of one object, and ``why`` it is no more than that. ``saved`` is
    the provider state that knows the object.
    """

    ref: ObjectRef
    state: CheckedState
    why: str = ""
    saved: SavedState | None = None

    @property
    def key(self) -> ObjectKey:
        return self.ref.address, self.ref.id


def absence_findings(
    refs: Iterable[ObjectRef], result: QueryResult, saved: SavedState
) -> tuple[AbsenceFinding, ...]:
    """
    What the provider's answers say of each object: gone; terminating where the provider still has
    it; unknown, and why.
    """
    unanswered = Answer("unknown", why="the saved provider state lacks it")
    return tuple(
        AbsenceFinding(ref, _STATES[answer.verdict], answer.why, saved)
        for ref in refs
        for answer in [result.saved.get((ref.address, ref.id), unanswered)]
    )


def with_explanation(finding: AbsenceFinding) -> AbsenceFinding:
    """
    The finding in its final words.
    """
    match finding.state:
        case "gone":
            why = finding.why
        case "requested":
            why = "its delete was requested, and nobody has asked yet whether it is gone"
        case "terminating":
            why = "its delete was accepted, and the provider still has it"
        case "remaining":
            why = "its delete was reported done, and the provider still has it"
        case "unknown":
            why = f"whether it is gone could not be told: {finding.why}"
    return replace(finding, why=why)


def update_doubts(
    doubts: Sequence[Doubt], findings: Collection[AbsenceFinding], *, run_id: str, at: datetime
) -> tuple[tuple[Doubt, ...], tuple[SettledDoubt, ...]]:
    """
    The doubts, with the findings in place of those that they answer, and the doubts that the
    findings settle: a finding about an object also answers how its delete ended.
    """
    keys = {item.key for item in findings}
    leaving = [d for d in doubts if d.action in ("delete", "forget")]
    by_key = {(d.address, d.id): d for d in leaving}
    remaining = [d for d in doubts if d not in leaving or (d.address, d.id) not in keys]
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
                    readback=_seen_again(item, at),
                )
            )
        elif earlier is not None:
            settled.append(SettledDoubt(doubt=earlier, how="gone", run_id=run_id, at=at))
    return tuple(remaining), tuple(settled)


def _seen_again(finding: AbsenceFinding, at: datetime) -> Readback | None:
    """
    The answer about an object that is there although its delete was reported done: it can be taken
    back and destroyed again. None of any other, and of a deposed one, whose address is taken.
    """
    ref = finding.ref
    if finding.state != "remaining" or ref.id is None or ref.deposed is not None:
        return None
    return Readback(
        verdict="exists",
        method="id",
        ids=(ref.id,),
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
    The sum of the provider's answers and of what was known ``earlier`` to be gone; ``remaining``
    are objects that provider state still holds.
    """
    keys = {item.key for item in findings}
    before = earlier.checked if earlier and earlier.method in ("provider", PERSON) else ()
    checked = [c for c in before if c.state in FINISHED and (c.address, c.id) not in keys]
    checked += [
        CheckedObject(
            address=item.ref.address, id=item.ref.id, state=item.state, why=item.why or None
        )
        for item in findings
    ]
    checked += [
        CheckedObject(address=ref.address, id=ref.id, state="remaining")
        for ref in remaining
        if (ref.address, ref.id) not in keys
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
    The method by which all of these are known to be gone: a person's word where one rests on it.
    """
    return PERSON if any(item.state == "forgotten" for item in checked) else method


def absence_with_forgotten(
    earlier: Absence | None, settled: Iterable[SettledDoubt], at: datetime
) -> Absence | None:
    """
    The ``earlier`` absence with the objects that a person has forgotten: only that person says that
    these are gone.
    """
    doubts = {(s.doubt.address, s.doubt.id): s for s in settled if s.how == "forgotten"}
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
        checked=(*(c for c in checked if (c.address, c.id) not in doubts), *forgotten),
        at=at,
    )


def describe_remaining(findings: Iterable[AbsenceFinding]) -> str:
    """
    The objects that the provider still has, with ids; empty for none.
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
    The objects of a record that left the provider state and that nobody has confirmed to be gone:
    the record keeps them.
    """
    keys = {(doubt.address, doubt.id) for doubt in doubts if doubt.action == "forget"}
    inventory = record.resources.inventory if record else ()
    return tuple(ref for ref in inventory if (ref.address, ref.id) in keys)
