"""
What is said of each remedy, and the exact command that takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from orchestrator.domain.commands import command_line
from orchestrator.domain.compensation import is_cut_short, is_last_work_cut_short
from orchestrator.domain.hints import HINTS
from orchestrator.domain.lineage import failed_run
from orchestrator.domain.record import Doubt, OperationRecord
from orchestrator.domain.recovery import Advice, Choice
from orchestrator.domain.recovery_document import OfferedAction, OfferReason
from orchestrator.domain.subject import Remedy, Situation, Subject

#: What a remedy does, where it can be taken; `SPECIAL` where a situation makes it special.
OFFERED: Mapping[Remedy, str] = {
    Remedy.WAIT: "{working}: wait for it, then look again",
    Remedy.RECONCILE: "looks again: `ok` where a plan with the inputs of then is empty and the "
    "checks hold; only the record changes",
    Remedy.VERIFY: "runs the checks and records their verdict; nothing else changes",
    Remedy.RETRY: "applies again what run {failed} meant to: its module snapshot and its inputs, "
    "with the secrets of today",
    Remedy.REDEPLOY: "applies the module, blueprint and inputs of today: a new attempt",
    Remedy.ROLLBACK: "applies what run {earlier} applied, the newest in which the step was "
    "verified, and checks it again",
    Remedy.COMPENSATE: "runs the compensation that the step declares; it is recorded and resumable",
    Remedy.DESTROY: "takes down what the provider state holds: {objects}",
    Remedy.MANUAL: "no evidence here tells what became of {doubts}: look {where} for what was done "
    "{window}, with the inputs in {inputs}. Once you know, adopt what exists (`--adopt "
    "ADDRESS=ID`); the command forgets what does not",
}
SPECIAL: Mapping[tuple[Remedy, Situation], str] = {
    (Remedy.RECONCILE, Situation.SILENT): "takes the step over and settles it from what is left, "
    "once you know that {unproven} is dead",
    (Remedy.RECONCILE, Situation.INTERRUPTED): "settles run {run} from what it left: answer, "
    "journal, provider state; only the record changes",
    (
        Remedy.RECONCILE,
        Situation.SPOOLED,
    ): "records the outcome that waits on disk, and looks again",
    (Remedy.RECONCILE, Situation.UNSAVED): "pushes {unsaved} to the backend, if lineage and serial "
    "fit, and looks again",
    (
        Remedy.RECONCILE,
        Situation.FOUND,
    ): "adopts what the provider has of {doubts}, and looks again",
    (Remedy.RECONCILE, Situation.IN_DOUBT): "asks provider state, a plan and the provider what "
    "became of {doubts}; only the record changes",
    (Remedy.RECONCILE, Situation.UNANSWERABLE): "looks again: {doubts} may be back in the provider "
    "state; only the record changes",
    (Remedy.VERIFY, Situation.CHECKS): "runs the checks again; everything was applied",
    (Remedy.REDEPLOY, Situation.NEVER): "applies it for the first time",
    (Remedy.REDEPLOY, Situation.GONE): "applies it anew",
    (Remedy.REDEPLOY, Situation.DESTROYING): "applies it again instead of taking down the rest",
    (Remedy.REDEPLOY, Situation.TARGETED): "applies all of it, and not only {targets}",
    (Remedy.DESTROY, Situation.INTERRUPTED): "settles run {run}, then takes down what exists; it "
    "ends `error`, not `destroyed`, while anything stays in doubt",
    **{
        (Remedy.DESTROY, situation): "takes down what the provider state holds: {objects}; it "
        "ends `error`, not `destroyed`, while {doubts} stays in doubt"
        for situation in (Situation.FOUND, Situation.IN_DOUBT, Situation.UNANSWERABLE)
    },
    (Remedy.DESTROY, Situation.DESTROYING): "goes on with what is left: {objects}",
    (
        Remedy.MANUAL,
        Situation.SILENT,
    ): "nobody can tell from here whether {unproven} is alive: look "
    "on that machine for it and for its engine",
    (Remedy.MANUAL, Situation.FOUND): "where what was found is not of this step, or what was not "
    "found does not matter: the command forgets {doubts}",
    (
        Remedy.MANUAL,
        Situation.CUT_SHORT,
    ): "no evidence tells what {work} did in run {run} before it "
    "was cut short: look at what it changes. The command carries it out again",
    (Remedy.MANUAL, Situation.UNSAVED): "compare {unsaved} with the provider state; the command "
    "puts it aside where the state is sound without it",
}

#: Why a remedy cannot be taken, by the code of the reason.
REFUSED: Mapping[str, str] = {
    "live": "{working}",
    "claimed": "{working}",
    "silent": "{unproven} may be alive",
    "spooled": "the outcome of run {run} waits on disk: record it first",
    "interrupted": "run {run} was interrupted: settle it first",
    "errored_state": "the newest provider state lies in {unsaved}: push it or put it aside first",
    "in_doubt": "in doubt: {doubts}; settle that first",
    "nothing_there": "nothing of it is there ({status})",
    "upstream": "it needs {unready}: recover that first",
    "unknown_run": "no earlier run is known in which it ended ok",
    "none_declared": "the step declares no compensation",
    "module_in_doubt": "in doubt in the module of its action: {module}; reconcile that first",
    "nothing_done": "nothing of it was completed",
    "compensated": "it was compensated since it was applied; `compensate --repeat WHY` does "
    "it again",
    "dependents": "alive and in need of it: {dependents}; take them down first, or together: "
    "`{together}`",
    "not_running": "nothing of it is going on",
    "nothing_uncertain": "nothing about it is uncertain",
    "not_applied": "checks are for what is applied",
    "not_failed": "no apply of it has failed",
    "retained": "it is kept ({kept}); first release it, `{release}`, and take `retain` out of the "
    "blueprint if it is there",
    "nothing_missing": "no evidence is missing",
}

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
    The command that takes an available remedy on the entry that it is offered on (law 17).
    """
    if not choice.available:
        return None
    at, why = _at(subject), ("--reason", "WHY")
    facts = subject.facts
    takeover = ("--takeover", "WHY") if facts.unproven else ()
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
            return _command(subject, "retry", *of, *at, *takeover)
        case Remedy.REDEPLOY:
            given = ("--input-file", facts.given_inputs) if facts.given_inputs else ()
            verb = "apply" if situation is Situation.NEVER else "redeploy"
            return _command(subject, verb, *given, *at, *takeover)
        case Remedy.ROLLBACK:
            return _rollback(subject, *takeover)
        case Remedy.COMPENSATE:
            again = subject.record is not None and is_cut_short(subject.record)
            return _command(
                subject, "compensate", *at, *(("--repeat", "WHY") if again else why), *takeover
            )
        case Remedy.DESTROY:
            left = any(doubt.action == "forget" for doubt in subject.doubts)
            accept = ("--accept-vanished", "WHY") if left else ()
            cut = subject.record is not None and is_last_work_cut_short(subject.record)
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
        "together": command_line(
            subject.place,
            "destroy",
            *(word for name in (subject.step, *position.dependents) for word in ("--step", name)),
        ),
    }


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
