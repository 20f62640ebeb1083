"""
``destroy``: destroy the selected steps, dependents first, until their absence is confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from orchestrator.app.commands.retain import follow_declared, note_overdue_reviews, retain_declared
from orchestrator.app.commands.review import review
from orchestrator.app.destroy import (
    before_destroy_failures,
    destroy_hook_resources,
    empty_owned_step,
    note_before_destroy,
    run_before_destroy,
)
from orchestrator.app.run.hooks import hook_exit_codes
from orchestrator.app.run.orphans import check_gone_steps, check_orphans, note_orphans
from orchestrator.app.run.prepared_steps import PreparedSteps, backend_only, recorded_module
from orchestrator.app.run.request import DestroyRequest, select_steps
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.schedule import Outcome, failures_of
from orchestrator.app.services import Services
from orchestrator.app.steps.guards import check_adopted_records, check_dependents
from orchestrator.app.steps.pipeline import StepPipeline
from orchestrator.app.steps.policy import check_policy_of_destroy, check_protected
from orchestrator.app.steps.preparation import recorded_inputs_text, snapshot_of
from orchestrator.domain.blueprint.blueprint import CommandHook, Deployment, ModuleHook, Step
from orchestrator.domain.blueprint.inputs import StepInputs, read_recorded_inputs
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.destroy import Teardown, retention, teardown
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, READY, Status, StepStatus
from orchestrator.domain.record.verdicts import is_unmade
from orchestrator.domain.recovery.command_line import command_line
from orchestrator.domain.redaction import redacted
from orchestrator.domain.target import hook_of
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.transitions.transitions import observed
from orchestrator.domain.values import replace
from orchestrator.errors import (
    Fenced,
    Invalid,
    OrchestratorError,
    Problem,
    Refused,
    StoreUnavailable,
)

# A destroy without a secret that no longer exists: only where nothing that must work uses it.


def check_unavailable(
    steps: PreparedSteps, selected: Iterable[str], names: Sequence[str], *, before_destroy: bool
) -> None:
    """
    Raise Refused if a secret of ``names`` is used by a provider configuration of one of the steps,
    or by its ``before_destroy``, if that will run. Raises Invalid if no step has it as an input.
    """
    if not names:
        return
    used: set[str] = set()
    needed: list[str] = []
    for step_name in selected:
        step = steps.deployment.steps[step_name]
        text = recorded_inputs_text(steps.services, steps.records.get(step_name))
        recorded = (
            read_recorded_inputs(text, lambda _path, _origin: None) if text is not None else None
        )
        secrets = recorded.secrets if recorded is not None else {}  # names, by path
        used.update(secrets.values())
        used.update(name for template in step.providers.values() for name in _named(template))
        for name in names:
            variables = {str(path[0]) for path, origin in secrets.items() if origin == name}
            uses = _uses(steps, step, name, variables, before_destroy=before_destroy)
            needed += [f"{use} of {step_name} uses {name}" for use in uses]
    unknown = [
        Problem(f"no step of this destroy was given a secret {name}", hint=did_you_mean(name, used))
        for name in names
        if name not in used
    ]
    if unknown:
        raise Invalid(unknown)
    if needed:
        raise Refused(
            "secret_needed",
            f"it cannot be done without: {'; '.join(needed)}",
            hint="give the secret, or another one that works; or delete the objects by hand and "
            "say so with --accept-vanished REASON",
        )


def _uses(
    steps: PreparedSteps, step: Step, name: str, variables: set[str], *, before_destroy: bool
) -> Iterator[str]:
    if variables:
        snapshot = snapshot_of(steps.services, step, steps.records.get(step.name))
        if any(snapshot.provider_may_depend_on_variable(variable) for variable in variables):
            yield "a provider configuration in the module"
    if any(name in _named(template) for template in step.providers.values()):
        yield "a provider configuration in the blueprint"
    templates: tuple[Template, ...] = ()
    match step.before_destroy:
        case CommandHook(argv, environment):
            templates = (argv, environment)
        case ModuleHook(root):
            templates = (*root.inputs.values(), *root.providers.values())
    own = {f"inputs.{variable}" for variable in variables} | {name}
    if before_destroy and any(own & _named(template) for template in templates):
        yield "before_destroy"


def _named(template: Template) -> set[str]:
    return {str(replace(reference, path=())) for reference in template.references}


def destroy(services: Services, deployment: Deployment, request: DestroyRequest) -> int:
    """
    Destroy the selected steps and return the exit code.
    """
    options = request.options
    unconfirmed = deployment.protected and options.confirm != deployment.environment
    if unconfirmed or options.interactive:
        steps = select_steps(deployment, options, request.verb)
        records = services.store.records(deployment.blueprint, deployment.environment)
        by_step = {record.target.step: record for record in records if record.target.step in steps}
        if unconfirmed:
            check_protected(services, deployment, by_step.values(), confirmed=options.confirm)
        may_ask = options.interactive and options.plan.accept_adopted is None
        if may_ask and _accepts_adopted(services, deployment, by_step):
            accepted = replace(options.plan, accept_adopted="its name was typed at a terminal")
            request = replace(request, options=replace(options, plan=accepted))
    return run(services, deployment, request, _work)


def _accepts_adopted(
    services: Services, deployment: Deployment, records: Mapping[str, OperationRecord]
) -> bool:
    """
    Return whether a person types the name of each step that has what was adopted without proof and
    is destroyed.
    """
    refusals: dict[str, str] = {}
    for step in teardown(deployment, records, [*records]).todo:
        try:
            check_adopted_records(records, [step], accepted=None)
        except Refused as exc:
            refusals[step] = exc.message
    asks = services.approver.agree
    return bool(refusals) and all(asks(message, step) for step, message in refusals.items())


def _work(runner: CommandRunner[DestroyRequest], selected: Sequence[str]) -> None:
    deployment, steps = runner.deployment, runner.steps
    if any(hook_of(name) for name in selected):
        destroy_hook_resources(runner, selected)
        return
    skip_hook = runner.request.skip_before_destroy is not None
    plan = teardown(deployment, steps.records, selected, skip_before_destroy=skip_hook)
    skipped = plan.skipped
    _check_not_retained(runner)
    not_skipped = [step for step in selected if step not in skipped]
    check_dependents(deployment.graph, not_skipped, steps.records)
    selected_records = [
        record for step in not_skipped if (record := steps.records.get(step)) is not None
    ]
    check_protected(runner.services, deployment, selected_records, confirmed=runner.options.confirm)
    check_orphans(runner, not_skipped)
    check_adopted_records(steps.records, plan.todo, accepted=runner.options.plan.accept_adopted)
    to_destroy = [record for name in plan.todo if (record := steps.records.get(name)) is not None]
    check_policy_of_destroy(
        runner.session, to_destroy, override=runner.options.plan.override_policy
    )
    check_unavailable(
        steps,
        plan.todo,
        runner.request.options.unavailable_secrets,
        before_destroy=not skip_hook,
    )
    unsettled = [step for step in skipped if steps.status(step) is Status.RUNNING]
    failures = _prepare(runner, plan, (*plan.todo, *unsettled)) | runner.settle_all()
    fresh = [] if failures else [s for s in not_skipped if steps.status(s) is None]
    unfit = {} if failures else _not_retainable(runner, skipped)
    # Where a state turns out to hold what nobody recorded, nothing is destroyed: the step may need
    # what would go before it.
    foreign = {} if failures else check_gone_steps(steps, not_skipped)
    reported = (*plan.todo, *fresh, *failures, *unfit, *foreign)
    _report_skipped(runner, selected, skipped, reported)
    if failures:
        runner.end_before_work([*plan.todo, *(s for s in failures if s in unsettled)], failures)
        return
    for step, exc in unfit.items():
        runner.end_with_error(step, exc, attempts=0)
    errors = {step: _confirm_absent(runner, step) for step in fresh}
    foreign |= {step: error for step, error in errors.items() if error is not None}
    if foreign:
        runner.end_before_work([*plan.todo, *foreign], foreign)
        return
    _note_retained(runner, skipped)
    retain_declared(runner, skipped)
    follow_declared(runner, skipped)
    remaining = [step for step in plan.todo if steps.status(step) not in NOTHING_THERE]
    for step in plan.todo:
        if step not in remaining:  # an interrupted destroy had completed, as settling found
            runner.end_settled(step)
    plan = teardown(deployment, steps.records, remaining, skip_before_destroy=skip_hook)
    inputs, refusals = _recorded_inputs(runner, plan.by_engine)
    refusals = refusals or before_destroy_failures(runner, plan.by_engine)
    refusals = refusals or failures_of(plan.by_engine, runner.check_saved)
    if refusals:
        runner.end_before_work(plan.todo, refusals)
        return
    _note_owned_steps(runner, plan)
    note_before_destroy(runner, plan.by_engine)
    reviewed = review(runner, remaining, takes_down=plan)
    if not reviewed.goes_on:
        return
    held_back = _held_back(runner, plan, reviewed.refused)
    work = partial(_destroy_step, runner, plan, inputs)
    runner.work_on(plan.order, work, missing=held_back)
    note_orphans(runner)


def _check_not_retained(runner: CommandRunner[DestroyRequest]) -> None:
    """
    Raise Refused if a retained step was selected by name.
    """
    deployment, records = runner.deployment, runner.steps.records
    retained = [
        step
        for step in dict.fromkeys(name.strip("+") for name in runner.request.options.steps)
        if step in deployment.steps
        and retention(deployment.steps[step].retain, records.get(step)) is not None
    ]
    recorded = [step for step in retained if runner.steps.status(step) is Status.RETAINED]
    if retained:
        options = [word for step in recorded for word in ("--step", step)]
        orphaned = ("--orphaned",) if runner.options.orphaned else ()
        release = command_line(deployment, "release", *orphaned, *options, "--reason", "WHY")
        declared = "remove `retain` from the blueprint"
        raise Refused(
            "retained",
            f"retained, and so not destroyed: {', '.join(retained)}",
            hint=f"release it first: {release}" if recorded else declared,
        )


def _prepare(
    runner: StepRunner, plan: Teardown, steps: Sequence[str]
) -> dict[str, OrchestratorError]:
    """
    Prepare the steps and return the errors by step. A step that goes with its parent needs only its
    provider state, unless its own run was interrupted.
    """
    light = [step for step in plan.removed_with if runner.steps.status(step) is not Status.RUNNING]
    heavy = [step for step in steps if step not in light]
    return runner.steps.prepare_all(heavy, recorded_module) | runner.steps.prepare_all(
        light, backend_only
    )


def _recorded_inputs(
    runner: StepRunner, steps: Sequence[str]
) -> tuple[dict[str, StepInputs], dict[str, OrchestratorError]]:
    """
    Return the recorded inputs of each step, and the errors of steps whose inputs cannot be resolved
    any more. All errors are known before the first step is destroyed.
    """
    inputs: dict[str, StepInputs] = {}

    def read(name: str) -> None:
        inputs[name] = runner.steps.values.recorded_inputs(runner.steps.prepared[name])

    refusals = failures_of(steps, read)
    return inputs, refusals


def _note_owned_steps(runner: StepRunner, plan: Teardown) -> None:
    """
    Report, before anything is destroyed, which steps go with their parent.
    """
    for step, parent in plan.removed_with.items():
        waiting = () if runner.steps.status(parent) in NOTHING_THERE else (parent,)
        when = f"once {parent} is confirmed gone" if waiting else f"because {parent} is gone"
        runner.session.update_row(step, blocked_by=waiting)
        runner.services.note(
            f"goes with {parent}, which owns it: its provider state is saved and emptied {when}",
            step=step,
        )


def _not_retainable(runner: StepRunner, skipped: Collection[str]) -> dict[str, OrchestratorError]:
    """
    Return errors for steps that are declared as retained and are not ok: they are neither destroyed
    nor retained.
    """
    failures: dict[str, OrchestratorError] = {}
    for name in skipped:
        status = runner.steps.status(name)
        if runner.deployment.steps[name].retain is not None and status not in READY:
            failures[name] = Refused(
                "not_ok",
                f"{name} is to be retained, but it is {status}: only what is ok can be",
                hint="apply it first, or remove `retain` from the blueprint to destroy it",
            )
    return failures


def _note_retained(runner: StepRunner, skipped: Mapping[str, str]) -> None:
    """
    Report, before anything is destroyed, what stays because something retained needs it, and which
    reviews are overdue.
    """
    for step, why in skipped.items():
        if retention(runner.deployment.steps[step].retain, runner.steps.records.get(step)) is None:
            runner.services.note(
                f"stays: {why}",
                hint="it counts as alive; `orchestrator retain` says for how long it may",
                level="warning",
                step=step,
            )
    note_overdue_reviews(runner, skipped)


def _confirm_absent(runner: StepRunner, name: str) -> OrchestratorError | None:
    """
    Check that a step without a record has no provider state: its record may be in another store.
    Only then can the whole blueprint be called destroyed. A step that cannot be checked stays
    pending.

    Returns an error if its state holds objects, or if no entry can be written.
    """
    if runner.services.stop.stopping:
        runner.end_skipped(name, "never applied")
        return None
    try:
        prepared = runner.steps.prepare(name, backend_only)
        options = runner.options.plan
        pipeline = StepPipeline(runner.session, prepared, StepInputs(), options, verb="destroy")
        result = pipeline.confirm_absent()
    except (Refused, StoreUnavailable, Fenced) as exc:
        return exc
    except OrchestratorError as exc:
        why = runner.services.masker.mask(exc.message.splitlines()[0])
        runner.end_skipped(name, f"never applied; it is unknown whether it exists: {why}")
    else:
        runner.steps.update(name, result.record)
        runner.end(
            name,
            StepStatus.ABSENT,
            sequence=result.record.sequence,
            absence=result.record.absence,
            reason="never applied",
        )
    return None


def _report_skipped(
    runner: StepRunner, selected: Sequence[str], skipped: Mapping[str, str], todo: Sequence[str]
) -> None:
    for step in selected:
        if step in todo:
            continue
        status = runner.steps.status(step)
        reason = skipped.get(step) or (f"already {status}" if status else "never applied")
        record = runner.steps.records.get(step)
        if record is not None and is_unmade(record):
            # Nothing is wanted of it any more, so that its failed apply is not an error any more.
            withdrawn = observed(record, {"last_attempt": None}, runner.services.stamp())
            runner.record(step, withdrawn)
        retained = (
            retention(runner.deployment.steps[step].retain, record) if step in skipped else None
        )
        runner.end_skipped(
            step,
            reason,
            retained=retained and redacted(retained, runner.services.masker),
            absence=record.absence if record else None,
        )


def _held_back(
    runner: StepRunner, plan: Teardown, refused: Mapping[str, OrchestratorError]
) -> set[str]:
    """
    Report, and return, the steps whose destroy is refused and those that would go before them.
    """
    held_back = {first for step in refused for first in plan.order.upstreams(step)} - refused.keys()
    for step, error in refused.items():
        runner.end_with_error(step, error, attempts=0)
    for step in held_back:
        by = tuple(other for other in refused if step in plan.order.upstreams(other))
        runner.end(step, StepStatus.PENDING, blocked_by=by)
    return held_back | refused.keys()


def _destroy_step(
    runner: CommandRunner[DestroyRequest],
    plan: Teardown,
    inputs: Mapping[str, StepInputs],
    name: str,
) -> Outcome:
    runner.check_saved(name)  # it may know objects that nothing else does
    if name in plan.removed_with:
        runner.session.update_row(name, blocked_by=())
        is_approved = plan.removed_with[name] in plan.todo
        result, attempts = empty_owned_step(runner, name, is_approved=is_approved), 1
        runner.steps.update(name, result.record, result.state)
    else:
        first = partial(run_before_destroy, runner, name)
        result, attempts = runner.attempt(name, inputs[name], verb="destroy", first=first)
    if result.record.failed_command == "before_destroy":
        stopped = runner.services.stop.exit_code
        runner.session.codes += hook_exit_codes(result, "before_destroy", stopped)
    return runner.end_with_record(name, result, attempts=attempts)
