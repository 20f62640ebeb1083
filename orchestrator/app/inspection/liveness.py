"""
Whether somebody still works on a ``running`` record. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from orchestrator.domain.record.states import Condition, Liveness, Status
from orchestrator.domain.target import hook_kind, hook_step_name

if TYPE_CHECKING:
    from orchestrator.domain.record.record import OperationRecord
    from orchestrator.domain.record.run_record import Lease, ProcessIdentity
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.store import OperationStore
    from orchestrator.ports.system import Processes

Role = Literal["run", "engine"]


class LifeSigns(Struct, frozen=True):
    """
    The last heartbeat of a run with what it tells of the record, and its own process (``run``) and
    its engine's (``engine``) with what can be told of them from here; what is not known is left
    out. ``engine_lost``: the run was on this machine since it started, and its directory is gone:
    its engine may have begun.
    """

    lease: Lease | None
    processes: Mapping[Role, tuple[ProcessIdentity, Liveness]]
    engine_lost: bool = False


class LivenessProbe(Struct, frozen=True):
    """
    The ports that tell who is alive; ``silence`` is the age in seconds at which a heartbeat is old.
    """

    store: OperationStore
    files: RunFiles
    processes: Processes
    silence: float

    def life_signs(self, record: OperationRecord) -> LifeSigns:
        """
        What can be seen of the processes of the record's run.
        """
        lease = self.store.lease(record.run_id)
        step, kind = record.target.step, hook_kind(record.active_command)
        if kind is not None:
            step = hook_step_name(step, kind)  # its call left its files there
        engine = self.files.engine_identity(record.run_id, step, record.attempt)
        identities: dict[Role, ProcessIdentity | None] = {
            "run": lease.owner if lease else None,
            "engine": engine,
        }
        return LifeSigns(
            lease=lease.of(str(record.target.target), record.sequence) if lease else None,
            processes={
                role: (identity, self.processes.liveness(identity))
                for role, identity in identities.items()
                if identity is not None
            },
            engine_lost=engine is None
            and lease is not None
            and not self.files.directory(record.run_id).is_dir()
            and self._was_here(lease.owner),
        )

    def _was_here(self, owner: ProcessIdentity) -> bool:
        me = self.processes.me()
        return (owner.host, owner.boot_id) == (me.host, me.boot_id)

    def condition(self, record: OperationRecord) -> Condition | None:
        """
        The derived condition; None for a record that is not ``running``.

        Owner and engine are gone only if both are proven gone from here. Where that cannot be
        proven, a fresh heartbeat means live and an old one silent. A run that gave its lease back
        has ended in order, and its engine with it.
        """
        return (
            self.condition_from(self.life_signs(record))
            if record.status is Status.RUNNING
            else None
        )

    def condition_from(self, signs: LifeSigns) -> Condition:
        """
        The condition of a ``running`` record of whose run these are the signs.
        """
        states = {state for _, state in signs.processes.values()}
        if Liveness.ALIVE in states:
            return Condition.LIVE
        if signs.engine_lost:
            return Condition.SILENT
        if signs.lease is not None and Liveness.UNKNOWN in states:
            return Condition.LIVE if signs.lease.age < self.silence else Condition.SILENT
        return Condition.INTERRUPTED
