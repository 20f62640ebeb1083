"""
The status of blueprints for people: the verdict first, then each step with what is known of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator

from orchestrator.domain.documents.status import StatusDocument, StatusListDocument, StepState
from orchestrator.domain.record.objects import PERSON
from orchestrator.domain.record.record import OutputOrigin
from orchestrator.domain.record.states import Condition, StepStatus
from orchestrator.views.formats import (
    ACTION_VERDICT,
    STATUS_STYLE,
    Fact,
    absence_text,
    add_facts,
    ago,
    attempt_text,
    diagnostic_text,
    doubt_text,
    failed_text,
    heartbeat_facts,
    hook_text,
    lineage_text,
    moment,
    readback_texts,
    released_texts,
    retained_text,
    selection_text,
    shortened_list,
    status_counts,
    tainted_text,
    unread_store_text,
    utc,
    verdict_text,
)
from orchestrator.views.page import Page, Paper, Part, cut
from orchestrator.views.summary import next_commands

_LABEL = 10  # columns of the longest label of a detail
_WIDE = 100  # columns from which a line has room for more than how long ago it was
_CONDITIONS = {
    Condition.LIVE: ("LIVE", "cyan", "its owner or engine is alive"),
    Condition.INTERRUPTED: ("INTERRUPTED", "bad", "its owner and engine are gone"),
    Condition.SILENT: ("SILENT", "bad", "no heartbeat, and from here its end cannot be proven"),
}


def status_text(document: StatusDocument, paper: Paper) -> str:
    page = Page(paper)
    _verdict(page, document)
    runs = {step.run_id for step in document.steps if step.run_id}
    run_labels: dict[str, str] = {}  # how runs that are shown above are called there
    if len(runs) == 1 and len(document.steps) > 1:
        common = runs.pop()
        page.line((f"all by run {common}", "dim"))
        run_labels[common] = ""
    page.gap()
    name_width = max((len(step.step) for step in document.steps), default=0)
    status_width = max((len(_shown(step)[0]) for step in document.steps), default=0)

    def add(step: StepState) -> None:
        word, style = _shown(step)
        page.line(
            (f"{step.step:<{name_width}}", "bold"),
            "  ",
            (f"{word:<{status_width}}", style),
            f"  {_since(step, page, run_labels)}",
            hang=name_width + status_width + 4,
        )
        add_facts(page, _facts(step, page), width=_LABEL)

    orphans = {step.target: step for step in document.steps if step.target in document.orphaned}
    for step in document.steps:
        if step.target not in orphans:
            add(step)
    if document.orphaned:
        unlisted = [target for target in document.orphaned if target not in orphans]
        page.heading("Orphaned", "warn", more=": has a record, is no longer in the blueprint")
        for target in unlisted:
            page.line(target, indent=2)
        for step in orphans.values():
            add(step)
    next_commands(page, document.next)
    return page.render()


def status_list_text(document: StatusListDocument, paper: Paper) -> str:
    """
    Return one line per blueprint and environment, with details below those that are not well.
    """
    page = Page(paper)
    if not document.blueprints:
        page.line(f"project {document.project}: no blueprint has a record in the known stores")
        page.line("  `operations: {url: ...}` in orchestrator.yaml names that of one that is gone")
    rows: list[list[Part]] = []
    for item in document.blueprints:
        times = [step.updated_at for step in item.steps if step.updated_at]
        time_text = moment if paper.width >= _WIDE else ago
        when = time_text(max(times), paper.now) if times else "no record here"
        rows.append(
            [
                (f"{item.blueprint}/{item.environment}", "bold"),
                (item.verdict.replace("_", " "), STATUS_STYLE[item.verdict]),
                when,
                _counts(item.steps),
            ]
        )
    page.table(rows)
    for item in document.blueprints:
        unwell = [step for step in item.steps if _unwell(step)]
        if not (unwell or item.orphaned):
            continue
        page.gap()
        page.line((f"{item.blueprint}/{item.environment}", "bold"))
        table: list[list[Part]] = [
            [
                step.step,
                _shown(step),
                step.last_error
                or (attempt_text(step.failed_attempt) if step.failed_attempt else "")
                or _condition(step),
            ]
            for step in unwell
        ]
        table += [[target, ("orphaned", "warn"), ""] for target in item.orphaned]
        page.table(table, indent=2)
    for store in document.unread_stores:
        page.gap()
        what = f"{store.blueprint} not known: " if store.blueprint else "not read: "
        page.line((what, "warn"), unread_store_text(store))
        if not store.blueprint:
            page.line(
                "Records of what left its blueprint were seen there. Name it by "
                "`operations.url` in orchestrator.yaml.",
                indent=2,
            )
    return page.render()


def _verdict(page: Page, document: StatusDocument) -> None:
    target = f"{document.blueprint}/{document.environment}"
    verdict = document.verdict
    page.line(
        (f"{selection_text(document.selected)}{target}: ", "bold"),
        (verdict_text(verdict), STATUS_STYLE[verdict]),
        f"  ({_counts(document.steps)})  project {document.project}",
    )


def _counts(steps: Iterable[StepState]) -> str:
    steps = list(steps)
    counts = status_counts(step.status for step in steps)
    doubts = sum(len(step.in_doubt) for step in steps)
    return f"{counts}, {doubts} in doubt" if doubts else counts


def _unwell(step: StepState) -> bool:
    return bool(
        step.status in (StepStatus.ERROR, StepStatus.RUNNING)
        or step.in_doubt
        or step.spooled
        or step.review_overdue
        or step.failed_attempt
    )


def _shown(step: StepState) -> tuple[str, str]:
    if step.condition is not None:
        word, style, _ = _CONDITIONS[step.condition]
        return (word, style)
    return (step.status, STATUS_STYLE[step.status])


def _condition(step: StepState) -> str:
    if step.spooled:
        return "its outcome waits on disk to be recorded"
    if step.review_overdue and step.retained:
        return f"its review was due on {step.retained.review_by} ({step.retained.owner})"
    return _CONDITIONS[step.condition][2] if step.condition else ""


def _facts(step: StepState, page: Page) -> Iterator[Fact]:
    if step.spooled:
        yield "spooled", "bad", f"{_condition(step)}; the record still says running"
    if step.last_error:
        yield "cause", "bad", step.last_error
    tried = step.last_attempt
    if tried is not None and tried.error is not None:
        yield "last try", "warn", attempt_text(tried)
    for item in step.in_doubt:
        yield "in doubt", "bad", doubt_text(item, shown=step.last_error or "")
        for text in readback_texts(item.readback, brief=True):
            yield "", "dim", text
    yield from heartbeat_facts(
        step.in_flight,
        step.completed,
        step.more_completed,
        alive=step.condition is Condition.LIVE,
        verbose=page.paper.verbose,
    )
    for warning in step.warnings:
        yield "warning", "warn", diagnostic_text(warning)
    if step.tainted:
        yield "tainted", "warn", tainted_text(step.tainted)
    if step.blocked_by:
        yield "waits for", "warn", ", ".join(step.blocked_by)
    if step.retained:
        yield "kept", "magenta", retained_text(step.retained)
    if step.review_overdue and step.retained:
        text = f"its review was due on {step.retained.review_by}: ask {step.retained.owner}"
        yield "overdue", "bad", text
    if step.absence is not None and step.absence.method == PERSON:
        yield "gone", "warn", absence_text(step.absence)
    # What vanished was told by the run that did not find it; what was forgotten is known to live.
    released = [item for item in step.released if page.paper.verbose or item.how == "forgotten"]
    for text in released_texts(released):
        yield "released", "warn", text
    if step.lineage:
        yield "by", "dim", lineage_text(step.lineage)
    if step.objects:
        # While a mutation is under way, or was interrupted, its record tells what was there before.
        label = "recorded" if step.status is StepStatus.RUNNING else "alive"
        yield label, "dim", shortened_list(step.objects)
    for label, run in (("compensate", step.compensation), ("before", step.before_destroy)):
        if run is not None:
            yield label, ACTION_VERDICT[run.verdict], hook_text(run, page.paper.now)
    well = step.status in (StepStatus.OK, StepStatus.RETAINED)
    if page.paper.verbose or not well:  # else `outputs` has them
        yield from _outputs(step, page, well=well)
    if step.directory and (page.paper.verbose or _unwell(step)):
        yield "directory", "dim", step.directory
        with_inputs = f"orchestrator exec {shlex.quote(step.target)} -- plan"
        yield "", "dim", (f"with its inputs: `{with_inputs}`", "dim")


def _since(step: StepState, page: Page, run_labels: dict[str, str]) -> str:
    if step.updated_at is None:
        return "" if step.status is not StepStatus.PENDING else "no record here"
    when = moment(step.updated_at, page.paper.now)
    run = run_labels.get(step.run_id, f", run {step.run_id}") if step.run_id else ""
    run_labels.setdefault(step.run_id or "", f", run of {step.step}")
    latest = step.last_run_status
    ran = latest not in (None, StepStatus.PENDING, StepStatus.SKIPPED)
    ended_otherwise = ran and latest != step.status and step.condition is None
    match step.status:
        case StepStatus.RUNNING:
            what = f"{step.active_command or 'a command'} began {when}{run}; {_condition(step)}"
        case StepStatus.ERROR:
            text = failed_text(step.last_error_code, step.failed_command)
            if ended_otherwise:  # a later run found the error
                return f"{text} {when}; {latest} in {run.removeprefix(', ') or 'that run'}"
            what = f"{text} {when}{run}"
        case StepStatus.OK:
            what = f"since {when}{run}"
            if step.verification:
                verdict = step.verification.verdict
                what += ", no checks" if verdict == "unverified" else f", {verdict}"
        case _:
            what = f"since {when}{run}"
    return f"{what}; {latest} in that run" if ended_otherwise else what


def _outputs(step: StepState, page: Page, *, well: bool) -> Iterator[Fact]:
    dots = page.glyph("...")
    room = max(page.paper.width - 16, 30)
    origins: dict[OutputOrigin | None, list[str]] = {}
    for name in sorted(step.outputs):
        origins.setdefault(step.outputs_from.get(name), []).append(name)
    for origin, names in origins.items():
        for name in names:
            value = step.outputs[name]
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text = f"{name} = {cut(shown, max(room - len(name) - 3, 10), dots)}"
            yield "output" if well else "was known", "dim", text
        if origin and (origin.run_id != step.run_id or not well):
            when = ago(origin.at, page.paper.now)
            of = "that run" if origin.run_id == step.run_id else f"run {origin.run_id}"
            text = f"from {of} at {utc(origin.at)}, {when}"
            yield "", "dim", (text, "dim")
    if step.sensitive_outputs:
        yield "sensitive", "dim", f"{', '.join(step.sensitive_outputs)} (not shown)"
