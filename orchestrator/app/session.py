"""
A run from start to end: run record, claim, lease and heartbeat.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from orchestrator.app.services import Services, await_others
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import rerun_text
from orchestrator.domain.events.events import SignalSeen
from orchestrator.domain.record.objects import Action
from orchestrator.domain.record.record import Fault
from orchestrator.domain.record.run_record import (
    NAMED,
    Claim,
    Completed,
    InFlight,
    Lease,
    RunChanges,
    RunRecord,
    StepRun,
    StepRunChanges,
    evidence_blob,
    pack_evidence,
)
from orchestrator.domain.record.states import Liveness, StepStatus
from orchestrator.domain.redaction import redacted
from orchestrator.errors import Busy, Fenced, OrchestratorError, StoreUnavailable, Terminated


class Session:
    """
    One mutating run. Its steps may call it from several threads.
    """

    def __init__(self, services: Services, deployment: Deployment, run: RunRecord) -> None:
        self.services = services
        self.deployment = deployment
        self.run = run
        self.run_id = run.run_id
        self.directory = services.files.directory(run.run_id)
        self.codes: list[int] = []  # of which the worst is the run's own exit code
        self.rerun_file: Path | None = None
        self._inputs_file = ""  # relative to the run's directory, once it is written
        self._inputs_are_stored = False
        self.takes_over_from: list[str] = []  # killed runs whose claim this one took over
        self.replaced: Claim | None = None  # one that nobody could prove to be dead
        self._in_flight: list[InFlight] = []
        self._completed: list[Completed] = []
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closing = False
        self._destroys = 0
        self._claim = Claim(
            blueprint=deployment.blueprint,
            environment=deployment.environment,
            run_id=run.run_id,
            command=run.command,
            owner=services.processes.me(),
            actor=services.actor,
            taken_at=run.started_at,
            request_token=run.request_token,
            steps=tuple(row.step for row in run.steps),
        )

    def rerun_inputs(self, name: str = "steps/rerun-inputs.yml") -> str:
        """
        Return the file with the blueprint's inputs for a later run, relative to the run's
        directory. It is written once, under the first ``name``, whatever the number of steps and
        attempts.
        """
        with self._lock:
            if not self._inputs_file:
                text = rerun_text(self.deployment, self.services.key)
                self.services.files.write(self.directory / name, text)
                self._inputs_file = name
            return self._inputs_file

    def store_rerun_inputs(self) -> None:
        """
        Store the same file durably in the operation store, once.
        """
        with self._lock:
            if self._inputs_file and not self._inputs_are_stored:
                text = (self.directory / self._inputs_file).read_bytes()
                self.services.store.put_blob(f"runs/{self.run_id}/{self._inputs_file}", text)
                self._inputs_are_stored = True

    def count_destroys(self, more: int) -> int:
        """
        Add to the number of objects this run destroys and return the previous number.
        """
        with self._lock:
            self._destroys += more
            return self._destroys - more

    def update_run(self, **changes: Unpack[RunChanges]) -> None:
        """
        Change fields of the run record, which is written later.
        """
        with self._lock:
            self.run = self.run.model_copy(update={**changes})

    def update_row(self, step: str, **changes: Unpack[StepRunChanges]) -> StepRun:
        """
        Change the row of a step, write ``run.json`` and return the row.
        """
        return self.update_rows({step: changes})[step]

    def update_rows(self, changes: Mapping[str, StepRunChanges]) -> Mapping[str, StepRun]:
        """
        Change the rows of some steps, write ``run.json`` once, if anything changed, and return all
        rows. A step without a row, or the module of a hook, gets one.
        """
        with self._lock:
            rows = {row.step: row for row in self.run.steps}
            for step, changed in changes.items():
                row = rows.get(step) or pending_row(self.deployment, step)
                rows[step] = row.model_copy(update={**changed})
            steps = tuple(rows.values())
            if steps != self.run.steps:
                self.update_run(steps=steps)
                try:
                    self.write_run()
                except StoreUnavailable as exc:
                    self.services.note(f"run record not written: {exc.message}", level="warning")
            return rows

    def write_run(self) -> None:
        self.services.files.write_run(redacted(self.run, self.services.masker))

    def publish(self) -> None:
        """
        Store the current run record durably: if this machine is lost, the run can be repeated from
        another. Raises StoreUnavailable if it cannot be written.
        """
        with self._lock:
            run = redacted(self.run, self.services.masker)
        name, text = f"runs/{self.run_id}/run.json", run.to_json()
        self.services.store.put_blob(name, text.encode())

    def share(self, step: str) -> None:
        """
        Store a step's evidence and the current run record for other machines. A failure stops
        nothing: the files are still on this machine.
        """
        if not self.services.is_shared:
            return
        try:
            files = self.services.files.masked(self.run_id, step)
            if files:
                name = evidence_blob(self.run_id, step)
                self.services.store.put_blob(name, pack_evidence(files))
                self.publish()
        except StoreUnavailable as exc:
            self.services.note(
                f"what the step left is on this machine only: {exc.message}",
                level="warning",
                step=step,
            )

    def object_started(self, item: InFlight) -> None:
        """
        Report an object as in flight with the next heartbeat.
        """
        with self._lock:
            self._in_flight.append(item)
        self._wake.set()

    def object_ended(
        self,
        target: str,
        address: str,
        action: Action,
        *,
        completed: bool,
        object_id: str | None = None,
    ) -> None:
        """
        Report an object no longer as in flight; a completed one as such with the heartbeats, until
        the outcome is recorded.
        """
        key = (target, address, action)
        with self._lock:
            for item in self._in_flight:
                if (item.target, item.address, item.action) == key:
                    self._in_flight.remove(item)
                    if completed:
                        self._completed.append(Completed(**dict(item), id=object_id))
                    break  # a deposed and a new object share an address: the first one has ended
        self._wake.set()

    def forget_objects(self, target: str) -> None:
        """
        Stop reporting the target's objects with heartbeats, as the outcome is recorded.
        """
        with self._lock:
            self._in_flight = [item for item in self._in_flight if item.target != target]
            self._completed = [item for item in self._completed if item.target != target]

    def take_claim(self, *, wait: bool = False, takeover: str | None = None) -> None:
        """
        Take the claim of the blueprint and environment. A claim is replaced if its owner is proven
        gone; with ``takeover``, a reason, also if its owner cannot be proven dead from here and its
        heartbeat is old. A claim that can be shared is shared. For any other ``wait`` waits;
        without it raises Busy.
        """
        services = self.services
        current: Claim | None = None
        own, announced = self._claim, False
        while (current := services.store.take_claim(own, replaces=current)) is not None:
            own = self._claim
            gone = [item for item in current.holders if self._may_replace(item, takeover)]
            remaining = [item for item in current.holders if item not in gone]
            if all(map(own.may_share, remaining)):
                own = own.model_copy(update={"others": tuple(remaining)})
                self.takes_over_from += [item.run_id for item in gone]
                liveness = services.processes.liveness
                unproven = any(liveness(item.owner) is Liveness.UNKNOWN for item in gone)
                self.replaced = current if unproven else None
                continue
            busy = claimed(services, remaining[0])
            if wait and not announced:
                services.note(f"waiting: {busy.message}")
                announced = True
            await_others(services, busy, wait=wait)
            current = None

    def hand_back_claim(self) -> None:
        """
        Return the claim to the run that it was taken from, which is alive; nothing was recorded
        since.
        """
        if self.replaced is not None:
            self.services.store.take_claim(self.replaced, replaces=self._claim)

    def check_claim(self) -> None:
        """
        Raise Fenced if another run has taken over the claim: nothing more may be mutated here.
        """
        claim = self._claim
        current = self.services.store.claim(claim.blueprint, claim.environment)
        if current is None or claim.run_id not in (item.run_id for item in current.holders):
            other = f", but by run {current.run_id}" if current else ""
            raise Fenced(
                f"{claim.blueprint}/{claim.environment} is no longer claimed by this run{other}",
                hint="look at `orchestrator status` before anything else",
            )

    def runs_beside(self) -> frozenset[str]:
        """
        Return the other runs that share the claim.
        """
        claim = self.services.store.claim(self._claim.blueprint, self._claim.environment)
        return frozenset(item.run_id for item in (claim.holders if claim else ())) - {self.run_id}

    def _may_replace(self, claim: Claim, takeover: str | None) -> bool:
        liveness = self.services.processes.liveness(claim.owner)
        if liveness is not Liveness.UNKNOWN or takeover is None:
            return liveness is Liveness.GONE
        lease = self.services.store.lease(claim.run_id)
        return lease is None or lease.age >= self.services.limits.silence

    @contextmanager
    def alive(self) -> Iterator[None]:
        """
        Renew the lease while the body runs; then release lease and claim. After a bug in the body
        they are kept: an engine may still be running.
        """
        try:
            self.services.store.put_lease(self._lease())
        except StoreUnavailable:
            self._give_back()
            raise
        thread = threading.Thread(target=self._heartbeat_loop, name="heartbeat", daemon=True)
        thread.start()
        in_order = False
        try:
            yield
            in_order = True
        except OrchestratorError:
            in_order = True
            raise
        finally:
            self._closing = True
            self._wake.set()
            thread.join()
            if in_order:
                self._give_back()

    def _give_back(self) -> None:
        store = self.services.store
        try:
            try:
                store.drop_lease(self.run_id)
            finally:
                self._leave_claim()
        except StoreUnavailable as exc:
            self.services.note(
                f"the claim could not be given back: {exc.message}",
                hint="the next run takes it over once this process is gone",
                level="warning",
            )

    def _leave_claim(self) -> None:
        """
        Release the claim, or leave it to the runs that share it.
        """
        store, claim = self.services.store, self._claim
        while (current := store.claim(claim.blueprint, claim.environment)) is not None:
            remaining = current.without(claim.run_id)
            if remaining is None or claim.run_id not in (item.run_id for item in current.holders):
                break
            if store.take_claim(remaining, replaces=current) is None:
                return
        store.drop_claim(claim)

    def _heartbeat_loop(self) -> None:
        """
        Send heartbeats: when something began or ended (at most once a second), immediately at the
        first signal, and every ``heartbeat`` seconds.
        """
        clock, limits = self.services.clock, self.services.limits
        last, signal_noted, changed = clock.monotonic(), False, False
        while not self._closing:
            if self._wake.wait(0.2):
                self._wake.clear()  # now, not at the beat: an event that is set does not wait
                changed = True
            elapsed = clock.monotonic() - last
            stopping = self.services.stop.stopping and not signal_noted
            due = stopping or elapsed >= limits.heartbeat or (changed and elapsed >= 1.0)
            if not due or self._closing:
                continue
            changed = False
            if stopping:
                signal_noted = True
                is_term = self.services.stop.exit_code == Terminated.exit_code
                self.services.sink.emit(
                    SignalSeen(
                        at=clock.now(),
                        signal="SIGTERM" if is_term else "SIGINT",
                        message="nothing more is started; running engines are asked to stop, and "
                        "awaited",
                    )
                )
            last = clock.monotonic()
            try:
                self.services.store.put_lease(self._lease())
            except StoreUnavailable as exc:
                self.services.note(f"heartbeat not written: {exc.message}", level="warning")

    def _lease(self) -> Lease:
        with self._lock:
            lease = Lease(
                run_id=self.run_id,
                owner=self._claim.owner,
                in_flight=tuple(self._in_flight),
                completed=tuple(self._completed[-NAMED:]),
                more_completed=Counter(item.target for item in self._completed[:-NAMED]),
            )
        return redacted(lease, self.services.masker)

    def finish(self, exit_code: int, error: Fault | None) -> None:
        """
        Write the run record for the last time, and a copy to the store.
        """
        self.update_run(ended_at=self.services.clock.now(), exit_code=exit_code, error=error)
        try:
            self.write_run()
            self.publish()
        except StoreUnavailable as exc:
            self.services.note(f"run record not written: {exc.message}", level="warning")


def pending_row(deployment: Deployment, step: str) -> StepRun:
    """
    Return the row of a step that did not run yet.
    """
    return StepRun(step=step, target=str(deployment.target(step)), status=StepStatus.PENDING)


def claimed(services: Services, claim: Claim) -> Busy:
    """
    Return the error of a claim that somebody else holds.
    """
    lease = services.store.lease(claim.run_id)
    heartbeat = f"last heartbeat {lease.age:.0f} s ago" if lease else "no heartbeat"
    message = (
        f"{claim.blueprint}/{claim.environment} is claimed by run {claim.run_id} "
        f"({claim.command} by {claim.actor.user} on {claim.owner.host}, pid {claim.owner.pid}, "
        f"since {claim.taken_at:%Y-%m-%d %H:%M:%S} UTC; {heartbeat})"
    )
    hint = f"look at it with `orchestrator runs show {claim.run_id}`, or wait (--wait)"
    if services.processes.liveness(claim.owner) is Liveness.UNKNOWN:
        hint += "; if it is dead for certain, --takeover REASON"
    return Busy(message, hint=hint)
