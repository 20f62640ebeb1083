"""
The hooks of a step, ``compensate`` and ``before_destroy``: each run of one is a mutation of the
step.

A command runs under the same wrapper as engines. A module goes through the normal pipeline as a
step of its own, whose record holds the details; the record of the step says that it was done.
"""

from __future__ import annotations

from functools import partial

from orchestrator.app.run.prepared_steps import PreparedSteps, current_module
from orchestrator.app.run.run_summary import exit_codes_of
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.mutation import StepResult, mutate, not_started
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.app.steps.planned_step import CheckedPlan, plan_step
from orchestrator.app.steps.preparation import store_deployment
from orchestrator.domain.blueprint.blueprint import CommandHook, Hook, ModuleHook
from orchestrator.domain.blueprint.references import Template, Unresolvable
from orchestrator.domain.events.events import (
    EngineDiagnostic,
    EngineLine,
    LogLine,
    Message,
)
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.record.objects import ObjectRef
from orchestrator.domain.record.record import Diagnostic, HookResult, OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.record.verdicts import last_hook_result
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.target import HookKind, hook_step_name, shown_step
from orchestrator.domain.text import Json, scalar_text
from orchestrator.domain.transitions.absence import MutationEvidence
from orchestrator.domain.transitions.hooks import (
    conclude_command,
    hook_begun,
    hook_description,
    hook_ended,
    module_outcome,
)
from orchestrator.domain.transitions.transitions import reverted
from orchestrator.domain.values import replace
from orchestrator.errors import (
    EngineFailed,
    InDoubt,
    Invalid,
    Problem,
    Refused,
    StoreUnavailable,
)
from orchestrator.ports.engine import CallSpec, Program

#: Seconds from the SIGINT of a stop to SIGKILL: unlike an engine, a program that does not stop has
#: no provider state to save.
_GRACE = 10.0
#: Planned actions by which an object ceases to be.
_REMOVING = frozenset({"delete", "replace"})


class HookRun:
    """
    One run of a hook of a prepared step.

    An error before the marker leaves the step's record as it was; later ones are in the returned
    record. ``reason`` is the user's.
    """

    def __init__(
        self, runner: StepRunner, name: str, kind: HookKind, action: Hook, *, reason: str | None
    ) -> None:
        self.runner = runner
        self.services = runner.services
        self.name = name
        self.kind = kind
        self.action = action
        self.reason = reason
        self.by = hook_description(action)
        self.before = runner.steps.recorded(name)
        self._options = replace(runner.options.plan, targets=(), replace=())

    def check(self) -> None:
        """
        Raise errors that can be found before anything is done: missing values, a missing program, a
        module that would destroy what it made for an earlier apply.
        """
        if isinstance(self.action, ModuleHook):
            self._check_module(self.action)
            return
        call = self._program_call(self.action)
        try:
            self.services.engine.check_program(*call)
        except EngineFailed as exc:  # the engine has no part in it
            at = self.runner.deployment.steps[self.name].at
            raise Invalid([Problem(exc.message, at, exc.hint)]) from exc

    def run(self) -> StepResult:
        if isinstance(self.action, ModuleHook):
            return self._module(self.action)
        return self._command(self.action)

    # A command

    def _command(self, action: CommandHook) -> StepResult:
        services, (program, spec) = self.services, self._program_call(action)
        # The approval of a destroy includes its hook.
        if self.kind == "compensate" and not self.runner.options.plan.approved:
            services.agree(self.name, f"{self.kind} {self.name} by `{' '.join(program.argv)}`")
        services.check_not_stopped()
        entry, evidence = mutate(
            self.runner.session,
            self._marker(target=None),
            partial(self._call, program, spec),
            lambda marker, seen: conclude_command(marker, self.before, seen, services.stamp()),
            spec,
        )
        return self._result(entry, mutated=not evidence.never_began)

    def _program_call(self, action: CommandHook) -> tuple[Program, CallSpec]:
        services, deployment = self.services, self.runner.deployment
        argv = tuple(map(scalar_text, self._resolved(action.argv)))
        variables = self._resolved(action.environment)
        root = hook_step_name(self.name, self.kind)
        environment = {
            "ORCHESTRATOR_ACTION": self.kind,
            "ORCHESTRATOR_BLUEPRINT": deployment.blueprint,
            "ORCHESTRATOR_ENVIRONMENT": deployment.environment,
            "ORCHESTRATOR_STEP": self.name,
            "ORCHESTRATOR_TARGET": str(self.before.target),
            "ORCHESTRATOR_RUN_ID": self.runner.session.run_id,
            **{key: scalar_text(value) for key, value in variables.items()},
        }
        spec = CallSpec(
            directory=services.root,
            evidence=services.files.attempt(self.runner.session.run_id, root, 1),
            name="apply",
            mask=services.masker.mask,
            environment=environment,
            timeout=action.timeout or services.limits.timeout,
            grace=min(services.limits.grace or _GRACE, _GRACE),
        )
        return Program(argv), spec

    def _call(self, program: Program, spec: CallSpec) -> MutationEvidence:
        """
        Run the program; its last line of output usually says why it failed.
        """
        services = self.services
        lines: list[str] = []

        def observe(message: Message) -> None:
            at = services.clock.now()
            match message:
                case LogLine(line):
                    lines.append(line)
                    services.sink.emit(EngineLine(at=at, step=self.name, line=line))
                case Diagnostic() as diagnostic:
                    lines.append(diagnostic.summary)
                    services.sink.emit(
                        EngineDiagnostic(at=at, step=self.name, diagnostic=diagnostic)
                    )
                case _:
                    pass

        try:
            result = services.engine.call(program, spec, stop=services.stop, observe=observe)
        except (EngineFailed, StoreUnavailable) as exc:
            return not_started(exc.message)
        return MutationEvidence(
            exit_code=result.exit_code,
            journal=Journal.of(result.messages, whole=result.complete),
            state=None,
            stopped=result.stopped,
            timed_out=result.timed_out,
            stderr=lines[-1] if lines else "",
        )

    def _resolved(self, template: Template) -> Json:
        """
        Return the value of a template, a list or map of texts. Its secrets were masked when they
        were read.
        """
        scope = self.runner.steps.values.action_scope(self.name)
        try:
            value: Json = template.resolve(scope.look_up).value
            for place, item in value.items() if isinstance(value, dict) else enumerate(value):
                if item is None or isinstance(item, dict | list):
                    kind = "map" if isinstance(item, dict) else "list"
                    shape = "null" if item is None else f"a {kind}"
                    raise Unresolvable(f"{place} is {shape}, not text", (place,))
        except Unresolvable as exc:
            where = shown_step(hook_step_name(self.name, self.kind))
            raise Invalid([Problem(f"{where}: {exc}", scope.step.at)]) from exc
        return value

    # A module

    def _module(self, action: ModuleHook) -> StepResult:
        """
        Plan and approve the module, mark the step, then apply the plan: the step's marker names the
        hook before anything of the module changes.
        """
        steps, root = self.runner.steps, action.root.name
        steps.prepare(root, current_module)
        self.runner.check_certain(root)
        record = steps.records.get(root)
        if not self.runner.options.orphaned:
            store_deployment(self.runner.session)  # its backend may be another since the apply
        options = replace(
            self._options,
            approved=self.runner.options.plan.approved or self.kind == "before_destroy",
        )
        inputs = steps.values.inputs(action.root)
        pipeline = StepPipeline(
            self.runner.session, steps.prepared[root], inputs, options, verb="apply"
        )
        with pipeline.approved_plan() as plan:
            unchanged = pipeline.record_unchanged(plan) if plan.empty else None
            there = record is not None and record.status not in NOTHING_THERE
            if record and there and unchanged and not last_hook_result(self.before, self.kind):
                raise Refused(
                    "nothing_new",
                    f"{self.name}: {self.kind} would do nothing: what {self.by} made in run "
                    f"{record.run_id}, before the last apply, is still as it describes it",
                    hint="let one of its inputs differ from run to run, such as `${run.id}`",
                )
            self._check_earlier(plan)

            def call() -> StepResult:
                result = unchanged or pipeline.mutate(plan)
                steps.update(root, result.record, result.state)
                return result

            def ended(marker: OperationRecord, result: StepResult) -> OperationRecord:
                stamp = self.services.stamp()
                how = module_outcome(self.kind, result.record, result.fault)
                if how.fault is not None and not result.mutated:
                    return reverted(marker, self.before, how.fault, stamp)
                return hook_ended(marker, self.before, how, stamp)

            marker = self._marker(target=str(self.runner.deployment.target(root)))
            entry, result = mutate(self.runner.session, marker, call, ended, None)
        self.runner.end_with_record(root, result, verb="apply")
        return self._result(entry, mutated=result.fault is None or result.mutated)

    def _check_module(self, action: ModuleHook) -> None:
        """
        Plan a module that has made something before, just for this check. A module whose provider
        waits for outputs cannot be prepared yet.
        """
        steps, root = self.runner.steps, action.root.name
        if steps.values.needs_outputs_first(root):
            return
        steps.prepare(root, current_module)
        self.runner.check_certain(root)
        inputs = steps.values.inputs(action.root)
        if earlier_objects(self.runner.steps, self.name, self.kind):
            with self.services.files.scratch() as scratch:
                plan = plan_step(
                    self.services,
                    steps.prepared[root],
                    inputs,
                    self._options,
                    direction="apply",
                    evidence=scratch,
                )
            self._check_earlier(plan)

    def _check_earlier(self, plan: CheckedPlan) -> None:
        accepted = self.runner.options.plan.accept_replaced
        check_earlier_work(self.runner.steps, self.name, self.kind, plan, accepted=accepted)

    def _marker(self, *, target: str | None) -> OperationRecord:
        return hook_begun(
            self.before,
            self.kind,
            self.services.stamp(),
            by=self.by,
            run_id=self.runner.session.run_id,
            reason=self.reason,
            target=target,
        )

    def _result(self, entry: OperationRecord, *, mutated: bool) -> StepResult:
        """
        Return the result with the fault of this hook; the entry may keep one of an earlier command.
        """
        self.runner.steps.update(self.name, entry)
        last, attempt = last_hook_result(entry, self.kind), entry.last_attempt
        fault = None if last is not None and last.verdict == "done" else entry.error
        if not mutated:
            fault = attempt.error if attempt else None
        return StepResult(record=entry, state=None, mutated=mutated, fault=fault)


def check_earlier_work(
    steps: PreparedSteps, name: str, kind: HookKind, plan: CheckedPlan, *, accepted: str | None
) -> None:
    """
    Raise Refused if the plan of a hook's module would replace or delete what it made for an earlier
    apply of its step, unless a reason accepts it: a backup from then cannot be replaced by one of
    today.
    """
    removed = {item.name for item in plan.journal.planned if item.action in _REMOVING}
    objects = [ref for ref in earlier_objects(steps, name, kind) if ref.name in removed]
    if objects and accepted is None:
        listed = ", ".join(f"{ref.name} ({ref.id})" if ref.id else ref.name for ref in objects)
        take_down = command_line(steps.deployment, "destroy", "--step", hook_step_name(name, kind))
        raise Refused(
            "replaces_earlier",
            f"{name}: {kind} would replace or delete what it made before the last apply: {listed}",
            hint="to accept that: --accept-replaced REASON; or destroy it first: "
            f"`{take_down}`; to keep it, give the objects of each run an address of their own",
            accepted_by=("--accept-replaced", "WHY"),
        )


def earlier_objects(steps: PreparedSteps, name: str, kind: HookKind) -> list[ObjectRef]:
    """
    Return the objects of a hook's module from before the last apply of the step.
    """
    root = steps.deployment.target(hook_step_name(name, kind))
    record = steps.records.get(root.step)
    if record is None or not record.resources.inventory:
        return []
    history = steps.services.store.history
    begun = next(  # the last apply
        (
            entry.updated_at
            for entry in history(steps.deployment.target(name))
            if entry.status is Status.RUNNING and entry.active_command == "apply"
        ),
        None,
    )
    earlier: set[tuple[str, str | None]] = set()
    for entry in history(root):
        if begun is not None and entry.updated_at < begun:
            earlier = {(ref.type, ref.id) for ref in entry.resources.inventory}
            break
    return [ref for ref in record.resources.inventory if (ref.type, ref.id) in earlier]


def check_outcome_known(last: HookResult | None, name: str, again: str) -> None:
    """
    Raise Refused if the last run of a hook was interrupted, so that its result is unknown.
    """
    if last is not None and last.verdict == "unknown":
        raise Refused(
            "may_have_run",
            f"{name}: `{last.by}` was interrupted in run {last.run_id}, and what it did is "
            "not known",
            hint=f"look at what it did; to run it again: {again}",
        )


def hook_exit_codes(result: StepResult, kind: HookKind, stopped: int) -> list[int]:
    """
    Return the exit codes of a hook's result; ``stopped`` is the exit code of the run's own signal.
    """
    last = last_hook_result(result.record, kind)
    unknown = result.mutated and last is not None and last.verdict == "unknown"
    overdue = result.fault is not None and result.fault.code == "deadline"
    codes = exit_codes_of(result.fault, (), stopped)
    return [InDoubt.exit_code, *codes] if unknown and not overdue else codes
