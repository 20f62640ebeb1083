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
from orchestrator.app.inspection.read_context import LifeSigns, ReadContext
from orchestrator.domain.blueprint.blueprint import BlueprintSummary
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.destroy import ancestors, applied_graph, owners, retention
from orchestrator.domain.record.record import (
    MISPLACED,
    Fault,
    OperationRecord,
    UnreadableRecord,
    parse_record,
)
from orchestrator.domain.record.run_record import (
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
        self.signs: dict[str, LifeSigns] = {
            step: reader.life_signs(record)
            for step, record in {**self.records, **self.spooled}.items()
            if record.status is Status.RUNNING
        }

        # The newest record of each step; of one that does not exist, with the newest attempt that
        # failed before it was recorded.
        self.newest: dict[str, OperationRecord] = {
            step: with_failed_attempt(record, self.history.failed_attempt(step))
            if record.status in NOTHING_THERE
            else record
            for step, record in {**self.records, **self.spooled}.items()
        }
        self._applied_graph = applied_graph(summary.graph, self.records)
        self._owners = owners(summary, self.newest)

    @cached_property
    def unrecorded(self) -> bool:
        """
        Whether neither a record nor a run of the blueprint in the environment is known here.
        """
        return not (self.records or self.spooled or self.history.runs)

    def condition(self, step: str) -> Condition | None:
        """
        Return the condition of a running record, None for any other. If its hook applies a module,
        the engine of that module counts, too.
        """
        if step not in self.signs:
            return None
        hooks = self.reader.hook_targets(self.records, step)
        if any(hook.condition is Condition.LIVE for hook in hooks):
            return Condition.LIVE
        return self.reader.condition_from(self.signs[step])

    def context(self, step: str) -> RecoveryContext:
        """
        Return everything that advice on a step depends on.
        """
        record, graph = self.newest.get(step), self.summary.graph
        facts = self.facts(step, record)
        if step not in graph:
            is_orphan = step_of(step) not in graph
            return RecoveryContext(self.summary, step, record, facts, is_orphan=is_orphan)
        alive = {
            name: str(newest.status)
            for name in graph.order
            if (newest := self.newest.get(name)) and newest.status not in NOTHING_THERE
        }
        children = {child for child in self._owners if step in ancestors(self._owners, child)}
        dependents = self._applied_graph.dependents(step) - children
        unready = ((up, self._why_unready(up)) for up in graph.order if up in graph.needs(step))
        return RecoveryContext(
            self.summary,
            step,
            record,
            facts,
            unready={up: why for up, why in unready if why is not None},
            dependents={name: status for name, status in alive.items() if name in dependents},
            children=tuple(name for name in alive if name in children),
        )

    def _why_unready(self, step: str) -> str | None:
        """
        Return why dependents of the step cannot be applied, None if they can.
        """
        record = self.newest.get(step)
        if record is None or record.status not in READY:
            return str(record.status if record else StepStatus.PENDING)
        fault = self.history.fault(step, record)
        return "its provider state is elsewhere" if fault and fault.code in MISPLACED else None

    def facts(self, step: str, record: OperationRecord | None) -> StepFacts:
        history = self.history
        described = self.summary.steps.get(step)  # None for the module of a hook
        condition = self.condition(step)
        claimed_by, unproven = self.claim_holder
        if step in self.signs and condition is Condition.SILENT:
            unproven = unproven or _process(self.signs[step], record)
        fault, last = history.fault(step, record), history.last_run(step)
        code = fault.code if fault else None
        in_surgery = fault is not None and fault.phase == "surgery"
        # The newest attempt was refused. A destroy that found no object ends with the same code, in
        # the record.
        refused = fault is not None and fault != (record.error if record else None)
        emptied = record is not None and refused and in_surgery and code in ("vanished", "in_doubt")
        errors = fault.diagnostics if fault else ()
        lock = fault if fault and fault.phase == "lock" else history.lock_fault(step)
        unsaved = self._unsaved(step) if record else None
        retained = retention(described.retain if described else None, record)
        failed, no_retry = history.retry(step, record)
        earlier, no_rollback = history.rollback(step, record)
        blockers = {Remedy.RETRY: no_retry, Remedy.ROLLBACK: no_rollback}
        given = self.reader.files.directory(record.run_id) / "rerun-inputs.yml" if record else None
        return StepFacts(
            condition=condition,
            claimed_by=claimed_by,
            unproven_process=unproven,
            spooled=step in self.spooled,
            settling=self._settling(record),
            errored_state=str(unsaved) if unsaved else None,
            errored_readable=unsaved is None or _is_readable(unsaved),
            unanswerable=self._unanswered(record),
            lock=lock.summary if lock else None,
            left_lock=self._left_lock(record, lock),
            vanished=refused and code == "vanished" and not in_surgery,
            destroying=last is not None and last[0].command == "destroy",
            state_emptied=emptied,
            occupied=fault.resources if fault and emptied else (),
            state_replaced=record is not None and code == "lineage",
            state_back=record is not None and code == "serial_back",
            unadopted=history.is_unadopted(step),
            taken=code in ("exists_already", *MISPLACED),
            misplaced=self._misplaced(step, record, fault),
            moving=history.is_moving(record),
            protected=any("prevent_destroy" in f"{e.summary} {e.detail}" for e in errors),
            unrecorded=self.unrecorded,
            store_reason=self.refusal.reason if self.refusal else None,
            failed_run=failed,
            changed_secrets=self._changed_secrets(failed) if failed and not no_retry else (),
            earlier_run=earlier,
            blockers={remedy: blocker for remedy, blocker in blockers.items() if blocker},
            rerun_inputs=str(given) if given and given.exists() else None,
            compensates=described is not None and bool(described.compensate),
            hook_doubts=self._hook_doubts(step),
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
        found = self.history.finding(step)
        # A run that repeats an earlier one names the place that this one had.
        is_repetition = found is not None and found[0].command in ("retry", "rollback")
        if fault is not None and fault.code in MISPLACED and not is_repetition:
            return fault.code
        if record is None:
            return None
        is_bound = record.status not in (Status.RUNNING, *NOTHING_THERE)
        last = self.history.last_run(step)
        # A move that succeeded leaves the error that the record had.
        unmoved = (
            is_bound
            and last is not None
            and last[0].command == "move"
            and last[1].error not in (None, record.error)
        )
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

    def _hook_doubts(self, step: str) -> dict[HookKind, str]:
        """
        Return interrupted work and doubts in the modules of the step's hooks, by hook.
        """
        doubts_by_kind: dict[HookKind, str] = {}
        for root in self.reader.hook_targets(self.records, step):
            hook = hook_of(Target.parse(root.target).step)
            doubts = ", ".join(doubt.address for doubt in root.in_doubt)
            if hook is not None and (doubts or root.status is Status.RUNNING):
                doubts_by_kind[hook[1]] = doubts or f"run {root.run_id} was interrupted in it"
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
            readback = doubt.readback
            if record is None or readback is None or readback.adopts is not None:
                continue
            asked_after = (readback.at - (doubt.at or record.updated_at)).total_seconds()
            if asked_after >= self.settle or readback.method == "none":
                addresses.add(doubt.address)
        return frozenset(addresses)

    def _left_lock(self, record: OperationRecord | None, fault: Fault | None) -> str | None:
        """
        Return the id of the state lock that an attempt met, if a dead run of ours left it.
        """
        lock = parse_lock(fault.summary) if fault is not None else None
        bound = record.provider_state if record else None
        if lock is None or lock.id is None or (bound and bound.backend in PASSING_LOCKS):
            return None
        runs = []
        for run in self.history.runs:
            ended, lease = run.ended_at, self.reader.store.lease(run.run_id)
            if ended is None and lease is not None:  # killed: it ended with its last sign of life
                ended = self.now - timedelta(seconds=lease.age - self.reader.silence)
            runs.append(RunPeriod(run.run_id, run.actor, run.started_at, ended))
        return None if unlock_objection(lock, lock.id, runs) else lock.id

    def _unsaved(self, step: str) -> Path | None:
        """
        Return the file with a provider state that the engine could not save, anywhere in the
        working directory.
        """
        top = self.reader.work / self.summary.blueprint / self.summary.environment / step
        for directory, directories, files in os.walk(top):
            directories[:] = [name for name in directories if not name.startswith(".")]
            file = Path(directory) / "errored.tfstate"
            if file.name in files and file.stat().st_size:  # a full disk leaves an empty one
                return file
        return None

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
            blueprint = (outcome.target.blueprint, outcome.target.environment)
            if blueprint == (self.summary.blueprint, self.summary.environment):
                outcomes.append((outcome, file))
        return outcomes


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


def _is_readable(state: Path) -> bool:
    """
    Return whether a provider state that the engine could not save is unencrypted.
    """
    from orchestrator.domain.provider_state import is_encrypted

    return not is_encrypted(state.read_bytes())
