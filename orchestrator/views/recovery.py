"""
Recovery for a person: per step what is known, what to do and how, and why not the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.domain.documents.recovery import ObjectInDoubt, RecoveryDocument, RecoveryStep
from orchestrator.domain.record.states import Liveness, StepStatus, Verdict
from orchestrator.domain.recovery.commands import RemedyDocument
from orchestrator.domain.recovery.context import Situation
from orchestrator.views.formats import (
    STATUS_STYLE,
    SYMBOLS,
    count,
    duration,
    moment,
    selection_text,
    utc,
)
from orchestrator.views.outcome import (
    UNFINISHED,
    attempt_text,
    fault_text,
    heartbeat_rows,
    readback_texts,
    shortened_why,
)
from orchestrator.views.page import Page, Paper, Part
from orchestrator.views.summary import next_commands

_LABEL = 11  # columns of the longest name of an action
#: Reasons that say only that an action is not called for; told where more details are wanted.
_PLAIN = (
    "not_running",
    "nothing_uncertain",
    "not_applied",
    "not_failed",
    "none_declared",
    "nothing_missing",
    "unknown_run",
)
#: Reasons that `wait` tells of already.
_TOLD_BY_WAIT = ("live", "claimed")
_PROCESS = {
    Liveness.ALIVE: "alive",
    Liveness.GONE: "gone",
    Liveness.UNKNOWN: "cannot be seen from here",
}


def recovery_text(document: RecoveryDocument, paper: Paper) -> str:
    """
    Every step with its facts and actions; one that needs nothing is a line, unless the paper is
    verbose.
    """
    page = Page(paper)
    _head(page, document)
    names = max((len(step.step) for step in document.steps), default=0)
    detailed = True
    detailed_steps = (step for step in document.steps if paper.verbose or not _quiet(step))
    first = next((step.step for step in detailed_steps if step.recommended), None)
    for step in document.steps:
        quiet = not paper.verbose and _quiet(step)
        if detailed or not quiet:
            page.gap()
        detailed = not quiet
        page.line(
            (f"{step.step:<{names}}", "bold"),
            "  ",
            _status(step),
            f"  {_since(step, paper, brief=quiet)}",
            hang=names + 4,
        )
        if detailed:
            page.table(
                [
                    [(f"{label:<{_LABEL}}", style), text]
                    for label, style, text in _facts(step, verbose=page.paper.verbose)
                ],
                indent=4,
            )
            _actions(page, step, marked=step.step == first)
    if document.orphaned:
        page.gap()
        page.line(("Orphaned", "warn"), ": has a record, is no longer in the blueprint")
        for target in document.orphaned:
            page.line(target, indent=2)
    next_commands(page, document.next)
    return page.render()


def _head(page: Page, document: RecoveryDocument) -> None:
    verdict = document.verdict
    text = verdict.upper() if verdict is Verdict.INTERRUPTED else verdict.replace("_", " ")
    doubts = sum(len(step.evidence.in_doubt) for step in document.steps)
    # What is recorded may be well although the newest attempt was refused.
    well = (Verdict.OK, Verdict.DESTROYED, Verdict.DESTROYED_WITH_RETAINED)
    waiting = sum(bool(step.recommended) for step in document.steps) if verdict in well else 0
    place = f"{document.blueprint}/{document.environment}"
    page.line(
        (f"{selection_text(document.selected)}{place}: ", "bold"),
        (text, STATUS_STYLE[verdict]),
        f", {doubts} in doubt" if doubts else "",
        f", {count(waiting, 'step')} to see to" if waiting else "",
        f"  project {document.project}",
    )
    if document.last_verified_run and any(_may_roll_back(step) for step in document.steps):
        page.line(f"last verified run: {document.last_verified_run}")
    if document.manual_gap and page.paper.verbose:
        page.line(("gap", "warn"), f": {document.manual_gap.message}", hang=5)


def _may_roll_back(step: RecoveryStep) -> bool:
    """
    Whether a person may want to go back to what was there before.
    """
    return step.status in (StepStatus.ERROR, StepStatus.RUNNING)


def _quiet(step: RecoveryStep) -> bool:
    if step.situation is Situation.CLAIMED:
        # The step that the run works on says what there is to wait for.
        return step.status not in (StepStatus.ERROR, StepStatus.RUNNING)
    return (
        step.recommended is None
        and step.hint is None
        and step.situation
        in (
            Situation.OK,
            Situation.RETAINED,
            Situation.GONE,
            Situation.UNRECORDED,
            Situation.NEVER,
        )
    )


def _status(step: RecoveryStep) -> tuple[str, str]:
    if step.condition is not None:
        return str(step.condition).upper(), "bad" if step.recommended != "wait" else "cyan"
    return str(step.status), STATUS_STYLE[step.status]


def _since(step: RecoveryStep, paper: Paper, *, brief: bool) -> str:
    if step.updated_at is None:
        waits = f"; waits for {', '.join(step.blocked_by)}" if step.blocked_by else ""
        return f"no record here{waits}"
    when = moment(step.updated_at, paper.now)
    if not brief:
        when += f", run {step.run_id}, entry {step.sequence}"
    match step.status:
        case StepStatus.RUNNING:
            return f"{step.evidence.command or 'a command'} began {when}"
        case StepStatus.ERROR:
            waits = f"; first: {', '.join(step.blocked_by)}" if step.blocked_by else ""
            code = step.evidence.error.code if step.evidence.error else ""
            left = UNFINISHED.get(code)
            said = f"{left}, since" if left else f"{step.evidence.command or 'a command'} failed"
            return f"{said} {when}{waits}"
        case _:
            return f"since {when}"


def _facts(step: RecoveryStep, *, verbose: bool) -> Iterator[tuple[str, str, Part]]:
    """
    What is known, as rows of label, style and text.
    """
    found, tried = step.evidence, step.evidence.last_attempt
    if step.last_error:
        yield "cause", "bad", step.last_error
    last = found.last_run
    if last is not None and last.error not in (None, found.error):
        told = last.error.code == "in_doubt" and found.in_doubt  # each of them below
        said = fault_text(last.error) + ("" if told else f": {last.error.summary}")
        yield "last run", "bad", f"{said} ({last.command} {last.run_id})"
    elif tried is not None and tried.error is not None:
        yield "last try", "warn", attempt_text(tried)
    for doubt in found.in_doubt:
        yield "in doubt", "bad", _doubt(doubt, told=step.last_error or "")
        for words in readback_texts(doubt.readback):
            yield "", "dim", words
    yield from heartbeat_rows(
        found.in_flight,
        found.completed,
        found.more_completed,
        alive=step.recommended == "wait",
        verbose=verbose,
    )
    for process in found.processes:
        text = f"pid {process.pid} on {process.host}: {_PROCESS[process.state]}"
        yield process.role, "dim", text
    if found.heartbeat_age is not None:
        yield "heartbeat", "dim", f"{duration(found.heartbeat_age)} ago"
    if found.journal and found.journal != "complete":
        yield "journal", "warn", f"{found.journal}: it does not tell all that the engine did"
    if found.not_attempted:
        yield "not begun", "dim", ", ".join(found.not_attempted)
    if found.tainted:
        yield "tainted", "warn", f"{', '.join(found.tainted)} (half-made)"
    if found.errored_state:
        yield "unsaved", "bad", found.errored_state
    if found.lock and not (tried and tried.error and tried.error.summary == found.lock):
        yield "lock", "warn", found.lock
    if found.settling:
        yield (
            "settling",
            "warn",
            f"for another {duration(found.settling)} a request may be going on",
        )
    if found.spooled:
        yield "spooled", "bad", "its outcome waits on disk to be recorded"
    for late in found.late:
        yield "late", "warn", f"run {late.run_id} ended `{late.status}` too late: {late.file}"
    if found.retained:
        kept = found.retained
        yield "kept", "magenta", f"{kept.reason} ({kept.owner}, review {kept.review_by})"
    settled = not found.in_doubt and step.recommended != "reconcile"  # that is what comes first
    if step.hint and step.status is not StepStatus.RUNNING and settled:
        yield "first", "bold", step.hint


def _doubt(item: ObjectInDoubt, *, told: str) -> str:
    name = f"{item.address} [{item.id}]" if item.id else item.address
    when = f"before {utc(item.before)}"
    if item.after is not None:
        same = utc(item.after) == utc(item.before)
        when = (
            f"at {utc(item.before)}"
            if same
            else f"between {utc(item.after)} and {utc(item.before)}"
        )
    return f"{SYMBOLS[item.action]} {name}, {when}{shortened_why(item.why, told)}"


def _actions(page: Page, step: RecoveryStep, *, marked: bool) -> None:
    """
    Add what can be done, the recommended action first, then what cannot and why. The one to begin
    with is ``marked``: there is one on a page.
    """
    offered = [action for action in step.actions if action.available]
    told: set[str] = set()
    commands: set[str] = set()
    for action in sorted(offered, key=lambda item: item.action != step.recommended):
        if action.command in commands and not page.paper.verbose:
            continue  # under another name it is the same
        commands.add(action.command or "")
        best = action.action == step.recommended
        page.line(
            ("  > " if best and marked else "    ", "good"),
            (f"{action.action:<{_LABEL}}  ", "good" if best else "bold"),
            _once(action.reason.message, step, told),
            hang=_LABEL + 6,
        )
        if action.command:
            page.line((action.command, "cyan"), indent=_LABEL + 6, whole=True)
    refused = {
        message: [item.action for item in step.actions if item.reason.message == message]
        for message in _refusals(page, step)
    }
    for message, names in refused.items():
        page.line(
            (f"    {'not':<{_LABEL}}  ", "dim"),
            f"{', '.join(names)}: {_once(message, step, told)}",
            hang=_LABEL + 6,
        )


def _once(message: str, step: RecoveryStep, told: set[str]) -> str:
    """
    The message without the notes that are ``told`` on this step already, and without the id of its
    run, which stands at its head, or among the facts.
    """
    last = step.evidence.last_run
    run_id = step.run_id or (last.run_id if last else None)
    said, *notes = message.replace(f"run {run_id}", "that run").split("; ")
    fresh = [note for note in notes if note not in told]
    told.update(fresh)
    return "; ".join([said, *fresh])


def _refusals(page: Page, step: RecoveryStep) -> list[str]:
    told = [item for item in step.actions if not item.available and _is_shown(page, item)]
    return list(dict.fromkeys(item.reason.message for item in told))


def _is_shown(page: Page, item: RemedyDocument) -> bool:
    return page.paper.verbose or item.reason.code not in (*_PLAIN, *_TOLD_BY_WAIT)
