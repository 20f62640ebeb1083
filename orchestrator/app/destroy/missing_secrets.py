"""
A destroy without a secret that no longer exists: only where nothing that must work uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.steps.preparation import snapshot_of
from orchestrator.domain.blueprint.blueprint import CommandHook, ModuleHook, Step
from orchestrator.domain.blueprint.recorded_inputs import read_recorded_inputs
from orchestrator.domain.blueprint.reference_syntax import Path
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Problem, Refused


def check_unavailable(
    steps: PreparedSteps, selected: Iterable[str], names: Sequence[str], *, before_destroy: bool
) -> None:
    """
    Refused where a secret of ``names`` is used by a provider configuration of one of the steps, or
    by its ``before_destroy`` where that is to be done. Invalid where no step was given it.
    """
    if not names:
        return
    used: set[str] = set()
    needed: list[str] = []
    for step_name in selected:
        step = steps.deployment.steps[step_name]
        secrets = _secrets(steps, step_name)
        used.update(secrets.values())
        used.update(name for template in step.providers.values() for name in _named(template))
        for name in names:
            variables = {str(path[0]) for path, origin in secrets.items() if origin == name}
            uses = _uses(steps, step, name, variables, before_destroy=before_destroy)
            needed += [f"{use} of {step_name} uses {name}" for use in uses]
    unknown = [
        Problem(f"no step of this destroy was given a secret {name}{_suggestion(name, used)}")
        for name in names
        if name not in used
    ]
    if unknown:
        raise Invalid(unknown)
    if needed:
        raise Refused(
            "secret_needed",
            f"it cannot be done without: {'; '.join(needed)}",
            hint="give the secret, or another one that works; or delete the objects by hand and "
            "say so with --accept-vanished REASON",
        )


def _suggestion(name: str, used: Iterable[str]) -> str:
    hint = did_you_mean(name, used)
    return f"; {hint}" if hint else ""


def _secrets(steps: PreparedSteps, step: str) -> Mapping[Path, str]:
    """
    The names of the secrets among the inputs that the step was applied with, by their path.
    """
    text = steps.values.recorded_text(steps.records.get(step))
    return (
        read_recorded_inputs(text, lambda _path, _origin: None).secrets if text is not None else {}
    )


def _uses(
    steps: PreparedSteps, step: Step, name: str, variables: set[str], *, before_destroy: bool
) -> Iterator[str]:
    if variables:
        snapshot = snapshot_of(steps.services, step, steps.records.get(step.name))
        if any(snapshot.provider_may_depend_on_variable(variable) for variable in variables):
            yield "a provider configuration in the module"
    if any(name in _named(template) for template in step.providers.values()):
        yield "a provider configuration in the blueprint"
    own = {f"inputs.{variable}" for variable in variables} | {name}
    if before_destroy and any(own & _named(template) for template in _last_work(step)):
        yield "before_destroy"


def _last_work(step: Step) -> tuple[Template, ...]:
    match step.before_destroy:
        case CommandHook(argv, environment):
            return argv, environment
        case ModuleHook(root):
            return *root.inputs.values(), *root.providers.values()
        case None:
            return ()


def _named(template: Template) -> set[str]:
    return {str(replace(reference, path=())) for reference in template.references}
