"""
``status`` and ``outputs``: the status of blueprints from their records. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

from orchestrator.app.inspection.earlier_runs import RUNS, RunHistory, find_run
from orchestrator.app.inspection.read_context import (
    ReadContext,
    listed_targets,
    orphaned_targets,
)
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.documents.status import (
    OutputsDocument,
    StatusDocument,
    StatusListDocument,
    StepOutputs,
    StepState,
    UnreadStore,
)
from orchestrator.domain.record.record import Attempt, OperationRecord, parent_of
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.record.states import NOTHING_THERE, READY, Condition, Status, StepStatus
from orchestrator.domain.record.verdicts import finding, verdict_of, with_failed_attempt
from orchestrator.domain.store_location import StoreLocation
from orchestrator.domain.target import Target, hook_of
from orchestrator.errors import OrchestratorError, Refused, StoreUnavailable


def status_of(
    reader: ReadContext, summary: BlueprintSummary, steps: Collection[str] | None = None
) -> StatusDocument:
    """
    Return the status of a blueprint in an environment; with ``steps`` only of those. The verdict
    covers the listed steps (`listed_targets`).
    """
    records = reader.records(summary)
    waiting = reader.spooled_outcomes(summary, records)
    runs = _run_rows(reader, records.values())
    # `recover` also reads the runs of other machines from the store, with a request for each.
    history = RunHistory(reader, summary, reader.files.runs()[:RUNS])
    shown: list[StepState] = []
    conditions: dict[str, tuple[OperationRecord | None, Condition | None]] = {}
    for step in listed_targets(summary, records, steps):
        newest = waiting.get(step) or records.get(step)
        tried = history.failed_attempt(step, since=newest.run_id if newest else "")
        if newest is not None:
            newest = with_failed_attempt(newest, tried)
        condition = reader.condition(newest) if newest else None
        conditions[step] = (newest, condition)
        if newest is None:
            shown.append(_pending(summary, summary.target(step), records, tried))
        else:
            state = _recorded(reader, newest, runs, condition)
            changes: dict[str, object] = {
                "spooled": step in waiting,
                "action_roots": reader.hook_targets(records, step),
                "blocked_by": _waits_for_parent(newest, records),
            }
            if step not in summary.graph:
                changes["objects"] = tuple(ref.name for ref in newest.live_objects)
            shown.append(state.model_copy(update=changes))
    orphans = orphaned_targets(summary, records.values())
    selected = () if steps is None else tuple(row.step for row in shown)
    return StatusDocument(
        project=reader.project,
        blueprint=summary.blueprint,
        environment=summary.environment,
        verdict=verdict_of(conditions, summary.graph, orphans),
        selected=selected,
        steps=tuple(shown),
        orphaned=orphans,
        next=_next(summary, shown, orphans, records, reader.refusal(), selected=selected),
    )


def status_of_all(
    project: str,
    summaries: Sequence[BlueprintSummary],
    open_context: Callable[[StoreLocation | None], AbstractContextManager[ReadContext]],
    seen: Sequence[StoreLocation] = (),
) -> StatusListDocument:
    """
    Return the status of every blueprint and environment that has a file, each from its own store,
    and of those that have only records, in these stores, the project's, or one ``seen`` earlier.
    Raises StoreUnavailable if none can be read.
    """
    documents = []
    places: list[StoreLocation | None] = []
    unread: list[UnreadStore] = []
    for summary in summaries:
        try:
            with open_context(summary.operations) as context:
                documents.append(status_of(context, summary))
        except StoreUnavailable as exc:
            if len(unread) + 1 == len(summaries):
                raise
            name = f"{summary.blueprint}/{summary.environment}"
            url = summary.operations.shown
            unread.append(UnreadStore(url=url, message=exc.message, blueprint=name))
            continue
        if summary.operations not in places:
            places.append(summary.operations)
    declared = {(summary.blueprint, summary.environment) for summary in summaries}
    for place in (*places, None):
        with open_context(place) as context:
            undeclared = undeclared_documents(context, declared)
        documents += undeclared
        declared |= {(document.blueprint, document.environment) for document in undeclared}
    for place in seen:
        try:
            with open_context(place) as context:
                documents += undeclared_documents(context, declared)
        except OrchestratorError as exc:
            unread.append(UnreadStore(url=place.shown, message=exc.message))
    return StatusListDocument(
        project=project, blueprints=tuple(documents), unread_stores=tuple(unread)
    )


def outputs_of(
    reader: ReadContext, summary: BlueprintSummary, steps: Collection[str] | None = None
) -> OutputsDocument:
    """
    Return the recorded outputs of a blueprint in an environment; with ``steps`` only theirs.
    """
    records = reader.records(summary)
    rows = []
    for step in summary.graph.order:
        record = records.get(step)
        if steps is None or step in steps:
            rows.append(
                StepOutputs(
                    step=step,
                    target=str(summary.target(step)),
                    status=StepStatus(record.status) if record else StepStatus.PENDING,
                    outputs=record.outputs if record else {},
                    sensitive_outputs=record.sensitive_outputs if record else (),
                )
            )
    return OutputsDocument(
        project=reader.project,
        blueprint=summary.blueprint,
        environment=summary.environment,
        steps=tuple(rows),
    )


def undeclared_documents(
    reader: ReadContext, declared: Collection[tuple[str, str]]
) -> list[StatusDocument]:
    """
    Return the status of blueprints and environments of this project that have records but no file:
    all their targets are orphaned.
    """
    records_by_place: dict[tuple[str, str], list[OperationRecord]] = {}
    for record in reader.store.records():
        place = (record.target.blueprint, record.target.environment)
        if record.project == reader.project and place not in declared:
            records_by_place.setdefault(place, []).append(record)
    documents = []
    for (blueprint, environment), records in sorted(records_by_place.items()):
        runs = _run_rows(reader, records)
        conditions = {item.target.step: (item, reader.condition(item)) for item in records}
        rows = conditions.values()
        states = [_recorded(reader, record, runs, condition) for record, condition in rows]
        documents.append(
            StatusDocument(
                project=reader.project,
                blueprint=blueprint,
                environment=environment,
                verdict=verdict_of(conditions),
                steps=tuple(states),
                orphaned=tuple(
                    str(record.target) for record in records if record.status not in NOTHING_THERE
                ),
            )
        )
    return documents


def _recorded(
    reader: ReadContext,
    record: OperationRecord,
    runs: Mapping[tuple[str, str], StepStatus],
    condition: Condition | None,
) -> StepState:
    """
    Return a step by its newest record.
    """
    target = record.target
    lease = reader.store.lease(record.run_id) if record.status is Status.RUNNING else None
    heartbeat = lease.of(str(target), record.sequence) if lease else None
    directory = reader.working_directory(target)
    return StepState.of(
        record,
        step=target.step,
        target=str(target),
        status=StepStatus(record.status),
        condition=condition,
        last_run_status=runs.get((record.run_id, target.step)),
        last_error_code=record.error.code if record.error else None,
        in_doubt=record.resources.in_doubt,
        directory=str(directory) if directory else None,
        in_flight=heartbeat.in_flight if heartbeat else (),
        completed=heartbeat.completed if heartbeat else (),
        more_completed=sum(heartbeat.more_completed.values()) if heartbeat else 0,
        tainted=record.resources.tainted,
        released=record.resources.still_released,
        review_overdue=bool(record.retained and record.retained.is_overdue(reader.today)),
    )


def _run_rows(
    reader: ReadContext, records: Iterable[OperationRecord]
) -> dict[tuple[str, str], StepStatus]:
    """
    Return the status of each step in the run its record comes from; each run is read once. An
    unreadable run record hides no operation record.
    """
    runs = []
    for run_id in {record.run_id for record in records}:
        with suppress(StoreUnavailable):
            runs.append(find_run(reader.files, reader.store, run_id))
    return {(run.run_id, row.step): row.status for run in runs if run for row in run.steps}


def _next(
    summary: BlueprintSummary,
    shown: Iterable[StepState],
    orphans: Sequence[str],
    records: Mapping[str, OperationRecord],
    refusal: StoreUnavailable | None,
    *,
    selected: Sequence[str],
) -> tuple[NextCommand, ...]:
    """
    Return the next commands if a step is not ok or a target is orphaned; with a selection only
    about the ``selected`` steps. Before all: how mutating commands may rely on the store again.
    """
    unwell = (StepStatus.ERROR, StepStatus.RUNNING)
    tried = any(row.failed_attempt for row in shown)
    unsettled = tried or any(row.status in unwell or row.in_doubt or row.spooled for row in shown)
    pending = all(row.status is StepStatus.PENDING for row in shown)
    unrecorded = pending and not records and not tried
    owned = any(record.parent for record in records.values())
    if not (unsettled or unrecorded or owned or orphans or refusal):
        return ()
    # Here: where all is well nothing of it is needed, and it is a thirtieth of a status.
    from orchestrator.domain.recovery.next_commands import (
        about_orphans,
        about_store,
        about_unrecorded,
        after_children,
        look_closer,
    )

    if refusal is not None and refusal.reason != "no_shared_store":
        return tuple(about_store(summary, refusal))
    commands = []
    if unsettled:
        commands.append(
            look_closer(summary, *(word for step in selected for word in ("--step", step)))
        )
    if unrecorded:
        commands += about_unrecorded(summary, refusal)
    # A store is named in a file, by no command: until then none that changes anything is accepted.
    if selected or refusal is not None:
        return tuple(commands)
    commands += after_children(summary, summary.graph.order, records)
    return (*commands, *about_orphans(summary, orphans, records))


def _waits_for_parent(
    record: OperationRecord, records: Mapping[str, OperationRecord]
) -> tuple[str, ...]:
    """
    Return the parent with which the target goes, if it is being destroyed right now.
    """
    parent = parent_of(record, records)
    if parent is None or record.status in NOTHING_THERE or parent.active_command != "destroy":
        return ()
    return (parent.target.step,)


def _pending(
    summary: BlueprintSummary,
    target: Target,
    records: Mapping[str, OperationRecord],
    tried: Attempt | None,
) -> StepState:
    """
    Return a step without a record, with its newest attempt, if that failed, and the upstream steps
    that are not ready, in order.
    """
    upstreams = summary.graph.upstreams(target.step)
    blocked = tuple(
        up
        for up in summary.graph.order
        if up in upstreams and (up not in records or records[up].status not in READY)
    )
    return StepState(
        step=target.step,
        target=str(target),
        status=StepStatus.PENDING,
        blocked_by=blocked,
        last_attempt=tried,
    )


# What a pipeline expects of a blueprint: ``status --expect``.


GONE = tuple(StepStatus(status) for status in NOTHING_THERE)


def check_expectation(
    document: StatusDocument,
    expected: str | None,
    *,
    allow_retained: bool = False,
    graph: Graph | None = None,
) -> None:
    """
    Raise Refused if the expectation does not hold; None expects nothing.

    ``ok`` is about the verdict, and about what the newest attempt of a step found. ``destroyed``
    holds if every target is destroyed or absent, or with ``allow_retained`` retained with a review
    that is not overdue, and nothing is in doubt or orphaned. By ``graph``, upstreams of such a
    retained step may exist, too: a destroy keeps them.
    """
    if expected is None:
        return
    where = f"{document.blueprint}/{document.environment}"
    if document.selected:
        where = f"{', '.join(document.selected)} of {where}"
    if expected == "destroyed" and document.orphaned:
        raise Refused(
            "expectation",
            f"{where} is not destroyed: alive and no longer in the blueprint: "
            + ", ".join(document.orphaned),
        )
    doubtful = [row.step for row in document.steps if row.in_doubt]
    if doubtful:
        raise Refused(
            "expectation", f"{where} is not {expected}: in doubt in {', '.join(doubtful)}"
        )
    rows = [row for row in document.steps if _counts(row, document)]
    if expected == "destroyed":
        needed = _needed_by_retained(document, graph) if allow_retained and graph else frozenset()
        reasons = {row.step: _why_not_destroyed(row, allow_retained=allow_retained) for row in rows}
        deviations = [reason for step, reason in reasons.items() if reason and step not in needed]
    else:
        deviations = [reason for row in rows if (reason := _deviation(row))]
    if deviations:
        verdict = document.verdict
        state = f"not {expected}" if str(verdict) == expected else f"{verdict}, not {expected}"
        raise Refused("expectation", f"{where} is {state}: {', '.join(deviations)}")


def _counts(row: StepState, document: StatusDocument) -> bool:
    """
    Return whether the row counts. A hook's module, whose objects stay on purpose, and an orphan
    count only if they failed or are running.
    """
    is_hook_or_orphan = hook_of(row.step) is not None or row.target in document.orphaned
    return not is_hook_or_orphan or row.status in (StepStatus.ERROR, StepStatus.RUNNING)


def _needed_by_retained(document: StatusDocument, graph: Graph) -> frozenset[str]:
    """
    Return the ok steps that stay because a retained step needs them.
    """
    retained = [
        row.step
        for row in document.steps
        if row.status is StepStatus.RETAINED and not row.review_overdue and row.step in graph
    ]
    needed = {up for step in retained for up in graph.upstreams(step)}
    return frozenset(
        row.step for row in document.steps if row.step in needed and row.status is StepStatus.OK
    )


def _deviation(row: StepState) -> str:
    """
    Return why a step does not count as ok: by its status, by what its newest attempt found, or
    because it was compensated since its apply. Empty if it does.
    """
    if row.status not in (StepStatus.OK, StepStatus.RETAINED):
        return f"{row.step} is {row.status}"
    tried = row.failed_attempt
    if tried is not None and (found := finding(tried)) is not None:
        return f"the newest {tried.command} of {row.step} found {found}"
    if row.compensation is None:
        return ""
    return f"the compensation of {row.step} is {row.compensation.verdict}"


def _why_not_destroyed(row: StepState, *, allow_retained: bool) -> str:
    """
    Return why a step does not count as destroyed; empty if it does.
    """
    if row.failed_attempt is not None:
        return f"the newest {row.failed_attempt.command} of {row.step} failed"
    if row.status in GONE:
        return ""
    if row.status is not StepStatus.RETAINED or row.retained is None:
        return f"{row.step} is {row.status}"
    if row.review_overdue:
        return f"{row.step} is retained, and its review was due on {row.retained.review_by}"
    return "" if allow_retained else f"{row.step} is retained (--allow-retained accepts that)"
