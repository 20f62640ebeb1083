"""
The rows of a plan, one per step or hook: planned, unchanged, deferred or failed, and which steps
must wait for others.
"""

from __future__ import annotations

from typing import Literal

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.services import Services
from orchestrator.domain.addresses import is_data_source
from orchestrator.domain.blueprint.blueprint import Step
from orchestrator.domain.documents.plan import PlanMethod, PlannedStep
from orchestrator.domain.events.events import PlanReady, StepDeferred
from orchestrator.domain.plan.changes import PlanDiagnostic
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Diagnostic, Fault
from orchestrator.domain.record.states import READY
from orchestrator.errors import EngineFailed, OrchestratorError, Refused


class PlanRows:
    """
    The rows of a plan so far. Rows may be added from several threads, upstreams first.
    """

    def __init__(self, steps: PreparedSteps) -> None:
        self.rows: dict[str, PlannedStep] = {}
        self.codes: list[int] = []
        self._steps = steps
        self._deployment = steps.deployment
        self._services = steps.services

    def add(
        self,
        name: str,
        status: Literal["planned", "unchanged"],
        *,
        reason: str | None = None,
        method: PlanMethod = "separate",
        plan: PlanReady | None = None,
        before_destroy: str | None = None,
    ) -> None:
        """
        Add the row of a planned step.
        """
        fields = {"reason": reason, "method": method, "before_destroy": before_destroy}
        self._put(name, status, plan, **fields)

    def defer(
        self,
        name: str,
        reason: str,
        waits_for: tuple[str, ...] = (),
        *,
        plan: PlanReady | None = None,
    ) -> None:
        """
        Add the row of a step that cannot be planned before others are applied.
        """
        now = self._services.clock.now()
        self._services.sink.emit(
            StepDeferred(at=now, step=name, reason=reason, waits_for=waits_for)
        )
        self._put(name, "deferred", plan, reason=reason, method="deferred", waits_for=waits_for)

    def fail(
        self,
        name: str,
        exc: OrchestratorError,
        unapplied: tuple[str, ...] = (),
        *,
        method: PlanMethod = "separate",
        plan: PlanReady | None = None,
    ) -> None:
        """
        Add the row of a step that could not be planned, or whose plan would be refused. It is
        deferred if it failed to read data sources that an ``unapplied`` upstream may still create.
        """
        if unapplied and _is_unread(exc):
            message = self._services.masker.mask(exc.message)
            reason = f"cannot be planned before {', '.join(unapplied)}: {message}"
            self.defer(name, reason, unapplied)
            return
        self.codes.append(exc.exit_code)
        self._put(
            name,
            "failed",
            plan,
            method=method,
            error=plan_fault(self._services, exc),
            reason=exc.hint or None,
            diagnostics=diagnostics_of(exc),
        )

    def forget(self, name: str, parent: str) -> None:
        """
        Add the row of a step that goes with its parent and is not planned.
        """
        record = self._steps.records[name]
        objects = record.resources.inventory if record else ()
        actions = tuple(PlannedAction(address=o.address, action="forget") for o in objects)
        reason = f"goes with {parent}, which owns it: its provider state is emptied"
        self._put(name, "planned", None, reason=reason, actions=actions)

    def _put(
        self,
        name: str,
        status: Literal["planned", "unchanged", "deferred", "failed"],
        plan: PlanReady | None,
        **fields: object,
    ) -> None:
        row = PlannedStep(step=name, target=str(self._deployment.target(name)), status=status)
        row = row.with_plan(plan) if plan else row
        self.rows[name] = row.model_copy(update=fields).counted()

    def unknown_upstreams(self, step: Step) -> tuple[str, ...]:
        """
        Return the steps whose outputs the step refers to and cannot be read.
        """
        referred = self._steps.values.referred_steps(step)
        return tuple(
            up
            for up in self._deployment.graph.order
            if up in referred and self._steps.status(up) not in READY
        )

    def unapplied_upstreams(self, name: str) -> tuple[str, ...]:
        """
        Return the steps that an apply would change before this one.
        """
        graph = self._deployment.graph
        if name not in graph.order:
            return ()
        return tuple(
            up
            for up in graph.order
            if up in graph.upstreams(name)
            and (self._steps.status(up) not in READY or self._moves(up))
        )

    def moving_needs(self, name: str) -> tuple[str, ...]:
        """
        Return the changing upstreams of a composed step that it does not refer to: its data sources
        were read before their change.
        """
        referred = self._steps.values.referred_steps(self._steps.roots[name])
        needs = self._deployment.graph.needs(name) - referred
        return tuple(up for up in self._deployment.graph.order if up in needs and self._moves(up))

    def _moves(self, step: str) -> bool:
        """
        Return whether an apply may change what others read of the step, as far as this plan knows:
        not if only its provider state is rewritten.
        """
        row = self.rows.get(step)
        if row is None or row.status == "unchanged":
            return False
        return row.status != "planned" or bool(row.actions or row.outputs)


def _is_unread(exc: OrchestratorError) -> bool:
    """
    Return whether a plan failed only because data sources could not be read.
    """
    if not isinstance(exc, EngineFailed) or exc.phase != "plan":
        return False
    errors = [diagnostic for diagnostic in diagnostics_of(exc) if diagnostic.severity == "error"]
    return bool(errors) and all(is_data_source(diagnostic.address or "") for diagnostic in errors)


def plan_fault(services: Services, exc: OrchestratorError) -> Fault:
    """
    Return why a step could not be planned.
    """
    code = exc.reason if isinstance(exc, Refused) else exc.code
    return Fault(code=code, phase="plan", summary=services.masker.mask(exc.message))


def diagnostics_of(exc: OrchestratorError) -> tuple[PlanDiagnostic, ...]:
    """
    Return the engine's diagnostics about a step that could not be planned.
    """
    diagnostics = exc.diagnostics if isinstance(exc, EngineFailed) else ()
    return tuple(
        PlanDiagnostic.of_diagnostic(item) for item in diagnostics if isinstance(item, Diagnostic)
    )
