"""
One engine plan of many steps, as modules of one temporary root, which is never applied.

It includes what a step's upstreams will change or create. Steps that cannot be composed are planned
on their own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from orchestrator.app.run.prepared_steps import PreparedSteps, SourceOf, current_module
from orchestrator.app.schedule import failures_of
from orchestrator.app.steps.engine_calls import patiently, pull
from orchestrator.app.steps.engine_plan import (
    CHANGES,
    NO_CHANGES,
    Direction,
    EnginePlan,
    PlanOptions,
    plan_content,
)
from orchestrator.app.steps.preparation import PreparedStep, state_encryption
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.composed_plan import (
    ComposedRoot,
    ModuleCall,
    ProviderConfiguration,
    call_names,
)
from orchestrator.domain.events.journal import Journal, adds_up
from orchestrator.domain.plan.changes import UNKNOWN, PlanContent
from orchestrator.domain.provider_state import PulledState, StateOutput
from orchestrator.domain.record.objects import moves
from orchestrator.domain.record.states import Status
from orchestrator.domain.text import Json
from orchestrator.errors import OrchestratorError
from orchestrator.ports.engine import CallResult, Init, PlanMode, Request

#: How often it is tried without the steps that stood in the way.
_TRIES = 3

#: Fewer steps gain nothing from each other.
_FEWEST = 2


class ComposedStep(Struct, frozen=True):
    """
    A step's part of the composed plan, in the form of the step's own plan, and those of its inputs
    that are known before an apply.
    """

    plan: EnginePlan
    inputs: StepInputs


def composed_plan(
    steps: PreparedSteps,
    names: Collection[str],
    options: PlanOptions,
    evidence: Path,
    *,
    source: SourceOf = current_module,
    direction: Direction = "apply",
) -> dict[str, ComposedStep]:
    """
    Return the plans of those steps that can be planned together, from the modules of ``source``.
    The others are planned on their own, which reports what is wrong with them. A destroy and a
    refresh are planned with the recorded inputs of each step, so that none waits for another.
    """
    services = steps.services
    as_applied = direction == "destroy" or options.only_refresh
    # An encrypted state would be one of the composed root's own kind: each step is asked then.
    if services.workspace != "default" or services.environ.get("TF_ENCRYPTION"):
        return {}
    if len(names) < _FEWEST or options.targets or options.replace:
        return {}
    chosen = [name for name in names if _may_be_composed(steps, name)]
    failures = steps.prepare_all(chosen, source)
    prepared = {name: steps.prepared[name] for name in chosen if name not in failures}
    roots = {name: (item.snapshot, item.work_dir) for name, item in prepared.items()}
    separate = {*names} - prepared.keys() | services.workdirs.not_composable(roots)
    states = _states(steps, [name for name in prepared if name not in separate], evidence)
    separate |= prepared.keys() - states.keys()
    recorded: dict[str, StepInputs] = {}
    for name in prepared if as_applied else ():
        try:
            recorded[name] = steps.values.recorded_inputs(prepared[name])
        except OrchestratorError:
            separate.add(name)

    graph = steps.deployment.graph

    def together(excluded: Collection[str], among: Collection[str]) -> list[str]:
        # Unless planned as applied, a plan needs what its upstreams will change.
        if as_applied:
            return [name for name in among if name not in excluded]
        out = {*excluded} & {*graph.order}
        return [
            name
            for name in graph.order
            if name in among and name not in excluded and not graph.upstreams(name) & out
        ]

    for attempt in range(1, _TRIES + 1):
        chosen = together(separate, prepared)
        if len(chosen) < _FEWEST or services.stop.stopping:
            return {}
        for name in chosen:
            services.report_phase(name, "plan")
        with services.files.private(evidence) as directory:
            ready = {name: prepared[name] for name in chosen}
            mode = options.mode(direction)
            composed = _Composed(steps, ready, states, directory, mode, recorded)
            plans = composed.plan(options, evidence, attempt)
        if plans is not None:
            # What its provider did not find is read a second time before anybody believes it.
            emptied = {name for name, item in plans.items() if item.plan.journal.vanished}
            plannable = together(emptied, plans)
            return {name: plans[name] for name in plannable}
        if not composed.in_the_way:
            return {}
        separate |= composed.in_the_way
    return {}


class _Composed:
    """
    Steps composed in the directory ``place``; ``in_the_way`` are those that made the plan fail.
    ``recorded`` are the recorded inputs by step, for a plan in which none reads another.
    """

    def __init__(
        self,
        steps: PreparedSteps,
        prepared: Mapping[str, PreparedStep],
        states: Mapping[str, PulledState],
        directory: Path,
        mode: PlanMode,
        recorded: Mapping[str, StepInputs],
    ) -> None:
        self.in_the_way: frozenset[str] = frozenset()
        self._steps = steps
        self._services = steps.services
        self._prepared = prepared
        self._states = states
        self._mode = mode
        self._recorded = recorded
        names = call_names([*prepared])
        documents = {name: states[name].document for name in prepared}
        if mode == "refresh-only":  # what no module call gives would be an output that goes
            documents = {name: {**state, "outputs": {}} for name, state in documents.items()}
        calls: dict[str, ModuleCall] = {}
        self._inputs: dict[str, StepInputs] = {}
        for name, item in prepared.items():  # in order: a call refers to those before it
            declared, sources = item.step.module.outputs, item.snapshot.all_provider_sources
            expressions: dict[str, Json] = {}
            if name in recorded:
                inputs, declared = recorded[name], {}
            else:
                inputs, expressions = steps.values.composed_inputs(item.step, calls)
            self._inputs[name] = inputs
            state = documents[name]
            outputs = state.get("outputs") or {}  # which has no null ones
            calls[name] = ModuleCall(
                step=name,
                name=names[name],
                source=self._services.workdirs.module_source(names[name], item.work_dir),
                module=item.work_dir.module,
                expressions=expressions,
                values=inputs.values,
                outputs={key: out.sensitive for key, out in declared.items()},
                types={key: outputs.get(key, {}).get("type") for key in declared} if state else {},
                configured=frozenset(
                    sources.get(local, f"hashicorp/{local}")
                    for local in item.snapshot.provider_blocks
                ),
                providers=dict(_configurations(item)),
            )
        self._root = ComposedRoot.of(calls.values(), documents)
        content, self._values = self._root.configuration()
        self._work_dir = self._services.workdirs.composed_root(
            directory,
            content,
            state=self._root.state(documents, self._services.engine.info.version),
            modules={names[name]: item.work_dir for name, item in prepared.items()},
        )

    def plan(
        self, options: PlanOptions, evidence: Path, attempt: int
    ) -> dict[str, ComposedStep] | None:
        """
        Return the plan of each step; None if the engine cannot make it, or if its events are
        incomplete.
        """
        file = self._work_dir.directory / "plan.tfplan"
        var_file = self._work_dir.directory / "inputs.tfvars.json"
        direction: Direction = "destroy" if self._mode == "destroy" else "apply"
        request = options.request(direction, file, var_file)
        if self._work_dir.init_needed:
            began = self._call(Init(), evidence, f"composed-init-{attempt}")
            if began.exit_code != 0:
                self._note_failure(began)
                return None
        result = self._call(request, evidence, f"composed-plan-{attempt}", var_file)
        if result.exit_code not in (NO_CHANGES, CHANGES):
            self._note_failure(result)
            return None
        self._services.workdirs.keep_composed_init(self._work_dir)
        changed = result.exit_code == CHANGES
        # Of a refresh alone the engine counts nothing: what it found stands in the plan.
        explained = self._mode == "refresh-only" or adds_up(result.messages, changed=changed)
        unseen = self._mode == "normal" and changed and not explained
        unseen = unseen and adds_up(result.messages, changed=False)
        if not result.complete or not (explained or unseen):
            return None
        messages_of = self._root.messages(result.messages)
        journals = {
            name: Journal.of(messages, whole=True) for name, messages in messages_of.items()
        }
        contents: Mapping[str, PlanContent] = {}
        looked_at = options.values or self._mode != "destroy"  # a destroy leaves nothing to plan on
        news = changed or any(item.drifted or item.diagnostics for item in journals.values())
        if looked_at and news:
            content = plan_content(
                self._services, self._work_dir, evidence, file, f"composed-{attempt}"
            )
            if unseen and not content.only_reads_for_checks:
                return None
            contents = self._root.contents(content)
        for name, content in contents.items():
            # The event stream does not tell a deposed object from its successor.
            if any(item.deposed for item in self._states[name].objects):
                journals[name] = journals[name].with_content(content)
        planned = {
            name: _planned_outputs(self._states[name], contents.get(name))
            for name in self._prepared
        }

        def inputs(name: str) -> StepInputs:
            if name in self._recorded:
                return self._inputs[name]
            step = self._prepared[name].step
            return self._steps.values.planned_inputs(step, self._inputs[name], planned)

        return {
            name: ComposedStep(
                plan=EnginePlan(
                    direction=direction,
                    file=file,
                    journal=journal,
                    before=self._states[name].moved(moves(journal.planned)),
                    changed=bool(journal.changes or journal.outputs),
                    content=contents.get(name),
                ),
                inputs=inputs(name),
            )
            for name, journal in journals.items()
        }

    def _call(
        self, request: Request, evidence: Path, name: str, var_file: Path | None = None
    ) -> CallResult:
        return patiently(
            self._services,
            "",
            "plan",
            request,
            self._work_dir,
            evidence,
            name,
            variables=None if var_file is None else (var_file, self._values),
        )

    def _note_failure(self, result: CallResult) -> None:
        """
        Note the steps of a call's errors.
        """
        journal = Journal.of(result.messages, whole=result.complete)
        concerned = {self._root.diagnostic(error)[0] for error in journal.errors}
        self.in_the_way = frozenset(step for step in concerned if step is not None)


def unchanged_plans(
    steps: PreparedSteps,
    names: Collection[str],
    options: PlanOptions,
    evidence: Path,
    *,
    composed: Mapping[str, ComposedStep] | None = None,
) -> dict[str, EnginePlan]:
    """
    Return the plans of those prepared steps that one engine plan proves unchanged, with all their
    upstreams: a repeated apply then costs one plan instead of one per step. ``composed`` is such a
    plan, if it exists already.

    Only steps with the module and inputs of their last apply are included: the others would be
    planned twice.
    """
    if len(names) < _FEWEST:
        return {}
    expected: list[str] = []
    for name in (step for step in steps.deployment.graph.order if step in names):
        upstreams = steps.deployment.graph.needs(name) & {*names}
        if upstreams <= {*expected} and _is_as_applied(steps, name):
            expected.append(name)
    plans = composed_plan(steps, expected, options, evidence) if composed is None else composed
    proven: dict[str, EnginePlan] = {}
    for name in (step for step in expected if step in plans):
        journal = plans[name].plan.journal
        needed = steps.deployment.graph.needs(name) & {*names}
        if needed <= proven.keys() and not (journal.changes or journal.outputs):
            proven[name] = plans[name].plan
    return proven


def _is_as_applied(steps: PreparedSteps, name: str) -> bool:
    """
    Return whether a prepared step has the module, inputs and state encryption of its last apply.
    """
    record, prepared = steps.records.get(name), steps.prepared.get(name)
    if record is None or prepared is None or record.status is not Status.OK:
        return False
    if record.module_digest != prepared.snapshot.digest:
        return False
    if record.state_encryption != state_encryption(steps.services, prepared):
        return False
    try:
        inputs = steps.values.inputs(prepared.step)
    except OrchestratorError:
        return False
    return record.inputs_digest == inputs.digest(steps.services.key)


def _planned_outputs(state: PulledState, content: PlanContent | None) -> dict[str, StateOutput]:
    """
    Return the outputs of a step after the plan, without values of secret ones.
    """
    outputs = dict(state.outputs)
    for change in content.changes.outputs_changed if content else ():
        if change.action == "delete":
            outputs.pop(change.name, None)
        else:
            value = change.after if change.known else UNKNOWN
            outputs[change.name] = StateOutput(value, change.sensitive)
    return outputs


def _may_be_composed(steps: PreparedSteps, name: str) -> bool:
    """
    Return whether a step can be prepared before any other is planned, and has no provider aliases,
    which a called module would have to declare.
    """
    configurations = [template.raw for template in steps.roots[name].providers.values()]
    blocks = [
        block for raw in configurations for block in (raw if isinstance(raw, list) else [raw])
    ]
    return (
        steps.status(name) is not Status.RUNNING
        and not steps.values.needs_outputs_first(name)
        and not any("alias" in (block or ()) for block in blocks)
    )


def _states(steps: PreparedSteps, names: Iterable[str], evidence: Path) -> dict[str, PulledState]:
    """
    Return the provider states of the steps, except those that cannot be read, that are locked (the
    step's own plan names the holder), or whose numbers would be rounded by merging.
    """
    states: dict[str, PulledState] = {}
    names = [*names]

    def read(name: str) -> None:
        prepared = steps.prepared[name]
        if steps.services.workdirs.state_locked(prepared.work_dir):
            return
        # In a directory of its own, which a call that writes makes: with its output each call
        # removes the place where another one is about to write.
        directory = evidence / f"pull-{names.index(name)}"
        state = pull(steps.services, prepared.work_dir, directory, "pull")
        if state.exact:
            states[name] = state

    failures_of(names, read, jobs=steps.jobs)
    return states


def _configurations(prepared: PreparedStep) -> Iterator[tuple[str, ProviderConfiguration]]:
    """
    Yield the step's provider configurations in the blueprint, by local name.
    """
    work_dir = prepared.work_dir
    sources = prepared.snapshot.all_provider_sources
    for name, (block, *_) in work_dir.provider_blocks.items():
        required = work_dir.required_providers.get(name, {})
        source = required.get("source") or sources.get(name, f"hashicorp/{name}")
        text = json.dumps(block)
        secrets = {key: v for key, v in work_dir.variables.items() if f"var.{key}}}" in text}
        yield name, ProviderConfiguration(source, block, secrets)
