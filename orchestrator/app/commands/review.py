"""
The review of a run: the plan of all steps is checked against the policy, shown at the terminal and
approved once, before anything changes. Each step is then compared with what was shown; what goes
beyond it is asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from orchestrator.app.run.composed_plan import ComposedStep
from orchestrator.app.run.prepared_steps import SourceOf, current_module
from orchestrator.app.run.request import PlanRequest
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.schedule import OnFailure
from orchestrator.app.services import not_approved, stopped
from orchestrator.app.steps.policy import refusals
from orchestrator.domain.destroy import Teardown
from orchestrator.domain.events.events import Event, PlanReady
from orchestrator.domain.redaction import redacted
from orchestrator.domain.values import replace
from orchestrator.errors import OrchestratorError, Refused
from orchestrator.ports.system import Sink


class Review(Struct, frozen=True):
    """
    The result of a review: whether the run goes on, the composed plan of its steps, and the errors
    of the steps that a destroy which goes on leaves out.
    """

    goes_on: bool = True
    composed: Mapping[str, ComposedStep] | None = None
    refused: Mapping[str, OrchestratorError] = field(default_factory=dict)


def review(
    runner: StepRunner,
    selected: Sequence[str],
    *,
    source: SourceOf = current_module,
    takes_down: Teardown | None = None,
) -> Review:
    """
    Plan the steps of an apply from ``source``, or of a destroy that ``takes_down`` them; show the
    plan and ask for approval, if someone can be asked and nothing is approved yet.

    If not all of an apply can be planned, each step is asked for in its turn, as without a review;
    a plan without changes needs no answer. After a no the steps are reported as pending; also,
    without asking, if the plan of one of them is refused, unless a destroy is to go on with the
    others.
    """
    options, services, destroys = runner.options, runner.services, takes_down is not None
    asks = options.interactive and not options.plan.approved
    judges = not destroys and not runner.deployment.policy.empty
    judges = judges and options.plan.override_policy is None
    # The plan of a single step is made before anything is destroyed anyway.
    looks_ahead = takes_down is not None and len(takes_down.by_engine) > 1
    if not (asks or judges or looks_ahead):
        return Review()
    from orchestrator.app.commands.plan import Planner  # here: most runs review nothing

    planner = Planner(
        replace(services, sink=_Without(services.sink, (PlanReady,) if asks else (Event,))),
        runner.steps,
        PlanRequest(
            options=options,
            verb="destroy" if destroys else "apply",
            hooks=False,
            values=asks or judges or options.plan.approval is not None,
        ),
        evidence=lambda step: services.files.inside(runner.session.directory, f"review-{step}"),
        source=source,
        takes_down=takes_down,
    )
    try:
        result = planner.plan(selected)
    except OrchestratorError:
        return Review()  # it is found again, with the step that it concerns
    document, approval = result.document, result.approval
    # What of an apply cannot be planned yet may be so once others are applied.
    refused = {s: e for s, e in planner.refused.items() if destroys or isinstance(e, Refused)}
    refused |= refusals(document.policy) if judges else {}
    goes_on = destroys and options.on_failure is OnFailure.CONTINUE
    if refused and not goes_on:
        runner.end_before_work(selected, refused)
        return Review(goes_on=False)
    if not asks:
        return Review(composed=planner.composed, refused=refused)
    text = redacted(document, services.masker).to_json()
    services.files.write(runner.session.directory / "plan.json", f"{text}\n")
    if approval is None:
        return Review(refused=refused)
    if document.verdict != "no_changes" and not services.approver.review(document):
        refusal: OrchestratorError = not_approved()
        for step in selected:
            error = stopped(services.stop) if services.stop.stopping else refusal
            runner.end_with_error(step, error, attempts=0)
        return Review(goes_on=False)
    shown = replace(options.plan, approval=approval, reviewed=True, values=True)
    runner.options = replace(options, plan=shown)
    return Review(composed=planner.composed)


class _Without(Struct, frozen=True):
    """
    A sink that drops some events: those shown together, or reported again for each step.
    """

    sink: Sink
    kinds: tuple[type[Event], ...]

    def emit(self, event: Event) -> None:
        if not isinstance(event, self.kinds):
            self.sink.emit(event)
