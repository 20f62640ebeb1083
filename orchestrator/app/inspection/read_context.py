"""
What reading commands read with. It changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.app.inspection.liveness import LivenessProbe
from orchestrator.app.inspection.ownership import check_owner
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import SILENCE
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.target import Target, step_of
from orchestrator.errors import StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.stored_deployment import StoredDeployment
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.store import OperationStore, Spool
    from orchestrator.ports.system import Processes


class ReadContext(Struct, frozen=True):
    """
    The ports of reading commands. ``work`` is where the targets' working directories are, ``today``
    the date in UTC; ``gone_back`` says which records are older than this machine has seen them,
    ``changed_secrets`` which secrets of an earlier deployment are known to be others today.
    """

    project: str
    store: OperationStore
    spool: Spool
    files: RunFiles
    processes: Processes
    work: Path
    today: date
    silence: float = SILENCE
    gone_back: Callable[[], Sequence[str]] = tuple
    changed_secrets: Callable[[StoredDeployment], Sequence[str]] = lambda _: ()

    def check_not_gone_back(self) -> None:
        """
        StoreUnavailable where what has been read is older than what this machine saw before.
        """
        if self.gone_back():  # what speaks against it has been told
            raise StoreUnavailable(
                f"{self.store.url}: what is recorded there is older than this machine has seen it",
                hint="nothing is expected of an old record: restore the newest copy of the store",
            )

    def working_directory(self, target: Target) -> Path | None:
        """
        Where the engine works on a target on this machine: its root, which a module that reaches
        for its neighbours has further inside. None where it never did.
        """
        top = self.work / target.blueprint / target.environment / target.step
        for place, inside, _ in os.walk(top):
            if ".terraform" in inside:
                return Path(place)
        return top if top.exists() else None

    def liveness_probe(self) -> LivenessProbe:
        """
        What tells who is alive.
        """
        return LivenessProbe(self.store, self.files, self.processes, self.silence)

    def records(self, summary: BlueprintSummary) -> dict[str, OperationRecord]:
        """
        The newest records by step, orphans included; Refused where one is somebody else's.
        """
        records = {}
        for record in self.store.records(summary.blueprint, summary.environment):
            check_owner(record, self.project, (summary.path, *summary.moved_from))
            records[record.target.step] = record
        return records

    def spooled_outcomes(
        self, summary: BlueprintSummary, records: Mapping[str, OperationRecord]
    ) -> dict[str, OperationRecord]:
        """
        The outcomes that wait on disk and are the next entry of their step.
        """
        place = (summary.blueprint, summary.environment)
        outcomes = {}
        for item in self.spool.pending():
            step = item.target.step
            record = records.get(step)
            of_this_blueprint = (item.target.blueprint, item.target.environment) == place
            if of_this_blueprint and (record is None or item.sequence == record.sequence + 1):
                outcomes[step] = item
        return outcomes

    def run_ids(self) -> list[str]:
        """
        The ids of all runs, of this machine and of the store, newest first.
        """
        names = self.store.blobs("runs/")
        stored = {name.split("/")[1] for name in names if name.endswith("/run.json")}
        return sorted({*self.files.runs(), *stored}, reverse=True)


def orphaned_targets(
    summary: BlueprintSummary, records: Mapping[str, OperationRecord]
) -> tuple[str, ...]:
    """
    The targets that may be alive and whose step is no longer in the blueprint.
    """
    return tuple(
        str(record.target.target)
        for step, record in sorted(records.items())
        if step_of(step) not in summary.graph and record.status not in NOTHING_THERE
    )
