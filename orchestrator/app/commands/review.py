"""
The review of a run: the plan of all steps is checked against the policy, shown at the terminal and
approved once, before anything changes. Each step is then compared with what was shown; what goes
beyond it is asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from orchestrator.app.commands.plan import Planner
from orchestrator.app.run.composed_plan import ComposedStep
from orchestrator.app.run.prepared_steps import SourceOf, current_module
from orchestrator.app.run.request import PlanRequest
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.services import stopped
from orchestrator.app.steps.policy import refusals
from orchestrator.domain.events.events import Event, PlanReady
from orchestrator.domain.redaction import redacted
from orchestrator.domain.values import replace
from orchestrator.errors import ApprovalMissing, OrchestratorError
from orchestrator.ports.system import Sink


class Review(Struct, frozen=True):
    """
    The result of a review: whether the run goes on, and the composed plan of its steps.
    """

    goes_on: bool = True
    composed: Mapping[str, ComposedStep] | None = field(default=None)


def review(
    runner: StepRunner,
    selected: Sequence[str],
    verb: Literal["apply", "destroy"],
    *,
    source: SourceOf = current_module,
) -> Review:
    """
    Plan the steps, show the plan and ask for approval, if someone can be asked and nothing is
    approved yet.

    If not all can be planned, each step is asked for in its turn, as without a review; a plan
    without changes needs no answer. After a no the steps are reported as pending; also, without
    asking, if the plan of one of them is refused.
    """
    options, services = runner.options, runner.services
    asks = options.interactive and not options.plan.approved
    judges = verb == "apply" and not runner.deployment.policy.empty
    judges = judges and options.plan.override_policy is None
    if not (asks or judges):
        return Review()
    planner = Planner(
        replace(services, sink=_Without(services.sink, (PlanReady,) if asks else (Event,))),
        runner.steps,
        PlanRequest(options=options, verb=verb, hooks=False),
        evidence=lambda step: services.files.inside(runner.session.directory, f"review-{step}"),
        source=source,
    )
    try:
        result = planner.plan(selected)
    except OrchestratorError:
        return Review()  # it is found again, with the step that it concerns
    document, approval = result.document, result.approval
    refused = planner.rows.refused | (refusals(document.policy) if judges else {})
    if refused:
        runner.end_before_work(selected, refused)
        return Review(goes_on=False)
    if not asks:
        return Review(composed=planner.composed)
    text = redacted(document, services.masker).to_json()
    services.files.write(runner.session.directory / "plan.json", f"{text}\n")
    if approval is None:
        return Review()
    if document.verdict != "no_changes" and not services.approver.review(document):
        refusal: OrchestratorError = ApprovalMissing(
            "not approved; nothing was changed",
            hint="run it again and answer yes, or approve with --yes",
        )
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
