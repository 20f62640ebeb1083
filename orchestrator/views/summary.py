"""
The end of a run for people: what exists, what went wrong, what is alive, what to do next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.record.states import StepStatus
from orchestrator.errors import ApprovalMissing, EngineFailed
from orchestrator.views.formats import duration, exit_meaning, status_counts
from orchestrator.views.outcome import (
    AS_ASKED,
    alive_total,
    failures,
    objects,
    steps_table,
    unoffered_hint,
    warnings,
)
from orchestrator.views.page import Page, cut

_MANY = 8  # outputs at the end of a run

if TYPE_CHECKING:
    from orchestrator.domain.events.events import Note, RunFinished


def run_summary(
    page: Page, event: RunFinished, *, target: str, alarms: Sequence[Note] = ()
) -> None:
    """
    Add the summary. ``alarms`` are the error notes of the run; they come first, in a frame.
    """
    declined = _is_declined(event)
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


def _is_declined(event: RunFinished) -> bool:
    """
    Return whether the user said no before anything was done: then little needs to be said.
    """
    untouched = all(step.status is StepStatus.PENDING for step in event.steps)
    return event.exit_code == ApprovalMissing.exit_code and untouched


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
