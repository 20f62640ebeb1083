"""
The end of a run for people: the result of each step, what exists, what went wrong, what is alive,
what to do next. ``runs show`` prints the results, too.

A step that did not run is pending or skipped; it is never called failed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import Diagnostic, Fault
from orchestrator.domain.record.run_record import NextCommand, StepRun
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.recovery.messages import hint_of
from orchestrator.domain.text import count
from orchestrator.errors import ApprovalMissing, EngineFailed
from orchestrator.views.formats import (
    STATUS_STYLE,
    UNFINISHED,
    absence_text,
    diagnostic,
    doubt_text,
    duration,
    exit_meaning,
    fault_text,
    joined,
    readback_texts,
    released_texts,
    retained_text,
    shortened_list,
    status_counts,
    tainted_text,
)
from orchestrator.views.page import Page, Part, cut

if TYPE_CHECKING:
    from orchestrator.domain.events.events import LiveObjects, Note, RunFinished


#: The commands that a hint names, or the options that a command is to be given.
_NAMED = re.compile(r"`([^`]+)`|\b(orchestrator .+)|(?<=: )(--\S.*)")
_VERIFIED = {"verified": "verified", "failed": "a check failed", "unverified": "no checks"}
#: Codes of what is no failure: a person asked for no more.
AS_ASKED = ("targeted",)
_MANY = 8  # outputs at the end of a run


def counts_text(step: StepRun) -> str:
    """
    Count what a step did: "2 created, 1 in doubt, 1 not attempted"; empty for nothing. An object in
    doubt is counted only as such.
    """
    uncertain = {item.address for item in step.in_doubt}
    numbers = (
        (step.imported, "imported"),
        (step.moved, "moved"),
        (step.created, "created"),
        (step.updated, "updated"),
        (step.replaced, "replaced"),
        (step.deleted, "deleted"),
    )
    certain = [([name for name in items if name not in uncertain], word) for items, word in numbers]
    rest = ((step.in_doubt, "in doubt"), (step.not_attempted, "not attempted"))
    counted = [f"{len(items)} {word}" for items, word in (*certain, *rest) if items]
    return ", ".join([*counted, *released_texts(step.released)])


def outcome_text(step: StepRun) -> str:
    """
    Describe a step's outcome in one line, without its status.
    """
    tried = f"{step.attempts} attempts" if step.attempts > 1 else None
    changes = ", ".join(filter(None, (counts_text(step), tried)))
    match step.status:
        case StepStatus.PENDING:
            waits = f"waits for {', '.join(step.blocked_by)}" if step.blocked_by else ""
            return joined("not run", waits, step.reason)
        case StepStatus.ERROR:
            error = fault_text(step.error) if step.error else step.last_error or "no reason known"
            if step.error and step.error.code == "in_doubt" and step.in_doubt:
                error = ""  # it is counted
            unfinished = step.error.summary if step.error and step.error.code in AS_ASKED else None
            return joined(error, changes, unfinished, step.reason)
        case StepStatus.RUNNING:
            return joined("no outcome recorded", changes, step.reason)
        case StepStatus.OK:
            checks = step.verification
            is_expected = checks is None or (checks.verdict == "unverified" and step.reason)
            verified = "" if is_expected or checks is None else _VERIFIED[checks.verdict]
            return joined(changes or ("" if step.reason else "no changes"), step.reason, verified)
        case StepStatus.DESTROYED | StepStatus.ABSENT:
            absence = step.absence
            gone = f"absence {absence.verdict} ({absence_text(absence)})" if absence else ""
            return joined(changes, gone, step.reason if (step.reason or "") not in gone else None)
        case StepStatus.RETAINED | StepStatus.SKIPPED:
            reason = f"retained: {retained_text(step.retained)}" if step.retained else step.reason
            return joined(reason, changes)


def steps_table(
    page: Page,
    steps: Iterable[StepRun],
    alive: Iterable[LiveObjects] = (),
    recorded: Mapping[str, StepStatus] | None = None,
) -> None:
    """
    Add one row per step: name, status, outcome, and number of objects alive. For a step that did
    not run the outcome is its ``recorded`` one.
    """
    numbers = {item.step: len(item.objects) for item in alive}
    statuses = recorded or {}
    rows: list[list[Part]] = []
    for step in steps:
        living = numbers.get(step.step, 0)
        tail = f"; {living} alive" if living else ""
        if step.status is StepStatus.PENDING and step.step in statuses:
            tail = f"; {statuses[step.step]} as before{tail}"
        style = STATUS_STYLE[step.status]
        rows.append([(step.step, "bold"), (step.status, style), f"{outcome_text(step)}{tail}"])
    page.table(rows, indent=2)


def failures(
    page: Page,
    steps: Iterable[StepRun],
    *,
    heading: str = "What went wrong",
    offered: Sequence[NextCommand] = (),
) -> None:
    """
    Add what failed and why, each diagnostic once, in the engine's words, and what to do first,
    without commands that are ``offered`` below.
    """
    shown: set[Diagnostic] = set()
    hinted: set[str] = set()
    failed = [
        step
        for step in steps
        if (step.error or step.status is StepStatus.ERROR)
        and not (step.error and step.error.code in AS_ASKED)
    ]
    if not failed:
        return
    page.heading(heading)
    for step in failed:
        fault = step.error
        head = fault_text(fault) if fault else step.last_error or "no reason known"
        if fault is not None and fault.code in UNFINISHED:
            head = fault.summary
        page.line((step.step, "bold"), ": ", (head, "bad"), indent=2)
        if fault is None:
            continue
        errors = [item for item in fault.diagnostics if item.severity == "error"]
        if not errors and head != fault.summary:
            page.text(fault.summary, indent=4)
        fresh = [item for item in dict.fromkeys(errors) if item not in shown]
        for item in fresh:
            diagnostic(page, item, indent=4)
        if errors and not fresh:
            page.line("the same error as above", indent=4)
        shown.update(fresh)
        label = "next" if step.hint else "first"
        hint = step.hint or hint_of(fault, step.in_doubt) or ""
        hint = "" if fault.phase == "lock" and _is_unlocked(step.step, offered) else hint
        hint = unoffered_hint(hint, offered)
        if hint and hint not in hinted:
            page.line((label, "bold"), f": {hint}", indent=4, hang=len(label) + 2)
        hinted.add(hint)


def unoffered_hint(hint: str, offered: Sequence[NextCommand]) -> str:
    """
    Return the hint without the parts that name a command which is ``offered`` as well, possibly
    with more options.
    """
    commands = [set(shlex.split(item.command)) for item in offered]

    def is_offered(part: str) -> bool:
        word_sets = [set("".join(parts).split()) for parts in _NAMED.findall(part)]
        required = [{word for word in words if not word.isupper()} for words in word_sets]
        exact = any(word.startswith("--") for words in required for word in words)
        is_command = any("orchestrator" in words for words in required)
        return (exact or is_command) and all(
            any(words <= command for command in commands) for words in required
        )

    return "; ".join(part for part in hint.split("; ") if not is_offered(part))


def _is_unlocked(step: str, offered: Iterable[NextCommand]) -> bool:
    return any({"--unlock", step} <= set(shlex.split(item.command)) for item in offered)


def warnings(page: Page, steps: Iterable[StepRun]) -> None:
    """
    Add the engine's warnings, including failed `check` blocks.
    """
    warned = [step for step in steps if step.warnings]
    if warned:
        page.heading("Warnings")
    for step in warned:
        page.line((step.step, "bold"), ":", indent=2)
        for item in step.warnings:
            diagnostic(page, item, indent=4)


def objects(page: Page, steps: Iterable[StepRun], alive: Iterable[LiveObjects] = ()) -> None:
    """
    Add, for each step that did not end well, its objects: what was done, what is alive, what is in
    doubt.
    """
    living = {item.step: item for item in alive}
    has_heading = False
    for step in steps:
        own = living.get(step.step)
        doubts = _doubts(step, own)
        tainted = own.tainted if own else ()
        if step.status not in (StepStatus.ERROR, StepStatus.RUNNING) and not (doubts or tainted):
            continue
        rows: list[list[Part]] = []
        uncertain = {item.address for item in doubts}
        for label, items in (
            ("imported", step.imported),
            ("created", step.created),
            ("updated", step.updated),
            ("replaced", step.replaced),
            ("deleted", step.deleted),
            ("not attempted", step.not_attempted),
            ("alive", own.objects if own else ()),
            ("recorded", own.missing if own else ()),
        ):
            certain = [name for name in items if name not in uncertain]
            counted = label in ("created", "updated", "replaced", "imported")
            if certain and not (counted and own and set(certain) <= set(own.objects)):
                rows.append([(label, "dim"), shortened_list(certain)])
        if tainted:
            rows.append([("tainted", "warn"), tainted_text(tainted)])
        for item in doubts:
            rows.append([("in doubt", "bad"), doubt_text(item, shown=_shown_text(step.error))])
            rows += [[("", "dim"), words] for words in readback_texts(item.readback)]
        if not rows:
            continue
        if not has_heading:
            page.heading("Objects")
            has_heading = True
        page.line((step.step, "bold"), indent=2)
        page.table(rows, indent=4)


def _shown_text(fault: Fault | None) -> str:
    """
    Return the text of a fault that the screen shows anyway.
    """
    if fault is None:
        return ""
    details = (f"{item.summary} {item.detail}" for item in fault.diagnostics)
    return " ".join([fault.summary, *details])


def alive_total(alive: Iterable[LiveObjects]) -> str:
    """
    Count the objects in all: "3 objects alive in 2 steps"; empty for none.
    """
    counts = [len(item.objects) for item in alive if item.objects]
    return f"{count(sum(counts), 'object')} alive in {count(len(counts), 'step')}" if counts else ""


def _doubts(step: StepRun, alive: LiveObjects | None) -> list[Doubt]:
    items = {item.address: item for item in (alive.in_doubt if alive else ())}
    items.update({item.address: item for item in step.in_doubt})
    return list(items.values())


def run_summary(
    page: Page, event: RunFinished, *, target: str, alarms: Sequence[Note] = ()
) -> None:
    """
    Add the summary. ``alarms`` are the error notes of the run; they come first, in a frame.
    """
    # Somebody said no before anything was done: then little needs to be said.
    declined = event.exit_code == ApprovalMissing.exit_code and all(
        step.status is StepStatus.PENDING for step in event.steps
    )
    style = "good" if event.exit_code in (0, 2) else "warn" if declined else "bad"
    page.rule()
    page.line(
        (f"{event.command} {target}: ", "bold"),
        (f"exit {event.exit_code}, {_ending(event)}", style),
        f" ({duration(event.seconds)})",
    )
    counts = status_counts(step.status for step in event.steps)
    doubts = sum(len(item.in_doubt) for item in event.alive)
    facts = [
        event.verdict.replace("_", " "),
        "nothing was changed" if declined else counts,
        _others(event),
        f"{doubts} in doubt" if doubts else "",
        alive_total(event.alive),
    ]
    page.line(f"verdict: {'; '.join(fact for fact in facts if fact)}")
    for note in alarms:
        page.gap()
        alarm(page, note.model_copy(update={"hint": unoffered_hint(note.hint, event.next)}))
    alone = len(event.steps) == 1 and event.steps[0].status is StepStatus.ERROR
    if not alone and not declined:  # what went wrong with it, and its objects, are below
        page.gap()
        steps_table(page, event.steps, event.alive, event.recorded)
    heading = "What went wrong" if event.exit_code else "Still open"
    failures(page, event.steps, heading=heading, offered=event.next)
    warnings(page, event.steps)
    if not declined:
        objects(page, event.steps, event.alive)
    if event.error and not _is_shown(event):
        page.gap()
        page.line(("error", "bad"), f": {event.error}", hang=7)
    hint = unoffered_hint(event.hint, event.next)
    if hint and all(step.hint != event.hint for step in event.steps):
        page.next(hint)
    if event.exit_code == 0:
        _outputs(page, event)
    next_commands(page, event.next)
    show_next = event.exit_code not in (0, 2) and not declined
    if event.directory and (show_next or page.paper.verbose):
        page.heading("Evidence", more=f": {event.directory}")


def _ending(event: RunFinished) -> str:
    """
    Describe the exit code of this run in a few words.
    """
    failed = [step for step in event.steps if step.status is StepStatus.ERROR]
    match event.exit_code:
        case 0 if failed and all(step.error and step.error.code in AS_ASKED for step in failed):
            return "done; what was not requested is still to be applied"
        case 0 if failed:
            return "done; it is still to be applied"
        case 0:
            return "done"
        case ApprovalMissing.exit_code:
            return "not approved"
        case EngineFailed.exit_code if all(step.sequence is None for step in failed):
            return "engine failed"  # in init or plan: nothing is recorded
        case code:
            return re.split(r": |; ", exit_meaning(code))[0]


def _outputs(page: Page, event: RunFinished) -> None:
    """
    Add the outputs, one per line; of many only the first.
    """
    rows = [
        f"{item.step}.{name} = {json.dumps(value, ensure_ascii=False)}"
        for item in event.outputs
        for name, value in sorted(item.outputs.items())
    ]
    rows += [
        f"{item.step}.{name} = (sensitive)" for item in event.outputs for name in item.sensitive
    ]
    if not rows:
        return
    page.heading("Outputs")
    shown = rows if page.paper.verbose or len(rows) <= _MANY else rows[: _MANY - 1]
    for row in shown:
        page.line(cut(row, page.paper.width - 2, page.glyph("...")), indent=2)
    if len(shown) < len(rows):
        text = f"and {len(rows) - len(shown)} more: orchestrator outputs"
        page.line((text, "dim"), indent=2)


def _others(event: RunFinished) -> str:
    """
    Return the steps that are not ok and were not part of the run: they count for the verdict, too.
    """
    own = {step.step for step in event.steps}
    unwell = (StepStatus.ERROR, StepStatus.RUNNING)
    listed = [
        f"{step} {status}"
        for step, status in event.recorded.items()
        if status in unwell and step not in own
    ]
    return f"not in this run: {', '.join(listed)}" if listed else ""


def next_commands(page: Page, items: Iterable[NextCommand]) -> None:
    items = list(items)
    if not items:
        return
    page.heading("Next")
    for item in items:
        page.line((item.command, "cyan"), indent=2, whole=True)
        page.line((item.why, "dim"), indent=6, hang=0)


def orphaned_targets(page: Page, targets: Sequence[str], note: str) -> None:
    """
    Add the targets that are no longer in the blueprint; ``note`` says what that means here.
    """
    if targets:
        page.heading("Orphaned", "warn", more=f": {note}")
    for target in targets:
        page.line(target, indent=2)


def alarm(page: Page, note: Note) -> None:
    """
    Add a note in a frame.
    """
    where = f"{note.step}: " if note.step else ""
    frame = Page(page.paper, prefix=(*page.prefix, ("!!!", "alarm"), " "))
    frame.line((f"{where}{note.message}", "bad"))
    if note.hint:
        frame.next(note.hint)
    page.take(frame)


def _is_shown(event: RunFinished) -> bool:
    texts = {step.error.summary for step in event.steps if step.error}
    texts |= {step.last_error for step in event.steps if step.last_error}
    texts.add(exit_meaning(event.exit_code))
    return any(event.error in text for text in texts if event.error)
