"""
Runs the checks of a step: after an apply, when one is settled, and for ``verify``.
"""

from __future__ import annotations

from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.check_settings import BadSettings, read_check
from orchestrator.domain.blueprint.inputs import ReferenceScope, StepInputs
from orchestrator.domain.blueprint.references import Unresolvable
from orchestrator.domain.events.events import CheckEvent
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import Check, Verification
from orchestrator.errors import Invalid, Problem


def check_settings(
    services: Services, deployment: Deployment, step: Step, inputs: StepInputs
) -> None:
    """
    Raise Invalid if the settings of a check are invalid, as far as known before the step's outputs.
    """
    lookup = ReferenceScope(deployment, step, inputs=inputs).look_up
    problems = []
    for spec in step.verify:
        try:
            read_check(spec.kind, spec.settings.resolve(lookup).value)
        except Unresolvable:
            continue
        except BadSettings as exc:
            problems += [
                Problem(services.masker.mask(f"{step.name}: check {spec.kind}: {message}"))
                for _, message in exc.problems
            ]
    if problems:
        raise Invalid(problems)


def run_checks(
    services: Services,
    deployment: Deployment,
    step: Step,
    inputs: StepInputs,
    state: PulledState,
) -> Verification:
    """
    Return the verdict over the step's checks; ``unverified`` if it has none.
    """
    if not step.verify:
        return Verification(verdict="unverified", at=services.clock.now())
    services.report_phase(step.name, "verify")
    lookup = ReferenceScope(deployment, step, inputs=inputs, outputs=state.outputs).look_up
    results: list[Check] = []
    for spec in step.verify:
        try:
            settings = spec.settings.resolve(lookup)
        except Unresolvable as exc:
            detail = services.masker.mask(str(exc))
            result = Check(name=spec.kind, passed=False, detail=detail)
        else:
            result = services.checks.run(
                spec.kind,
                settings,
                mask=services.masker.mask,
                directory=services.root,
                stop=services.stop,
            )
        services.sink.emit(
            CheckEvent(
                at=services.clock.now(),
                step=step.name,
                name=result.name,
                passed=result.passed,
                detail=result.detail,
            )
        )
        results.append(result)
    passed = all(result.passed for result in results)
    return Verification(
        verdict="verified" if passed else "failed",
        checks=tuple(results),
        at=services.clock.now(),
    )
