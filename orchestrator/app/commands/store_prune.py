"""
``store prune``: what runs of the past left in a store, and nobody needs any more, is removed.

Entries are history and stay. A run goes only where it is old, others are newer, and no record names
it; what is named by content goes with the last run and record that name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from orchestrator.app.commands.store_holder import StoreHolder
from orchestrator.app.run.repeated_request import REQUESTS, run_of_request
from orchestrator.domain.documents.store import PrunedRun, StorePruneDocument
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.ports.store import OperationStore

#: Blobs that are named by the digest of what they hold, in the last part of their name.
_BY_CONTENT = ("deployments/", "snapshots/", "lockfiles/", "locks/")


def prune(
    store: OperationStore,
    holder: StoreHolder,
    *,
    now: datetime,
    older_than: timedelta,
    keep: int,
    remove: bool,
) -> StorePruneDocument:
    """
    What can go: runs that began before ``now`` less ``older_than``, but for the newest ``keep`` of
    each blueprint and environment and those that a newest entry names; removed with ``remove``.

    Everything that anything was ever done to is held while it is removed; Busy where a run is going
    on.
    """
    if not remove:
        return _prune(store, now - older_than, keep, remove=False)
    places = {(r.target.blueprint, r.target.environment) for r in store.records()}
    places |= {(run.blueprint, run.environment) for run in _runs(store, store.blobs("")).values()}
    with holder.hold(store, places):
        return _prune(store, now - older_than, keep, remove=True)


def _prune(
    store: OperationStore, before: datetime, keep: int, *, remove: bool
) -> StorePruneDocument:
    # Blobs first: what is written from here on is no candidate, whatever it is named by.
    blobs = store.blobs("")
    named = "\n".join(record.to_json() for record in store.records())
    runs = _runs(store, blobs)
    gone = _expired(runs.values(), named, before, keep)
    kept_runs = [store.blob(f"runs/{run}/run.json") or b"" for run in runs if run not in gone]
    references = named + b"\n".join(kept_runs).decode("utf-8", "replace")
    unneeded = [
        name
        for name in blobs
        if _run_of(name) in gone
        or _is_unnamed(name, references)
        or (name.startswith(REQUESTS) and run_of_request(store.blob(name)) in gone)
    ]
    if remove:
        for name in unneeded:
            store.drop_blob(name)
        for run_id in gone:
            store.drop_lease(run_id)
    return StorePruneDocument(
        url=store.url,
        removed=remove,
        runs=tuple(_line(runs[run_id]) for run_id in sorted(gone)),
        blobs=tuple(unneeded),
        kept_runs=len(runs) - len(gone),
    )


def _runs(store: OperationStore, blobs: Iterable[str]) -> dict[str, RunRecord]:
    """
    The runs whose record can be read: any other stays.
    """
    runs = {}
    for name in blobs:
        if name.startswith("runs/") and name.endswith("/run.json"):
            try:
                run = RunRecord.model_validate_json(store.blob(name) or b"")
            except ValueError:
                continue
            runs[run.run_id] = run
    return runs


def _expired(runs: Iterable[RunRecord], named: str, before: datetime, keep: int) -> frozenset[str]:
    by_place: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        by_place.setdefault((run.blueprint, run.environment), []).append(run)
    return frozenset(
        run.run_id
        for runs_of_place in by_place.values()
        for run in sorted(runs_of_place, key=lambda item: item.run_id, reverse=True)[keep:]
        if run.started_at < before and run.run_id not in named
    )


def _run_of(name: str) -> str | None:
    kind, _, rest = name.partition("/")
    return rest.partition("/")[0] if kind == "runs" else None


def _is_unnamed(name: str, references: str) -> bool:
    """
    Whether a blob that is named by its content is named by nothing that is kept.
    """
    return name.startswith(_BY_CONTENT) and name.rpartition("/")[2] not in references


def _line(run: RunRecord) -> PrunedRun:
    return PrunedRun(
        run_id=run.run_id,
        command=run.command,
        blueprint=run.blueprint,
        environment=run.environment,
        started_at=run.started_at,
    )
