"""
``store prune``: what runs of the past left in a store, and nobody needs any more, is removed.

Entries are history and stay. A run goes only where it is old, others are newer, and no record names
it; what is named by content goes with the last run and record that name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta

from orchestrator.app.run.repeated_request import REQUESTS, run_of_request
from orchestrator.domain.documents.store import PrunedRun, StorePruneDocument
from orchestrator.domain.record.run_record import Claim, RunRecord
from orchestrator.errors import Busy
from orchestrator.ports.store import OperationStore

#: Blobs that are named by the digest of what they hold, in the last part of their name.
_BY_CONTENT = ("deployments/", "snapshots/", "lockfiles/", "locks/")


def prune(
    store: OperationStore,
    claim: Claim,
    *,
    now: datetime,
    older_than: timedelta,
    keep: int,
    remove: bool,
) -> StorePruneDocument:
    """
    What can go: runs that began before ``now`` less ``older_than``, but for the newest ``keep`` of
    each blueprint and environment and those that a newest entry names; removed with ``remove``.

    ``claim`` is what holds everything while it is removed; Busy where a run is going on.
    """
    records = store.records()
    with ExitStack() as stack:
        if remove:
            for place in sorted({(r.target.blueprint, r.target.environment) for r in records}):
                _hold(store, claim, place, stack)
        named = "\n".join(record.to_json() for record in records)
        blobs = store.blobs("")
        runs = _runs(store, blobs)
        gone = _expired(runs.values(), named, now - older_than, keep)
        kept_runs = [store.blob(f"runs/{run}/run.json") or b"" for run in runs if run not in gone]
        kept = named + b"\n".join(kept_runs).decode("utf-8", "replace")
        unneeded = [
            name
            for name in blobs
            if _run_of(name) in gone
            or _is_unnamed(name, kept)
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


def _hold(store: OperationStore, claim: Claim, place: tuple[str, str], stack: ExitStack) -> None:
    own = claim.model_copy(update={"blueprint": place[0], "environment": place[1]})
    held = store.take_claim(own)
    if held is not None:
        raise Busy(
            f"run {held.run_id} works on {'/'.join(place)}",
            hint="wait for it, or settle it with `orchestrator reconcile`, and prune again",
        )
    stack.callback(store.drop_claim, own)


def _runs(store: OperationStore, blobs: Iterable[str]) -> dict[str, RunRecord]:
    """
    The runs whose record can be read: any other stays.
    """
    found = {}
    for name in blobs:
        if name.startswith("runs/") and name.endswith("/run.json"):
            try:
                run = RunRecord.model_validate_json(store.blob(name) or b"")
            except ValueError:
                continue
            found[run.run_id] = run
    return found


def _expired(runs: Iterable[RunRecord], named: str, before: datetime, keep: int) -> frozenset[str]:
    by_place: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        by_place.setdefault((run.blueprint, run.environment), []).append(run)
    return frozenset(
        run.run_id
        for found in by_place.values()
        for run in sorted(found, key=lambda item: item.run_id, reverse=True)[keep:]
        if run.started_at < before and run.run_id not in named
    )


def _run_of(name: str) -> str | None:
    kind, _, rest = name.partition("/")
    return rest.partition("/")[0] if kind == "runs" else None


def _is_unnamed(name: str, kept: str) -> bool:
    """
    Whether a blob that is named by its content is named by nothing that is kept.
    """
    return name.startswith(_BY_CONTENT) and name.rpartition("/")[2] not in kept


def _line(run: RunRecord) -> PrunedRun:
    return PrunedRun(
        run_id=run.run_id,
        command=run.command,
        blueprint=run.blueprint,
        environment=run.environment,
        started_at=run.started_at,
    )
