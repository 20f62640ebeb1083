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
    from orchestrator.ports.store import OperationStore
    from orchestrator.ports.system import Processes
    from orchestrator.run_files import RunFiles, Spool


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
    ``today`` is the date in UTC, ``silence`` the age in seconds at which a heartbeat is old;
    ``refusal`` returns the error that mutating commands end with if they may not rely on what was
    read, ``changed_secrets`` the secrets of an earlier deployment that are known to have changed.
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

    @classmethod
    def of(cls, services: Services, project: str) -> ReadContext:
        return cls(
            project=project,
            store=services.store,
            spool=services.spool,
            files=services.files,
            processes=services.processes,
            work=services.work,
            today=services.clock.now().date(),
            silence=services.limits.silence,
        )

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
        for directory, directories, _ in os.walk(top):
            if ".terraform" in directories:
                return Path(directory)
        return top if top.exists() else None

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
        engine_lost = False
        if engine is None and lease and not self.files.directory(record.run_id).is_dir():
            me = self.processes.me()
            engine_lost = (lease.owner.host, lease.owner.boot_id) == (me.host, me.boot_id)
        return LifeSigns(
            lease=lease.of(str(record.target), record.sequence) if lease else None,
            processes={
                role: (identity, self.processes.liveness(identity))
                for role, identity in identities.items()
                if identity is not None
            },
            engine_lost=engine_lost,
        )

    def condition(self, record: OperationRecord) -> Condition | None:
        """
        Return the derived condition, None for a record that is not ``running``.

        The run counts as interrupted only if owner and engine are both proven gone from here. If
        that cannot be proven, a fresh heartbeat means live and an old one silent. A run that has
        returned its lease ended in order, and its engine, too.
        """
        if record.status is not Status.RUNNING:
            return None
        return self.condition_from(self.life_signs(record))

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

    def hook_targets(
        self, records: Mapping[str, OperationRecord], step: str
    ) -> tuple[HookTarget, ...]:
        """
        Return the modules of the step's hooks that exist, or may exist.
        """
        hooks = (records.get(hook_step_name(step, kind)) for kind in HOOK_KINDS)
        return tuple(
            HookTarget(
                target=str(record.target),
                status=record.status,
                condition=self.condition(record),
                run_id=record.run_id,
                last_error=record.last_error,
                objects=tuple(ref.name for ref in record.live_objects),
                in_doubt=record.resources.in_doubt,
            )
            for record in hooks
            if record is not None and record.status not in NOTHING_THERE
        )

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
        blueprint = (summary.blueprint, summary.environment)
        outcomes = {}
        for item in self.spool.pending():
            step = item.target.step
            record = records.get(step)
            of_this_blueprint = (item.target.blueprint, item.target.environment) == blueprint
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


def alive_orphans(
    summary: BlueprintSummary, records: Iterable[OperationRecord | None]
) -> list[OperationRecord]:
    """
    Return the records of targets that may be alive and whose step is no longer in the blueprint,
    sorted by target.
    """
    return sorted(
        (
            record
            for record in records
            if record is not None
            and record.status not in NOTHING_THERE
            and (
                step_of(record.target.step) not in summary.graph
                or step_of(record.target.step) in summary.orphans
            )
        ),
        key=lambda record: record.target,
    )


def orphaned_targets(
    summary: BlueprintSummary, records: Iterable[OperationRecord | None]
) -> tuple[str, ...]:
    return tuple(str(record.target) for record in alive_orphans(summary, records))


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
    names = []
    for step in summary.graph.order:
        hooks = (hook_step_name(step, kind) for kind in HOOK_KINDS)
        names += [step, *(hook for hook in hooks if hook in records)]
    for step, record in sorted(records.items()):
        released = any(item.how == "forgotten" for item in record.resources.still_released)
        remains = record.status not in NOTHING_THERE or released or not summary.graph.order
        if step_of(step) not in summary.graph and remains:
            names.append(step)
    return [name for name in names if selected is None or {name, step_of(name)} & {*selected}]


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
