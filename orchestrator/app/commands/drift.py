"""
``drift``: what changed outside the engine since the last apply.

Decided by the plan's content: the engine's exit code reports changes where there are none. Changes
nothing, and takes no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.app.commands.plan_rows import diagnostics_of, plan_fault
from orchestrator.app.inspection.read_context import orphaned_targets
from orchestrator.app.run.composed_plan import ComposedStep, composed_plan
from orchestrator.app.run.prepared_steps import PreparedSteps, recorded_module, steps_to_read
from orchestrator.app.run.request import PlanRequest, select_steps
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
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
    with steps_to_read(
        services,
        deployment,
        jobs=request.options.jobs,
        allow_engine_change=request.options.allow_engine_change,
    ) as steps:
        rows, codes = _Looker(steps, request).look(selected)
    today = services.clock.now().date().isoformat()
    document = DriftDocument.of_steps(
        deployment,
        rows,
        expired=tuple(r.address for r in deployment.drift_rules if r.until and r.until < today),
        orphaned=orphaned_targets(deployment, steps.records.values()),
    )
    if request.detailed_exitcode and document.verdict == "drift":
        codes.append(2)
    return document, worst(codes)


class _Looker:
    def __init__(self, steps: PreparedSteps, request: PlanRequest) -> None:
        self.steps = steps
        self.services = steps.services
        self.deployment = steps.deployment
        self.request = request
        self.rows: dict[str, DriftedStep] = {}
        self.codes: list[int] = []
        self.composed: Mapping[str, ComposedStep] = {}
        self.options = replace(request.options.plan, values=True, locking=False, only_refresh=True)

    def look(self, selected: Sequence[str]) -> tuple[tuple[DriftedStep, ...], list[int]]:
        applied = [name for name in selected if self._why_skipped(name) is None]
        place = self.steps.evidence("composed-drift")
        self.composed = composed_plan(
            self.steps, applied, self.options, place, source=recorded_module
        )
        run_steps(
            self.deployment.graph.subset(selected),
            self._work,
            jobs=self.request.options.jobs,
            stop=self.services.stop,
            on_failure=OnFailure.CONTINUE,
        )
        order = [step for step in self.deployment.graph.order if step in self.rows]
        return tuple(self.rows[step] for step in order), self.codes

    def _work(self, name: str) -> Outcome:
        row = DriftedStep(step=name, target=str(self.deployment.target(name)), status="skipped")
        why = self._why_skipped(name)
        self.rows[name] = row.model_copy(update={"reason": why}) if why else self._looked_at(row)
        return Outcome(ready=True)

    def _why_skipped(self, name: str) -> str | None:
        """
        Return why a step is skipped, None if it is not.
        """
        status = self.steps.status(name)
        if status in (None, *NOTHING_THERE):
            return str(status) if status else "no record here"
        if status is Status.RUNNING:
            return "interrupted; an apply or reconcile settles it first"
        return None

    def _looked_at(self, row: DriftedStep) -> DriftedStep:
        services, name = self.services, row.step
        try:
            plan = self._refreshed(name)
        except OrchestratorError as exc:
            self.codes.append(exc.exit_code)
            return row.model_copy(
                update={
                    "status": "failed",
                    "error": plan_fault(services, exc),
                    "reason": exc.hint or None,
                    "diagnostics": diagnostics_of(exc),
                }
            )
        changed = (plan.shown.changes or PlanChanges()).drift
        remaining = remaining_drift(
            changed, self.deployment.drift_rules, services.clock.now().date()
        )
        addresses = {item.address for item in remaining}
        return row.model_copy(
            update={
                "status": "drifted" if remaining else "same",
                "resources": remaining,
                "accepted": tuple(c.address for c in changed if c.address not in addresses),
            }
        )

    def _refreshed(self, name: str) -> CheckedPlan:
        """
        Return the refresh of a step, planned together with the others or alone, checked against its
        record.
        """
        composed = self.composed.get(name)
        if composed is not None:
            return check_plan(
                self.services,
                self.steps.prepared[name],
                composed.inputs,
                self.options,
                composed.plan,
                check_state,
                "doubted",
            )
        prepared = self.steps.prepare(name, recorded_module)
        return plan_step(
            self.services,
            prepared,
            self.steps.values.recorded_inputs(prepared),
            self.options,
            direction="apply",
            evidence=self.steps.evidence(name),
            missing_objects="doubted",
        )
