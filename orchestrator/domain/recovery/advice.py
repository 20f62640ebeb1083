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
from orchestrator.domain.record.verdicts import (
    has_completed_work,
    is_compensated,
    is_hook_unknown,
    is_unmade,
)
from orchestrator.domain.recovery.context import RecoveryContext, Remedy, Situation
from orchestrator.domain.target import hook_kind, hook_of

#: Something that holds of a step, or does not.
Rule = Callable[[RecoveryContext], bool]


class Case(Struct, frozen=True):
    """
    A row of the table. ``holds`` recognises the ``situation``, ``when`` describes it. Remedies in
    ``allowed`` are available; the first available one of ``prefers`` is recommended. ``refused_as``
    is the reason code of all others, if they share one.
    """

    situation: Situation
    when: str
    holds: Rule
    allowed: tuple[Remedy, ...]
    prefers: tuple[Remedy, ...] = ()
    refused_as: str | None = None


#: Why a remedy of a single step is refused although the command over all its steps is not.
_OF_OTHERS = ("upstream", "dependents", "child_left", "nothing_there", "no_record", "none_declared")


class Advice(Struct, frozen=True):
    """
    A step with its situation, the reason code of each remedy that is not available, and the
    recommended remedy: None if nothing needs to be done, if a neighbour must be recovered first, or
    if files must be changed first.
    """

    context: RecoveryContext
    situation: Situation
    refusals: Mapping[Remedy, str]
    recommended: Remedy | None

    @property
    def step(self) -> str:
        return self.context.step

    def allows(self, remedy: Remedy) -> bool:
        """
        Return whether a command over this step and its neighbours may use the remedy.
        """
        return self.refusals.get(remedy) in (None, *_OF_OTHERS)


def _has_error_in(context: RecoveryContext, phase: str) -> bool:
    error = context.record.error if context.record else None
    return error is not None and error.phase == phase


def _failed_last(context: RecoveryContext, command: str) -> bool:
    attempt = context.record.last_attempt if context.record else None
    return attempt is not None and attempt.command == command and attempt.error is not None


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
        lambda context: context.facts.condition is Condition.LIVE,
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
        lambda context: context.facts.condition is Condition.SILENT,
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
        lambda context: context.status is Status.RUNNING,
        allowed=(_R.RECONCILE, _R.DESTROY),
        prefers=(_R.RECONCILE,),
        refused_as="interrupted",
    ),
    Case(
        Situation.NOT_IMPORTED,
        "objects are in doubt, and the one that the provider has could not be imported",
        lambda context: context.is_adoptable and _failed_last(context, "import"),
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
        lambda context: any(  # and no import has been tried
            doubt.has_left_state and doubt.id is not None and doubt.readback is None
            for doubt in context.takeable
        ),
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
        lambda context: any(
            doubt.readback and doubt.readback.ownership == "foreign" for doubt in context.doubts
        ),
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
        lambda context: context.status is Status.RETAINED,
        allowed=(_R.VERIFY, _R.RETRY, _R.REDEPLOY, _R.ROLLBACK, _R.COMPENSATE),
    ),
    Case(
        Situation.OK,
        "it is `ok`",
        lambda context: context.status is Status.OK,
        allowed=(_R.VERIFY, *_AGAIN),
    ),
    Case(
        Situation.CHECKS,
        "it was applied, and a check does not hold",
        lambda context: _has_error_in(context, "verify"),
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
        lambda context: context.failed_command == "compensate",
        allowed=(_R.RECONCILE, *_AGAIN),
        prefers=(_R.COMPENSATE, _R.RECONCILE),
    ),
    Case(
        Situation.DESTROYING,
        "its destroy failed",
        lambda context: context.failed_command in ("destroy", "before_destroy"),
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
        lambda context: _has_error_in(context, "surgery"),
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


def _may_be_under_way(context: RecoveryContext) -> bool:
    """
    Return whether the manual remedy would forget objects that a request may still be creating.
    """
    facts = context.facts
    adopting = context.is_unproven or context.can_be_adopted_by_hand
    other = facts.condition is not None or facts.errored_state is not None or adopting
    return bool(facts.settling and context.doubts) and not other and not _is_hook_cut_short(context)


# A record is brought up to date before the store is believed.
_RECORDS: Mapping[str, Rule] = {
    "records_elsewhere": lambda context: context.facts.store_reason == "records_elsewhere",
    "no_shared_store": lambda context: context.facts.store_reason == "no_shared_store",
}
_STORE: Mapping[str, Rule] = {
    **_RECORDS,
    "store_gone_back": lambda context: context.facts.store_reason == "store_gone_back",
}
_OF_BLUEPRINT: Mapping[str, Rule] = {
    **_STORE,
    "orphaned": lambda context: context.is_orphan,
    "hook_target": lambda context: hook_of(context.step) is not None,
}
_MISPLACED: Mapping[str, Rule] = {
    "misplaced": lambda context: context.facts.misplaced is not None,
}
# Whoever settles a move that was cut short goes on with it.
_UNMOVED: Mapping[str, Rule] = {
    "misplaced": lambda context: bool(context.facts.misplaced and not context.facts.moving),
}
_NEIGHBOURS: Mapping[str, Rule] = {
    "upstream": lambda context: bool(context.unready),
    "child_left": lambda context: context.status in NOTHING_THERE and bool(context.children),
}

#: What makes a remedy unavailable that the situation allows, by the code of the reason; the first
#: that holds is the reason.
PRECONDITIONS: Mapping[Remedy, Mapping[str, Rule]] = {
    Remedy.MANUAL: {**_STORE, **_UNMOVED, "settling": _may_be_under_way},
    Remedy.RECONCILE: {
        **_RECORDS,
        **_UNMOVED,
        "vanished": lambda context: context.facts.vanished,
    },
    Remedy.VERIFY: {**_OF_BLUEPRINT, **_MISPLACED},
    Remedy.RETRY: {
        **_OF_BLUEPRINT,
        "not_failed": lambda context: not context.facts.failed_run,
        **_NEIGHBOURS,
    },
    Remedy.REDEPLOY: {**_OF_BLUEPRINT, **_MISPLACED, **_NEIGHBOURS},
    Remedy.ROLLBACK: {
        **_OF_BLUEPRINT,
        "unknown_run": lambda context: not context.facts.earlier_run,
        **_NEIGHBOURS,
    },
    Remedy.COMPENSATE: {
        **_OF_BLUEPRINT,
        "none_declared": lambda context: not context.facts.compensates,
        **_MISPLACED,
        "nothing_done": lambda context: (
            context.record is None or not has_completed_work(context.record)
        ),
        "compensated": lambda context: is_compensated(context.record),
        "module_in_doubt": lambda context: "compensate" in context.facts.hook_doubts,
    },
    Remedy.DESTROY: {
        **_STORE,
        "retained": lambda context: (
            context.facts.retained_because is not None or context.status is Status.RETAINED
        ),
        **_MISPLACED,
        "prevent_destroy": lambda context: context.protected,
        "nothing_there": lambda context: context.status in NOTHING_THERE,
        "module_in_doubt": lambda context: "before_destroy" in context.facts.hook_doubts,
        "dependents": lambda context: bool(context.dependents),
    },
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
    Return what can be done about the step, and the recommended remedy.
    """
    case = next(case for case in CASES if case.holds(context))
    refusals = {
        remedy: code for remedy in Remedy if (code := _refusal(case, remedy, context)) is not None
    }
    # What met another's object meets it again: a person gives a name, or takes the object over.
    # What was to be imported must not be made a second time.
    importing = case.situation is Situation.UNMADE and _failed_last(context, "import")
    excluded = {*refusals, *(_AGAIN if context.facts.taken or importing else ())}
    recommended = next((remedy for remedy in case.prefers if remedy not in excluded), None)
    return Advice(context, case.situation, refusals, recommended)


def _refusal(case: Case, remedy: Remedy, context: RecoveryContext) -> str | None:
    """
    Return the reason code if the remedy is not available.
    """
    if remedy not in case.allowed:
        if case.refused_as is None or remedy in (Remedy.WAIT, Remedy.MANUAL):
            return NOT_CALLED_FOR[remedy]
        return case.refused_as
    for code, holds in PRECONDITIONS.get(remedy, {}).items():
        if holds(context):
            return code
    blocker = context.facts.blockers.get(remedy)
    return blocker.reason if blocker else None
