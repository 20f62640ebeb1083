"""
What may be done about a step now, as data.

``CASES`` is the table: which situation a step is in, which remedies may be taken there, which is
recommended. ``BARS`` are further conditions of single remedies; what stands against doing a run
again comes from `domain.lineage`, so that an action is offered and refused by the same rules.
`advise` is the only reader of these tables; those in docs/ are made from them. Nothing here reads
or writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.domain.record.hook_status import (
    has_completed_work,
    is_before_destroy_unknown,
    is_compensated,
    is_compensation_unknown,
)
from orchestrator.domain.record.states import NOTHING_THERE, Condition, Status
from orchestrator.domain.recovery.context import Remedy, Situation, Subject


@dataclass(frozen=True, slots=True)
class Case:
    """
    A row of the table: in the ``situation``, which ``holds`` tells and ``when`` says, the remedies
    ``may`` be taken; the first of ``prefers`` that can be is recommended. ``blocks`` is the reason
    why all others may not, where there is one for all of them.
    """

    situation: Situation
    when: str
    holds: Callable[[Subject], bool]
    may: tuple[Remedy, ...]
    prefers: tuple[Remedy, ...] = ()
    blocks: str | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """
    What keeps a remedy from being taken although the situation allows it.
    """

    code: str
    holds: Callable[[Subject], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """
    A remedy as it is offered: whether it can be taken, and the code of the reason why or why not.
    """

    remedy: Remedy
    available: bool
    code: str


@dataclass(frozen=True, slots=True)
class Advice:
    """
    The situation, every remedy, and which one is recommended: None where nothing needs to be done,
    or where a neighbour must be recovered first.
    """

    situation: Situation
    choices: tuple[Choice, ...]
    recommended: Remedy | None


def _recorded(status: Status) -> Callable[[Subject], bool]:
    return lambda subject: subject.status is status


def _seen(condition: Condition) -> Callable[[Subject], bool]:
    return lambda subject: subject.facts.condition is condition


def _failed(*commands: str) -> Callable[[Subject], bool]:
    return lambda subject: bool(subject.record and subject.record.failed_command in commands)


def _phase(phase: str) -> Callable[[Subject], bool]:
    return lambda subject: bool(
        subject.record and subject.record.error and subject.record.error.phase == phase
    )


def _is_kept(subject: Subject) -> bool:
    return subject.facts.kept is not None or subject.status is Status.RETAINED


def _cut_short(subject: Subject) -> bool:
    record = subject.record
    if record is None:
        return False
    if record.failed_command == "compensate":
        return is_compensation_unknown(record)
    return record.failed_command == "before_destroy" and is_before_destroy_unknown(record)


def _has_work(subject: Subject) -> bool:
    return subject.record is not None and has_completed_work(subject.record)


_R = Remedy
_AGAIN = (_R.RETRY, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE, _R.DESTROY)

#: The first case that holds is the step's; the last holds for every record.
CASES: tuple[Case, ...] = (
    Case(
        Situation.LIVE,
        "its run or its engine is alive",
        _seen(Condition.LIVE),
        may=(_R.WAIT,),
        prefers=(_R.WAIT,),
        blocks="live",
    ),
    Case(
        Situation.CLAIMED,
        "a live run works on the blueprint in this environment",
        lambda subject: subject.facts.claimed_by is not None,
        may=(_R.WAIT,),
        prefers=(_R.WAIT,),
        blocks="claimed",
    ),
    Case(
        Situation.SILENT,
        "no heartbeat, and from here it cannot be proven that its run is dead",
        _seen(Condition.SILENT),
        may=(_R.RECONCILE, _R.MANUAL),
        prefers=(_R.MANUAL,),
        blocks="silent",
    ),
    Case(
        Situation.SPOOLED,
        "its outcome waits on disk to be recorded",
        lambda subject: subject.facts.spooled,
        may=(_R.RECONCILE,),
        prefers=(_R.RECONCILE,),
        blocks="spooled",
    ),
    Case(
        Situation.UNSAVED,
        "the engine could not save its provider state (`errored.tfstate`)",
        lambda subject: subject.facts.unsaved is not None,
        may=(_R.RECONCILE, _R.MANUAL),
        prefers=(_R.RECONCILE,),
        blocks="errored_state",
    ),
    Case(
        Situation.INTERRUPTED,
        "it says `running`, and its run and engine are gone",
        _recorded(Status.RUNNING),
        may=(_R.RECONCILE, _R.DESTROY),
        prefers=(_R.RECONCILE,),
        blocks="interrupted",
    ),
    Case(
        Situation.FOUND,
        "objects are in doubt, and the provider has one of them",
        lambda subject: subject.found,
        may=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.RECONCILE,),
        blocks="in_doubt",
    ),
    Case(
        Situation.IN_DOUBT,
        "objects are in doubt, and evidence can still tell",
        lambda subject: subject.answerable,
        may=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.RECONCILE,),
        blocks="in_doubt",
    ),
    Case(
        Situation.LEFT,
        "objects have left the provider state, and not by a delete of this tool",
        lambda subject: bool(subject.doubts) and all(d.action == "forget" for d in subject.doubts),
        may=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL,),
        blocks="in_doubt",
    ),
    Case(
        Situation.UNANSWERABLE,
        "objects are in doubt, and nothing but a person can tell",
        lambda subject: bool(subject.doubts),
        may=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL,),
        blocks="in_doubt",
    ),
    Case(
        Situation.NEVER,
        "it has no record",
        lambda subject: subject.record is None,
        may=(_R.RETRY, _R.REDEPLOY),
        prefers=(_R.REDEPLOY,),
        blocks="nothing_there",
    ),
    Case(
        Situation.GONE,
        "it is `absent` or `destroyed`",
        lambda subject: subject.status in NOTHING_THERE,
        may=(_R.REDEPLOY, _R.ROLLBACK),
        blocks="nothing_there",
    ),
    Case(
        Situation.RETAINED,
        "it is `retained`",
        _recorded(Status.RETAINED),
        may=(_R.VERIFY, _R.RETRY, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE),
    ),
    Case(
        Situation.OK,
        "it is `ok`",
        _recorded(Status.OK),
        may=(_R.VERIFY, *_AGAIN),
    ),
    Case(
        Situation.CHECKS,
        "it was applied, and a check does not hold",
        _phase("verify"),
        may=(_R.RECONCILE, _R.VERIFY, *_AGAIN),
        prefers=(_R.VERIFY,),
    ),
    Case(
        Situation.CUT_SHORT,
        "its compensation, or the work before its destroy, was cut short: nobody can tell what it "
        "did",
        _cut_short,
        may=(_R.RECONCILE, *_AGAIN, _R.MANUAL),
        prefers=(_R.MANUAL,),
    ),
    Case(
        Situation.COMPENSATING,
        "its compensation failed",
        _failed("compensate"),
        may=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.COMPENSATE, _R.RECONCILE),
    ),
    Case(
        Situation.DESTROYING,
        "its destroy failed",
        _failed("destroy", "before_destroy"),
        may=(_R.RECONCILE, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE, _R.DESTROY),
        prefers=(_R.DESTROY, _R.RECONCILE),
    ),
    Case(
        Situation.TARGETED,
        "a targeted apply left a part undone",
        lambda subject: bool(subject.record and subject.record.targets),
        may=(_R.RECONCILE, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE, _R.DESTROY),
        prefers=(_R.REDEPLOY,),
    ),
    Case(
        Situation.SURGERY,
        "its provider state was changed by hand, and nothing was applied since",
        _phase("surgery"),
        may=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.RECONCILE,),
    ),
    Case(
        Situation.FAILED,
        "its apply failed, and nothing is in doubt",
        lambda _: True,
        may=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.RETRY, _R.REDEPLOY),
    ),
)

_UNREADY = Bar("upstream", lambda subject: bool(subject.position.unready))
_CHILD_LEFT = Bar(
    "child_left",
    lambda subject: subject.status in NOTHING_THERE and bool(subject.position.children),
)

BARS: Mapping[Remedy, tuple[Bar, ...]] = {
    Remedy.RETRY: (
        Bar("not_failed", lambda subject: not subject.facts.failed_run),
        _UNREADY,
        _CHILD_LEFT,
    ),
    Remedy.REDEPLOY: (_UNREADY, _CHILD_LEFT),
    Remedy.ROLLBACK: (
        Bar("unknown_run", lambda subject: not subject.facts.earlier_run),
        _UNREADY,
        _CHILD_LEFT,
    ),
    Remedy.COMPENSATE: (
        Bar("none_declared", lambda subject: not subject.facts.compensates),
        Bar("nothing_done", lambda subject: not _has_work(subject)),
        Bar("compensated", lambda subject: is_compensated(subject.record)),
        Bar("module_in_doubt", lambda subject: "compensate" in subject.facts.action_doubts),
    ),
    Remedy.DESTROY: (
        Bar("retained", _is_kept),
        Bar("nothing_there", lambda subject: subject.status in NOTHING_THERE),
        Bar("module_in_doubt", lambda subject: "before_destroy" in subject.facts.action_doubts),
        Bar("dependents", lambda subject: bool(subject.position.dependents)),
    ),
}

#: Why a remedy is not for a situation that does not block all.
UNCALLED: Mapping[Remedy, str] = {
    Remedy.WAIT: "not_running",
    Remedy.RECONCILE: "nothing_uncertain",
    Remedy.VERIFY: "not_applied",
    Remedy.RETRY: "not_failed",
    Remedy.DESTROY: "retained",
    Remedy.MANUAL: "nothing_missing",
}


def advise(subject: Subject) -> Advice:
    """
    Every remedy for the step, and the one that is recommended.
    """
    case = next(case for case in CASES if case.holds(subject))
    choices = tuple(_choice(case, remedy, subject) for remedy in Remedy)
    available = {choice.remedy for choice in choices if choice.available}
    return Advice(
        situation=case.situation,
        choices=choices,
        recommended=next((remedy for remedy in case.prefers if remedy in available), None),
    )


def _choice(case: Case, remedy: Remedy, subject: Subject) -> Choice:
    if remedy not in case.may:
        alone = case.blocks is None or remedy in (Remedy.WAIT, Remedy.MANUAL)
        return Choice(remedy, available=False, code=UNCALLED[remedy] if alone else str(case.blocks))
    barred = next((bar.code for bar in BARS.get(remedy, ()) if bar.holds(subject)), None)
    if barred is None and remedy in subject.facts.obstacles:
        barred = subject.facts.obstacles[remedy].reason
    return Choice(remedy, available=barred is None, code=barred or str(case.situation))
