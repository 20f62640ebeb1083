"""
``store prune``: remove what old runs left in a store and nobody needs any more.

Entries are history and stay. A run is removed only if it is old, newer ones exist, and no record
names it; content-addressed blobs are removed with the last run and record that name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.app.run.repeated_request import REQUESTS, run_of_request
from orchestrator.domain.documents.documents import PrunedRun, StorePruneDocument
from orchestrator.domain.record.record import Actor, OperationRecord
from orchestrator.domain.record.run_record import Claim, RunRecord
from orchestrator.domain.record.states import Liveness
from orchestrator.errors import Busy
from orchestrator.ports.store import OperationStore
from orchestrator.ports.system import Clock, Ids, Processes

# Who works on a whole store: its claims keep every run away meanwhile.


class StoreHolder(Struct, frozen=True):
    """
    Holds claims for a ``store`` command. ``claim`` is one of this process, for a blueprint and
    environment that nobody else uses.
    """

    claim: Claim
    processes: Processes

    @contextmanager
    def hold(self, store: OperationStore, places: Iterable[tuple[str, str]]) -> Iterator[None]:
        """
        Hold the claims of blueprints in environments while the body runs. Raises Busy if a run
        holds one. Claims of the same command that was killed on this machine are taken over.
        """
        with ExitStack() as stack:
            for blueprint, environment in sorted(set(places)):
                own = self.claim.model_copy(
                    update={"blueprint": blueprint, "environment": environment}
                )
                current = store.take_claim(own)
                if (
                    current is not None
                    and current.command == own.command
                    and self.processes.liveness(current.owner) is Liveness.GONE
                ):
                    current = store.take_claim(own, replaces=current)
                if current is not None:
                    raise busy(current, store.url)
                stack.callback(store.drop_claim, own)
            yield


def store_holder(
    processes: Processes, clock: Clock, ids: Ids, actor: Actor, command: str
) -> StoreHolder:
    """
    Return this process as the claim holder of a ``store`` command.
    """
    now = clock.now()
    claim = Claim(
        blueprint="store-check",
        environment=ids.entry_id(),
        run_id=ids.run_id(now),
        command=f"store {command}",
        owner=processes.me(),
        actor=actor,
        taken_at=now,
    )
    return StoreHolder(claim, processes)


def busy(claim: Claim, url: str) -> Busy:
    """
    Return the error for somebody else's claim in a store.
    """
    return Busy(
        f"{url}: run {claim.run_id} ({claim.command}) works on "
        f"{claim.blueprint}/{claim.environment}",
        hint="wait for it, or settle it with `orchestrator reconcile`, and do this again",
    )


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
    List the runs that can be removed and, with ``remove``, remove them: those that began more than
    ``older_than`` before ``now``, except the newest ``keep`` of each blueprint and environment and
    those that a newest entry names.

    All claims are held meanwhile. Raises Busy if a run is in progress.
    """
    with ExitStack() as held:
        if remove:
            runs = readable_runs(store, store.blobs("")).values()
            places = places_of(store.records()) | {(run.blueprint, run.environment) for run in runs}
            held.enter_context(holder.hold(store, places))
        return _prune(store, now - older_than, keep, remove=remove)


def _prune(
    store: OperationStore, before: datetime, keep: int, *, remove: bool
) -> StorePruneDocument:
    # Blobs first: what is written from here on is no candidate, whatever it is named by.
    blobs = store.blobs("")
    recorded_text = "\n".join(record.to_json() for record in store.records())
    runs = readable_runs(store, blobs)
    gone = _expired(runs.values(), recorded_text, before, keep)
    # By their text: those that this version cannot read name modules, too.
    kept_runs = [
        store.blob(name) or b""
        for name in blobs
        if name.endswith("/run.json") and run_of(name) not in gone
    ]
    references = recorded_text + b"\n".join(kept_runs).decode("utf-8", "replace")
    unneeded = [
        name
        for name in blobs
        if run_of(name) in gone
        # What nothing that is kept names.
        or (name.startswith(_BY_CONTENT) and name.rpartition("/")[2] not in references)
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
        runs=tuple(PrunedRun.of(runs[run_id]) for run_id in sorted(gone)),
        blobs=tuple(unneeded),
        kept_runs=len(runs) - len(gone),
    )


def places_of(records: Iterable[OperationRecord]) -> set[tuple[str, str]]:
    """
    Return the blueprints and environments of records.
    """
    return {(record.target.blueprint, record.target.environment) for record in records}


def readable_runs(store: OperationStore, blobs: Iterable[str]) -> dict[str, RunRecord]:
    """
    Return the runs among blobs whose record can be read, by id.
    """
    runs = {}
    for name in blobs:
        if name.startswith("runs/") and name.endswith("/run.json"):
            with suppress(ValueError):
                run = RunRecord.model_validate_json(store.blob(name) or b"")
                runs[run.run_id] = run
    return runs


def _expired(
    runs: Iterable[RunRecord], references: str, before: datetime, keep: int
) -> frozenset[str]:
    by_place: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        by_place.setdefault((run.blueprint, run.environment), []).append(run)
    return frozenset(
        run.run_id
        for runs_of_place in by_place.values()
        for run in sorted(runs_of_place, key=lambda item: item.run_id, reverse=True)[keep:]
        if run.started_at < before and run.run_id not in references
    )


def run_of(name: str) -> str | None:
    """
    Return the id of the run that a blob belongs to, None if it may belong to several.
    """
    kind, _, rest = name.partition("/")
    return rest.partition("/")[0] if kind == "runs" else None
