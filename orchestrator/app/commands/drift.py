"""
``drift``: what changed outside the engine since it was applied, each step on its own.

Decided from the plan itself: an exit code says "changes" where there are none. Reads only, and
takes no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.app.run.prepared_steps import PreparedSteps, recorded_module
from orchestrator.app.run.request import PlanRequest
from orchestrator.app.run.step_selection import select_steps
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.plan_changes import failure_fields
from orchestrator.app.steps.planned_step import plan_step
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.documents.drift import DriftDocument, DriftedStep
from orchestrator.domain.plan.changes import PlanChanges
from orchestrator.domain.plan.drift import remaining_drift
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.errors import OrchestratorError, worst


def drift(
    services: Services, deployment: Deployment, request: PlanRequest
) -> tuple[DriftDocument, int]:
    """
    The document and the exit code: what failed beats drift beats none.
    """
    selected = select_steps(deployment, request.options, request.verb)
    with (
        services.workdirs.lock(deployment.blueprint, deployment.environment),
        services.files.scratch() as scratch,
    ):
        looker = _Looker(services, deployment, request, scratch)
        rows, codes = looker.look(selected)
    today = services.clock.now().date().isoformat()
    document = DriftDocument.of_steps(
        rows,
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        expired=tuple(r.address for r in deployment.drift_rules if r.until and r.until < today),
    )
    if request.detailed_exitcode and document.verdict == "drift":
        codes.append(2)
    return document, worst(codes)


class _Looker:
    def __init__(
        self, services: Services, deployment: Deployment, request: PlanRequest, scratch: Path
    ) -> None:
        self.services = services
        self.deployment = deployment
        self.request = request
        self.rows: dict[str, DriftedStep] = {}
        self.codes: list[int] = []
        self.steps = PreparedSteps(
            services,
            deployment,
            evidence=partial(services.files.inside, scratch),
            jobs=request.options.jobs,
            allow_engine_change=request.options.allow_engine_change,
        )

    def look(self, selected: Sequence[str]) -> tuple[tuple[DriftedStep, ...], list[int]]:
        self.steps.read_records(wait=False)
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
        status = self.steps.status(name)
        if status in (None, *NOTHING_THERE):
            row = row.model_copy(update={"reason": str(status) if status else "never applied"})
        elif status is Status.RUNNING:
            why = "interrupted; an apply or reconcile settles it first"
            row = row.model_copy(update={"reason": why})
        else:
            row = self._looked_at(row)
        self.rows[name] = row
        return Outcome(ready=True)

    def _looked_at(self, row: DriftedStep) -> DriftedStep:
        services, name = self.services, row.step
        try:
            self.steps.prepare(name, recorded_module)
            prepared = self.steps.prepared[name]
            plan = plan_step(
                services,
                prepared,
                self.steps.values.recorded_inputs(prepared),
                replace(self.request.options.plan, values=True, locking=False, only_refresh=True),
                target=row.target,
                direction="apply",
                evidence=self.steps.evidence(name),
                missing_objects="doubted",
            )
        except OrchestratorError as exc:
            self.codes.append(exc.exit_code)
            failed = {"status": "failed", **failure_fields(services, exc)}
            return row.model_copy(update=failed)
        changed = (plan.shown.changes or PlanChanges()).drift
        left = remaining_drift(changed, self.deployment.drift_rules, services.clock.now().date())
        known = {item.address for item in left}
        return row.model_copy(
            update={
                "status": "drifted" if left else "same",
                "resources": left,
                "accepted": tuple(c.address for c in changed if c.address not in known),
            }
        )
