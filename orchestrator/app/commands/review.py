"""
What a run would change, shown to whoever sits at the terminal and asked for once, before anything
is changed. Each step is then held against what was shown; what is not covered is asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator.app.commands.planner import Planner
from orchestrator.app.run.composed_plan import ComposedStep
from orchestrator.app.run.prepared_steps import SourceOf, current_module
from orchestrator.app.run.request import PlanRequest
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import stopped
from orchestrator.domain.events.events import Event, PlanReady
from orchestrator.domain.redaction import redacted
from orchestrator.errors import ApprovalMissing, OrchestratorError
from orchestrator.ports.system import Sink


@dataclass(frozen=True, slots=True)
class Review:
    """
    Whether the run goes on, and what was planned of its steps together.
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
    Plan the steps, show it and ask, where somebody can be asked and nothing is approved yet.

    Where not all can be planned, each step is asked for in its turn, as it is without a review; a
    plan without changes needs no answer. Where the answer is no the steps are reported as pending.
    """
    options, services = runner.options, runner.services
    if options.plan.approved or not options.interactive:
        return Review()
    planner = Planner(
        replace(services, sink=_WithoutPlans(services.sink)),
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


@dataclass(frozen=True, slots=True)
class _WithoutPlans:
    """
    A sink that leaves out the plans of single steps: they are shown together.
    """

    sink: Sink

    def emit(self, event: Event) -> None:
        if not isinstance(event, PlanReady):
            self.sink.emit(event)
