"""
The three durable moments of a mutation: intent, deed, answer. This file writes the first and last.
"""

from __future__ import annotations

from orchestrator.app.services import Services
from orchestrator.domain.blueprint import Deployment
from orchestrator.domain.record import OperationRecord
from orchestrator.domain.sealing import sealed
from orchestrator.errors import Fenced, OrchestratorError, Spooled, StoreUnavailable

#: Waits in seconds between tries to record an outcome before it goes to the spool.
PATIENCE = (0.2, 0.5, 1.0)


def record(services: Services, entry: OperationRecord) -> OperationRecord:
    """
    Make an entry durable as it may be seen, and return it so.

    Whatever this raises for a marker, the mutation must not start (law 2).
    """
    entry = sealed(entry, services.masker)
    services.store.append(entry)
    return entry


def record_outcome(services: Services, outcome: OperationRecord) -> OperationRecord:
    """
    Make the outcome of a mutation durable, in the store or else in the spool (law 8).

    Spooled where it lies in the spool; Fenced where another writer took the target over: then the
    outcome is kept beside the run as evidence and overwrites nothing.
    """
    outcome = sealed(outcome, services.masker)
    for wait in (*PATIENCE, None):
        try:
            services.store.append(outcome)
            break
        except Fenced:
            keep_late(services, outcome)
            raise
        except StoreUnavailable as exc:
            if wait is None:
                raise _spooled(services, outcome, exc) from exc
            services.clock.sleep(wait)
    return outcome


def _spooled(services: Services, outcome: OperationRecord, exc: StoreUnavailable) -> Spooled:
    target = outcome.target.target
    try:
        place = f"it lies in {services.spool.put(outcome)}"
    except OrchestratorError as second:
        place = f"nor spooled ({second.message}); the engine's answer lies in {outcome.run_record}"
    return Spooled(
        f"{target}: the engine finished, but its outcome could not be recorded ({exc.message}); "
        f"{place}",
        hint="make the store writable again; the next mutating command records it first",
    )


def keep_late(services: Services, outcome: OperationRecord) -> None:
    """
    Keep an outcome that came too late beside its run, as evidence.
    """
    directory = services.files.directory(outcome.run_id)
    name = f"late-{outcome.target.step}-{outcome.sequence}.json".replace("/", "_")
    try:
        services.files.write(directory / name, outcome.to_json())
    except StoreUnavailable as exc:
        services.note(f"a late outcome could not be kept: {exc.message}", level="warning")


def replay_spool(services: Services, deployment: Deployment) -> None:
    """
    Record what earlier runs of this blueprint and environment could not, oldest first.
    """
    ours = (deployment.blueprint, deployment.environment)
    for outcome in services.spool.pending():
        target = outcome.target.target
        if (target.blueprint, target.environment) != ours:
            continue
        try:
            services.store.append(outcome)
            services.note(f"{target}: recorded the spooled outcome `{outcome.status}`")
        except Fenced:
            keep_late(services, outcome)
            services.note(
                f"{target}: a spooled outcome of run {outcome.run_id} came too late; another run "
                "has gone on since. It is kept beside its run and overwrites nothing",
                level="warning",
            )
        services.spool.drop(outcome)
        services.files.sweep(outcome.run_id, settled=target.step)
