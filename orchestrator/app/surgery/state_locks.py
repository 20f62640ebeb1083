"""
The lock of a step's provider state: its holder, and whether a killed run of ours left it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime, timedelta

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.services import Services
from orchestrator.app.steps.preparation import PreparedStep, state_lock_of
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import (
    PASSING_LOCKS,
    ProcessIdentity,
    RunPeriod,
    StateLock,
    run_at,
    unlock_objection,
)
from orchestrator.domain.record.states import Liveness, Status
from orchestrator.domain.values import replace
from orchestrator.errors import Refused, StateLocked


def state_lock_error(runner: StepRunner, name: str) -> StateLocked | None:
    """
    Return an error that names the holder of a step's state lock, None if it is free.
    """
    prepared = runner.steps.prepared[name]
    lock = state_lock_of(runner.services, prepared)
    if lock is None:
        return None
    return StateLocked(
        f"the provider state is locked: {lock}; its holder may still create the object",
        lock_id=lock.id,
        hint="wait for its holder",
    )


def lock_ends(prepared: PreparedStep) -> str | None:
    """
    Return why a lock of this backend ends by itself, None if a dead run leaves it behind.
    """
    owner = PASSING_LOCKS.get(prepared.work_dir.backend_type)
    return f"it ends with {owner} that holds it" if owner is not None else None


def check_breakable(runner: StepRunner, name: str, lock_id: str) -> StateLock:
    """
    Return the lock with the id ``lock_id``, left by a run of ours that has ended.

    Raises Refused if there is no such lock, if it is somebody else's, or if a process of ours may
    be alive.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    target = str(runner.deployment.target(name))
    owner = PASSING_LOCKS.get(prepared.work_dir.backend_type)
    if owner is not None:
        raise Refused(
            "no_lock_to_break",
            f"{target}: a lock of the backend {prepared.work_dir.backend_type!r} ends with {owner} "
            "that holds it, and blocks no later run: there is nothing to unlock",
            hint=f"end {owner}, or wait for it",
        )
    lock = state_lock_of(services, prepared)
    if lock is None:
        raise Refused(
            "no_lock_to_break",
            f"{target}: the provider state is not locked: there is nothing to unlock",
        )
    runs = tuple(_past_runs(runner, name, lock))
    objects = unlock_objection(lock, lock_id, runs)
    if objects is not None:
        raise _foreign(target, lock, objects)
    run = run_at(runs, lock.since) if lock.since else None
    assert run is not None, "a lock that nothing speaks against is of a run"
    _check_dead(runner, name, run, lock)
    return lock


def _past_runs(runner: StepRunner, name: str, lock: StateLock) -> Iterable[RunPeriod]:
    """
    Return our earlier runs that are known here and in the store.
    """
    local = list(_from_files(runner, lock))
    run_ids = {runner.session.run_id, *(run.run_id for run in local)}
    entries = runner.services.store.history(runner.deployment.target(name))
    stored = (run for run in _from_entries(entries) if run.run_id not in run_ids)
    return (_bounded(runner.services, run) for run in (*local, *stored))


def _bounded(services: Services, run: RunPeriod) -> RunPeriod:
    """
    Return the run with its end. A killed run ended with its last sign of life: a lock that its user
    took later, by hand on the same machine, is not its lock.
    """
    lease, grace = services.store.lease(run.run_id), timedelta(seconds=services.limits.silence)
    if lease is not None:
        last = services.clock.now() - timedelta(seconds=lease.age) + grace
        return replace(run, ended=min(run.ended or last, last))
    return replace(run, ended=run.ended or run.began + grace)


def _from_files(runner: StepRunner, lock: StateLock) -> Iterable[RunPeriod]:
    """
    Yield the last run on this machine that began before the lock was taken; not all, of which there
    may be thousands.
    """
    ours = (runner.deployment.project, runner.deployment.blueprint, runner.deployment.environment)
    for run_id in runner.services.files.runs():
        run = runner.services.files.read_run(run_id)
        if run is None or (run.project, run.blueprint, run.environment) != ours:
            continue
        if run_id == runner.session.run_id:
            continue
        if lock.since is not None and run.started_at <= lock.since:
            yield RunPeriod(run_id, run.actor, run.started_at, run.ended_at)
            return


def _from_entries(entries: Iterable[OperationRecord]) -> Iterable[RunPeriod]:
    """
    Yield the runs that left a marker, also those of other machines.
    """
    after: datetime | None = None
    for entry in entries:
        if entry.status is Status.RUNNING:
            yield RunPeriod(entry.run_id, entry.actor, entry.updated_at, after)
        after = entry.updated_at


def _check_dead(runner: StepRunner, name: str, run: RunPeriod, lock: StateLock) -> None:
    services = runner.services
    lease = services.store.lease(run.run_id)
    identities: list[ProcessIdentity] = services.files.engine_identities(run.run_id, name)
    if lease is not None:
        identities.append(lease.owner)
    states = {services.processes.liveness(identity) for identity in identities}
    target = str(runner.deployment.target(name))
    if Liveness.ALIVE in states:
        raise _foreign(target, lock, f"run {run.run_id} or its engine is still at work")
    if Liveness.UNKNOWN in states and runner.options.takeover is None:
        raise _foreign(
            target,
            lock,
            f"this machine cannot tell whether run {run.run_id} is dead; if you know that it is, "
            "add --takeover REASON",
        )


def _foreign(target: str, lock: StateLock, why: str) -> Refused:
    arguments = f"{shlex.quote(target)} -- force-unlock -force {lock.id or 'LOCK_ID'}"
    return Refused(
        "foreign_lock",
        f"{target}: the provider state is locked ({lock}), and {why}",
        hint="ask its holder, or wait (--lock-timeout); one that is dead for certain is released "
        f"with `orchestrator exec {arguments}`",
    )
