"""
Recovery for people: per step what is known, what to do and how, and why not the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.domain.documents.recovery import ObjectInDoubt, RecoveryDocument, RecoveryStep
from orchestrator.domain.record.states import Liveness, StepStatus, Verdict
from orchestrator.domain.recovery.context import Situation
from orchestrator.domain.text import count
from orchestrator.views.formats import (
    ACTIONS,
    STATUS_STYLE,
    Fact,
    add_facts,
    attempt_text,
    duration,
    failed_text,
    fault_text,
    heartbeat_facts,
    moment,
    object_text,
    readback_texts,
    retained_text,
    selection_text,
    shortened_why,
    utc,
    verdict_text,
)
from orchestrator.views.page import Page, Paper
from orchestrator.views.summary import next_commands, orphaned_targets

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
_FAILED = (StepStatus.ERROR, StepStatus.RUNNING)
#: Reasons that `wait` tells of already.
_IMPLIED_BY_WAIT = ("live", "claimed")
_PROCESS = {
    Liveness.ALIVE: "alive",
    Liveness.GONE: "gone",
    Liveness.UNKNOWN: "cannot be seen from here",
}


def recovery_text(document: RecoveryDocument, paper: Paper) -> str:
    """
    Return every step with its facts and remedies; one that needs nothing is a single line, unless
    the paper is verbose.
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
            add_facts(page, _facts(step, verbose=page.paper.verbose), width=_LABEL)
            _actions(page, step, marked=step.step == first)
    orphaned_targets(page, document.orphaned, "has a record, is no longer in the blueprint")
    next_commands(page, document.next)
    return page.render()


def _head(page: Page, document: RecoveryDocument) -> None:
    verdict = document.verdict
    doubts = sum(len(step.evidence.in_doubt) for step in document.steps)
    # What is recorded may be well although the newest attempt was refused.
    well = (Verdict.OK, Verdict.DESTROYED, Verdict.DESTROYED_WITH_RETAINED)
    waiting = sum(bool(step.recommended) for step in document.steps) if verdict in well else 0
    name = f"{document.blueprint}/{document.environment}"
    page.line(
        (f"{selection_text(document.selected)}{name}: ", "bold"),
        (verdict_text(verdict), STATUS_STYLE[verdict]),
        f", {doubts} in doubt" if doubts else "",
        f", {count(waiting, 'step')} to see to" if waiting else "",
        f"  project {document.project}",
    )
    if document.last_verified_run and any(step.status in _FAILED for step in document.steps):
        page.line(f"last verified run: {document.last_verified_run}")
    if document.manual_gap and page.paper.verbose:
        page.line(("gap", "warn"), f": {document.manual_gap.message}", hang=5)


def _quiet(step: RecoveryStep) -> bool:
    if step.situation is Situation.CLAIMED:
        # The step that the run works on says what there is to wait for.
        return step.status not in _FAILED
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
            error = step.evidence.error
            text = failed_text(error.code if error else None, step.evidence.command)
            return f"{text} {when}{waits}"
        case _:
            return f"since {when}"


def _facts(step: RecoveryStep, *, verbose: bool) -> Iterator[Fact]:
    evidence, tried = step.evidence, step.evidence.last_attempt
    if step.last_error:
        yield "cause", "bad", step.last_error
    last = evidence.last_run
    if last is not None and last.error not in (None, evidence.error):
        is_in_doubt = last.error.code == "in_doubt" and evidence.in_doubt  # each of them below
        words = fault_text(last.error) + ("" if is_in_doubt else f": {last.error.summary}")
        yield "last run", "bad", f"{words} ({last.command} {last.run_id})"
    elif tried is not None and tried.error is not None:
        yield "last try", "warn", attempt_text(tried)
    for doubt in evidence.in_doubt:
        yield "in doubt", "bad", _doubt(doubt, shown=step.last_error or "")
        for words in readback_texts(doubt.readback):
            yield "", "dim", words
    yield from heartbeat_facts(
        evidence.in_flight,
        evidence.completed,
        evidence.more_completed,
        alive=step.recommended == "wait",
        verbose=verbose,
    )
    for process in evidence.processes:
        text = f"pid {process.pid} on {process.host}: {_PROCESS[process.state]}"
        yield process.role, "dim", text
    if evidence.heartbeat_age is not None:
        yield "heartbeat", "dim", f"{duration(evidence.heartbeat_age)} ago"
    if evidence.journal and evidence.journal != "complete":
        yield "journal", "warn", f"{evidence.journal}: it does not show all that the engine did"
    if evidence.not_attempted:
        yield "not begun", "dim", ", ".join(evidence.not_attempted)
    if evidence.tainted:
        yield "tainted", "warn", f"{', '.join(evidence.tainted)} (half-made)"
    if evidence.errored_state:
        yield "unsaved", "bad", evidence.errored_state
    if evidence.lock and not (tried and tried.error and tried.error.summary == evidence.lock):
        yield "lock", "warn", evidence.lock
    if evidence.settling:
        yield (
            "settling",
            "warn",
            f"for another {duration(evidence.settling)} a request may be under way",
        )
    if evidence.spooled:
        yield "spooled", "bad", "its outcome waits on disk to be recorded"
    for late in evidence.late:
        yield "late", "warn", f"run {late.run_id} ended `{late.status}` too late: {late.file}"
    if evidence.retained:
        yield "kept", "magenta", retained_text(evidence.retained)
    settled = not evidence.in_doubt and step.recommended != "reconcile"  # that is what comes first
    if step.hint and step.status is not StepStatus.RUNNING and settled:
        yield "first", "bold", step.hint


def _doubt(item: ObjectInDoubt, *, shown: str) -> str:
    name = object_text(item.address, item.id)
    when = f"before {utc(item.before)}"
    if item.after is not None:
        same = utc(item.after) == utc(item.before)
        when = (
            f"at {utc(item.before)}"
            if same
            else f"between {utc(item.after)} and {utc(item.before)}"
        )
    return f"{ACTIONS[item.action].symbol} {name}, {when}{shortened_why(item.why, shown)}"


def _actions(page: Page, step: RecoveryStep, *, marked: bool) -> None:
    """
    Add the available remedies, the recommended one first, then the others and why not. The one to
    begin with is ``marked``; a page has one.
    """
    offered = [action for action in step.actions if action.available]
    shown: set[str] = set()
    commands: set[str] = set()
    for action in sorted(offered, key=lambda item: item.action != step.recommended):
        if action.command in commands and not page.paper.verbose:
            continue  # under another name it is the same
        commands.add(action.command or "")
        best = action.action == step.recommended
        page.line(
            ("  > " if best and marked else "    ", "good"),
            (f"{action.action:<{_LABEL}}  ", "good" if best else "bold"),
            _once(action.reason.message, step, shown),
            hang=_LABEL + 6,
        )
        if action.command:
            page.line((action.command, "cyan"), indent=_LABEL + 6, whole=True)
    hidden = () if page.paper.verbose else (*_PLAIN, *_IMPLIED_BY_WAIT)
    refused = [a for a in step.actions if not a.available and a.reason.code not in hidden]
    for message in dict.fromkeys(action.reason.message for action in refused):
        names = ", ".join(a.action for a in step.actions if a.reason.message == message)
        page.line(
            (f"    {'not':<{_LABEL}}  ", "dim"),
            f"{names}: {_once(message, step, shown)}",
            hang=_LABEL + 6,
        )


def _once(message: str, step: RecoveryStep, shown: set[str]) -> str:
    """
    Return the message without notes that are already ``shown`` for this step, and without the run
    id, which the header or the facts contain.
    """
    last = step.evidence.last_run
    run_id = step.run_id or (last.run_id if last else None)
    head, *notes = message.replace(f"run {run_id}", "that run").split("; ")
    fresh = [note for note in notes if note not in shown]
    shown.update(fresh)
    return "; ".join([head, *fresh])
