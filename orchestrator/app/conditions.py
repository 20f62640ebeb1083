"""
Whether somebody still works on a ``running`` record. Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.domain.record import Identity, OperationRecord
from orchestrator.domain.states import Condition, Liveness, Status

if TYPE_CHECKING:
    from orchestrator.ports import OperationStore, Processes, RunFiles


@dataclass(frozen=True, slots=True)
class Watch:
    """
    The ports that tell who is alive; ``silence`` is the age in seconds at which a heartbeat is old.
    """

    store: OperationStore
    files: RunFiles
    processes: Processes
    silence: float

    def condition(self, record: OperationRecord) -> Condition | None:
        """
        The derived condition of DESIGN 3; None for a record that is not ``running``.

        Owner and engine are gone only if both are proven gone from here. Where that cannot be
        proven, a fresh heartbeat means live and an old one silent. A run that gave its lease back
        has ended in order, and its engine with it.
        """
        if record.status is not Status.RUNNING:
            return None
        lease = self.store.lease(record.run_id)
        engine = self.files.engine_identity(record.run_id, record.target.step, record.attempt)
        known = [item for item in (lease and lease.owner, engine) if isinstance(item, Identity)]
        states = {self.processes.liveness(identity) for identity in known}
        if Liveness.ALIVE in states:
            return Condition.LIVE
        if lease is not None and Liveness.UNKNOWN in states:
            return Condition.LIVE if lease.age < self.silence else Condition.SILENT
        return Condition.INTERRUPTED
