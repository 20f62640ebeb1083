"""
The steps of a deployment made ready to work on: records, working directories, values between them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from orchestrator.app.inspection.ownership import check_owner
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import (
    learn_secrets,
    mask_by_digest,
    pull,
)
from orchestrator.app.steps.guards import (
    StateBindings,
    check_own_state,
    check_state,
    shared_state_error,
)
from orchestrator.app.steps.plan_changes import recorded_inputs_text
from orchestrator.app.steps.preparation import (
    ModuleSource,
    PreparedStep,
    check_engine,
    initialise,
    lay_out,
    lock_of,
    snapshot_of,
)
from orchestrator.app.steps.settling import RecalledInputs, check_not_live
from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.inputs import (
    HookScope,
    Lookup,
    StepInputs,
    input_sources,
    module_inputs,
    provider_lookup,
)
from orchestrator.domain.blueprint.recorded_inputs import placeholder, read_recorded_inputs
from orchestrator.domain.blueprint.reference_syntax import Path as PathInValue
from orchestrator.domain.blueprint.references import (
    Reference,
    Resolved,
    Template,
    Unresolvable,
)
from orchestrator.domain.blueprint.stored_deployment import (
    UnreadableDeployment,
    parse_deployment,
)
from orchestrator.domain.composed_plan import ModuleCall
from orchestrator.domain.events.engine_messages import PulledState, StateOutput
from orchestrator.domain.events.events import PhaseStarted
from orchestrator.domain.plan.changes import UNKNOWN
from orchestrator.domain.record.conclusion import is_parent_destroy
from orchestrator.domain.record.record import (
    OperationRecord,
)
from orchestrator.domain.record.states import NOTHING_THERE, READY, Status
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.target import hook_of
from orchestrator.domain.text import (
    Json,
)
from orchestrator.errors import Busy, EngineFailed, Invalid, OrchestratorError
from orchestrator.ports.engine import EngineInfo
from orchestrator.ports.workdir import Snapshot, WorkDir

#: Gives what a step's working directory is laid out from.
SourceOf = Callable[["PreparedSteps", Step, OperationRecord | None], ModuleSource]


def current_module(
    steps: PreparedSteps, step: Step, record: OperationRecord | None
) -> ModuleSource:
    """
    The module as it was when this command first looked at it: what an apply works from.
    """
    snapshot = steps.current_snapshot(step)
    return ModuleSource(snapshot, lock_of(steps.services, record, snapshot))


def recorded_module(
    steps: PreparedSteps, step: Step, record: OperationRecord | None
) -> ModuleSource:
    """
    The snapshot that was applied, as far as the store still has it: what a destroy works from.

    Where all that is to be settled is that a provider state was emptied, that state is enough.
    """
    if record is not None and record.status is Status.RUNNING and is_parent_destroy(record):
        return backend_only(steps, step, record)
    return recorded_source(steps, step, record)


def recorded_source(
    steps: PreparedSteps, step: Step, record: OperationRecord | None
) -> ModuleSource:
    """
    The snapshot that was applied, with its lock file and inputs.
    """
    snapshot = snapshot_of(steps.services, step, record)
    return ModuleSource(snapshot, lock_of(steps.services, record, snapshot), inputs="recorded")


def backend_only(steps: PreparedSteps, step: Step, record: OperationRecord | None) -> ModuleSource:
    """
    Nothing but the backend: all it takes to empty the provider state of what went with its parent,
    whose providers may need values that are gone with it too. Where the module encrypts its state
    it takes the module as well, without providers.
    """
    if record is not None and record.state_encryption:
        recorded = recorded_source(steps, step, record)
        if recorded.snapshot.encryption:
            return replace(recorded, configures_providers=False)
    return ModuleSource(steps.services.workdirs.empty_snapshot(), None)


class PreparedSteps:
    """
    What one command knows of the steps. Methods may be called from several threads.

    ``evidence`` gives the directory where the calls of a step leave their files. A placeholder
    stands for the ``unavailable_secrets`` among recorded inputs that cannot be had any more.
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
        self.allow_engine_change = allow_engine_change
        self.run_id = run_id
        self.unavailable_secrets = unavailable_secrets
        self.roots = deployment.steps_and_hooks()
        self.prepared: dict[str, PreparedStep] = {}
        self.records: dict[str, OperationRecord | None] = {}
        self._outputs: dict[str, Mapping[str, StateOutput]] = {}
        self._paths = (deployment.path, *deployment.moved_from)
        self._packed: dict[str, Snapshot] = {}
        self._tries: Counter[str] = Counter()
        self._places: dict[tuple[str, str], str] = {}
        self._output_locks = {step: threading.Lock() for step in self.roots}
        self._prepare_locks = {step: threading.Lock() for step in self.roots}

    def status(self, step: str) -> Status | None:
        """
        The recorded status of a step, None without a record.
        """
        record = self.records.get(step)
        return record.status if record else None

    def read_records(
        self,
        *,
        wait: bool,
        takeover: str | None = None,
        beside: Collection[str] = (),
        selected: Collection[str] = (),
    ) -> None:
        """
        Read the newest records of all steps, each of them ours and none of them live, but for those
        that runs ``beside`` this one work on and that the selected ones have nothing to do with.
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
            check_not_live(self.services, record, wait=wait, takeover=takeover)
            self.records[name] = (
                self.services.store.newest(record.target.target) if wait else record
            )

    def current_snapshot(self, step: Step) -> Snapshot:
        """
        A step's module, packed once: what is edited meanwhile is for the next command.
        """
        if step.name not in self._packed:
            self._packed[step.name] = self.services.workdirs.snapshot(step.module)
        return self._packed[step.name]

    def prepare_all(self, steps: Iterable[str], source: SourceOf) -> dict[str, OrchestratorError]:
        """
        Prepare steps side by side; what went wrong, by step.
        """
        failures: dict[str, OrchestratorError] = {}

        def one(name: str) -> None:
            try:
                self.prepare(name, source)
            except OrchestratorError as exc:
                failures[name] = exc

        with ThreadPoolExecutor(self.jobs, thread_name_prefix="prepare") as pool:
            list(pool.map(one, steps))
        return failures

    def prepare(self, name: str, source: SourceOf) -> None:
        """
        Make one step ready, once: guards on its record, snapshot, working directory, ``init``.
        """
        with self._prepare_locks[name]:
            if name not in self.prepared:
                self.prepared[name] = self._prepared(self.roots[name], source)

    def prepare_elsewhere(self, step: Step, source: SourceOf, *, moving: bool) -> PreparedStep:
        """
        Make a step ready anew with the backend of this ``step``; ``moving``: its record may be
        bound to another provider state.
        """
        with self._prepare_locks[step.name]:
            self._places = {
                place: name for place, name in self._places.items() if name != step.name
            }
            self.prepared[step.name] = self._prepared(step, source, moving=moving)
            return self.prepared[step.name]

    def _prepared(self, step: Step, source: SourceOf, *, moving: bool = False) -> PreparedStep:
        services, name = self.services, step.name
        record = self.records.get(name)
        services.sink.emit(PhaseStarted(at=services.clock.now(), step=name, phase="prepare"))
        taken = source(self, step, record)
        lookup = provider_lookup(self.deployment, step, self.outputs)
        bound = None if moving else record
        root, engine = self._laid_out(step, bound, taken, lookup)
        self._check_own_state(step, root)
        bindings = StateBindings()
        if bound is None or bound.status in NOTHING_THERE:
            bindings = self._bindings_of_others(name)
            place = (root.backend_type, root.location, services.workspace)
            bindings.check_place(str(self.deployment.target(name)), place)
        self._tries[name] += 1
        evidence, serial = self.evidence(name), self._tries[name]
        initialise(services, name, root, taken.snapshot, evidence, serial=serial)
        return PreparedStep(
            step=step,
            record=record,
            snapshot=taken.snapshot,
            work_dir=root,
            engine=engine,
            configured={
                key: item.resolve(lookup)
                for key, item in step.providers.items()
                if taken.configures(key)
            },
            bindings=bindings,
        )

    def _laid_out(
        self, step: Step, record: OperationRecord | None, taken: ModuleSource, lookup: Lookup
    ) -> tuple[WorkDir, EngineInfo]:
        """
        The working directory, and the engine as it is in there: a version manager chooses by the
        files of the module. Where that is another one the directory is laid out for it.
        """
        services, engine = self.services, self.services.engine.info
        while True:
            early = self._early_values(step, record, taken, engine)
            root = lay_out(
                services,
                self.deployment,
                step,
                taken,
                record,
                lookup,
                engine=engine,
                early_values=early,
            )
            told = services.engine.info_in(root.directory)
            if (told.kind, told.version) == (engine.kind, engine.version):
                break
            engine = told
        if engine != services.engine.info:
            said = f"in its working directory the engine is {engine.kind} {engine.version}"
            services.note(said, step=step.name)
        if record is not None:
            older = check_engine(engine, record, allow_change=self.allow_engine_change)
            if older is not None:
                services.note(older, level="warning", step=step.name)
        return root, engine

    def _bindings_of_others(self, name: str) -> StateBindings:
        """
        The provider states of all other targets of the store, whatever their blueprint.

        Law: not ours until proven.
        """
        services, target = self.services, self.deployment.target(name)
        return StateBindings.of(self._all_records, target, services.actor.host)

    @cached_property
    def _all_records(self) -> list[OperationRecord]:
        return self.services.store.records()

    def _check_own_state(self, step: Step, root: WorkDir) -> None:
        # setdefault decides between two steps that are prepared side by side.
        holder = self._places.setdefault((root.backend_type, root.location), step.name)
        if holder != step.name:
            raise shared_state_error(step, holder, root.location)
        check_own_state(step, root.backend_type, root.location, self.records.values())

    # Values that flow from step to step

    def outputs(self, name: str) -> Mapping[str, StateOutput]:
        """
        The outputs of a step as its provider state holds them now; read once per run. Unresolvable
        where the blueprint no longer has the step.
        """
        if name not in self.deployment.steps:
            raise Unresolvable(f"there is no step {name!r} any more")
        with self._output_locks[name]:
            if name not in self._outputs:
                self.prepare(name, recorded_module)
                root = self.prepared[name].work_dir
                state = pull(self.services, root, self.evidence(name), "pull-outputs")
                self._check_state(name, state)
                record = self.records.get(name)
                outputs = self.learn_secrets(record, state).outputs
                self._outputs[name] = self._with_nulls(name, outputs)
            return self._outputs[name]

    def _with_nulls(
        self, name: str, outputs: Mapping[str, StateOutput]
    ) -> Mapping[str, StateOutput]:
        """
        The outputs with those that are null, which no provider state holds: what the module that a
        step was applied from declares.
        """
        record = self.records.get(name)
        if record is None or record.status not in READY or record.deployment is None:
            return outputs
        declared = self.deployment.steps[name].module.outputs
        if declared.keys() <= outputs.keys():
            return outputs
        text = self.services.store.blob(deployment_blob(record.deployment))
        try:
            applied = parse_deployment(text or b"", record.deployment).steps[name].module.outputs
        except (UnreadableDeployment, KeyError):
            return outputs
        nulls = {item.name: StateOutput(None, item.sensitive) for item in applied.values()}
        return {**nulls, **outputs}

    def _check_state(self, name: str, state: PulledState) -> None:
        """
        Hold a provider state that was read against the step's record.

        Law: state moved without us.
        """
        target = str(self.deployment.target(name))
        moved = check_state(target, self.records.get(name), state)
        if moved is not None:
            self.services.note(moved, level="warning", step=name)

    def update(self, name: str, record: OperationRecord, state: PulledState | None = None) -> None:
        """
        Remember a step's new record and, where it was read, its provider state.
        """
        self.records[name] = record
        if name in self.prepared:
            self.prepared[name] = replace(self.prepared[name], record=record)
        if state is not None:
            with self._output_locks[name]:
                outputs = self.learn_secrets(record, state).outputs
                self._outputs[name] = self._with_nulls(name, outputs)

    def learn_secrets(self, record: OperationRecord | None, state: PulledState) -> PulledState:
        """
        The state, knowing also which outputs were secret when the target was applied: this run may
        not see what they were made from.
        """
        shapes = {**record.outputs, **record.masked_outputs} if record else {}
        return learn_secrets(self.services.masker, state, shapes)

    def referred_steps(self, step: Step) -> frozenset[str]:
        """
        The steps whose outputs a step's inputs or providers refer to.
        """
        templates = (*step.inputs.values(), *step.providers.values())
        return frozenset(_steps_in(templates))

    def outputs_not_applied(self, step: Step) -> tuple[str, ...]:
        """
        The outputs that a step refers to, as STEP.OUTPUT, which the module of an upstream step
        declares by now and which it was not applied with.
        """
        templates = (*step.inputs.values(), *step.providers.values())
        return tuple(
            f"{upstream}.{output}"
            for upstream, output in sorted(_outputs_in(templates))
            if upstream in self.deployment.steps
            and output in self.deployment.steps[upstream].module.outputs
            and output not in self.outputs(upstream)
        )

    def needs_outputs_first(self, name: str) -> bool:
        """
        Whether even its working directory waits for outputs: its providers refer to some, or what
        OpenTofu needs to load its module does.
        """
        step = self.roots[name]
        early = (step.inputs[v] for v in step.module.early_variables if v in step.inputs)
        waits = _steps_in(early) if self.services.engine.info.kind == "tofu" else set()
        return bool(waits | _steps_in(step.providers.values()))

    def inputs(self, step: Step) -> StepInputs:
        """
        The values for the step's module now; what is sensitive in them is masked from here on.
        """
        found = module_inputs(step, self._lookup(step))
        inputs = self._masked(replace(found, sources=input_sources(self.deployment, step)))
        text = self.recorded_text(self.records.get(step.name))
        if text is not None:
            recorded = read_recorded_inputs(text, lambda _path, _origin: None)
            self._mask_former(step.name, recorded.other_secrets(inputs.values, self.services.key))
        return inputs

    def _mask_former(self, name: str, digests: Collection[str]) -> None:
        """
        Mask what the provider state of a prepared step holds of secrets that are others now.
        """
        if not digests or name not in self.prepared:
            return
        root = self.prepared[name].work_dir
        with suppress(EngineFailed, Busy):  # what cannot be read shows nothing
            state = pull(self.services, root, self.evidence(name), "pull-former")
            mask_by_digest(self.services, state, digests)

    def composed_inputs(
        self, step: Step, calls: Mapping[str, ModuleCall]
    ) -> tuple[StepInputs, dict[str, Json]]:
        """
        The values for the step's module that are known now, as in `inputs`, and for the others the
        expressions by which a composed root gives them from the outputs of ``calls``.
        """

        def engine_reference(reference: Reference) -> str | None:
            if reference.kind != "step_output" or reference.names[0] not in calls:
                return None
            return calls[reference.names[0]].output_reference(reference)

        composed = {
            name: template
            for name, template in step.inputs.items()
            if any(engine_reference(reference) for reference in template.references)
        }
        known = {name: item for name, item in step.inputs.items() if name not in composed}
        lookup = self._lookup(step)
        values = self._masked(module_inputs(replace(step, inputs=known), lookup))
        return values, {
            name: template.expression(lookup, engine_reference)
            for name, template in composed.items()
        }

    def planned_inputs(
        self, step: Step, known: StepInputs, planned: Mapping[str, Mapping[str, StateOutput]]
    ) -> StepInputs:
        """
        The values for the step's module with those that come from ``planned`` outputs, as far as a
        plan knows them.
        """
        lookup = provider_lookup(
            self.deployment, step, lambda name: planned.get(name) or self.outputs(name)
        )
        values, secrets = dict(known.values), dict(known.secrets)
        for name in step.inputs.keys() - known.values.keys():
            try:
                found = module_inputs(replace(step, inputs={name: step.inputs[name]}), lookup)
            except Invalid:
                values[name] = UNKNOWN
            else:
                values |= found.values
                secrets |= found.secrets
        sources = input_sources(self.deployment, step)
        return replace(self._masked(StepInputs(values, secrets)), sources=sources)

    def _lookup(self, step: Step) -> Lookup:
        action = hook_of(step.name)
        if action is not None:
            return self.action_scope(action[0]).look_up
        return provider_lookup(self.deployment, step, self.outputs)

    def action_scope(self, name: str) -> HookScope:
        """
        What the actions of a recorded step may refer to. Outputs that a failed destroy has taken
        out of the provider state are those that were known before.
        """
        self.prepare(name, recorded_module)
        prepared = self.prepared[name]
        known = prepared.record.outputs if prepared.record is not None else {}
        earlier = {
            key: StateOutput(value, sensitive=False)
            for key, value in known.items()
            if not self.services.masker.hides(value)  # the real one was never recorded
        }
        return HookScope(
            self.deployment,
            prepared.step,
            self.recorded_inputs(prepared),
            {**earlier, **self.outputs(name)},
            self.outputs,
            self.run_id,
        )

    def recorded_inputs(self, prepared: PreparedStep) -> StepInputs:
        """
        The values that the step was applied with; secrets, which are never recorded, as of today.

        Invalid where a secret can no longer be had.
        """
        recalled = self.recalled(prepared)
        assert recalled.inputs is not None, "what cannot be had has raised"
        return recalled.inputs

    def recalled(self, prepared: PreparedStep) -> RecalledInputs:
        """
        The same, and whether the secrets are those that it was applied with.
        """
        step, record = prepared.step, prepared.record
        text = self.recorded_text(record)
        if text is None:
            return RecalledInputs(self.inputs(step), secrets_known=True)

        without: set[str] = set()

        def today(path: PathInValue, origin: str) -> Json:
            try:
                return self._current_secret(step, path)
            except Unresolvable:
                if origin not in self.unavailable_secrets:
                    raise
                without.add(origin)
                variable = prepared.snapshot.variables.get(str(path[0]))
                return placeholder(None if path[1:] or variable is None else variable.type)

        found = read_recorded_inputs(text, today)
        former = found.other_secrets(found.values, self.services.key)
        self._mask_former(step.name, former)
        changed = [origin for origin in sorted(set(former.values())) if origin not in without]
        for secret in changed:
            self.services.note(
                f"the secret {secret} is not the one it was applied with", step=step.name
            )
        for secret in sorted(without):
            said = f"a placeholder stands for the secret {secret}, which is not available"
            self.services.note(said, level="warning", step=step.name)
        known = prepared.snapshot.variables
        values = {name: value for name, value in found.values.items() if name in known}
        secrets = {
            path: origin
            for path, origin in found.secrets.items()
            if path[0] in known and origin not in without
        }
        inputs = StepInputs(values, secrets, unavailable=tuple(sorted(without)))
        return RecalledInputs(self._masked(inputs), secrets_known=not changed and not without)

    def secret_at_hand(self, step: Step, path: PathInValue, _origin: str) -> Json:
        """
        What a secret of a step's recorded inputs is today, masked from here on; None where that
        cannot be told.
        """
        try:
            value = self._current_secret(step, path)
        except (Unresolvable, OrchestratorError):
            return None
        self.services.masker.add(value)
        return value

    def _current_secret(self, step: Step, path: PathInValue) -> Json:
        name, *rest = path
        template = step.inputs.get(str(name))
        if template is None:
            raise Unresolvable(f"the blueprint no longer sets {name!r}")
        return template.resolve(self._lookup(step)).at(tuple(rest)).value

    def _early_values(
        self,
        step: Step,
        record: OperationRecord | None,
        taken: ModuleSource,
        engine: EngineInfo,
    ) -> Mapping[str, Json]:
        """
        What OpenTofu needs to load the step's module. A value that cannot be had is left out: the
        engine says so where it misses it.
        """
        wanted = frozenset(taken.snapshot.early_variables)
        if not wanted or engine.kind != "tofu":
            return {}
        text = self.recorded_text(record) if taken.inputs == "recorded" else None
        if text is None:
            lookup, templates = self._lookup(step), {}
            for name in wanted & step.inputs.keys():
                template = step.inputs[name]
                # What comes from upstream must not be asked for before that is prepared itself.
                if _steps_in([template]) and name not in step.module.early_variables:
                    continue
                with contextlib.suppress(Unresolvable):
                    template.resolve(lookup)
                    templates[name] = template
            return self._masked(module_inputs(replace(step, inputs=templates), lookup)).values
        unknown: set[PathInValue] = set()

        def today(path: PathInValue, _: str) -> Json:
            if path[0] in wanted:
                with contextlib.suppress(Unresolvable):
                    return self._current_secret(step, path)
            unknown.add(path[:1])
            return None

        found = read_recorded_inputs(text, today)
        values = {k: v for k, v in found.values.items() if k in wanted and (k,) not in unknown}
        secrets = {path: origin for path, origin in found.secrets.items() if path[0] in values}
        return self._masked(StepInputs(values, secrets)).values

    def recorded_text(self, record: OperationRecord | None) -> str | None:
        """
        The document of what a target was applied with; None where it never was.

        StoreUnavailable where the store does not hold what the record names.
        """
        return recorded_inputs_text(self.services, record)

    def _masked(self, inputs: StepInputs) -> StepInputs:
        masker, values = self.services.masker, Resolved(dict(inputs.values))
        for path in inputs.secrets:
            masker.add(values.at(path).value)
        inputs = inputs.with_secrets(masker.hides)
        for path in inputs.secrets:
            masker.add(values.at(path).value)
        return inputs


def _steps_in(templates: Iterable[Template]) -> set[str]:
    return {step for step, _ in _outputs_in(templates)}


def _outputs_in(templates: Iterable[Template]) -> set[tuple[str, str]]:
    return {
        (reference.names[0], reference.names[1])
        for template in templates
        for reference in template.references
        if reference.kind == "step_output"
    }
