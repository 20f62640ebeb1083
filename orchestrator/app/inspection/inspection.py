"""
Observations of a blueprint in an environment: records, processes, runs, files. Changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from orchestrator.app.inspection.earlier_runs import RunHistory
from orchestrator.app.inspection.read_context import LifeSigns, ReadContext, hook_targets
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.destroy import ancestors, applied_graph, owners, retention
from orchestrator.domain.json_model import HookTarget
from orchestrator.domain.record.record import (
    MISPLACED,
    Fault,
    OperationRecord,
    UnreadableRecord,
    parse_record,
)
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.record.state_lock import (
    PASSING_LOCKS,
    RunPeriod,
    parse_lock,
    unlock_objection,
)
from orchestrator.domain.record.states import (
    NOTHING_THERE,
    READY,
    Condition,
    Liveness,
    Status,
    StepStatus,
)
from orchestrator.domain.record.verdicts import with_failed_attempt
from orchestrator.domain.recovery.context import RecoveryContext, Remedy, StepFacts
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.target import HookKind, Target, hook_of, step_of
from orchestrator.domain.text import CREDENTIAL
from orchestrator.domain.values import replace
from orchestrator.errors import Reason

_ERRORED = "errored.tfstate"


class Inspection:
    """
    The data of one document; each part is read once, when first needed.

    ``settle`` is for how many seconds a dead engine's request may be under way; ``own_run`` is the
    calling run, whose claim does not count.
    """

    def __init__(
        self,
        reader: ReadContext,
        summary: BlueprintSummary,
        *,
        now: datetime,
        settle: float,
        own_run: str | None = None,
    ) -> None:
        self.reader = reader
        self.summary = summary
        self.now = now
        self.settle = settle
        self.own_run = own_run
        self.records = reader.records(summary)
        self.refusal = reader.refusal()
        self.spooled = reader.spooled_outcomes(summary, self.records)
        self.history = RunHistory(reader, summary)
        self.probe = reader.liveness_probe()
        self.signs: dict[str, LifeSigns] = {
            step: self.probe.life_signs(record)
            for step, record in {**self.records, **self.spooled}.items()
            if record.status is Status.RUNNING
        }

    @cached_property
    def unrecorded(self) -> bool:
        """
        Whether neither a record nor a run of the blueprint in the environment is known here.
        """
        return not (self.records or self.spooled or self.history.runs)

    def newest(self, step: str) -> OperationRecord | None:
        record = self.spooled.get(step) or self.records.get(step)
        if record is None or record.status not in NOTHING_THERE:
            return record
        return with_failed_attempt(record, self.history.failed_attempt(step))

    def status(self, step: str) -> Status | None:
        record = self.newest(step)
        return record.status if record else None

    def condition(self, step: str) -> Condition | None:
        """
        Return the condition of a running record, None for any other. If its hook applies a module,
        the engine of that module counts, too.
        """
        if step not in self.signs:
            return None
        roots = [root.condition for root in self.hook_targets(step)]
        return (
            Condition.LIVE
            if Condition.LIVE in roots
            else self.probe.condition_from(self.signs[step])
        )

    def context(self, step: str) -> RecoveryContext:
        """
        Return everything that advice on a step depends on.
        """
        record, graph = self.newest(step), self.summary.graph
        context = RecoveryContext(
            blueprint=self.summary,
            step=step,
            record=record,
            facts=self.facts(step, record),
            is_orphan=step_of(step) not in graph,
        )
        if step not in graph:
            return context
        children = self._children(step)
        needs = [up for up in graph.order if up in graph.needs(step)]
        dependents = self._applied_graph.dependents(step)
        return replace(
            context,
            unready={up: why for up in needs if (why := self._why_unready(up)) is not None},
            dependents={
                name: _word(self.status(name))
                for name in graph.order
                if name in dependents and name not in children and self._alive(name)
            },
            children=tuple(name for name in graph.order if name in children and self._alive(name)),
        )

    def _why_unready(self, step: str) -> str | None:
        """
        Return why dependents of the step cannot be applied, None if they can.
        """
        if self.status(step) not in READY:
            return _word(self.status(step))
        fault = self.history.fault(step, self.newest(step))
        return "its provider state is elsewhere" if fault and fault.code in MISPLACED else None

    @cached_property
    def _applied_graph(self) -> Graph:
        return applied_graph(self.summary.graph, self.records)

    def _alive(self, step: str) -> bool:
        return self.status(step) not in (None, *NOTHING_THERE)

    def _children(self, step: str) -> set[str]:
        """
        Return the steps that the step owns, directly or not, by blueprint and record.
        """
        parents = owners(self.summary, {name: self.newest(name) for name in self.summary.steps})
        return {child for child in parents if step in ancestors(parents, child)}

    def facts(self, step: str, record: OperationRecord | None) -> StepFacts:
        condition = self.condition(step)
        described = self.summary.steps.get(step)  # None for the module of a hook
        claimed_by, unproven = self.claim_holder
        if step in self.signs and condition is Condition.SILENT:
            unproven = unproven or _process(self.signs[step], record)
        fault, lock = self.history.fault(step, record), self._lock_fault(step, record)
        retained = retention(described.retain if described else None, record)
        failed, no_retry = self.history.retry(step, record)
        earlier, no_rollback = self.history.rollback(step, record)
        blockers = {Remedy.RETRY: no_retry, Remedy.ROLLBACK: no_rollback}
        unsaved = self._unsaved(step) if record else None
        return StepFacts(
            condition=condition,
            claimed_by=claimed_by,
            unproven_process=unproven,
            spooled=step in self.spooled,
            settling=self._settling(record),
            errored_state=unsaved,
            errored_readable=unsaved is None or _is_readable(Path(unsaved)),
            unanswerable=self._unanswered(record),
            lock=lock.summary if lock is not None else None,
            left_lock=self._left_lock(record, lock),
            vanished=_is_vanished(fault, record),
            destroying=self.history.is_destroying(step),
            state_emptied=_is_emptied(fault, record),
            occupied=fault.resources if fault and _is_emptied(fault, record) else (),
            state_replaced=_is_refused(fault, record, "lineage"),
            state_back=_is_refused(fault, record, "serial_back"),
            unadopted=self.history.is_unadopted(step),
            taken=fault is not None and fault.code in ("exists_already", *MISPLACED),
            misplaced=self._misplaced(step, record, fault),
            moving=self.history.is_moving(record),
            protected=_is_protected(fault),
            unrecorded=self.unrecorded,
            store_reason=self.refusal.reason if self.refusal else None,
            failed_run=failed,
            changed_secrets=self._changed_secrets(failed) if failed and not no_retry else (),
            earlier_run=earlier,
            blockers={
                remedy: blocker for remedy, blocker in blockers.items() if blocker is not None
            },
            rerun_inputs=self._given_inputs(record),
            compensates=described is not None and bool(described.compensate),
            hook_doubts=self._action_doubts(step),
            retained_because=retained.reason if retained else None,
            scope=_scope(described.providers) if described else "",
        )

    def _misplaced(
        self, step: str, record: OperationRecord | None, fault: Fault | None
    ) -> str | None:
        """
        Return the reason code if the newest attempt was refused because the provider state is
        elsewhere than the blueprint says; a failed move was meant to move it.
        """
        if (
            fault is not None
            and fault.code in MISPLACED
            and not self.history.is_of_repetition(step)
        ):
            return fault.code
        if record is None:
            return None
        is_bound = record.status not in (Status.RUNNING, *NOTHING_THERE)
        unmoved = is_bound and self.history.is_unmoved(step, record)
        return "backend_changed" if unmoved or self.history.is_moving(record) else None

    @cached_property
    def claim_holder(self) -> tuple[str | None, str | None]:
        """
        The live run that holds the claim, or the process that holds it and cannot be proven dead.
        """
        reader = self.reader
        claim = reader.store.claim(self.summary.blueprint, self.summary.environment)
        if claim is None or self.own_run in [item.run_id for item in claim.holders]:
            return None, None
        state = reader.processes.liveness(claim.owner)
        lease = reader.store.lease(claim.run_id)
        process = f"process {claim.owner.pid} of run {claim.run_id} on {claim.owner.host}"
        fresh = lease is not None and lease.age < reader.silence
        if state is Liveness.ALIVE or (state is Liveness.UNKNOWN and fresh):
            return f"{claim.command} of run {claim.run_id} is in progress ({process})", None
        return None, process if state is Liveness.UNKNOWN else None

    def hook_targets(self, step: str) -> tuple[HookTarget, ...]:
        """
        Return the modules of the step's hooks.
        """
        return tuple(hook_targets(self.records, step, self.probe))

    def _action_doubts(self, step: str) -> dict[HookKind, str]:
        """
        Return interrupted work and doubts in the modules of the step's hooks, by hook.
        """
        doubts_by_kind: dict[HookKind, str] = {}
        for root in self.hook_targets(step):
            action = hook_of(Target.parse(root.target).step)
            doubts = ", ".join(doubt.address for doubt in root.in_doubt)
            if action is not None and (doubts or root.status is Status.RUNNING):
                doubts_by_kind[action[1]] = doubts or f"run {root.run_id} was interrupted in it"
        return doubts_by_kind

    def _changed_secrets(self, run_id: str) -> tuple[str, ...]:
        """
        Return the secrets of a run that are known to have changed.
        """
        from orchestrator.domain.blueprint.stored_deployment import (
            UnreadableDeployment,
            parse_deployment,
        )

        digest = next((run.deployment for run in self.history.runs if run.run_id == run_id), None)
        text = self.reader.store.blob(deployment_blob(digest)) if digest else None
        if digest is None or text is None:
            return ()
        try:
            return tuple(self.reader.changed_secrets(parse_deployment(text, digest)))
        except UnreadableDeployment:
            return ()

    def _settling(self, record: OperationRecord | None) -> float:
        """
        Return for how many seconds a request that left a doubt may still be under way.
        """
        if record is None:
            return 0.0
        ages = [
            (self.now - (doubt.at or record.updated_at)).total_seconds()
            for doubt in record.resources.in_doubt
            if doubt.action != "forget"
        ]
        return round(max(self.settle - min(ages), 0.0), 1) if ages else 0.0

    def _unanswered(self, record: OperationRecord | None) -> frozenset[str]:
        """
        Return the addresses in doubt without a certain answer: the provider could not tell after
        the settling time, or could not be queried.
        """
        addresses = set()
        for doubt in record.resources.in_doubt if record else ():
            readback, since = (
                doubt.readback,
                doubt.at or (record.updated_at if record else self.now),
            )
            late = readback is not None and (readback.at - since).total_seconds() >= self.settle
            if (
                readback is not None
                and (late or readback.method == "none")
                and readback.adopts is None
            ):
                addresses.add(doubt.address)
        return frozenset(addresses)

    def _lock_fault(self, step: str, record: OperationRecord | None) -> Fault | None:
        """
        Return the state lock that the newest attempt met, if any.
        """
        fault = self.history.fault(step, record)
        return fault if fault and fault.phase == "lock" else self.history.lock_fault(step)

    def _left_lock(self, record: OperationRecord | None, fault: Fault | None) -> str | None:
        """
        Return the id of that lock if a dead run of ours left it.
        """
        lock = parse_lock(fault.summary) if fault is not None else None
        bound = record.provider_state if record else None
        if lock is None or lock.id is None or (bound and bound.backend in PASSING_LOCKS):
            return None
        runs = tuple(self._period(run) for run in self.history.runs)
        return None if unlock_objection(lock, lock.id, runs) else lock.id

    def _period(self, run: RunRecord) -> RunPeriod:
        """
        Return when a run was active; a killed one ended with its last sign of life.
        """
        ended, lease = run.ended_at, self.reader.store.lease(run.run_id)
        if ended is None and lease is not None:
            ended = self.now - timedelta(seconds=lease.age - self.reader.silence)
        return RunPeriod(run.run_id, run.actor, run.started_at, ended)

    def _directory(self, step: str) -> Path:
        return self.reader.work / self.summary.blueprint / self.summary.environment / step

    def _unsaved(self, step: str) -> str | None:
        """
        Return the file with a provider state that the engine could not save, anywhere in the
        working directory.
        """
        for place, directories, files in os.walk(self._directory(step)):
            directories[:] = [name for name in directories if not name.startswith(".")]
            file = Path(place) / _ERRORED
            if _ERRORED in files and file.stat().st_size:  # a full disk leaves an empty one
                return str(file)
        return None

    def _given_inputs(self, record: OperationRecord | None) -> str | None:
        if record is None:
            return None
        file = self.reader.files.directory(record.run_id) / "rerun-inputs.yml"
        return str(file) if file.exists() else None

    @cached_property
    def late(self) -> list[tuple[OperationRecord, Path]]:
        """
        The outcomes that came too late to be recorded, each with its file.
        """
        outcomes = []
        for file in self.reader.files.late():
            try:
                outcome = parse_record(file.read_bytes())
            except (OSError, UnreadableRecord):
                continue  # evidence that cannot be read must not hide the rest
            place = (outcome.target.blueprint, outcome.target.environment)
            if place == (self.summary.blueprint, self.summary.environment):
                outcomes.append((outcome, file))
        return outcomes


def _word(status: Status | None) -> str:
    return str(status or StepStatus.PENDING)


def _process(signs: LifeSigns, record: OperationRecord | None) -> str:
    """
    Describe the process of a silent run.
    """
    described = [
        f"{role} process {identity.pid} on {identity.host}"
        for role, (identity, state) in signs.processes.items()
        if state is Liveness.UNKNOWN
    ]
    if signs.engine_lost:
        described.append("its engine, of which nothing is left here")
    return f"run {record.run_id if record else ''} ({', '.join(described)})"


def _scope(providers: Mapping[str, Template]) -> str:
    """
    Describe the provider configurations in the blueprint: references unresolved, possible
    credentials left out.
    """
    shown = []
    for name, template in providers.items():
        raw = template.raw if isinstance(template.raw, dict) else {}
        plain = {key: value for key, value in raw.items() if not CREDENTIAL.search(key)}
        settings = ", ".join(
            f"{key}={value}" for key, value in plain.items() if isinstance(value, str | int)
        )
        shown.append(f"{name} ({settings})" if settings else name)
    return ", ".join(shown)


def _is_refused(fault: Fault | None, record: OperationRecord | None, reason: Reason) -> bool:
    """
    Return whether the newest attempt of a recorded step was refused for this reason.
    """
    return fault is not None and record is not None and fault.code == reason


def _is_vanished(fault: Fault | None, record: OperationRecord | None) -> bool:
    """
    Return whether the newest attempt was refused because the provider has none of the recorded
    objects. A destroy that found none ends with the same code, in the record.
    """
    if fault is None or fault == (record.error if record else None):
        return False
    return fault.code == "vanished" and fault.phase != "surgery"


def _is_protected(fault: Fault | None) -> bool:
    """
    Return whether the newest attempt failed because of ``prevent_destroy``.
    """
    errors = fault.diagnostics if fault is not None else ()
    return any("prevent_destroy" in f"{item.summary} {item.detail}" for item in errors)


def _is_emptied(fault: Fault | None, record: OperationRecord | None) -> bool:
    """
    Return whether the newest attempt was refused because recorded objects had left the provider
    state.
    """
    if fault is None or record is None or fault == record.error:
        return False
    return fault.code in ("vanished", "in_doubt") and fault.phase == "surgery"


def _is_readable(state: Path) -> bool:
    """
    Return whether a provider state that the engine could not save is unencrypted.
    """
    from orchestrator.domain.provider_state import is_encrypted

    return not is_encrypted(state.read_bytes())
