"""
``plan``: plan the changes of an apply or destroy. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from orchestrator.app.commands.plan_rows import PlanRows
from orchestrator.app.destroy import check_before_destroy_known
from orchestrator.app.inspection.read_context import orphaned_targets
from orchestrator.app.run.composed_plan import ComposedStep, composed_plan
from orchestrator.app.run.hooks import check_earlier_work
from orchestrator.app.run.orphans import look_at_gone_steps
from orchestrator.app.run.prepared_steps import (
    PreparedSteps,
    SourceOf,
    current_module,
    recorded_module,
    steps_to_read,
)
from orchestrator.app.run.request import PlanRequest, select_steps
from orchestrator.app.schedule import OnFailure, Outcome, run_steps
from orchestrator.app.services import Services
from orchestrator.app.steps.absence import check_objects_visible
from orchestrator.app.steps.approved_plan import approved_step, check_approved
from orchestrator.app.steps.engine_plan import Direction
from orchestrator.app.steps.guards import (
    check_adopted,
    check_dependents,
    check_retained,
    check_state,
    describe_doubts,
)
from orchestrator.app.steps.planned_step import STATE_REWRITTEN, CheckedPlan, check_plan, plan_step
from orchestrator.app.steps.policy import check_protected, rego_violations
from orchestrator.app.steps.provider_query import QueryContext
from orchestrator.domain.blueprint.blueprint import Deployment, ModuleHook, Step
from orchestrator.domain.destroy import Teardown, teardown
from orchestrator.domain.documents.plan import AffectedStep, PlanDocument, PlanMethod, PlannedStep
from orchestrator.domain.plan.approval import Approval, ApprovedStep
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.plan.violations import violations_of_steps
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.record.states import NOTHING_THERE, READY, Status
from orchestrator.domain.record.verdicts import completed_before_destroy
from orchestrator.domain.recovery.command_line import command_line, step_options
from orchestrator.domain.recovery.next_commands import about_store
from orchestrator.domain.redaction import redacted
from orchestrator.domain.target import hook_of, hook_step_name
from orchestrator.domain.transitions.hooks import hook_description
from orchestrator.domain.values import replace
from orchestrator.errors import InDoubt, OrchestratorError, PlanChanged, Refused, worst


class PlanResult(Struct, frozen=True):
    """
    The plan, the exit code (a failed step outweighs changes, changes outweigh nothing to do), and
    the approval for it, None if a step failed.
    """

    document: PlanDocument
    exit_code: int
    approval: Approval | None


class Planner:
    """
    Plans steps whose records have been read. ``evidence`` returns the directory for the files of a
    step's calls, ``source`` the module for an apply; ``takes_down`` is the teardown of a destroy,
    if it is known. After planning, ``refused`` has the errors that end the work on a step before
    its mutation.
    """

    def __init__(
        self,
        services: Services,
        steps: PreparedSteps,
        request: PlanRequest,
        *,
        evidence: Callable[[str], Path] | None = None,
        source: SourceOf = current_module,
        takes_down: Teardown | None = None,
    ) -> None:
        self.services = services
        self.deployment = steps.deployment
        self.request = request
        self.steps = steps
        self.teardown = takes_down
        self.refused: dict[str, OrchestratorError] = {}
        self.composed: Mapping[str, ComposedStep] = {}
        self.rows = PlanRows(steps)
        self.options = replace(request.options.plan, values=request.values, locking=request.locking)
        self._source = source
        self._evidence = evidence or steps.evidence
        self._approved: dict[str, ApprovedStep] = {}
        self._contents: dict[str, PlanContent] = {}

    def plan(self, selected: Sequence[str]) -> PlanResult:
        """
        Plan these steps.
        """
        deployment, request, affected = self.deployment, self.request, self.request.affected
        rows, codes = self._rows(selected)
        refusal = self.services.refusal()
        document = PlanDocument.of_steps(
            deployment,
            rows,
            command=request.verb,
            affected=tuple(
                AffectedStep(step=step, reasons=(affected or {})[step])
                for step in selected
                if affected is not None
            ),
            # What is orphaned and alive, the plan does not cover.
            orphaned=()
            if request.options.orphaned
            else orphaned_targets(deployment, self.steps.records.values()),
        )
        contents = [
            (row.step, self._contents[row.step]) for row in rows if row.step in self._contents
        ]
        planned = [(step, content.objects, content.regions) for step, content in contents]
        violations = [
            *violations_of_steps(deployment.policy, planned),
            *rego_violations(self.services, deployment, document),
        ]
        document = document.model_copy(
            update={
                "policy": tuple(redacted(item, self.services.masker) for item in violations),
                "next": tuple(about_store(deployment, refusal)) if refusal else (),
            }
        )
        if any(item.verdict == "fail" for item in violations):
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
                created_at=self.services.clock.now(),
                steps=tuple(
                    self._approved.get(
                        row.step, ApprovedStep(step=row.step, status=row.status)
                    ).model_copy(update={"status": row.status})
                    for row in rows
                    if hook_of(row.step) is None
                ),
                replace=request.options.plan.replace,
                targets=request.options.plan.targets,
            ).signed(self.services.key)
        return PlanResult(document, worst(codes), approval)

    def _rows(self, selected: Sequence[str]) -> tuple[tuple[PlannedStep, ...], list[int]]:
        graph, source = self.deployment.graph, self._source
        subset = graph.subset(selected)
        together: Sequence[str] = subset.order
        if self.request.verb == "destroy":
            if self.teardown is None:
                self.teardown = teardown(self.deployment, self.steps.records, selected)
            gone = (None, *NOTHING_THERE)
            remaining = [step for step in selected if step not in self.teardown.skipped]
            check_dependents(graph, remaining, self.steps.records)
            subset = self.teardown.order
            present = [step for step in subset.order if self.steps.status(step) not in gone]
            together = [step for step in present if step not in self.teardown.removed_with]
            source = recorded_module
        else:
            upstreams = {up for step in selected for up in graph.needs(step)} - set(selected)
            ready = [step for step in upstreams if self.steps.status(step) in READY]
            failures = self.steps.prepare_all(ready, recorded_module)
            for exc in failures.values():
                raise exc
        if not self.request.separate:
            directory, verb = self._evidence("composed-plan"), self.request.verb
            self.composed = composed_plan(
                self.steps, together, self.options, directory, source=source, direction=verb
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
        places = (
            root
            for step in (*subset.order, *others)
            for root in (hook_step_name(step, "before_destroy"), step)
        )
        order = [root for root in places if root in self.rows.rows]
        return tuple(self.rows.rows[step] for step in order), self.rows.codes

    def _work(self, name: str) -> Outcome:
        """
        Plan one step. Always ready: a step that cannot be planned only defers its dependents.
        """
        self._guarded(name, partial(self._planned, self.steps.roots[name]))
        return Outcome(ready=True)

    def _guarded(self, name: str, plan: Callable[[], None]) -> None:
        """
        Add the row of a step: what ``plan`` adds, or why it failed.
        """
        try:
            plan()
        except OrchestratorError as exc:
            self.refused[name] = exc
            destroys = self.request.verb == "destroy"
            self.rows.fail(name, exc, () if destroys else self.rows.unapplied_upstreams(name))

    def _planned(self, step: Step) -> None:
        name, verb, status = step.name, self.request.verb, self.steps.status(step.name)
        if status is Status.RUNNING:
            self.rows.defer(name, "interrupted; an apply or reconcile settles it first")
            return
        decided = (
            self._settled_by_records(name) if verb == "destroy" else self._waits_for_outputs(step)
        )
        if decided:
            return
        if name not in self.steps.prepared:
            self.steps.prepare(name, self._source if verb == "apply" else recorded_module)
        if verb == "destroy":
            self._check_destroy(name)
            if self.request.hooks and self._first(name):
                self._plan_hook(step)
        self._ask(name, check=lambda _: self._check_hook_known(name))

    def _check_hook_known(self, name: str) -> None:
        """
        Raise Refused if the destroy would be refused because its `before_destroy` may have run
        before.
        """
        record = self.steps.records.get(name)
        destroys = self.request.verb == "destroy" and self.request.hooks
        if destroys and record is not None and self._first(name):
            check_before_destroy_known(self.deployment, record, name)

    def _check_destroy(self, name: str) -> None:
        """
        Raise Refused if the destroy would be refused because of protected or adopted objects.
        """
        record, accepted = self.steps.recorded(name), self.request.options.plan.accept_adopted
        environment = self.deployment.environment  # a plan needs no confirmation of it
        check_protected(self.services, self.deployment, [record], confirmed=environment)
        check_adopted(record, record.resources.inventory, accepted=accepted)

    def _settled_by_records(self, name: str) -> bool:
        """
        Add the row of a step that a destroy does not plan, and return whether it is one.
        """
        assert self.teardown is not None, "a destroy has its order"
        status = self.steps.status(name)
        if name in self.teardown.skipped:
            self.rows.add(name, "unchanged", reason=self.teardown.skipped[name])
        elif status in (None, *NOTHING_THERE):
            self._add_gone(name)
        elif name in self.teardown.removed_with:
            self._check_destroy(name)
            self.rows.forget(name, self.teardown.removed_with[name])
        else:
            return False
        return True

    def _add_gone(self, name: str) -> None:
        """
        Add the row of a step that does not exist by its record, unless its provider state
        disagrees.
        """
        status = self.steps.status(name)
        states = look_at_gone_steps(self.steps, [name])
        for refusal in states.alive.values():
            raise refusal
        reasons = [f"already {status}" if status else "no record here"]
        for error in states.unread.values():
            why = error.message.splitlines()[0]
            reasons.append(f"its provider state could not be read: {why}")
        self.rows.add(name, "unchanged", reason="; ".join(reasons))

    def _waits_for_outputs(self, step: Step) -> bool:
        """
        Add the row of a step that has to wait for outputs, and return whether it is one.
        """
        name = step.name
        if name in self.composed:
            return False
        waits_for = self.rows.unknown_upstreams(step)
        if waits_for:
            never = all(self.steps.status(up) is None for up in waits_for)
            why = "no record here" if never else "not applied as it is now"
            self.rows.defer(name, f"needs outputs of {', '.join(waits_for)}: {why}", waits_for)
            return True
        new = self.steps.values.outputs_not_applied(step)
        if not new:
            return False
        waits_for = tuple(dict.fromkeys(output.partition(".")[0] for output in new))
        self.rows.defer(
            name, f"needs outputs that are not applied yet: {', '.join(new)}", waits_for
        )
        return True

    def _first(self, name: str) -> str | None:
        """
        Return the declared hook that a destroy would run before the step.
        """
        step, record = self.steps.roots[name], self.steps.records[name]
        if step.before_destroy is None or record is None or completed_before_destroy(record):
            return None
        return f"before_destroy: {hook_description(step.before_destroy)}"

    def _plan_hook(self, step: Step) -> None:
        """
        Plan the module of the hook that runs before the step is destroyed, in a row of its own.
        """
        if not isinstance(step.before_destroy, ModuleHook):
            return
        root = step.before_destroy.root.name
        if self.steps.values.needs_outputs_first(root):
            self.rows.defer(root, "its provider needs outputs of steps")
            return
        accepted = self.request.options.plan.accept_replaced
        check = partial(
            check_earlier_work, self.steps, step.name, "before_destroy", accepted=accepted
        )

        def planned() -> None:
            self.steps.prepare(root, current_module)
            self._ask(root, verb="apply", check=check)

        self._guarded(root, planned)

    def _ask(
        self,
        name: str,
        verb: Direction | None = None,
        check: Callable[[CheckedPlan], None] = lambda _: None,
    ) -> None:
        """
        Plan a prepared step or hook, in the direction of the request unless another is given;
        ``check`` raises if its plan is refused.
        """
        verb = verb or self.request.verb
        destroying = verb == "destroy"
        services, composed = self.services, self.composed.get(name)
        prepared, values, options = self.steps.prepared[name], self.steps.values, self.options
        check_held = partial(check_state, may_be_missing=destroying)
        if composed is not None:
            inputs = composed.inputs
            proposal = check_plan(services, prepared, inputs, options, composed.plan, check_held)
        else:
            services.report_phase(name, "plan")
            inputs = (
                values.recorded_inputs(prepared) if destroying else values.inputs(prepared.step)
            )
            proposal = plan_step(
                services,
                prepared,
                inputs,
                options,
                direction=verb,
                evidence=self._evidence(name),
                check=check_held,
            )
            proposal.file.unlink()  # it holds secrets, and nobody carries it out
        if destroying and not proposal.empty and not options.refresh:
            context = QueryContext(services, prepared, inputs, self._evidence(name))
            proposal = check_objects_visible(context, proposal, options)
        if hook_of(name) is None:  # what a step declares as its actions goes with the step
            self._approved[name] = approved_step(services, prepared, inputs, proposal)
        if proposal.content is not None:
            self._contents[name] = proposal.content
        method: PlanMethod = "separate" if composed is None else "composed"
        first: tuple[str, ...] = ()
        if composed is not None and not destroying:
            first = self.rows.moving_needs(name)
        elif self.request.verb != "destroy":
            first = self.rows.unapplied_upstreams(name)
        try:
            accepted = options.accept_adopted
            check_adopted(prepared.record, proposal.destroyed, accepted=accepted)
            retention_note = None
            if not destroying:
                record, journal = prepared.record, proposal.journal
                retention_note = check_retained(self.deployment, prepared.step, record, journal)
            approval = options.approval
            if destroying and approval is not None:
                check_approved(services, self.deployment, approval, prepared, inputs, proposal)
            check(proposal)
        except (PlanChanged, Refused) as exc:
            self.refused[name] = exc
            self.rows.fail(name, exc, method=method, plan=proposal.shown)
            return
        if proposal.empty and first:
            # What those will be changed to may change it, too: that it is not, nobody can say yet.
            why = "upstream changes: planned when it is applied"
            self.rows.defer(name, why, first, plan=proposal.shown)
            return
        reasons = [retention_note] if retention_note else []
        reasons += [STATE_REWRITTEN] if proposal.rewrites_state else []
        if proposal.doubts:
            effect = "it would not end `destroyed`" if destroying else "an apply is refused"
            doubts = f"in doubt, so {effect}: {describe_doubts(proposal.doubts)}"
            if not destroying:
                self.rows.codes.append(InDoubt.exit_code)
                doubts += f"; first: `{prepared.reconcile}`"
            elif not proposal.journal.changes:
                only = step_options(self.deployment, name)
                recover = command_line(self.deployment, "recover", *only)
                doubted = InDoubt(f"{name}: {doubts}", hint=recover)  # a destroy records it
                self.rows.fail(name, doubted, method=method, plan=proposal.shown)
                return
            reasons.append(doubts)
        if first:
            named = ", ".join(first)
            reasons.append(f"{named} would change first, which may change this plan")
        self.rows.add(
            name,
            "unchanged" if proposal.empty else "planned",
            reason="; ".join(reasons) or None,
            method=method,
            plan=proposal.shown,
            before_destroy=self._first(name) if destroying else None,
        )


# ``plan``: what an apply or destroy would change. Reads only: no record, remote object or
# provider state changes. A step that needs outputs which no plan gives is ``deferred``, never
# planned with invented values.


def plan(
    services: Services,
    deployment: Deployment,
    request: PlanRequest,
    *,
    source: SourceOf = current_module,
) -> PlanResult:
    """
    Plan the selected steps, from the modules of ``source``.
    """
    selected = select_steps(deployment, request.options, request.verb)
    affected = request.affected
    if affected is not None:
        selected = tuple(step for step in selected if step in affected)
    with steps_to_read(
        services,
        deployment,
        jobs=request.options.jobs,
        allow_engine_change=request.options.allow_engine_change,
        # What `${run.id}` stands for differs from run to run: a plan has one of its own.
        run_id=services.ids.run_id(services.clock.now()),
    ) as steps:
        return Planner(services, steps, request, source=source).plan(selected)


def with_file(
    document: PlanDocument, deployment: Deployment, file: str, inputs: Sequence[str] = ()
) -> PlanDocument:
    """
    Return the document with the file that it was saved to, and the command that executes it;
    ``inputs`` are the options that set the plan's inputs.
    """
    command = command_line(deployment, document.command, "--plan", file, *inputs)
    offered = NextCommand(command=command, why="changes what was approved, and nothing else")
    return document.model_copy(update={"out": file, "next": (*document.next, offered)})
