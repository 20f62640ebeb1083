"""
The input values of steps: current, recorded, or planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import mask_by_digest, pull
from orchestrator.app.steps.preparation import ModuleSource, PreparedStep, recorded_inputs_text
from orchestrator.app.steps.settling import RecalledInputs
from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.inputs import (
    ReferenceScope,
    StepInputs,
    input_sources,
    module_inputs,
    placeholder,
    read_recorded_inputs,
)
from orchestrator.domain.blueprint.references import (
    Lookup,
    Reference,
    Resolved,
    Unresolvable,
)
from orchestrator.domain.composed_plan import ModuleCall
from orchestrator.domain.plan.changes import UNKNOWN
from orchestrator.domain.provider_state import StateOutput
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.secrets import secret_leaves
from orchestrator.domain.target import hook_of
from orchestrator.domain.text import Json, ValuePath
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, EngineFailed, Invalid, OrchestratorError
from orchestrator.ports.engine import EngineInfo


class StepValues:
    """
    The input values of a command's steps. ``records`` and ``prepared`` are the command's live maps;
    ``outputs`` reads and ``prepare`` prepares another step.
    """

    def __init__(
        self,
        services: Services,
        deployment: Deployment,
        *,
        records: Mapping[str, OperationRecord | None],
        prepared: Mapping[str, PreparedStep],
        outputs: Callable[[str], Mapping[str, StateOutput]],
        prepare: Callable[[str], PreparedStep],
        evidence: Callable[[str], Path],
        run_id: str,
        unavailable_secrets: Collection[str],
    ) -> None:
        self.services = services
        self.deployment = deployment
        self.records = records
        self.prepared = prepared
        self.outputs = outputs
        self.prepare = prepare
        self.evidence = evidence
        self.run_id = run_id
        self.unavailable_secrets = unavailable_secrets
        self._roots = deployment.steps_and_hooks()
        self._former: set[str] = set()

    def referred_steps(self, step: Step) -> frozenset[str]:
        """
        Return the steps whose outputs a step's inputs or providers refer to.
        """
        templates = (*step.inputs.values(), *step.providers.values())
        return frozenset().union(*(template.names("step_output") for template in templates))

    def outputs_not_applied(self, step: Step) -> tuple[str, ...]:
        """
        Return the outputs (STEP.OUTPUT) that a step refers to and that the upstream's current
        module declares, but not the one it was applied with.
        """
        referred = {
            reference.names
            for template in (*step.inputs.values(), *step.providers.values())
            for reference in template.references
            if reference.kind == "step_output"
        }
        return tuple(
            f"{upstream}.{output}"
            for upstream, output in sorted(referred)
            if upstream in self.deployment.steps
            and output in self.deployment.steps[upstream].module.outputs
            and output not in self.outputs(upstream)
        )

    def needs_outputs_first(self, name: str) -> bool:
        """
        Return whether laying out the working directory needs outputs: its providers, or variables
        needed to load the module, refer to some.
        """
        step = self._roots[name]
        templates = list(step.providers.values())
        if self.services.engine.info.evaluates_early:
            early = step.module.early_variables
            templates += [item for name, item in step.inputs.items() if name in early]
        return any(template.names("step_output") for template in templates)

    def inputs(self, step: Step) -> StepInputs:
        """
        Return the current values for the step's module; secrets in them are masked from here on.
        """
        inputs = module_inputs(step, self.lookup(step))
        inputs = self._masked(replace(inputs, sources=input_sources(self.deployment, step)))
        self._mask_replaced(step, inputs)
        return inputs

    def _mask_replaced(self, step: Step, inputs: StepInputs) -> None:
        """
        Mask the values in a prepared step's provider state of secrets that it was applied with and
        that ``inputs`` no longer contain.
        """
        record = self.records.get(step.name)
        if record is None or record.inputs_digest == inputs.digest(self.services.key):
            return
        text = recorded_inputs_text(self.services, record)
        if text is not None:
            recorded = read_recorded_inputs(text, lambda _path, _origin: None)
            self._mask_former(step.name, recorded.other_secrets(inputs.values, self.services.key))

    def _mask_former(self, name: str, digests: Collection[str]) -> None:
        """
        Mask the values in a prepared step's provider state of secrets that have changed.
        """
        if not digests or name not in self.prepared or name in self._former:
            return
        self._former.add(name)  # values are asked for more than once in a run
        root = self.prepared[name].work_dir
        with suppress(EngineFailed, Busy):  # what cannot be read shows nothing
            state = pull(self.services, root, self.evidence(name), "pull-former")
            mask_by_digest(self.services, state, digests)

    def composed_inputs(
        self, step: Step, calls: Mapping[str, ModuleCall]
    ) -> tuple[StepInputs, dict[str, Json]]:
        """
        Return the values for the step's module that are known now, as `inputs` does, and for the
        others expressions in a composed root that refer to the outputs of ``calls``.
        """

        def engine_reference(reference: Reference, *, typed: bool) -> str | None:
            if reference.kind != "step_output" or reference.names[0] not in calls:
                return None
            return calls[reference.names[0]].output_reference(reference, typed=typed)

        composed = {
            name: template
            for name, template in step.inputs.items()
            if any(engine_reference(item, typed=True) for item in template.references)
        }
        plain = {name: item for name, item in step.inputs.items() if name not in composed}
        lookup = self.lookup(step)
        values = self._masked(module_inputs(replace(step, inputs=plain), lookup))
        return values, {
            name: template.expression(
                lookup, partial(engine_reference, typed=step.module.variables[name].typed)
            )
            for name, template in composed.items()
        }

    def planned_inputs(
        self, step: Step, current: StepInputs, planned: Mapping[str, Mapping[str, StateOutput]]
    ) -> StepInputs:
        """
        Return the values for the step's module, with those from ``planned`` outputs as far as they
        are known.
        """
        scope = ReferenceScope(
            self.deployment, step, lambda name: planned.get(name) or self.outputs(name)
        )
        values, secrets = dict(current.values), dict(current.secrets)
        for name in step.inputs.keys() - current.values.keys():
            try:
                inputs = module_inputs(
                    replace(step, inputs={name: step.inputs[name]}), scope.look_up
                )
            except Invalid:
                values[name] = UNKNOWN
            else:
                values |= inputs.values
                secrets |= inputs.secrets
        sources = input_sources(self.deployment, step)
        inputs = replace(self._masked(StepInputs(values, secrets)), sources=sources)
        self._mask_replaced(step, inputs)
        return inputs

    def lookup(self, step: Step) -> Lookup:
        action = hook_of(step.name)
        if action is not None:
            return self.action_scope(action[0]).look_up
        return ReferenceScope(self.deployment, step, self.outputs).look_up

    def action_scope(self, name: str) -> ReferenceScope:
        """
        Return what the hooks of a recorded step may refer to. Outputs that a failed destroy removed
        from the provider state have their last known values.
        """
        prepared = self.prepare(name)
        outputs = prepared.record.outputs if prepared.record is not None else {}
        earlier = {
            key: StateOutput(value, sensitive=False)
            for key, value in outputs.items()
            if not self.services.masker.hides(value)  # the real one was never recorded
        }
        return ReferenceScope(
            self.deployment,
            prepared.step,
            self.outputs,
            inputs=self.recorded_inputs(prepared),
            outputs={**earlier, **self.outputs(name)},
            run_id=self.run_id,
        )

    def recorded_inputs(self, prepared: PreparedStep) -> StepInputs:
        """
        Return the values that the step was applied with, with current secrets, which are never
        recorded.

        Raises Invalid if a secret is no longer available.
        """
        recalled = self.recalled(prepared)
        assert recalled.inputs is not None, "what cannot be had has raised"
        return recalled.inputs

    def recalled(self, prepared: PreparedStep) -> RecalledInputs:
        """
        Return the values that the step was applied with, and whether their secrets are unchanged.
        """
        step, record = prepared.step, prepared.record
        text = recorded_inputs_text(self.services, record)
        if text is None:
            return RecalledInputs(self.inputs(step), secrets_known=True)

        without: set[str] = set()

        def today(path: ValuePath, origin: str) -> Json:
            try:
                return self._current_secret(step, path)
            except Unresolvable:
                if origin not in self.unavailable_secrets:
                    raise
                without.add(origin)
                variable = prepared.snapshot.variables.get(str(path[0]))
                return placeholder(None if path[1:] or variable is None else variable.type)

        recorded = read_recorded_inputs(text, today)
        former = recorded.other_secrets(recorded.values, self.services.key)
        self._mask_former(step.name, former)
        changed = [origin for origin in sorted(set(former.values())) if origin not in without]
        for secret in changed:
            self.services.note(
                f"the secret {secret} is not the one it was applied with", step=step.name
            )
        for secret in sorted(without):
            message = f"a placeholder stands for the secret {secret}, which is not available"
            self.services.note(message, level="warning", step=step.name)
        variables = prepared.snapshot.variables
        values = {name: value for name, value in recorded.values.items() if name in variables}
        secrets = {
            path: origin
            for path, origin in recorded.secrets.items()
            if path[0] in variables and origin not in without
        }
        inputs = StepInputs(values, secrets, unavailable=tuple(sorted(without)))
        return RecalledInputs(self._masked(inputs), secrets_known=not changed and not without)

    def secret_at_hand(self, step: Step, path: ValuePath, _origin: str) -> Json:
        """
        Return the current value of a secret in a step's recorded inputs, masked from here on; None
        if it cannot be resolved.
        """
        try:
            value = self._current_secret(step, path)
        except (Unresolvable, OrchestratorError):
            return None
        self.services.masker.add(value)
        return value

    def _current_secret(self, step: Step, path: ValuePath) -> Json:
        name, *rest = path
        template = step.inputs.get(str(name))
        if template is None:
            raise Unresolvable(f"the blueprint no longer sets {name!r}")
        return template.resolve(self.lookup(step)).at(tuple(rest)).value

    def early_values(
        self,
        step: Step,
        record: OperationRecord | None,
        module: ModuleSource,
        engine: EngineInfo,
    ) -> Mapping[str, Json]:
        """
        Return the values that the engine needs to load the step's module. Unavailable ones are left
        out: the engine reports them if it needs them.
        """
        required = frozenset(module.snapshot.early_variables)
        if not required or not engine.evaluates_early:
            return {}
        text = recorded_inputs_text(self.services, record) if module.inputs == "recorded" else None
        if text is None:
            lookup, templates = self.lookup(step), {}
            for name in required & step.inputs.keys():
                template = step.inputs[name]
                # What comes from upstream must not be asked for before that is prepared itself.
                if template.names("step_output") and name not in step.module.early_variables:
                    continue
                with contextlib.suppress(Unresolvable):
                    template.resolve(lookup)
                    templates[name] = template
            return self._masked(module_inputs(replace(step, inputs=templates), lookup)).values
        unknown: set[ValuePath] = set()

        def today(path: ValuePath, _: str) -> Json:
            if path[0] in required:
                with contextlib.suppress(Unresolvable):
                    return self._current_secret(step, path)
            unknown.add(path[:1])
            return None

        recorded = read_recorded_inputs(text, today)
        values = {k: v for k, v in recorded.values.items() if k in required and (k,) not in unknown}
        secrets = {path: origin for path, origin in recorded.secrets.items() if path[0] in values}
        return self._masked(StepInputs(values, secrets)).values

    def _masked(self, inputs: StepInputs) -> StepInputs:
        """
        Return the inputs with each leaf that holds a known secret marked as one, too; all secrets
        are masked from here on.
        """
        masker, values = self.services.masker, Resolved(dict(inputs.values), inputs.secrets)
        for path in inputs.secrets:
            masker.add(values.at(path).value)
        found = {
            (name, *leaf): f"input {name}"
            for name, value in inputs.values.items()
            for leaf in secret_leaves(value, masker.hides)
        }
        secrets = {**found, **values.leaves()}
        for path in secrets:
            masker.add(values.at(path).value)
        return replace(inputs, secrets=secrets)
