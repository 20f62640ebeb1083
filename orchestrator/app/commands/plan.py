"""
``plan``: what an apply or destroy would change, each step on its own, from real outputs.

Reads only: no record, remote object or provider state changes. A step that needs outputs which
do not exist yet is ``deferred``, never planned with invented values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from orchestrator.app.inspection.orphans import alive_orphans
from orchestrator.app.run.composed_plan import ComposedStep, composed_plan
from orchestrator.app.run.prepared_steps import PreparedSteps, current_module, recorded_module
from orchestrator.app.run.request import PlanRequest
from orchestrator.app.run.step_selection import select_steps
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.approved_plan import approved_step
from orchestrator.app.steps.guards import check_dependents, check_state
from orchestrator.app.steps.plan_changes import diagnostics_of
from orchestrator.app.steps.planned_step import (
    STATE_REWRITTEN,
    Direction,
    PlanOptions,
    StepPlan,
    check_plan,
    plan_step,
)
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.addresses import is_data_source
from orchestrator.domain.blueprint.blueprint import Deployment, ModuleHook, Step
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.destroy.applied_graph import applied_graph
from orchestrator.domain.destroy.order import Teardown, teardown
from orchestrator.domain.documents.documents import (
    AffectedStep,
    PlanCounts,
    PlanDocument,
    PlannedStep,
)
from orchestrator.domain.events.engine_messages import PlanContent
from orchestrator.domain.events.events import PhaseStarted, StepDeferred
from orchestrator.domain.plan.approval import Approval, ApprovedStep
from orchestrator.domain.plan.changes import PlanChanges
from orchestrator.domain.plan.violation import Violation
from orchestrator.domain.plan.violations import destroys, violations
from orchestrator.domain.record.hook_results import completed_before_destroy, hook_description
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Fault
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.record.states import NOTHING_THERE, READY, Status
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.redaction import redacted
from orchestrator.domain.target import hook_of, hook_step_name
from orchestrator.errors import EngineFailed, OrchestratorError, Refused, worst


@dataclass(frozen=True, slots=True)
class PlanResult:
    """
    What was planned, the exit code (a failed step beats changes beats nothing to do), and what can
    be approved of it: nothing where a step failed.
    """

    document: PlanDocument
    exit_code: int
    approval: Approval | None


def plan(services: Services, deployment: Deployment, request: PlanRequest) -> PlanResult:
    """
    Plan the selected steps.
    """
    selected = select_steps(deployment, request.options, request.verb)
    affected = request.affected
    if affected is not None:
        selected = tuple(step for step in selected if step in affected)
    with (
        services.workdirs.lock(deployment.blueprint, deployment.environment),
        services.files.scratch() as scratch,
    ):
        planner = _Planner(services, deployment, request, scratch)
        rows, codes = planner.plan(selected)
    document = PlanDocument.of_steps(
        rows,
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        command=request.verb,
        affected=tuple(
            AffectedStep(step=step, reasons=(affected or {})[step])
            for step in selected
            if affected is not None
        ),
        orphaned=() if request.options.orphaned else planner.orphaned(),
        policy=tuple(redacted(item, services.masker) for item in planner.violations(rows)),
    )
    if document.policy:
        codes.append(Refused.exit_code)
    if request.detailed_exitcode and document.verdict != "no_changes":
        codes.append(2)
    approval = None
    if document.verdict != "failed":
        approval = Approval(
            project=deployment.project,
            blueprint=deployment.blueprint,
            environment=deployment.environment,
            command=request.verb,
            created_at=services.clock.now(),
            steps=tuple(planner.approved(row) for row in rows if hook_of(row.step) is None),
        ).signed(services.key)
    return PlanResult(document, worst(codes), approval)


def with_file(
    document: PlanDocument, deployment: Deployment, file: str, inputs: Sequence[str] = ()
) -> PlanDocument:
    """
    The document with the file that it was saved to, and the command that carries it out; ``inputs``
    are the options that gave the plan its values.
    """
    command = command_line(deployment, document.command, "--plan", file, *inputs)
    offered = NextCommand(command=command, why="changes what was approved, and nothing else")
    return document.model_copy(update={"out": file, "next": (offered,)})


class _Planner:
    def __init__(
        self, services: Services, deployment: Deployment, request: PlanRequest, scratch: Path
    ) -> None:
        self.services = services
        self.deployment = deployment
        self.request = request
        self.rows: dict[str, PlannedStep] = {}
        self.codes: list[int] = []
        self.teardown: Teardown | None = None
        self.composed: dict[str, ComposedStep] = {}
        self._approved: dict[str, ApprovedStep] = {}
        self._contents: dict[str, PlanContent] = {}
        self.steps = PreparedSteps(
            services,
            deployment,
            evidence=partial(_evidence, scratch),
            jobs=request.options.jobs,
            allow_engine_change=request.options.allow_engine_change,
            # What `${run.id}` stands for differs from run to run: a plan has one of its own.
            run_id=services.ids.run_id(services.clock.now()),
        )

    def plan(self, selected: Sequence[str]) -> tuple[tuple[PlannedStep, ...], list[int]]:
        self.steps.read_records(wait=False)
        graph = self.deployment.graph
        subset = graph.subset(selected)
        if self.request.verb == "destroy":
            self.teardown = teardown(self.deployment, self.steps.records, selected)
            going = [step for step in selected if step not in self.teardown.skipped]
            statuses = {
                name: record.status for name, record in self.steps.records.items() if record
            }
            check_dependents(applied_graph(graph, self.steps.records), going, statuses)
            subset = self.teardown.order
        else:
            upstreams = {up for step in selected for up in graph.needs(step)} - set(selected)
            ready = [step for step in upstreams if self.steps.status(step) in READY]
            failures = self.steps.prepare_all(ready, recorded_module)
            for exc in failures.values():
                raise exc
            if not self.request.separate:
                self.composed = composed_plan(
                    self.steps,
                    subset.order,
                    self._options,
                    self.steps.evidence("composed-plan"),
                )
        run_steps(
            subset,
            self._work,
            jobs=self.request.options.jobs,
            stop=self.services.stop,
            on_failure=OnFailure.CONTINUE,
        )
        others = [step for step in reversed(selected) if step not in subset]
        for step in others:
            self._work(step)
        places = (root for step in (*subset.order, *others) for root in (_first_root(step), step))
        order = [root for root in places if root in self.rows]
        return tuple(self.rows[step] for step in order), self.codes

    def orphaned(self) -> tuple[str, ...]:
        """
        The targets that the plan says nothing of: alive, and no longer in the blueprint.
        """
        records = [record for record in self.steps.records.values() if record is not None]
        return tuple(str(r.target.target) for r in alive_orphans(self.deployment, records))

    def approved(self, row: PlannedStep) -> ApprovedStep:
        """
        What an approval keeps of the plan of a step.
        """
        assert row.status != "failed", "what failed is not approved"
        found = self._approved.get(row.step, ApprovedStep(step=row.step, status=row.status))
        return found.model_copy(update={"status": row.status})

    def violations(self, rows: Sequence[PlannedStep]) -> Iterator[Violation]:
        """
        What the policy of the blueprint forbids of the plan.
        """
        destroyed = 0
        for row in rows:
            content = self._contents.get(row.step)
            if content is not None:
                yield from violations(
                    self.deployment.policy,
                    row.step,
                    content.objects,
                    regions=content.regions,
                    destroyed=destroyed,
                )
                destroyed += destroys(content.objects)

    def _work(self, name: str) -> Outcome:
        """
        Plan one step. Always ready: one that cannot be planned only defers those that need it.
        """
        self._guarded(name, partial(self._planned, self.steps.roots[name]))
        return Outcome(ready=True)

    def _guarded(self, name: str, plan: Callable[[], PlannedStep]) -> None:
        """
        Make the row of a root: what ``plan`` gives, or why it failed.
        """
        try:
            row = plan()
        except OrchestratorError as exc:
            waits_for = self._unapplied_upstreams(name)
            if waits_for and _is_unread(exc):
                # What it reads may be what the upstream makes: only then can that be told.
                said = self.services.masker.mask(exc.message)
                reason = f"cannot be planned before {', '.join(waits_for)}: {said}"
                self.rows[name] = self._deferred(name, reason, waits_for)
                return
            self.codes.append(exc.exit_code)
            said = self.services.masker.mask(exc.message)
            code = exc.reason if isinstance(exc, Refused) else exc.code
            fault = Fault(code=code, phase="plan", summary=said)
            row = self._row(
                name,
                "failed",
                error=fault,
                reason=exc.hint or None,
                diagnostics=diagnostics_of(exc),
            )
        self.rows[name] = row

    def _planned(self, step: Step) -> PlannedStep:
        name, verb = step.name, self.request.verb
        status = self.steps.status(name)
        if status is Status.RUNNING:
            return self._deferred(name, "interrupted; an apply or reconcile settles it first", ())
        if self.teardown is not None:
            if name in self.teardown.skipped:
                return self._row(name, "unchanged", reason=self.teardown.skipped[name])
            if status in (None, *NOTHING_THERE):
                return self._row(
                    name, "unchanged", reason=f"already {status}" if status else "no record here"
                )
            if name in self.teardown.removed_with:
                return self._forgotten(name, self.teardown.removed_with[name])
        elif name not in self.composed:
            waits_for = self._unknown_upstreams(step)
            if waits_for:
                never = all(self.steps.status(up) is None for up in waits_for)
                why = "no record here" if never else "not applied as it is now"
                return self._deferred(
                    name, f"needs outputs of {', '.join(waits_for)}: {why}", waits_for
                )
            new = self.steps.values.outputs_not_applied(step)
            if new:
                waits_for = tuple(dict.fromkeys(output.partition(".")[0] for output in new))
                return self._deferred(
                    name, f"needs outputs that are not applied yet: {', '.join(new)}", waits_for
                )
        if name not in self.steps.prepared:
            self.steps.prepare(name, current_module if verb == "apply" else recorded_module)
        if verb == "destroy" and self._first(name):
            self._plan_hook(step)
        return self._ask(name)

    def _first(self, name: str) -> str | None:
        """
        What a destroy would do before it takes the step down, as the step declares it.
        """
        step, record = self.steps.roots[name], self.steps.records[name]
        if step.before_destroy is None or record is None or completed_before_destroy(record):
            return None
        return f"before_destroy: {hook_description(step.before_destroy)}"

    def _plan_hook(self, step: Step) -> None:
        """
        Plan the module that is applied before the step is destroyed: a root and a row of its own.
        """
        if not isinstance(step.before_destroy, ModuleHook):
            return
        root = step.before_destroy.root.name
        if self.steps.values.needs_outputs_first(root):
            self.rows[root] = self._deferred(root, "its provider needs outputs of steps", ())
            return
        self._guarded(root, partial(self._planned_hook, root))

    def _planned_hook(self, root: str) -> PlannedStep:
        self.steps.prepare(root, current_module)
        return self._ask(root, verb="apply")

    def _forgotten(self, name: str, parent: str) -> PlannedStep:
        """
        The row of a step that goes with its parent: the engine is not asked.
        """
        record = self.steps.records[name]
        objects = record.resources.inventory if record else ()
        return self._row(
            name,
            "planned",
            actions=tuple(PlannedAction(address=o.address, action="forget") for o in objects),
            reason=f"goes with {parent}, which owns it: its provider state is emptied",
        )

    def _unknown_upstreams(self, step: Step) -> tuple[str, ...]:
        """
        The steps whose outputs this one refers to and that are not there to be read.
        """
        referred = self.steps.values.referred_steps(step)
        return tuple(
            up
            for up in self.deployment.graph.order
            if up in referred and self.steps.status(up) not in READY
        )

    def _unapplied_upstreams(self, name: str) -> tuple[str, ...]:
        """
        The steps that an apply would change before this one.
        """
        graph = self.deployment.graph
        if self.request.verb == "destroy" or name not in graph.order:
            return ()
        return tuple(
            up
            for up in graph.order
            if up in graph.upstreams(name)
            and (self.steps.status(up) not in READY or self._moves(up))
        )

    def _ask(self, name: str, verb: Direction | None = None) -> PlannedStep:
        """
        Plan a prepared root, in the direction of the request unless another is given.
        """
        verb = verb or self.request.verb
        composed = self.composed.get(name) if verb == "apply" else None
        self.services.sink.emit(PhaseStarted(at=self.services.clock.now(), step=name, phase="plan"))
        prepared = self.steps.prepared[name]
        if composed is not None:
            inputs, proposal = composed.inputs, self._checked(name, composed)
        else:
            inputs = self._inputs(prepared, verb)
            proposal = self._step_plan(prepared, inputs, verb)
        if hook_of(name) is None:  # what a step declares as its actions goes with the step
            self._approved[name] = approved_step(self.services, prepared, inputs, proposal)
        if proposal.content is not None:
            self._contents[name] = proposal.content
        shown = proposal.shown
        first = self._unapplied_upstreams(name) if composed is None else self._moving_needs(name)
        known = {
            "method": "separate" if composed is None else "composed",
            "actions": shown.actions,
            "outputs": shown.outputs,
            "drifted": shown.drifted,
            "inputs": shown.inputs,
            **_fields(shown.changes or PlanChanges()),
        }
        if proposal.empty and first:
            # What those will be changed to may change it, too: that it is not, nobody can say yet.
            return self._deferred(
                name,
                "upstream changes: planned when it is applied",
                first,
                **known,
            )
        reasons = [STATE_REWRITTEN] if proposal.rewrites_state else []
        if first:
            named = ", ".join(first)
            reasons.append(f"from the present outputs of {named}, which would change first")
        return self._row(
            name,
            "unchanged" if proposal.empty else "planned",
            before_destroy=self._first(name) if verb == "destroy" else None,
            reason="; ".join(reasons) or None,
            **known,
        )

    def _inputs(self, prepared: PreparedStep, verb: Direction) -> StepInputs:
        if verb == "destroy":
            return self.steps.values.recorded_inputs(prepared)
        return self.steps.values.inputs(prepared.step)

    def _step_plan(self, prepared: PreparedStep, inputs: StepInputs, verb: Direction) -> StepPlan:
        """
        The plan of a step on its own.
        """
        name = prepared.step.name
        return plan_step(
            self.services,
            prepared,
            inputs,
            self._options,
            target=str(self.deployment.target(name)),
            direction=verb,
            evidence=self.steps.evidence(name),
            check=partial(check_state, may_be_missing=verb == "destroy"),
        )

    def _checked(self, name: str, composed: ComposedStep) -> StepPlan:
        """
        What the composed plan says of a step, held against its record.
        """
        return check_plan(
            self.services,
            self.steps.prepared[name],
            composed.inputs,
            self._options,
            composed.plan,
            check_state,
            "refused",
        )

    @property
    def _options(self) -> PlanOptions:
        return replace(self.request.options.plan, values=True, locking=self.request.locking)

    def _moving_needs(self, name: str) -> tuple[str, ...]:
        """
        The steps that a composed one needs without a reference and that would change: what it reads
        of them by data sources was read as it is.
        """
        referred = self.steps.values.referred_steps(self.steps.roots[name])
        return tuple(
            up
            for up in self.deployment.graph.order
            if up in self.deployment.graph.needs(name) - referred and self._moves(up)
        )

    def _moves(self, step: str) -> bool:
        """
        Whether an apply may change the step, as far as this plan can tell.
        """
        row = self.rows.get(step)
        return row is not None and row.status != "unchanged"

    def _deferred(
        self, name: str, reason: str, waits_for: tuple[str, ...], **fields: object
    ) -> PlannedStep:
        self.services.sink.emit(
            StepDeferred(
                at=self.services.clock.now(), step=name, reason=reason, waits_for=waits_for
            )
        )
        known = {"method": "deferred", "reason": reason, "waits_for": waits_for}
        return self._row(name, "deferred", **{**fields, **known})

    def _row(
        self,
        name: str,
        status: Literal["planned", "unchanged", "deferred", "failed"],
        **fields: object,
    ) -> PlannedStep:
        known = {"step": name, "target": str(self.deployment.target(name)), "status": status}
        row = PlannedStep.model_validate({**known, **fields})
        did = row.resources or row.actions  # without values: what goes with its parent
        counts = PlanCounts.of_actions(item.action for item in did)
        return row.model_copy(update={"counts": counts})


def _fields(changes: PlanChanges) -> dict[str, object]:
    return {name: getattr(changes, name) for name in PlanChanges.model_fields}


def _first_root(step: str) -> str:
    return hook_step_name(step, "before_destroy")


def _evidence(scratch: Path, step: str) -> Path:
    place = scratch / step
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _is_unread(exc: OrchestratorError) -> bool:
    """
    Whether a plan failed because data sources could not be read, and for nothing else.
    """
    if not isinstance(exc, EngineFailed) or exc.phase != "plan":
        return False
    errors = [found for found in diagnostics_of(exc) if found.severity == "error"]
    return bool(errors) and all(is_data_source(found.address or "") for found in errors)
