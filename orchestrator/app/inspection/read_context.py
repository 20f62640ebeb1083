"""
The context of commands that only read. It changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.json_model import HookTarget
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import SILENCE
from orchestrator.domain.record.states import NOTHING_THERE, Condition, Liveness, Status
from orchestrator.domain.target import HOOK_KINDS, Target, hook_kind, hook_step_name, step_of
from orchestrator.errors import Refused, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.stored_deployment import StoredDeployment
    from orchestrator.domain.record.run_record import Lease, ProcessIdentity
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.store import OperationStore, Spool
    from orchestrator.ports.system import Processes


# Whether somebody still works on a ``running`` record. Reads only.


Role = Literal["run", "engine"]


class LifeSigns(Struct, frozen=True):
    """
    The last heartbeat of a run, as far as it concerns the record, its own process (``run``) and its
    engine's (``engine``) with their liveness; unknown ones are left out. ``engine_lost``: the run
    was on this machine since boot, and its directory is gone, so that its engine may have begun.
    """

    lease: Lease | None
    processes: Mapping[Role, tuple[ProcessIdentity, Liveness]]
    engine_lost: bool = False


class LivenessProbe(Struct, frozen=True):
    """
    The ports that determine liveness; ``silence`` is the age in seconds at which a heartbeat is
    old.
    """

    store: OperationStore
    files: RunFiles
    processes: Processes
    silence: float

    @classmethod
    def of(cls, services: Services) -> LivenessProbe:
        return cls(services.store, services.files, services.processes, services.limits.silence)

    def life_signs(self, record: OperationRecord) -> LifeSigns:
        """
        Return the signs of life of the record's run.
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
            lease=lease.of(str(record.target), record.sequence) if lease else None,
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
        Return the derived condition, None for a record that is not ``running``.

        The run counts as interrupted only if owner and engine are both proven gone from here. If
        that cannot be proven, a fresh heartbeat means live and an old one silent. A run that has
        returned its lease ended in order, and its engine, too.
        """
        return (
            self.condition_from(self.life_signs(record))
            if record.status is Status.RUNNING
            else None
        )

    def condition_from(self, signs: LifeSigns) -> Condition:
        """
        Return the condition of a ``running`` record from the signs of life of its run.
        """
        states = {state for _, state in signs.processes.values()}
        if Liveness.ALIVE in states:
            return Condition.LIVE
        if signs.engine_lost:
            return Condition.SILENT
        if signs.lease is not None and Liveness.UNKNOWN in states:
            return Condition.LIVE if signs.lease.age < self.silence else Condition.SILENT
        return Condition.INTERRUPTED


# Whose a record is: a record of another project or blueprint file is refused, never taken for
# ours.


def check_owner(record: OperationRecord, project: str, paths: Collection[str]) -> None:
    """
    Raise Refused if the record belongs to another project, or to a blueprint file other than
    ``paths``, the current and former ones.
    """
    target = record.target
    if record.project != project:
        raise Refused(
            "foreign_record",
            f"{target} is recorded for project {record.project!r}, this is {project!r}",
            hint="give the blueprint another name, or another operation store",
        )
    path = record.source.blueprint_path
    if path not in paths:
        raise Refused(
            "foreign_record",
            f"{target} is recorded for the blueprint file {path}, this is {next(iter(paths))}",
            hint=f"if the file was moved, add `moved_from: [{path}]` to the blueprint; "
            "if it is another blueprint, give it another name",
        )


class ReadContext(Struct, frozen=True):
    """
    The ports of commands that only read. ``work`` contains the targets' working directories,
    ``today`` is the date in UTC; ``refusal`` returns the error that mutating commands end with if
    they may not rely on what was read, ``changed_secrets`` the secrets of an earlier deployment
    that are known to have changed.
    """

    project: str
    store: OperationStore
    spool: Spool
    files: RunFiles
    processes: Processes
    work: Path
    today: date
    silence: float = SILENCE
    refusal: Callable[[], StoreUnavailable | None] = lambda: None
    changed_secrets: Callable[[StoredDeployment], Sequence[str]] = lambda _: ()

    def check_not_gone_back(self) -> None:
        """
        Raise StoreUnavailable if what was read is older than what this machine saw before.
        """
        refusal = self.refusal()
        if refusal is not None and refusal.reason == "store_gone_back":  # that has been told
            raise StoreUnavailable(
                f"{self.store.url}: what is recorded there is older than this machine has seen it",
                hint="nothing is expected of an old record: restore the newest copy of the store",
            )

    def working_directory(self, target: Target) -> Path | None:
        """
        Return the working directory of a target on this machine, where the engine runs: deeper
        inside for a module that uses neighbours. None if there is none.
        """
        top = self.work / target.blueprint / target.environment / target.step
        for place, directories, _ in os.walk(top):
            if ".terraform" in directories:
                return Path(place)
        return top if top.exists() else None

    def liveness_probe(self) -> LivenessProbe:
        return LivenessProbe(self.store, self.files, self.processes, self.silence)

    def records(self, summary: BlueprintSummary) -> dict[str, OperationRecord]:
        """
        Return the newest records by step, orphans included. Raises Refused if one belongs to
        somebody else.
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
        Return the spooled outcomes that are the next entry of their step.
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
        Return the ids of all runs, of this machine and of the store, newest first.
        """
        names = self.store.blobs("runs/")
        stored = {name.split("/")[1] for name in names if name.endswith("/run.json")}
        return sorted({*self.files.runs(), *stored}, reverse=True)


def orphaned_targets(
    summary: BlueprintSummary, records: Mapping[str, OperationRecord]
) -> tuple[str, ...]:
    """
    Return the targets that may be alive and whose step is no longer in the blueprint.
    """
    return tuple(
        str(record.target)
        for step, record in sorted(records.items())
        if step_of(step) not in summary.graph and record.status not in NOTHING_THERE
    )


# Which targets of a blueprint a reading command shows a row of: its steps, the modules of their
# hooks, and what left the blueprint.


def listed_targets(
    summary: BlueprintSummary,
    records: Mapping[str, OperationRecord],
    selected: Collection[str] | None = None,
) -> list[str]:
    """
    Return the targets to list: steps in the order of an apply, each followed by the recorded
    modules of its hooks; then orphans that may be alive or have released objects. With ``selected``
    only these steps and their hooks.
    """
    steps = [name for step in summary.graph.order for name in (step, *_hooks(step, records))]
    names = (*steps, *_orphans(summary, records))
    if selected is None:
        return list(names)
    return [name for name in names if name in selected or step_of(name) in selected]


def select_targets(
    reader: ReadContext,
    summary: BlueprintSummary,
    patterns: Sequence[str],
    exclude: Sequence[str],
) -> set[str] | None:
    """
    Return the selected names, None without a selection. Hooks and orphans are selected by exact
    name, steps by pattern. Raises Usage if a pattern matches nothing.
    """
    if not patterns and not exclude:
        return None
    listed = {*listed_targets(summary, reader.records(summary))} - {*summary.graph.order}
    exact = {name for name in patterns if name in listed}
    others = [name for name in patterns if name not in exact]
    if exact and not others:
        return exact
    return exact | set(summary.graph.select_some(others, exclude))


def _hooks(step: str, records: Mapping[str, OperationRecord]) -> list[str]:
    roots = (hook_step_name(step, kind) for kind in HOOK_KINDS)
    return [root for root in roots if root in records]


def _orphans(summary: BlueprintSummary, records: Mapping[str, OperationRecord]) -> list[str]:
    return [
        step
        for step, record in sorted(records.items())
        if step_of(step) not in summary.graph
        and (
            not summary.graph.order
            or record.status not in NOTHING_THERE
            or any(item.how == "forgotten" for item in record.resources.still_released)
        )
    ]


# The roots of the modules that steps declare as actions, from their records. Reads only.


def hook_targets(
    records: Mapping[str, OperationRecord], step: str, watch: LivenessProbe
) -> Iterable[HookTarget]:
    """
    Yield the modules of the step's hooks that exist, or may exist.
    """
    for kind in HOOK_KINDS:
        record = records.get(hook_step_name(step, kind))
        if record is not None and record.status not in NOTHING_THERE:
            yield HookTarget(
                target=str(record.target),
                status=record.status,
                condition=watch.condition(record),
                run_id=record.run_id,
                last_error=record.last_error,
                objects=tuple(ref.name for ref in record.live_objects),
                in_doubt=record.resources.in_doubt,
            )
