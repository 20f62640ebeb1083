"""
The recovery table: what can be done about a step, as data.

``CASES`` says which situation a step is in, which remedies are allowed there, and which is
recommended. ``PRECONDITIONS`` are further conditions of single remedies. What forbids to repeat a
run comes from `domain.recovery.rerun_rules`, so that a remedy is offered and refused by the same
rules. `advise` is the only reader of these tables; those in docs/ are generated from them. Nothing
here reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from orchestrator.domain.record.states import NOTHING_THERE, Condition, Status
from orchestrator.domain.record.verdicts import is_unmade
from orchestrator.domain.recovery.context import RecoveryContext, Remedy, Situation
from orchestrator.domain.target import hook_kind
from orchestrator.domain.transitions.hook_results import (
    has_completed_work,
    is_compensated,
    is_hook_unknown,
)
from orchestrator.errors import StoreReason


class Case(Struct, frozen=True):
    """
    A row of the table. ``holds`` recognises the ``situation``, ``when`` describes it. Remedies in
    ``allowed`` are available; the first available one of ``prefers`` is recommended. ``refused_as``
    is the reason code of all others, if they share one.
    """

    situation: Situation
    when: str
    holds: Callable[[RecoveryContext], bool]
    allowed: tuple[Remedy, ...]
    prefers: tuple[Remedy, ...] = ()
    refused_as: str | None = None


class Precondition(Struct, frozen=True):
    """
    A precondition of a remedy that the situation allows: if it ``fails``, ``code`` is the reason.
    """

    code: str
    fails: Callable[[RecoveryContext], bool]


class RemedyAdvice(Struct, frozen=True):
    """
    A remedy, whether it is available, and the reason code.
    """

    remedy: Remedy
    available: bool
    code: str


#: Why a remedy of a single step is refused although the command over all its steps is not.
_OF_NEIGHBOURS = (
    "upstream",
    "dependents",
    "child_left",
    "nothing_there",
    "no_record",
    "none_declared",
)


class Advice(Struct, frozen=True):
    """
    A step with its situation, every remedy, and the recommended one: None if nothing needs to be
    done, if a neighbour must be recovered first, or if files must be changed first.
    """

    context: RecoveryContext
    situation: Situation
    remedies: tuple[RemedyAdvice, ...]
    recommended: Remedy | None

    @property
    def step(self) -> str:
        return self.context.step

    @property
    def is_well(self) -> bool:
        return self.context.status is Status.OK and self.recommended is None

    def allows(self, remedy: Remedy) -> bool:
        """
        Return whether a command over this step and its neighbours may use the remedy.
        """
        choice = next(item for item in self.remedies if item.remedy is remedy)
        return choice.available or choice.code in _OF_NEIGHBOURS


def _has_status(status: Status) -> Callable[[RecoveryContext], bool]:
    return lambda context: context.status is status


def _has_condition(condition: Condition) -> Callable[[RecoveryContext], bool]:
    return lambda context: context.facts.condition is condition


def _has_failed_command(*commands: str) -> Callable[[RecoveryContext], bool]:
    return lambda context: context.failed_command in commands


def _has_error_phase(phase: str) -> Callable[[RecoveryContext], bool]:
    return lambda context: bool(
        context.record and context.record.error and context.record.error.phase == phase
    )


def _is_retained(context: RecoveryContext) -> bool:
    return context.facts.retained_because is not None or context.status is Status.RETAINED


def _is_hook_cut_short(context: RecoveryContext) -> bool:
    kind = hook_kind(context.failed_command)
    return kind is not None and is_hook_unknown(context.record, kind)


_R = Remedy
_AGAIN = (_R.RETRY, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE, _R.DESTROY)

#: The first case that holds is the step's; the last holds for every record.
CASES: tuple[Case, ...] = (
    Case(
        Situation.LIVE,
        "its run or its engine is alive",
        _has_condition(Condition.LIVE),
        allowed=(_R.WAIT,),
        prefers=(_R.WAIT,),
        refused_as="live",
    ),
    Case(
        Situation.CLAIMED,
        "a live run works on the blueprint in this environment",
        lambda context: context.facts.claimed_by is not None,
        allowed=(_R.WAIT,),
        prefers=(_R.WAIT,),
        refused_as="claimed",
    ),
    Case(
        Situation.SILENT,
        "no heartbeat, and from here it cannot be proven that its run is dead",
        _has_condition(Condition.SILENT),
        allowed=(_R.RECONCILE, _R.MANUAL),
        prefers=(_R.MANUAL,),
        refused_as="silent",
    ),
    Case(
        Situation.SPOOLED,
        "its outcome waits on disk to be recorded",
        lambda context: context.facts.spooled,
        allowed=(_R.RECONCILE,),
        prefers=(_R.RECONCILE,),
        refused_as="spooled",
    ),
    Case(
        Situation.LOCKED,
        "a dead run of ours left its provider state locked",
        lambda context: context.facts.left_lock is not None,
        allowed=(_R.RECONCILE,),
        prefers=(_R.RECONCILE,),
        refused_as="state_locked",
    ),
    Case(
        Situation.SEALED,
        "the engine could not save its provider state, and what it left of it is encrypted",
        lambda context: (
            context.facts.errored_state is not None and not context.facts.errored_readable
        ),
        allowed=(_R.RECONCILE,),
        prefers=(_R.RECONCILE,),
        refused_as="errored_state",
    ),
    Case(
        Situation.UNSAVED,
        "the engine could not save its provider state (`errored.tfstate`)",
        lambda context: context.facts.errored_state is not None,
        allowed=(_R.RECONCILE, _R.MANUAL),
        prefers=(_R.RECONCILE,),
        refused_as="errored_state",
    ),
    Case(
        Situation.INTERRUPTED,
        "it says `running`, and its run and engine are gone",
        _has_status(Status.RUNNING),
        allowed=(_R.RECONCILE, _R.DESTROY),
        prefers=(_R.RECONCILE,),
        refused_as="interrupted",
    ),
    Case(
        Situation.NOT_IMPORTED,
        "objects are in doubt, and the one that the provider has could not be imported",
        lambda context: context.is_adoptable and context.is_not_imported,
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL, _R.RECONCILE),
        refused_as="in_doubt",
    ),
    Case(
        Situation.FOUND,
        "objects are in doubt, and the provider has one of them",
        lambda context: context.is_adoptable,
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.RECONCILE, _R.MANUAL),
        refused_as="in_doubt",
    ),
    Case(
        Situation.LOST,
        "recorded objects have left the provider state, and not by a delete of this tool",
        lambda context: context.can_rebuild,
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.RECONCILE, _R.MANUAL),
        refused_as="in_doubt",
    ),
    Case(
        Situation.UNPROVEN,
        "objects are in doubt, and nothing proves whose the one is that the provider has",
        lambda context: context.is_unproven,
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL, _R.RECONCILE),
        refused_as="in_doubt",
    ),
    Case(
        Situation.FOREIGN,
        "objects are in doubt, and the one that the provider has is not of this step",
        lambda context: context.is_foreign,
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL, _R.RECONCILE),
        refused_as="in_doubt",
    ),
    Case(
        Situation.DISPLACED,
        "what was to be deleted is there, and another object has its address",
        lambda context: bool(context.displaced),
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.RECONCILE, _R.MANUAL),
        refused_as="in_doubt",
    ),
    Case(
        Situation.IN_DOUBT,
        "objects are in doubt, and evidence can still settle it",
        lambda context: context.is_answerable,
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.RECONCILE, _R.MANUAL),
        refused_as="in_doubt",
    ),
    Case(
        Situation.LEFT,
        "objects have left the provider state, and no import brings them back",
        lambda context: bool(context.doubts) and all(d.has_left_state for d in context.doubts),
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL, _R.RECONCILE),
        refused_as="in_doubt",
    ),
    Case(
        Situation.UNANSWERABLE,
        "objects are in doubt, and only a person can settle it",
        lambda context: bool(context.doubts),
        allowed=(_R.RECONCILE, _R.DESTROY, _R.MANUAL),
        prefers=(_R.MANUAL, _R.RECONCILE),
        refused_as="in_doubt",
    ),
    Case(
        Situation.OCCUPIED,
        "its provider state holds another object at the address of a recorded one",
        lambda context: bool(context.facts.occupied),
        allowed=(_R.RECONCILE, _R.MANUAL),
        prefers=(_R.MANUAL,),
        refused_as="occupied",
    ),
    Case(
        Situation.STATE_EMPTIED,
        "all its recorded objects have left the provider state, and not by this tool",
        lambda context: context.facts.state_emptied,
        allowed=(_R.RECONCILE,),
        prefers=(_R.RECONCILE,),
        refused_as="state_emptied",
    ),
    Case(
        Situation.STATE_REPLACED,
        "its provider state is another one (lineage) than the one that was applied",
        lambda context: context.facts.state_replaced,
        allowed=(_R.MANUAL,),
        prefers=(_R.MANUAL,),
        refused_as="state_replaced",
    ),
    Case(
        Situation.STATE_BACK,
        "its provider state has gone back to an older version",
        lambda context: context.facts.state_back,
        allowed=(_R.RECONCILE,),
        prefers=(_R.RECONCILE,),
        refused_as="state_back",
    ),
    Case(
        Situation.VANISHED,
        "the newest attempt found none of its recorded objects",
        lambda context: context.facts.vanished,
        allowed=(_R.RECONCILE, _R.VERIFY, *_AGAIN, _R.MANUAL),
        prefers=(_R.MANUAL,),
    ),
    Case(
        Situation.UNADOPTED,
        "no live object of it is recorded, and its provider state holds objects",
        lambda context: (
            context.facts.unadopted and (context.record is None or context.status in NOTHING_THERE)
        ),
        allowed=(),
        refused_as="unrecorded_state",
    ),
    Case(
        Situation.UNRECORDED,
        "nothing of its blueprint is recorded here, and its provider state was not read",
        lambda context: context.record is None and context.facts.unrecorded,
        allowed=(_R.REDEPLOY,),
        refused_as="no_record",
    ),
    Case(
        Situation.NEVER,
        "it has no record, others of its blueprint have",
        lambda context: context.record is None,
        allowed=(_R.RETRY, _R.REDEPLOY),
        prefers=(_R.REDEPLOY,),
        refused_as="no_record",
    ),
    Case(
        Situation.UNMADE,
        "none of it exists, and its newest apply or import failed before it made anything",
        lambda context: is_unmade(context.record),
        allowed=(_R.RETRY, _R.REDEPLOY, _R.ROLLBACK),
        prefers=(_R.RETRY, _R.REDEPLOY),
        refused_as="nothing_there",
    ),
    Case(
        Situation.GONE,
        "it is `absent` or `destroyed`",
        lambda context: context.status in NOTHING_THERE,
        allowed=(_R.REDEPLOY, _R.ROLLBACK),
        refused_as="nothing_there",
    ),
    Case(
        Situation.RETAINED,
        "it is `retained`",
        _has_status(Status.RETAINED),
        allowed=(_R.VERIFY, _R.RETRY, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE),
    ),
    Case(
        Situation.OK,
        "it is `ok`",
        _has_status(Status.OK),
        allowed=(_R.VERIFY, *_AGAIN),
    ),
    Case(
        Situation.CHECKS,
        "it was applied, and a check does not hold",
        _has_error_phase("verify"),
        allowed=(_R.RECONCILE, _R.VERIFY, *_AGAIN),
        prefers=(_R.VERIFY,),
    ),
    Case(
        Situation.CUT_SHORT,
        "its compensation, or the work before its destroy, was interrupted: its result is unknown",
        _is_hook_cut_short,
        allowed=(_R.RECONCILE, *_AGAIN, _R.MANUAL),
        prefers=(_R.MANUAL,),
    ),
    Case(
        Situation.COMPENSATING,
        "its compensation failed",
        _has_failed_command("compensate"),
        allowed=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.COMPENSATE, _R.RECONCILE),
    ),
    Case(
        Situation.DESTROYING,
        "its destroy failed",
        _has_failed_command("destroy", "before_destroy"),
        allowed=(_R.RECONCILE, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE, _R.DESTROY),
        prefers=(_R.DESTROY, _R.RECONCILE),
    ),
    Case(
        Situation.TARGETED,
        "a targeted apply left a part undone",
        lambda context: bool(context.record and context.record.targets),
        allowed=(_R.RECONCILE, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE, _R.DESTROY),
        prefers=(_R.REDEPLOY,),
    ),
    Case(
        Situation.SURGERY,
        "its provider state was changed by hand, and nothing was applied since",
        _has_error_phase("surgery"),
        allowed=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.REDEPLOY, _R.RECONCILE),
    ),
    Case(
        Situation.FAILED,
        "its apply failed, and nothing is in doubt",
        lambda _: True,
        allowed=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.RETRY, _R.REDEPLOY),
    ),
)


def _store_precondition(reason: StoreReason) -> Precondition:
    return Precondition(reason, lambda context: context.facts.store_reason == reason)


_NO_STORE = (_store_precondition("records_elsewhere"), _store_precondition("no_shared_store"))
# A record is brought up to date before the store is believed.
_STORE = (*_NO_STORE, _store_precondition("store_gone_back"))
_ORPHANED = Precondition("orphaned", lambda context: context.is_orphan)
_HOOK = Precondition("hook_target", lambda context: context.is_hook_target)
_MISPLACED = Precondition("misplaced", lambda context: context.facts.misplaced is not None)
# Whoever settles a move that was cut short goes on with it.
_REFUSED = Precondition(
    "misplaced", lambda context: bool(context.facts.misplaced and not context.facts.moving)
)
_UNREADY = Precondition("upstream", lambda context: bool(context.unready))
_CHILD_LEFT = Precondition(
    "child_left",
    lambda context: context.status in NOTHING_THERE and bool(context.children),
)


def _may_be_under_way(context: RecoveryContext) -> bool:
    """
    Return whether the manual remedy would forget objects that a request may still be creating.
    """
    facts = context.facts
    adopting = context.is_unproven or context.can_be_adopted_by_hand
    other = facts.condition is not None or facts.errored_state is not None or adopting
    return bool(facts.settling and context.doubts) and not other and not _is_hook_cut_short(context)


PRECONDITIONS: Mapping[Remedy, tuple[Precondition, ...]] = {
    Remedy.MANUAL: (*_STORE, _REFUSED, Precondition("settling", _may_be_under_way)),
    Remedy.RECONCILE: (
        *_NO_STORE,
        _REFUSED,
        Precondition("vanished", lambda context: context.facts.vanished),
    ),
    Remedy.VERIFY: (*_STORE, _ORPHANED, _HOOK, _MISPLACED),
    Remedy.RETRY: (
        *_STORE,
        _ORPHANED,
        _HOOK,
        Precondition("not_failed", lambda context: not context.facts.failed_run),
        _UNREADY,
        _CHILD_LEFT,
    ),
    Remedy.REDEPLOY: (*_STORE, _ORPHANED, _HOOK, _MISPLACED, _UNREADY, _CHILD_LEFT),
    Remedy.ROLLBACK: (
        *_STORE,
        _ORPHANED,
        _HOOK,
        Precondition("unknown_run", lambda context: not context.facts.earlier_run),
        _UNREADY,
        _CHILD_LEFT,
    ),
    Remedy.COMPENSATE: (
        *_STORE,
        _ORPHANED,
        _HOOK,
        Precondition("none_declared", lambda context: not context.facts.compensates),
        _MISPLACED,
        Precondition(
            "nothing_done",
            lambda context: context.record is None or not has_completed_work(context.record),
        ),
        Precondition("compensated", lambda context: is_compensated(context.record)),
        Precondition("module_in_doubt", lambda context: "compensate" in context.facts.hook_doubts),
    ),
    Remedy.DESTROY: (
        *_STORE,
        Precondition("retained", _is_retained),
        _MISPLACED,
        Precondition("prevent_destroy", lambda context: context.protected),
        Precondition("nothing_there", lambda context: context.status in NOTHING_THERE),
        Precondition(
            "module_in_doubt", lambda context: "before_destroy" in context.facts.hook_doubts
        ),
        Precondition("dependents", lambda context: bool(context.dependents)),
    ),
}

#: Why a remedy is not for a situation that does not block all.
NOT_CALLED_FOR: Mapping[Remedy, str] = {
    Remedy.WAIT: "not_running",
    Remedy.RECONCILE: "nothing_uncertain",
    Remedy.VERIFY: "not_applied",
    Remedy.RETRY: "not_failed",
    Remedy.DESTROY: "retained",
    Remedy.MANUAL: "nothing_missing",
}


def advise(context: RecoveryContext) -> Advice:
    """
    Return every remedy for the step, and the recommended one.
    """
    case = next(case for case in CASES if case.holds(context))
    choices = tuple(_remedy_advice(case, remedy, context) for remedy in Remedy)
    # What met another's object meets it again: a person gives a name, or takes the object over.
    # What was to be imported must not be made a second time.
    attempt = context.record.last_attempt if context.record else None
    importing = (
        case.situation is Situation.UNMADE and attempt is not None and attempt.command == "import"
    )
    excluded = _AGAIN if context.facts.taken or importing else ()
    available = {
        choice.remedy for choice in choices if choice.available and choice.remedy not in excluded
    }
    return Advice(
        context,
        situation=case.situation,
        remedies=choices,
        recommended=next((remedy for remedy in case.prefers if remedy in available), None),
    )


def _remedy_advice(case: Case, remedy: Remedy, context: RecoveryContext) -> RemedyAdvice:
    if remedy not in case.allowed:
        own_reason = case.refused_as is None or remedy in (Remedy.WAIT, Remedy.MANUAL)
        return RemedyAdvice(
            remedy,
            available=False,
            code=NOT_CALLED_FOR[remedy] if own_reason else str(case.refused_as),
        )
    failed = next(
        (item.code for item in PRECONDITIONS.get(remedy, ()) if item.fails(context)), None
    )
    if failed is None and remedy in context.facts.blockers:
        failed = context.facts.blockers[remedy].reason
    return RemedyAdvice(remedy, available=failed is None, code=failed or str(case.situation))
