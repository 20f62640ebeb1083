"""
Past events for people: the history of a target, the list of runs, one run in full.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.domain.documents.run import (
    AttemptEvidence,
    ConfirmedTarget,
    HistoryDocument,
    HistoryEntry,
    RemainingTarget,
    RunDocument,
    RunLine,
    RunsDocument,
    TeardownReport,
)
from orchestrator.domain.record.objects import ObjectRef
from orchestrator.domain.record.record import Actor
from orchestrator.domain.record.run_record import SILENCE, Lease, RunRecord
from orchestrator.domain.text import count
from orchestrator.views.formats import (
    ACTION_VERDICT,
    STATUS_STYLE,
    absence_text,
    add_facts,
    ago,
    doubt_text,
    duration,
    exit_meaning,
    heartbeat_facts,
    hook_text,
    lineage_text,
    moment,
    object_text,
    retained_text,
    status_counts,
    unread_store_text,
    utc,
)
from orchestrator.views.page import Page, Paper, Part
from orchestrator.views.summary import failures, objects, steps_table, warnings

# What a destroy came to, for a person: what is gone and how that is known, what was kept and why,
# what is left.


def teardown_section(page: Page, report: TeardownReport) -> None:
    """
    Add the teardown report, a line per target; if verbose, every object whose absence was checked.
    """
    page.heading("Teardown")
    rows: list[list[Part]] = []
    rows += [[("gone", "good"), (item.step, "bold"), _gone_text(item)] for item in report.gone]
    for item in report.retained:
        why = retained_text(item.retained) if item.retained else item.reason or ""
        text = f"{why}; {_alive(item.objects)}"
        rows.append([("kept", "magenta"), (item.step, "bold"), text])
        if item.review_overdue and item.retained:
            text = f"its review was due on {item.retained.review_by}: ask {item.retained.owner}"
            rows.append(["", "", (text, "bad")])
    for remaining in report.left:
        rows.append([("left", "bad"), (remaining.step, "bold"), _remaining_text(remaining)])
    rows += [[("untouched", "dim"), target, "never applied"] for target in report.untouched]
    rows += [
        [("orphaned", "warn"), target, "alive, no longer in the blueprint"]
        for target in report.orphaned
    ]
    page.table(rows, indent=2)
    for gone in report.gone if page.paper.verbose else ():
        if gone.absence.checked:
            page.line((gone.step, "bold"), indent=4)
            page.table(
                [[check.state, check.address, check.id or ""] for check in gone.absence.checked],
                indent=6,
            )


def _gone_text(item: ConfirmedTarget) -> str:
    absence = item.absence
    how = absence_text(absence)
    objects = f", {count(len(absence.checked), 'object')}" if absence.checked else ""
    forgotten = sum(check.state == "forgotten" for check in absence.checked)
    if forgotten:
        objects += f", {forgotten} forgotten"
    earlier = "" if item.now else "; by an earlier run"
    return f"confirmed {how}{objects}, {utc(absence.at)}{earlier}"


def _remaining_text(item: RemainingTarget) -> str:
    waits = f"waits for {', '.join(item.blocked_by)}" if item.blocked_by else ""
    doubts = f"{len(item.in_doubt)} in doubt" if item.in_doubt else ""
    parts = (str(item.status), waits, _alive(item.objects), doubts)
    return "; ".join(part for part in parts if part)


def _alive(objects: Sequence[ObjectRef]) -> str:
    if not objects:
        return "no objects known"
    return "alive: " + ", ".join(object_text(ref.address, ref.id) for ref in objects)


def history_text(document: HistoryDocument, paper: Paper) -> str:
    """
    Return the entries of a target, newest first.
    """
    page = Page(paper)
    page.line((document.target, "bold"), f"  project {document.project}")
    if not document.entries:
        page.line("no record here", indent=2)
    newer: HistoryEntry | None = None
    for entry in document.entries:
        _entry(page, entry, newer)
        newer = entry
    return page.render()


def runs_text(document: RunsDocument, paper: Paper) -> str:
    """
    Return the runs, newest first: id, command, time and result.
    """
    page = Page(paper)
    if not document.runs:
        where = "" if document.is_whole else " in what could be read"
        page.line(f"project {document.project}: no runs{where}")
    actors = {_who(run.actor) for run in document.runs}
    common = len(actors) == 1 and len(document.runs) > 1
    if common:
        page.line((f"all by {actors.pop()}", "dim"))
    rows: list[list[Part]] = []
    for run in document.runs:
        what = f"{run.command} {run.blueprint}/{run.environment}"
        rows.append(
            [
                (run.run_id, "bold"),
                what,
                _ended(run),
                _run_facts(run, paper, "" if common else f"by {_who(run.actor)}"),
            ]
        )
    page.table(rows)
    if document.overdue:
        page.heading("Overdue reviews", "bad", more=": retained, and not reviewed in time")
        late: list[list[Part]] = [
            [(item.target, "bold"), f"due on {item.review_by}", item.owner]
            for item in document.overdue
        ]
        page.table(late, indent=2)
    for damaged in document.unread_runs:
        page.gap()
        page.line(("not readable: ", "warn"), damaged.message)
    for store in document.unread_stores:
        page.gap()
        page.line(("not read: ", "warn"), unread_store_text(store))
    return page.render()


def run_text(document: RunDocument, paper: Paper) -> str:
    """
    Return one run: who, when, its sources, each step, what went wrong, and the evidence.
    """
    run = document.run
    page = Page(paper)
    page.line((f"run {run.run_id}", "bold"), f"  {run.command} {run.blueprint}/{run.environment}")
    rows: list[list[Part]] = [[("started", "dim"), moment(run.started_at, paper.now)]]
    if run.ended_at is None or run.exit_code is None:
        rows.append([("ended", "dim"), ("no end recorded: it still runs, or was killed", "bad")])
    else:
        took = duration((run.ended_at - run.started_at).total_seconds())
        exit_words = f"exit {run.exit_code} ({exit_meaning(run.exit_code)})"
        rows.append([("ended", "dim"), f"{utc(run.ended_at)}, after {took}, {exit_words}"])
    rows.append([("by", "dim"), _by(run.actor)])
    if run.lineage:
        rows.append([("from", "dim"), lineage_text(run.lineage)])
    if run.reason and not _is_lineage_reason(run):
        rows.append([("reason", "dim"), run.reason])
    if run.engine:
        rows.append([("engine", "dim"), f"{run.engine.kind} {run.engine.version}"])
    dirty = ", with uncommitted changes" if run.source.dirty else ""
    revision = f" at {run.source.revision}{dirty}" if run.source.revision else ""
    rows.append([("source", "dim"), f"{run.source.blueprint_path}{revision}"])
    if run.skipped_preflight:
        rows.append([("preflight", "warn"), f"skipped: {run.skipped_preflight}"])
    page.table(rows, indent=2)
    page.gap()
    steps_table(page, run.steps)
    failures(page, run.steps)
    warnings(page, run.steps)
    if run.error and all(step.error != run.error for step in run.steps):
        page.heading("error", "bad", more=f": {run.error.summary}")
    objects(page, run.steps)
    _heartbeat(page, document.heartbeat)
    if document.teardown is not None:
        teardown_section(page, document.teardown)
    page.heading("Evidence", more=f": {document.directory}")
    for attempt in document.attempts:
        _attempt(page, attempt)
    return page.render()


def _entry(page: Page, entry: HistoryEntry, newer: HistoryEntry | None) -> None:
    """
    Add an entry; its run and actor only if they differ from those of the ``newer`` entry above.
    """
    command = entry.active_command or entry.failed_command
    change = f"{entry.previous_status} -> " if entry.previous_status else ""
    page.line(
        (f"#{entry.sequence:<3} ", "bold"),
        change,
        (entry.status, STATUS_STYLE[entry.status]),
        f" ({command})" if command else "",
        f"  {moment(entry.updated_at, page.paper.now)}",
        hang=6,
    )
    author = (entry.run_id, entry.actor)
    if newer is None or author != (newer.run_id, newer.actor):
        page.line((f"run {entry.run_id}, by {_by(entry.actor)}", "dim"), indent=6)
    if entry.lineage:
        page.line(lineage_text(entry.lineage), indent=6)
    attempt = entry.last_attempt
    if attempt is not None and attempt.at == entry.updated_at:
        ended = ("failed", "bad") if attempt.error else ("done", "good")
        text = f": {attempt.error.summary}" if attempt.error else ""
        page.line(f"{attempt.command} of run {attempt.run_id} ", ended, text, indent=6)
    if entry.last_error:
        page.line(("cause", "bad"), f": {entry.last_error}", indent=6)
    for label, run in (
        ("compensate", entry.compensation),
        ("before destroy", entry.before_destroy),
    ):
        if run is not None and entry.updated_at == run.ended_at:
            words = hook_text(run, page.paper.now)
            page.line((label, ACTION_VERDICT[run.verdict]), f": {words}", indent=6)
    for item in entry.in_doubt:
        page.line(("in doubt", "bad"), f": {doubt_text(item)}", indent=6)
    for settled in entry.settled:
        why = f": {settled.reason}" if settled.reason else ""
        text = f"{settled.doubt.address} by run {settled.run_id}{why}"
        page.line((settled.how.replace("_", " "), "warn"), f": {text}", indent=6)
    if entry.absence is not None and entry.absence.verdict == "confirmed":
        page.line(f"absence confirmed {absence_text(entry.absence)}", indent=6)


def _ended(run: RunLine) -> Part:
    if run.exit_code is None:
        return ("no end", "bad")
    return (f"exit {run.exit_code}", "good" if run.exit_code in (0, 2) else "bad")


def _run_facts(run: RunLine, paper: Paper, by: str) -> str:
    counts = status_counts(step.status for step in run.steps)
    facts = [ago(run.started_at, paper.now), counts, by]
    if run.lineage:
        facts.append(lineage_text(run.lineage))
    if run.reason and not _is_lineage_reason(run):
        facts.append(f"reason: {run.reason}")
    return "; ".join(fact for fact in facts if fact)


def _is_lineage_reason(run: RunLine | RunRecord) -> bool:
    """
    Return whether the run's reason is that of its lineage, which is shown anyway.
    """
    return run.lineage is not None and run.lineage.reason == run.reason


def _by(actor: Actor) -> str:
    ci = f", {actor.ci}" if actor.ci else ""
    return f"{_who(actor)}{ci}"


def _who(actor: Actor) -> str:
    return f"{actor.user}@{actor.host}"


def _heartbeat(page: Page, lease: Lease | None) -> None:
    """
    Add the last heartbeat of a run that has not ended.
    """
    if lease is None:
        return
    page.heading("Last heartbeat", more=f": {duration(lease.age)} ago")
    for target in lease.targets:
        page.line((target, "bold"), indent=2)
        heartbeat = lease.of(target)
        rows = heartbeat_facts(
            heartbeat.in_flight,
            heartbeat.completed,
            heartbeat.more_completed.get(target, 0),
            alive=lease.age < SILENCE,
            verbose=page.paper.verbose,
        )
        add_facts(page, rows)


def _attempt(page: Page, attempt: AttemptEvidence) -> None:
    logs = [item.name for item in attempt.files if item.name.endswith(".log")]
    rest = len(attempt.files) - len(logs)
    names = ", ".join([*logs, f"{rest} more"] if rest else logs) or "nothing"
    head = f" attempt {attempt.number}"
    if not page.paper.verbose:
        page.line((attempt.step, "bold"), f"{head}: {names}", indent=2, hang=4)
        return
    page.line((attempt.step, "bold"), f"{head}: {attempt.directory}", indent=2)
    rows: list[list[Part]] = [[item.name, _size(item.size)] for item in attempt.files]
    page.table(rows, indent=4)


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    if size < 1024**2:
        return f"{size / 1024:.1f} KiB"
    return f"{size / 1024**2:.1f} MiB"
