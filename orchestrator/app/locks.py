"""
The lock of a step's provider state: who holds it, and whether a killed run of ours left it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from orchestrator.app.crew import Crew
from orchestrator.app.preparation import Prepared, call, failure, make_site
from orchestrator.app.services import Services
from orchestrator.domain.record import Actor, Identity, OperationRecord
from orchestrator.domain.statelock import StateLock
from orchestrator.domain.states import Status
from orchestrator.errors import Refused
from orchestrator.ports import Exec, Liveness

#: Takes the lock for a moment, changes nothing, and loads no provider.
_ASK = ("state", "rm", "-no-color", "-dry-run", "-lock-timeout=0s", "terraform_data.nobody")
_EMPTY = "No state file was found"

#: Backends whose locks end with what holds them, and what that is.
_PASSING = {"pg": "the session", "local": "the process"}


def holder(services: Services, prepared: Prepared, step: str, run_id: str) -> StateLock | None:
    """
    Who holds the lock of a step's provider state now; None for nobody.
    """
    number = services.ids.entry_id()[:8]
    evidence = services.files.attempt(run_id, step, 1)
    site = make_site(services, prepared.root, evidence, f"lock-{number}")
    answer = call(services, Exec(_ASK), site, stop=services.stop)
    if answer.lock is None and answer.exit_code != 0 and _EMPTY not in answer.stderr_text:
        raise failure(answer, "lock", services.stop)
    return answer.lock


def check_breakable(crew: Crew, name: str, wanted: str) -> StateLock:
    """
    The lock with the id ``wanted``, which a run of ours left and nobody needs.

    Refused where there is no such lock, somebody else's, or where something of ours may be alive.
    """
    services, prepared = crew.services, crew.bench.prepared[name]
    target = str(crew.deployment.target(name))
    owner = _PASSING.get(prepared.root.backend_type)
    if owner is not None:
        raise Refused(
            "no_lock_to_break",
            f"{target}: a lock of the backend {prepared.root.backend_type!r} ends with {owner} "
            "that holds it: there is nothing to unlock",
            hint=f"end {owner}, or wait for it",
        )
    lock = holder(services, prepared, name, crew.session.run_id)
    if lock is None:
        raise Refused(
            "no_lock_to_break",
            f"{target}: the provider state is not locked: there is nothing to unlock",
        )
    if lock.id != wanted:
        raise _foreign(target, lock, f"the lock that is held is not {wanted}")
    if lock.who is None or lock.since is None:
        raise _foreign(
            target, lock, "the engine does not tell who holds it and since when, so it may be alive"
        )
    run = _run_at(crew, name, lock.since)
    if run is None:
        raise _foreign(target, lock, "no run of ours was under way when it was taken")
    if lock.who != f"{run.actor.user}@{run.actor.host}":
        raise _foreign(
            target,
            lock,
            f"run {run.run_id}, which was under way then, is of {run.actor.user}@{run.actor.host}",
        )
    _check_dead(crew, name, run, lock)
    return lock


@dataclass(frozen=True, slots=True)
class _Run:
    """
    A run that may have left a lock, and when it was under way; ``ended`` None: it never ended.
    """

    run_id: str
    actor: Actor
    began: datetime
    ended: datetime | None


def _run_at(crew: Crew, name: str, since: datetime) -> _Run | None:
    """
    The run of ours that was under way at a time: only one is at once, so it is the last that began
    before it.
    """
    target = crew.deployment.target(name)
    entries = crew.services.store.history(target)
    known = (*_from_files(crew, since), *_from_entries(entries))
    began = [run for run in known if run.began <= since and run.run_id != crew.session.run_id]
    last = max(began, key=lambda run: run.began, default=None)
    if last is None or (last.ended is not None and last.ended < since):
        return None
    return last


def _from_files(crew: Crew, since: datetime) -> Iterable[_Run]:
    ours = (crew.deployment.project, crew.deployment.blueprint, crew.deployment.environment)
    for run_id in crew.services.files.runs():
        run = crew.services.files.read_run(run_id)
        if run is None or (run.project, run.blueprint, run.environment) != ours:
            continue
        if run.started_at <= since:
            yield _Run(run_id, run.actor, run.started_at, run.ended_at)
            return


def _from_entries(entries: Iterable[OperationRecord]) -> Iterable[_Run]:
    """
    The runs that left a marker, also those of other machines.
    """
    after: datetime | None = None
    for entry in entries:
        if entry.status is Status.RUNNING:
            yield _Run(entry.run_id, entry.actor, entry.updated_at, after)
        after = entry.updated_at


def _check_dead(crew: Crew, name: str, run: _Run, lock: StateLock) -> None:
    services = crew.services
    lease = services.store.lease(run.run_id)
    known: list[Identity] = services.files.engine_identities(run.run_id, name)
    if lease is not None:
        known.append(lease.owner)
    states = {services.processes.liveness(identity) for identity in known}
    target = str(crew.deployment.target(name))
    if Liveness.ALIVE in states:
        raise _foreign(target, lock, f"run {run.run_id} or its engine is still at work")
    if Liveness.UNKNOWN in states and crew.order.takeover is None:
        raise _foreign(
            target,
            lock,
            f"from here nobody can tell whether run {run.run_id} is dead; if you know that it is, "
            "add --takeover REASON",
        )


def _foreign(target: str, lock: StateLock, why: str) -> Refused:
    return Refused(
        "foreign_lock",
        f"{target}: the provider state is locked ({lock}), and {why}",
        hint="ask its holder, or wait (--lock-timeout); one that is dead for certain is released "
        f"with `orchestrator exec {target} -- force-unlock -force {lock.id or 'LOCK_ID'}`",
    )
