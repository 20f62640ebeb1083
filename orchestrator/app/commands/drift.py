"""
``drift``: what changed outside the engine since the last apply.

Decided by the plan's content: the engine's exit code reports changes where there are none. Changes
nothing, and takes no lock.
"""

from __future__ import annotations

from orchestrator.app.commands.plan_rows import diagnostics_of, plan_fault
from orchestrator.app.inspection.read_context import orphaned_targets
from orchestrator.app.run.composed_plan import ComposedStep, composed_plan
from orchestrator.app.run.prepared_steps import PreparedSteps, recorded_module, steps_to_read
from orchestrator.app.run.request import PlanRequest, select_steps
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.app.steps.guards import check_state
from orchestrator.app.steps.planned_step import CheckedPlan, check_plan, plan_step
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.documents.plan import DriftDocument, DriftedStep
from orchestrator.domain.plan.changes import PlanChanges, remaining_drift
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.values import replace
from orchestrator.errors import OrchestratorError, worst


def drift(
    services: Services, deployment: Deployment, request: PlanRequest
) -> tuple[DriftDocument, int]:
    """
    Return the document and the exit code: a failure outweighs drift, drift outweighs none.
    """
    selected = select_steps(deployment, request.options, request.verb)
    options = replace(request.options.plan, values=True, locking=False, only_refresh=True)
    rows: dict[str, DriftedStep] = {}
    codes: list[int] = []
    with steps_to_read(
        services,
        deployment,
        jobs=request.options.jobs,
        allow_engine_change=request.options.allow_engine_change,
    ) as steps:
        reasons = {name: _why_skipped(steps.status(name)) for name in selected}
        composed = composed_plan(
            steps,
            [name for name in selected if reasons[name] is None],
            options,
            steps.evidence("composed-drift"),
            source=recorded_module,
        )

        def look_at(name: str) -> Outcome:
            row = DriftedStep(step=name, target=str(deployment.target(name)), status="skipped")
            update: dict[str, object] = {"reason": reasons[name]}
            if reasons[name] is None:
                try:
                    update = _found(steps, _refreshed(steps, name, options, composed.get(name)))
                except OrchestratorError as exc:
                    codes.append(exc.exit_code)
                    update = {
                        "status": "failed",
                        "error": plan_fault(services, exc),
                        "reason": exc.hint or None,
                        "diagnostics": diagnostics_of(exc),
                    }
            rows[name] = row.model_copy(update=update)
            return Outcome(ready=True)

        run_steps(
            deployment.graph.subset(selected),
            look_at,
            jobs=request.options.jobs,
            stop=services.stop,
            on_failure=OnFailure.CONTINUE,
        )
    today = services.clock.now().date().isoformat()
    document = DriftDocument.of_steps(
        deployment,
        tuple(rows[step] for step in deployment.graph.order if step in rows),
        expired=tuple(r.address for r in deployment.drift_rules if r.until and r.until < today),
        orphaned=orphaned_targets(deployment, steps.records.values()),
    )
    if request.detailed_exitcode and document.verdict == "drift":
        codes.append(2)
    return document, worst(codes)


def _why_skipped(status: Status | None) -> str | None:
    """
    Return why a step is skipped, None if it is not.
    """
    if status in (None, *NOTHING_THERE):
        return str(status) if status else "no record here"
    if status is Status.RUNNING:
        return "interrupted; an apply or reconcile settles it first"
    return None


def _found(steps: PreparedSteps, plan: CheckedPlan) -> dict[str, object]:
    """
    Return what the row of a step says of a refresh.
    """
    changed = (plan.shown.changes or PlanChanges()).drift
    today = steps.services.clock.now().date()
    remaining = remaining_drift(changed, steps.deployment.drift_rules, today)
    addresses = {item.address for item in remaining}
    return {
        "status": "drifted" if remaining else "same",
        "resources": remaining,
        "accepted": tuple(c.address for c in changed if c.address not in addresses),
    }


def _refreshed(
    steps: PreparedSteps, name: str, options: PlanOptions, composed: ComposedStep | None
) -> CheckedPlan:
    """
    Return the refresh of a step, planned together with the others or alone, checked against its
    record.
    """
    if composed is not None:
        return check_plan(
            steps.services,
            steps.prepared[name],
            composed.inputs,
            options,
            composed.plan,
            check_state,
            "doubted",
        )
    prepared = steps.prepare(name, recorded_module)
    return plan_step(
        steps.services,
        prepared,
        steps.values.recorded_inputs(prepared),
        options,
        direction="apply",
        evidence=steps.evidence(name),
        missing_objects="doubted",
    )
