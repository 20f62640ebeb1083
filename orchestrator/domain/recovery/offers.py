"""
What is said of each remedy, and the exact command that takes it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import datetime

from orchestrator.domain.documents.recovery import OfferedAction, OfferReason
from orchestrator.domain.record.hook_status import (
    is_before_destroy_unknown,
    is_compensation_unknown,
)
from orchestrator.domain.record.record import Doubt, OperationRecord
from orchestrator.domain.recovery.advice import Advice, Choice
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.recovery.context import Remedy, Situation, Subject
from orchestrator.domain.recovery.hints import HINTS
from orchestrator.domain.recovery.messages import OFFERED, REFUSED, SPECIAL
from orchestrator.domain.recovery.rerun_rules import failed_run

_LOCK_ID = re.compile(r"\bid ([^\s,]+)")  # as a fault tells of a `StateLock`
_APPLYING = (Remedy.RETRY, Remedy.REDEPLOY, Remedy.ROLLBACK)
_MUTATING = (*_APPLYING, Remedy.COMPENSATE, Remedy.DESTROY)


def offers(subject: Subject, advice: Advice) -> tuple[OfferedAction, ...]:
    """
    Every remedy with its reason as a sentence, and the exact command where it can be taken.
    """
    words = _words(subject)
    return tuple(
        OfferedAction(
            action=choice.remedy,
            available=choice.available,
            reason=OfferReason(
                code=choice.code, message=_message(subject, choice, advice.situation, words)
            ),
            command=_command_of(subject, choice, advice.situation),
        )
        for choice in advice.choices
    )


def _message(
    subject: Subject, choice: Choice, situation: Situation, words: Mapping[str, str]
) -> str:
    if choice.available:
        said = SPECIAL.get((choice.remedy, situation), OFFERED[choice.remedy])
        return "; ".join([said.format_map(words), *_notes(subject, choice)])
    if choice.code in REFUSED:
        return REFUSED[choice.code].format_map(words)
    obstacle = subject.facts.obstacles[choice.remedy]
    said = f"{obstacle.message}; {obstacle.hint}" if obstacle.hint else obstacle.message
    if choice.remedy is Remedy.ROLLBACK and choice.code == "unverified":
        said += f": `{_rollback(subject, '--unverified', 'WHY')}`"
    return said


def _command_of(subject: Subject, choice: Choice, situation: Situation) -> str | None:
    """
    The command that takes an available remedy on the entry that it is offered on.
    """
    if not choice.available:
        return None
    at, why = _at(subject), ("--reason", "WHY")
    facts = subject.facts
    takeover = ("--takeover", "WHY") if facts.unproven else ()
    accept = ("--accept-vanished", "WHY") if facts.vanished else ()
    match choice.remedy:
        case Remedy.WAIT:
            return _command(subject, "reconcile", "--wait")
        case Remedy.RECONCILE:
            return _command(subject, "reconcile", *at, *takeover, *_surgery(subject, situation))
        case Remedy.VERIFY:
            return _command(subject, "verify", *at, *takeover)
        case Remedy.RETRY:
            named = subject.record and failed_run(subject.record) == facts.failed_run
            of = () if named or not facts.failed_run else ("--from-run", facts.failed_run)
            return _command(subject, "retry", *of, *at, *accept, *takeover)
        case Remedy.REDEPLOY:
            given = ("--input-file", facts.given_inputs) if facts.given_inputs else ()
            verb = "apply" if situation is Situation.NEVER else "redeploy"
            return _command(subject, verb, *given, *at, *accept, *takeover)
        case Remedy.ROLLBACK:
            return _rollback(subject, *accept, *takeover)
        case Remedy.COMPENSATE:
            again = subject.record is not None and is_compensation_unknown(subject.record)
            return _command(
                subject, "compensate", *at, *(("--repeat", "WHY") if again else why), *takeover
            )
        case Remedy.DESTROY:
            left = any(d.action == "forget" and d.saved is None for d in subject.doubts)
            accept = ("--accept-vanished", "WHY") if left or facts.vanished else ()
            cut = subject.record is not None and is_before_destroy_unknown(subject.record)
            repeat = ("--repeat-before-destroy", "WHY") if cut else ()
            return _command(subject, "destroy", *at, *accept, *repeat, *takeover)
        case Remedy.MANUAL:
            return _by_hand(subject, situation, *at)


def _by_hand(subject: Subject, situation: Situation, *at: str) -> str:
    """
    The command that a person can give once they know what no evidence tells.
    """
    match situation:
        case Situation.SILENT:
            return _command(subject, "reconcile", *at, "--takeover", "WHY")
        case Situation.UNSAVED:
            return _command(subject, "reconcile", *at, "--dismiss-errored-state", "WHY")
        case Situation.CUT_SHORT:
            if _is_compensating(subject):
                return _command(subject, "compensate", *at, "--repeat", "WHY")
            return _command(subject, "destroy", *at, "--repeat-before-destroy", "WHY")
        case _:
            names = dict.fromkeys(doubt.address for doubt in subject.doubts)
            forget = [word for name in names for word in ("--forget", name)]
            return _command(subject, "reconcile", *at, *forget, "--reason", "WHY")


def _is_compensating(subject: Subject) -> bool:
    return subject.record is not None and subject.record.failed_command == "compensate"


def _rollback(subject: Subject, *options: str) -> str:
    to = subject.facts.earlier_run or ""
    return _command(subject, "rollback", "--to", to, *_at(subject), "--reason", "WHY", *options)


def _at(subject: Subject) -> tuple[str, str]:
    return "--at", str(subject.record.sequence if subject.record else 0)


def _surgery(subject: Subject, situation: Situation) -> tuple[str, ...]:
    """
    What ``reconcile`` must be told beside the step.
    """
    options: list[str] = []
    match situation:
        case Situation.UNSAVED:
            options = ["--push-errored-state"]
        case Situation.FOUND:
            for doubt in subject.doubts:
                if doubt.readback is not None and doubt.readback.adopts is not None:
                    options += ["--adopt", f"{doubt.address}={doubt.readback.adopts}"]
        case _:
            return ()
    return (*options, "--reason", "WHY")


def _command(subject: Subject, verb: str, *options: str) -> str:
    return command_line(subject.place, verb, "--step", subject.step, *options)


def _notes(subject: Subject, choice: Choice) -> list[str]:
    """
    What is worth knowing before a remedy is taken.
    """
    record, facts, remedy = subject.record, subject.facts, choice.remedy
    notes = []
    tainted = record.resources.tainted if record else ()
    if tainted and remedy in _APPLYING:
        notes.append(f"{', '.join(tainted)} is half-made (tainted): the apply replaces it")
    if subject.position.children and remedy is Remedy.DESTROY:
        notes.append(f"{', '.join(subject.position.children)} goes with it")
    if facts.settling and remedy is Remedy.RECONCILE:
        notes.append(
            f"for another {facts.settling:.0f} s a request may be under way, and nothing is called "
            "absent"
        )
    if facts.lock and remedy in _MUTATING:
        notes.append(f"the newest attempt met a state lock ({facts.lock})")
    if facts.vanished and remedy in (*_APPLYING, Remedy.DESTROY):
        notes.append(
            "the newest attempt found none of the recorded objects: look first whether region, "
            "account and credentials are right; with WHY you say that the objects are gone"
        )
    if facts.vanished and remedy is Remedy.RECONCILE:
        notes.append("it is refused while none of the recorded objects can be found")
    if facts.unproven and facts.condition is None and remedy is not Remedy.MANUAL:
        notes.append(f"{facts.unproven} holds the claim: look first whether it is dead")
    return notes


def lock_hint(subject: Subject, lock: str) -> str:
    """
    What to do first about a state lock that was met, with its id where it is known.
    """
    found = _LOCK_ID.search(lock)
    if found is None:
        return HINTS["lock"]
    unlock = _command(subject, "reconcile", *_at(subject), "--unlock", found[1], "--reason", "WHY")
    return (
        f"wait for whoever holds the state lock; if that was a run of ours that is dead: `{unlock}`"
    )


def window_of(record: OperationRecord, doubt: Doubt) -> tuple[datetime | None, datetime]:
    """
    Between which times the object in doubt was made, changed or removed; the first is None where
    nothing tells.
    """
    return doubt.started_at or record.started_at, doubt.at or record.updated_at


def _words(subject: Subject) -> dict[str, str]:
    """
    What the sentences fill in.
    """
    record, facts, position = subject.record, subject.facts, subject.position
    doubts = subject.doubts
    run = record.run_id if record else ""
    objects = _counted(len(record.resources.inventory) if record else 0)
    doing = record.active_command if record else None
    working = f"{doing or 'a command'} of run {run} is going on"
    return {
        "run": run,
        "failed": facts.failed_run or "",
        "earlier": facts.earlier_run or "",
        "working": facts.claimed_by or working,
        "unproven": facts.unproven or "",
        "unsaved": facts.unsaved or "",
        "doubts": ", ".join(dict.fromkeys(doubt.address for doubt in doubts)),
        "take_back": _take_back(subject),
        "window": _window(record) if record and doubts else "",
        "where": f"in the account and region of {facts.scope or 'its provider configuration'}",
        "inputs": (record.resolved_inputs_file if record else None) or "the blueprint",
        "objects": objects,
        "kept": facts.kept or "retained",
        "work": "the compensation" if _is_compensating(subject) else "the work before the destroy",
        "module": "; ".join(facts.action_doubts.values()),
        "release": _command(subject, "release", "--reason", "WHY"),
        "status": str(subject.status or "never applied"),
        "targets": ", ".join(record.targets if record else ()),
        "unready": _listed(position.unready),
        "dependents": _listed(position.dependents),
        "children": ", ".join(position.children),
        "finish": command_line(
            subject.place,
            "destroy",
            *(word for name in position.children for word in ("--step", name)),
        ),
        "together": command_line(
            subject.place,
            "destroy",
            *(word for name in (subject.step, *position.dependents) for word in ("--step", name)),
        ),
    }


def _take_back(subject: Subject) -> str:
    """
    The command that imports the first object in doubt.
    """
    place, lost = subject.place, subject.doubts[:1]
    target = f"{place.blueprint}/{place.environment}/{subject.step}"
    names = [word for doubt in lost for word in (doubt.address, doubt.id or "ID")]
    return shlex.join(["orchestrator", "import", target, *names, "--reason", "WHY"])


def _window(record: OperationRecord) -> str:
    windows = [window_of(record, doubt) for doubt in record.resources.in_doubt]
    begins = [begin for begin, _ in windows if begin is not None]
    end = max(end for _, end in windows)
    last = f"{end:%Y-%m-%d %H:%M:%S} UTC"
    if len(begins) < len(windows):
        return f"before {last}"
    first = f"{min(begins):%Y-%m-%d %H:%M:%S} UTC"
    return f"at {first}" if first == last else f"between {first} and {last}"


def _counted(objects: int) -> str:
    return f"{objects} object{'s' if objects > 1 else ''}" if objects else "nothing"


def _listed(steps: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({status})" for name, status in steps.items())
