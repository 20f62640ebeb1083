"""
What reading commands read with. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.app.inspection.liveness import LivenessProbe
from orchestrator.app.inspection.ownership import check_owner
from orchestrator.domain.blueprint.summary import BlueprintSummary
from orchestrator.domain.record.record import NextCommand, OperationRecord, Retention
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import step_of

if TYPE_CHECKING:
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.store import OperationStore, Spool
    from orchestrator.ports.system import Processes


@dataclass(frozen=True, slots=True)
class ReadContext:
    """
    The ports of reading commands. ``work`` is where the targets' working directories are, ``today``
    the date in UTC.
    """

    project: str
    store: OperationStore
    spool: Spool
    files: RunFiles
    processes: Processes
    silence: float
    work: Path
    today: date

    def liveness_probe(self) -> LivenessProbe:
        """
        What tells who is alive.
        """
        return LivenessProbe(self.store, self.files, self.processes, self.silence)

    def records(self, outline: BlueprintSummary) -> dict[str, OperationRecord]:
        """
        The newest records by step, orphans included; Refused where one is somebody else's.
        """
        records = {}
        for found in self.store.records(outline.blueprint, outline.environment):
            check_owner(found, self.project, (outline.path, *outline.moved_from))
            records[found.target.step] = found
        return records

    def spooled_outcomes(
        self, outline: BlueprintSummary, records: Mapping[str, OperationRecord]
    ) -> dict[str, OperationRecord]:
        """
        The outcomes that wait on disk and are the next entry of their step.
        """
        place = (outline.blueprint, outline.environment)
        found = {}
        for item in self.spool.pending():
            step = item.target.step
            known = records.get(step)
            ours = (item.target.blueprint, item.target.environment) == place
            if ours and (known is None or item.sequence == known.sequence + 1):
                found[step] = item
        return found

    def run_ids(self) -> list[str]:
        """
        The ids of all runs, of this machine and of the store, newest first.
        """
        names = self.store.blobs("runs/")
        stored = {name.split("/")[1] for name in names if name.endswith("/run.json")}
        return sorted({*self.files.runs(), *stored}, reverse=True)


def orphaned_targets(
    outline: BlueprintSummary, records: Mapping[str, OperationRecord]
) -> tuple[str, ...]:
    """
    The targets that may be alive and whose step is no longer in the blueprint.
    """
    return tuple(
        str(record.target.target)
        for step, record in sorted(records.items())
        if step_of(step) not in outline.graph and record.status not in NOTHING_THERE
    )


def next_of_children(
    outline: BlueprintSummary, records: Mapping[str, OperationRecord]
) -> Iterator[NextCommand]:
    """
    How to finish the destroy of steps of the blueprint that are recorded as alive although the
    parent that they lived in is gone. Those that left it go with the orphans.
    """
    left = []
    for step in outline.graph.order:
        record = records.get(step)
        parent = parent_of(record, records) if record else None
        alive = record is not None and record.status not in NOTHING_THERE
        if alive and parent is not None and parent.status in NOTHING_THERE:
            left.append(step)
    if left:
        words = [word for child in left for word in ("--step", child)]
        yield NextCommand(
            command=command_line(outline, "destroy", *words),
            why=f"finish the destroy: {', '.join(left)} went with a parent that is gone",
        )


def parent_of(
    record: OperationRecord, records: Mapping[str, OperationRecord]
) -> OperationRecord | None:
    """
    The record of the step that a target was made inside.
    """
    found = (known for known in records.values() if str(known.target.target) == record.parent)
    return next(found, None)


def next_of_orphans(
    outline: BlueprintSummary,
    left: Collection[str],
    records: Mapping[str, OperationRecord],
    why: str,
) -> Iterator[NextCommand]:
    """
    What is to be done about the targets that left the blueprint; ``why`` tells of their destroy.
    Nothing where a version of the tool applied one that kept no deployment: all would be refused.
    """
    alive = [r for _, r in sorted(records.items()) if str(r.target.target) in left]
    steps = [record for record in alive if step_of(record.target.step) == record.target.step]
    if any(record.deployment is None for record in steps):
        return
    uncertain = [
        str(record.target.target)
        for record in alive
        if record.status is Status.RUNNING or record.resources.in_doubt
    ]
    if uncertain:
        yield NextCommand(
            command=command_line(outline, "reconcile", "--orphaned"),
            why=f"settle what is uncertain of {', '.join(uncertain)}",
        )
    kept = [record for record in alive if record.status is Status.RETAINED]
    if len(kept) < len(alive):
        yield NextCommand(command=command_line(outline, "destroy", "--orphaned"), why=why)
    for record in kept:
        options = ("--orphaned", "--step", record.target.step, "--reason", "WHY")
        yield NextCommand(
            command=command_line(outline, "release", *options),
            why=f"{record.target.target} is retained{_for(record.retained)}: no destroy takes it "
            "down before it is released",
        )


def _for(retained: Retention | None) -> str:
    if retained is None:
        return ""
    return f" for {retained.reason} ({retained.owner}, review by {retained.review_by})"
