"""
The steps of a deployment, prepared: records, working directories, values passed between them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from orchestrator.app.inspection.read_context import check_owner
from orchestrator.app.run.step_values import StepValues
from orchestrator.app.schedule import failures_of
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import learn_secrets, pull
from orchestrator.app.steps.guards import (
    StateBindings,
)
from orchestrator.app.steps.preparation import (
    ModuleSource,
    PreparedStep,
    applied_outputs,
    check_engine,
    check_recorded_state,
    initialise,
    lay_out,
    lock_of,
    snapshot_of,
)
from orchestrator.app.steps.settling import check_not_live
from orchestrator.domain.blueprint.blueprint import Deployment, Module, Step
from orchestrator.domain.blueprint.inputs import ReferenceScope
from orchestrator.domain.blueprint.references import Lookup, Unresolvable
from orchestrator.domain.provider_state import PulledState, StateOutput
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, READY, Status
from orchestrator.domain.recovery.command_line import reconcile_command
from orchestrator.domain.transitions.conclusion import is_parent_destroy
from orchestrator.domain.values import replace
from orchestrator.errors import EngineFailed, OrchestratorError, StateDamaged
from orchestrator.ports.engine import EngineInfo
from orchestrator.ports.workdir import Snapshot, WorkDir

#: Gives what a step's working directory is laid out from.
SourceOf = Callable[["PreparedSteps", Step, OperationRecord | None], ModuleSource]


def current_module(
    steps: PreparedSteps, step: Step, record: OperationRecord | None
) -> ModuleSource:
    """
    Return the module as it was when this command first read it, for an apply: packed once for all
    steps that use it, so that later edits are for the next command.
    """
    snapshot = next((packed for module, packed in steps.packed if module == step.module), None)
    if snapshot is None:
        snapshot = steps.services.workdirs.snapshot(step.module)
        steps.packed.append((step.module, snapshot))
    return ModuleSource(snapshot, lock_of(steps.services, record, snapshot))


def recorded_module(
    steps: PreparedSteps, step: Step, record: OperationRecord | None
) -> ModuleSource:
    """
    Return the snapshot that was applied, if the store still has it, for a destroy.

    If only an emptied provider state has to be settled, the backend alone is enough.
    """
    if record is not None and record.status is Status.RUNNING and is_parent_destroy(record):
        return backend_only(steps, step, record)
    return recorded_source(steps, step, record)


def recorded_source(
    steps: PreparedSteps, step: Step, record: OperationRecord | None
) -> ModuleSource:
    """
    Return the snapshot that was applied, with its lock file and inputs.
    """
    snapshot = snapshot_of(steps.services, step, record)
    return ModuleSource(snapshot, lock_of(steps.services, record, snapshot), inputs="recorded")


def backend_only(steps: PreparedSteps, step: Step, record: OperationRecord | None) -> ModuleSource:
    """
    Return a source with a backend and no module, to empty the provider state of an owned step: its
    providers may need values that are gone with the parent. If the module encrypts its state, the
    source has the module without providers.
    """
    if record is not None and record.state_encryption:
        recorded = recorded_source(steps, step, record)
        if recorded.snapshot.encryption:
            return replace(recorded, configures_providers=False)
    return ModuleSource(steps.services.workdirs.empty_snapshot(), None)


class PreparedSteps:
    """
    The steps as one command sees them: laid out, read and settled. Methods may be called from
    several threads.

    ``evidence`` returns the directory for the files of a step's calls. A placeholder replaces the
    ``unavailable_secrets`` in recorded inputs.
    """

    def __init__(
        self,
        services: Services,
        deployment: Deployment,
        *,
        evidence: Callable[[str], Path],
        jobs: int,
        allow_engine_change: bool,
        run_id: str = "",
        unavailable_secrets: Collection[str] = (),
    ) -> None:
        self.services = services
        self.deployment = deployment
        self.evidence = evidence
        self.jobs = jobs
        self.run_id = run_id
        self.allow_engine_change = allow_engine_change
        self.roots = deployment.steps_and_hooks()
        self.prepared: dict[str, PreparedStep] = {}
        self.records: dict[str, OperationRecord | None] = {}
        self._outputs: dict[str, Mapping[str, StateOutput]] = {}
        self._all_records: list[OperationRecord] | None = None  # of the whole store, once needed
        self._all_records_lock = threading.Lock()
        self.values = StepValues(
            services,
            deployment,
            records=self.records,
            prepared=self.prepared,
            outputs=self.outputs,
            prepare=lambda name: self.prepare(name, recorded_module),
            evidence=evidence,
            run_id=run_id,
            unavailable_secrets=unavailable_secrets,
        )
        self._paths = (deployment.path, *deployment.moved_from)
        self.packed: list[tuple[Module, Snapshot]] = []
        self._tries: Counter[str] = Counter()
        self._output_locks = {step: threading.Lock() for step in self.roots}
        self._prepare_locks = {step: threading.Lock() for step in self.roots}
        self._init_locks: dict[str, threading.Lock] = {}
        self._initialised: dict[str, WorkDir] = {}

    def status(self, step: str) -> Status | None:
        """
        Return the recorded status of a step, None without a record.
        """
        record = self.records.get(step)
        return record.status if record else None

    def recorded(self, step: str) -> OperationRecord:
        """
        Return the record of a step that has one.
        """
        record = self.records[step]
        assert record is not None, "this is done with recorded steps only"
        return record

    def read_records(
        self,
        *,
        wait: bool,
        takeover: str | None = None,
        beside: Collection[str] = (),
        selected: Collection[str] = (),
    ) -> None:
        """
        Read the newest records of all steps. Each must be ours and not live, except those that runs
        ``beside`` this one work on and that the selected steps do not depend on.
        """
        graph = self.deployment.graph
        near = {
            name
            for step in {*selected} & {*graph.order}
            for name in (step, *graph.upstreams(step), *graph.dependents(step))
        }
        for record in self.services.store.records(
            self.deployment.blueprint, self.deployment.environment
        ):
            check_owner(record, self.deployment.project, self._paths)
            name = record.target.step
            if record.run_id in beside and name not in near:
                self.records[name] = record
                continue
            check_not_live(self.services, self.deployment, record, wait=wait, takeover=takeover)
            self.records[name] = self.services.store.newest(record.target) if wait else record

    def prepare_all(self, steps: Iterable[str], source: SourceOf) -> dict[str, OrchestratorError]:
        """
        Prepare steps concurrently and return the errors by step.
        """
        return failures_of(steps, lambda name: self.prepare(name, source), jobs=self.jobs)

    def prepare(self, name: str, source: SourceOf) -> PreparedStep:
        """
        Prepare one step, once: guards on its record, snapshot, working directory, ``init``.
        """
        with self._prepare_locks[name]:
            if name not in self.prepared:
                self.prepared[name] = self._prepared(self.roots[name], source)
            return self.prepared[name]

    def prepare_elsewhere(self, step: Step, source: SourceOf, *, moving: bool) -> PreparedStep:
        """
        Prepare a step again with the backend of this ``step``; ``moving``: its record may be bound
        to another provider state.
        """
        with self._prepare_locks[step.name]:
            self.prepared[step.name] = self._prepared(step, source, moving=moving)
            return self.prepared[step.name]

    def _prepared(self, step: Step, source: SourceOf, *, moving: bool = False) -> PreparedStep:
        services, name, target = self.services, step.name, self.deployment.target(step.name)
        record = self.records.get(name)
        services.report_phase(name, "prepare")
        module = source(self, step, record)
        lookup = ReferenceScope(self.deployment, step, self.outputs).look_up
        bound = None if moving else record
        root, engine = self._laid_out(step, bound, module, lookup)
        bindings = StateBindings()
        if bound is None or bound.status in NOTHING_THERE:
            with self._all_records_lock:  # steps are prepared side by side: all are read once
                if self._all_records is None:
                    self._all_records = services.store.records()
            bindings = StateBindings.of(self._all_records, target, services.actor.host)
            address = (root.backend_type, root.location, services.workspace)
            bindings.check(str(target), place=address)
        self._initialise(name, root, module.snapshot)
        return PreparedStep(
            step=step,
            target=target,
            record=record,
            snapshot=module.snapshot,
            work_dir=root,
            engine=engine,
            reconcile=reconcile_command(self.deployment, name),
            run_id=self.run_id,
            configured={
                key: item.resolve(lookup)
                for key, item in step.providers.items()
                if module.configures(key)
            },
            bindings=bindings,
        )

    def _initialise(self, name: str, root: WorkDir, snapshot: Snapshot) -> None:
        """
        Run ``init`` in a step's working directory. Of steps that differ only in the location of
        their provider state, one is initialised and the others copy its result: into directories of
        their own, which that of the same step with another backend is not.
        """
        self._tries[name] += 1
        key = root.init_key or name
        with self._init_locks.setdefault(key, threading.Lock()):
            twin = self._initialised.get(key)
            elsewhere = twin is not None and twin.directory != root.directory
            initialised = twin if root.init_needed and elsewhere else None
            copied = initialised and self.services.workdirs.copy_init(initialised, root)
            if root.init_needed and not copied:
                evidence, serial = self.evidence(name), self._tries[name]
                initialise(self.services, name, root, snapshot, evidence, serial=serial)
            if root.init_key:
                self._initialised[key] = root

    def _laid_out(
        self, step: Step, record: OperationRecord | None, module: ModuleSource, lookup: Lookup
    ) -> tuple[WorkDir, EngineInfo]:
        """
        Return the working directory and its engine, which a version manager may choose by the
        module's files. If it is another engine, the directory is laid out again for it.
        """
        services, engine = self.services, self.services.engine.info
        while True:
            early = self.values.early_values(step, record, module, engine)
            root = lay_out(
                services,
                self.deployment,
                step,
                module,
                record,
                lookup,
                engine=engine,
                early_values=early,
            )
            info = services.engine.info_in(root.directory)
            if (info.kind, info.version) == (engine.kind, engine.version):
                break
            engine = info
        if engine != services.engine.info:
            message = f"in its working directory the engine is {engine.kind} {engine.version}"
            services.note(message, step=step.name)
        if record is not None:
            older = check_engine(engine, record, allow_change=self.allow_engine_change)
            if older is not None:
                services.note(older, level="warning", step=step.name)
        return root, engine

    # Values that flow from step to step

    def outputs(self, name: str) -> Mapping[str, StateOutput]:
        """
        Return the outputs in a step's current provider state; read once per run. Raises
        Unresolvable if the step is no longer in the blueprint.
        """
        if name not in self.deployment.steps:
            raise Unresolvable(f"there is no step {name!r} any more")
        with self._output_locks[name]:
            if name not in self._outputs:
                work_dir = self.prepare(name, recorded_module).work_dir
                try:
                    state = pull(self.services, work_dir, self.evidence(name), "pull-outputs")
                except (EngineFailed, StateDamaged) as exc:  # told of the step that reads them
                    exc.message = f"the outputs of {name}: {exc.message}"
                    raise
                check_recorded_state(self.services, self.prepared[name], state)
                self._outputs[name] = self._outputs_in(name, self.records.get(name), state)
            return self._outputs[name]

    def _outputs_in(
        self, name: str, record: OperationRecord | None, state: PulledState
    ) -> Mapping[str, StateOutput]:
        """
        Return the outputs in a step's provider state with null ones added, which it omits: those
        that the applied module declares.
        """
        outputs = learn_secrets(self.services.masker, state, record).outputs
        if record is None or record.status not in READY or record.deployment is None:
            return outputs
        if self.roots[name].module.outputs.keys() <= outputs.keys():
            return outputs
        applied = applied_outputs(self.services, record.deployment, name)
        return {**{item.name: StateOutput(None, item.sensitive) for item in applied}, **outputs}

    def update(self, name: str, record: OperationRecord, state: PulledState | None = None) -> None:
        """
        Remember a step's new record and, if it was read, its provider state.
        """
        self.records[name] = record
        if name in self.prepared:
            self.prepared[name] = replace(self.prepared[name], record=record)
        if state is not None:
            with self._output_locks[name]:
                self._outputs[name] = self._outputs_in(name, record, state)


@contextmanager
def steps_to_read(
    services: Services,
    deployment: Deployment,
    *,
    jobs: int,
    allow_engine_change: bool,
    run_id: str = "",
) -> Iterator[PreparedSteps]:
    """
    Yield the steps, with their records, for a command that makes no run. Their working directories
    are locked meanwhile; evidence is removed at the end.
    """
    with (
        services.workdirs.lock(deployment.blueprint, deployment.environment),
        services.files.scratch() as scratch,
    ):
        steps = PreparedSteps(
            services,
            deployment,
            evidence=partial(services.files.inside, scratch),
            jobs=jobs,
            allow_engine_change=allow_engine_change,
            run_id=run_id,
        )
        steps.read_records(wait=False)
        yield steps
