"""
The sentence about each remedy, and its exact command.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime

from orchestrator.domain.json_model import JsonModel
from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.verdicts import is_hook_unknown
from orchestrator.domain.recovery.advice import Advice
from orchestrator.domain.recovery.command_line import (
    adoption_options,
    command_line,
    named_steps,
    program,
)
from orchestrator.domain.recovery.context import RecoveryContext, Remedy, Situation
from orchestrator.domain.recovery.messages import (
    CODE_HINTS,
    DESCRIPTIONS,
    MOVING,
    PHASE_HINTS,
    REFUSALS,
    SITUATION_DESCRIPTIONS,
)
from orchestrator.domain.recovery.rerun_rules import failed_run
from orchestrator.domain.text import Word, count

_LOCK_ID = re.compile(r"\bid ([^\s,]+)")  # as a fault tells of a `StateLock`
_ACCEPT_SECRET = "--accept-changed-secret"
_APPLYING = (Remedy.RETRY, Remedy.REDEPLOY, Remedy.ROLLBACK)
_MUTATING = (*_APPLYING, Remedy.COMPENSATE, Remedy.DESTROY)


class RemedyReason(JsonModel):
    """
    The reason why a remedy is available or not: a stable code, and a sentence.
    """

    code: Word
    message: str


class RemedyDocument(JsonModel):
    """
    A remedy with its exact command, quoted for a shell; the reader fills in words in capitals.
    ``command`` is None if the remedy is not available.
    """

    action: Remedy
    available: bool
    reason: RemedyReason
    command: str | None = None


def offers(advice: Advice) -> tuple[RemedyDocument, ...]:
    """
    Return every remedy with its reason as a sentence and, if available, its exact command.
    """
    words = _words(advice.context)
    return tuple(
        RemedyDocument(
            action=remedy,
            available=remedy not in advice.refusals,
            reason=RemedyReason(
                code=advice.refusals.get(remedy, advice.situation),
                message=_message(advice, remedy, words),
            ),
            command=command_of(advice, remedy),
        )
        for remedy in Remedy
    )


def _message(advice: Advice, remedy: Remedy, words: Mapping[str, str]) -> str:
    context, refused_as = advice.context, advice.refusals.get(remedy)
    if refused_as is None:
        of_situation = SITUATION_DESCRIPTIONS.get(remedy, {})
        text = of_situation.get(advice.situation, DESCRIPTIONS[remedy])
        if remedy is Remedy.RECONCILE and context.facts.moving:
            text = MOVING
        return "; ".join([text.format_map(words), *_notes(context, remedy)])
    if refused_as in REFUSALS:
        return REFUSALS[refused_as].format_map(words)
    blocker = context.facts.blockers[remedy]
    text = f"{blocker.message}; {blocker.hint}" if blocker.hint else blocker.message
    if remedy is Remedy.ROLLBACK and refused_as == "unverified":
        text += f": `{_rollback(context, '--unverified', 'WHY')}`"
    return text


def command_of(advice: Advice, remedy: Remedy) -> str | None:
    """
    Return the command of a remedy for the entry that it is offered on, None if it is not available.
    """
    context, facts, situation = advice.context, advice.context.facts, advice.situation
    if remedy in advice.refusals:
        return None
    at, why = _at(context), ("--reason", "WHY")
    takeover = ("--takeover", "WHY") if facts.unproven_process else ()
    accept = ("--accept-vanished", "WHY") if facts.vanished else ()
    match remedy:
        case Remedy.WAIT:
            return _command(context, "reconcile", "--wait")
        case Remedy.RECONCILE if facts.moving:
            return move_state(context, *takeover)
        case Remedy.RECONCILE:
            return _command(context, "reconcile", *at, *takeover, *_surgery(context, situation))
        case Remedy.VERIFY:
            return _command(context, "verify", *at, *takeover)
        case Remedy.RETRY:
            by_record = context.record and failed_run(context.record) == facts.failed_run
            # An apply that failed before its marker is in no record: `retry` cannot find it there.
            by_record = by_record and situation is not Situation.UNMADE
            of = () if by_record or not facts.failed_run else ("--from-run", facts.failed_run)
            changed = (w for name in facts.changed_secrets for w in (_ACCEPT_SECRET, name))
            return _command(context, "retry", *of, *at, *changed, *accept, *takeover)
        case Remedy.REDEPLOY:
            input_file = ("--input-file", facts.rerun_inputs) if facts.rerun_inputs else ()
            fresh = situation in (Situation.NEVER, Situation.UNRECORDED, Situation.SURGERY)
            verb = "apply" if fresh else "redeploy"
            return _command(context, verb, *input_file, *at, *accept, *takeover)
        case Remedy.ROLLBACK:
            return _rollback(context, *accept, *takeover)
        case Remedy.COMPENSATE:
            if is_hook_unknown(context.record, "compensate"):
                why = ("--repeat", "WHY")
            return _command(context, "compensate", *at, *why, *takeover)
        case Remedy.DESTROY:
            return _command(context, "destroy", *at, *destroy_options(context), *takeover)
        case Remedy.MANUAL:
            return _by_hand(context, situation, *at)


def destroy_options(context: RecoveryContext) -> tuple[str, ...]:
    """
    Return the options without which a destroy of the step would be refused.
    """
    accept = ("--accept-vanished", "WHY") if context.facts.vanished else ()
    adopted = ("--accept-adopted", "WHY") if context.adopted else ()
    cut_short = is_hook_unknown(context.record, "before_destroy")
    repeat = ("--repeat-before-destroy", "WHY") if cut_short else ()
    return (*accept, *adopted, *repeat)


def _by_hand(context: RecoveryContext, situation: Situation, *at: str) -> str:
    """
    Return the command for a person who knows what evidence does not tell.
    """
    match situation:
        case Situation.SILENT if context.facts.moving:
            return move_state(context, "--takeover", "WHY")
        case Situation.SILENT:
            return _command(context, "reconcile", *at, "--takeover", "WHY")
        case Situation.UNSAVED:
            return _command(context, "reconcile", *at, "--dismiss-errored-state", "WHY")
        case Situation.VANISHED:
            accept = ("--accept-vanished", "WHY")
            if not _is_destroying(context):
                return _command(context, "redeploy", *at, *accept)
            if not context.dependents:
                return _command(context, "destroy", *at, *accept)
            return _command(context, "destroy", *named_steps(context.dependents), *accept)
        case Situation.OCCUPIED:
            return make_way(context)
        case Situation.CUT_SHORT:
            if context.failed_command == "compensate":
                return _command(context, "compensate", *at, "--repeat", "WHY")
            return _command(context, "destroy", *at, "--repeat-before-destroy", "WHY")
        case Situation.STATE_REPLACED:
            return _command(context, "reconcile", *at, "--rebuild-state")
        case _:
            return _command(
                context, "reconcile", *at, *_by_word(context, situation), "--reason", "WHY"
            )


def _by_word(context: RecoveryContext, situation: Situation) -> Iterator[str]:
    """
    Yield the options by which a person's word ends the doubts. An adoption of what only a person
    can call ours proves nothing, so that the doubt stays open unless it is also forgotten.
    """
    if situation is Situation.UNPROVEN:
        for doubt in context.doubts:
            if doubt.address in context.rivals:
                yield from ("--forget", doubt.address)
            elif doubt.readback is not None and doubt.readback.unproven is not None:
                adopt = f"{doubt.address}={doubt.readback.unproven}"
                yield from ("--adopt", adopt, "--forget", doubt.address)
        return
    no_forgetting = context.facts.settling and context.can_be_adopted_by_hand
    for name in dict.fromkeys(doubt.address for doubt in context.doubts):
        if no_forgetting or situation is Situation.NOT_IMPORTED:
            yield from ("--adopt", f"{name}=ID")
        else:
            yield from ("--forget", name)


def _is_destroying(context: RecoveryContext) -> bool:
    """
    Return whether the newest attempt, which changed nothing, was a destroy: by its run, or by the
    record if the run is not known here.
    """
    attempt = context.record.last_attempt if context.record else None
    return context.facts.destroying or (attempt is not None and attempt.command == "destroy")


def _rollback(context: RecoveryContext, *options: str) -> str:
    to = context.facts.earlier_run or ""
    return _command(context, "rollback", "--to", to, *_at(context), "--reason", "WHY", *options)


def _at(context: RecoveryContext) -> tuple[str, str]:
    return "--at", str(context.record.sequence if context.record else 0)


def _surgery(context: RecoveryContext, situation: Situation) -> tuple[str, ...]:
    """
    Return the options of ``reconcile`` after the step.
    """
    reason = ("--reason", "WHY")
    match situation:
        case Situation.LOCKED:
            lock = context.facts.left_lock or ""
            return ("--unlock", lock, *adoption_options(context.takeable), *reason)
        case Situation.UNSAVED | Situation.SEALED:
            return ("--push-errored-state", *reason)
        case Situation.LOST | Situation.STATE_EMPTIED:
            return ("--rebuild-state",)
        case Situation.FOUND | Situation.NOT_IMPORTED:
            return (*adoption_options(context.takeable), *reason)
        case _:
            return ()


def _command(context: RecoveryContext, verb: str, *options: str) -> str:
    return command_line(context.blueprint, verb, *context.step_options, *options)


def _notes(context: RecoveryContext, remedy: Remedy) -> list[str]:
    """
    Return the notes to read before a remedy is used.
    """
    record, facts = context.record, context.facts
    notes = []
    tainted = record.resources.tainted if record else ()
    if tainted and remedy in _APPLYING:
        notes.append(f"{', '.join(tainted)} is half-made (tainted): the apply replaces it")
    if facts.changed_secrets and remedy is Remedy.RETRY:
        names = ", ".join(facts.changed_secrets)
        notes.append(f"not as in that run: the secret {names}, which the command accepts")
    if context.adopted and remedy is Remedy.DESTROY:
        names = ", ".join(context.adopted)
        notes.append(
            f"with WHY you say that {names} may go, which was not made here for all we know"
        )
    if context.children and remedy is Remedy.DESTROY:
        notes.append(f"{', '.join(context.children)} goes with it")
    if facts.settling and remedy is Remedy.RECONCILE:
        notes.append(
            f"for another {facts.settling:.0f} s a request may be under way, and nothing is called "
            "absent"
        )
    if facts.lock and remedy in _MUTATING:
        notes.append(f"the newest attempt met a state lock ({facts.lock})")
    if facts.vanished and remedy in (*_APPLYING, Remedy.DESTROY):
        notes.append("with WHY you say that the objects that were not found are gone")
    if facts.unproven_process and facts.condition is None and remedy is not Remedy.MANUAL:
        notes.append(f"{facts.unproven_process} holds the claim: look first whether it is dead")
    return notes


def lock_hint(context: RecoveryContext, lock: str) -> str:
    """
    Return what to do about a state lock, with its id if known.
    """
    match = _LOCK_ID.search(lock)
    if match is None:
        return PHASE_HINTS["lock"]
    unlock = _command(context, "reconcile", *_at(context), "--unlock", match[1], "--reason", "WHY")
    return (
        f"wait for whoever holds the state lock; if that was a run of ours that is dead: `{unlock}`"
    )


def window_of(record: OperationRecord, doubt: Doubt) -> tuple[datetime | None, datetime]:
    """
    Return the times between which the object in doubt was created, changed or deleted; the first is
    None if unknown.
    """
    return doubt.started_at or record.started_at, doubt.at or record.updated_at


def _words(context: RecoveryContext) -> dict[str, str]:
    """
    Return the values for the placeholders in the sentences.
    """
    record, facts, doubts = context.record, context.facts, context.doubts
    run = record.run_id if record else ""
    bound = record.provider_state if record else None
    alive = len(record.live_objects) if record else 0
    command = record.active_command if record else None
    # What imports the first object in doubt, once nothing else has its address.
    first = [word for doubt in doubts[:1] for word in (doubt.address, doubt.id or "ID")]
    rebuild = _command(context, "reconcile", "--rebuild-state")
    take_back = _target_command(context, "import", *first, "--reason", "WHY")
    if context.rivals:
        take_back = f"{make_way(context)}`, then `{rebuild}"
    claim = f"{command or 'a command'} of run {run} is in progress"
    return {
        "run": run,
        "failed": facts.failed_run or "",
        "earlier": facts.earlier_run or "",
        "misplaced": CODE_HINTS.get(facts.misplaced or "", ""),
        "working": facts.claimed_by or claim,
        "settling": f"{facts.settling:.0f}",
        "unproven": facts.unproven_process or "",
        "displaced": ", ".join(context.displaced),
        "foreign_ids": ", ".join(
            id_
            for d in doubts
            if d.readback and d.readback.ownership == "foreign"
            for id_ in d.readback.ids
        ),
        "unproven_ids": ", ".join(
            d.readback.unproven for d in doubts if d.readback and d.readback.unproven
        ),
        "adopts": ", adopts what the provider has" if context.is_adoptable else "",
        "doubts": ", ".join(dict.fromkeys(doubt.address for doubt in doubts)),
        "take_back": take_back,
        "occupied": ", ".join(facts.occupied),
        "rebuild": rebuild,
        "settle_by_hand": "the command adopts what exists; for another "
        f"{facts.settling:.0f} s a request may be under way, and nothing is forgotten"
        if facts.settling and context.can_be_adopted_by_hand
        else f"{_what_exists(context)}; the command forgets what does not",
        "goes_on": "destroys it" if _is_destroying(context) else "makes them again",
        "window": _window(record) if record and doubts else "",
        "where": f"in the account and region of {facts.scope or 'its provider configuration'}",
        "inputs": (record.resolved_inputs_file if record else None) or "the blueprint",
        "objects": count(alive, "object") if alive else "nothing",
        "kept": facts.retained_because or "retained",
        "work": "the compensation"
        if context.failed_command == "compensate"
        else "the work before the destroy",
        "module": "; ".join(facts.hook_doubts.values()),
        "release": _command(context, "release", "--reason", "WHY"),
        "status": str(context.status or "never applied"),
        "state": f"lineage {bound.lineage}, serial {bound.serial}" if bound else "",
        "targets": ", ".join(record.targets if record else ()),
        "unready": ", ".join(f"{name} ({why})" for name, why in context.unready.items()),
        "dependents": ", ".join(
            f"{name} ({status})" for name, status in context.dependents.items()
        ),
        "children": ", ".join(context.children),
        "finish": command_line(context.blueprint, "destroy", *named_steps(context.children)),
        "together": _command(context, "destroy", *named_steps(context.dependents)),
    }


def _what_exists(context: RecoveryContext) -> str:
    """
    Return what a person can do with an object in doubt that they have found.
    """
    ways = []
    if context.takeable:
        free = dict.fromkeys(doubt.address for doubt in context.takeable)
        of = f" of {', '.join(free)}" if context.rivals else ""
        ways.append(f"adopt what exists{of} (`--adopt ADDRESS=ID`)")
    if context.rivals:
        occupants = ", ".join(context.rivals.values())
        where = "the provider state holds that there"
        ways.append(f"delete by hand what exists beside {occupants}: {where}")
    return ", ".join(ways)


def make_way(context: RecoveryContext) -> str:
    """
    Return the command that removes from provider state the object at the address of one in doubt,
    or of a recorded one that has left the state.
    """
    orphaned = ("--orphaned",) if context.is_orphan else ()
    addresses = context.rivals or context.facts.occupied
    return _target_command(context, "exec", *orphaned, "--", "state", "rm", *addresses)


def move_state(context: RecoveryContext, *options: str) -> str:
    """
    Return the command that moves the provider state to the blueprint's backend.
    """
    return _target_command(context, "backend move", *options)


def _target_command(context: RecoveryContext, verb: str, *words: str) -> str:
    blueprint = context.blueprint
    target = f"{blueprint.blueprint}/{blueprint.environment}/{context.step}"
    return shlex.join([*program(blueprint), *verb.split(), target, *words])


def _window(record: OperationRecord) -> str:
    windows = [window_of(record, doubt) for doubt in record.resources.in_doubt]
    begins = [begin for begin, _ in windows if begin is not None]
    end = max(end for _, end in windows)
    last = f"{end:%Y-%m-%d %H:%M:%S} UTC"
    if len(begins) < len(windows):
        return f"before {last}"
    first = f"{min(begins):%Y-%m-%d %H:%M:%S} UTC"
    return f"at {first}" if first == last else f"between {first} and {last}"
