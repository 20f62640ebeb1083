"""
``retry``, ``redeploy``, ``rollback`` and promotion: new runs that repeat or follow an earlier one.

They differ in where snapshots, inputs and steps come from, and in their preconditions: the checks
of `domain.recovery.rerun_rules`, made again while holding the claim. The work itself is that of
``apply``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.app.commands.apply import SkipRule, apply, skip_finished, work
from orchestrator.app.inspection.earlier_runs import PriorRun, run_to_redeploy
from orchestrator.app.run.prepared_steps import PreparedSteps, SourceOf
from orchestrator.app.run.request import (
    ApplyRequest,
    RedeployRequest,
    RerunRequest,
    RetryRequest,
    RollbackRequest,
    RunRequest,
)
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.services import Services
from orchestrator.app.steps.preparation import ModuleSource, unpacked_snapshot
from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.inputs import KEY_VARIABLE
from orchestrator.domain.blueprint.stored_deployment import changed_secrets, key_id, known_secrets
from orchestrator.domain.record.record import Lineage, OperationRecord
from orchestrator.domain.record.run_record import RunRecord, StepRun
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.rerun_rules import (
    missing_snapshot,
    module_blobs,
    promotion_blocker,
    retry_blocker,
    rollback_blocker,
    snapshot_blob,
)
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Problem, Refused


def retry(
    services: Services, deployment: Deployment, request: RetryRequest, *, earlier: PriorRun
) -> int:
    """
    Apply what a failed run left undone, from its snapshots and inputs, and return the exit code.
    """
    stored = _snapshots(services)
    request = _with_failed_targets(services, request, earlier.record)

    def rule(step: str, record: OperationRecord | None) -> str | Refused | None:
        return retry_blocker(earlier.record, step, record, stored)

    return _repeat(services, deployment, request, earlier, rule)


def _with_failed_targets(
    services: Services, request: RetryRequest, failed: RunRecord
) -> RetryRequest:
    """
    Return the request with the -target addresses of the failed run. Its -replace addresses are
    named in a warning and not repeated: the replacements may be done.
    """
    targets, replaced = failed.arguments.get("targets"), failed.arguments.get("replace")
    if replaced:
        services.note(
            f"run {failed.run_id} was to replace {', '.join(map(str, replaced))}; this one is not",
            hint="`orchestrator apply --replace ADDRESS` does it, if it is still to be done",
            level="warning",
        )
    if not targets:
        return request
    plan = replace(request.options.plan, targets=tuple(map(str, targets)))
    return replace(request, options=replace(request.options, plan=plan))


def rollback(
    services: Services, deployment: Deployment, request: RollbackRequest, *, earlier: PriorRun
) -> int:
    """
    Apply the steps as in a run in which they ended ok and verified, and return the exit code.
    """
    if not request.options.reason:
        raise Refused("reason_missing", "rollback needs a reason", hint="add --reason WHY")
    stored, unverified = _snapshots(services), request.unverified is not None

    def rule(step: str, _: OperationRecord | None) -> Refused | None:
        return rollback_blocker(earlier.record, step, stored, unverified=unverified)

    return _repeat(services, deployment, request, earlier, rule)


def redeploy(services: Services, deployment: Deployment, request: RedeployRequest) -> int:
    """
    Apply the current blueprint, modules and inputs as a new attempt, and return the exit code.
    """
    run_id = run_to_redeploy(
        services.files,
        services.store,
        request.from_run,
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        patterns=request.options.steps,
    )
    lineage = _lineage(services, request, "redeploy", run_id)
    return apply(services, deployment, replace(request, lineage=lineage))


def promote(
    services: Services, deployment: Deployment, request: ApplyRequest, *, earlier: PriorRun
) -> int:
    """
    Apply the modules of another run with this environment's inputs, and return the exit code.
    """

    def rule(step: str, record: OperationRecord | None) -> str | Refused | None:
        blocker = promotion_blocker(earlier.record, step, earlier.modules)
        return blocker or (skip_finished(step, record) if request.unfinished else None)

    lineage = _lineage(services, request, "promotion", earlier.record.run_id)
    request = replace(request, lineage=lineage)
    source = module_of_run(earlier)
    return run(services, deployment, request, partial(work, source=source, rule=rule))


def _repeat(
    services: Services,
    deployment: Deployment,
    request: RerunRequest,
    earlier: PriorRun,
    rule: SkipRule,
) -> int:
    """
    Apply the deployment of the earlier run, by default all of its steps.
    """
    steps = request.options.steps or tuple(row.step for row in earlier.record.steps)
    request = replace(
        request,
        options=replace(request.options, steps=steps),
        lineage=_lineage(services, request, request.verb, earlier.record.run_id),
    )
    source = module_of_run(earlier)

    def carry_out(runner: StepRunner, selected: Sequence[str]) -> None:
        _check_secrets(request, runner, earlier)
        work(runner, selected, source=source, rule=rule)
        _note_untouched(runner, earlier.record)

    return run(services, deployment, request, carry_out)


def _note_untouched(runner: StepRunner, earlier: RunRecord) -> None:
    """
    Report what exists and was not part of the earlier run: it stays unchanged.
    """
    rows = {row.step for row in earlier.steps}
    alive = [
        name
        for name, record in runner.steps.records.items()
        if name not in rows and record is not None and record.status not in NOTHING_THERE
    ]
    if alive:
        runner.services.note(
            f"not part of run {earlier.run_id}, left as they are: {', '.join(sorted(alive))}"
        )


def _lineage(services: Services, request: RunRequest, kind: str, run_id: str) -> Lineage:
    reason = services.masker.mask(request.options.reason) if request.options.reason else None
    return Lineage(kind=kind, from_run=run_id, reason=reason)


def module_of_run(earlier: PriorRun) -> SourceOf:
    """
    Return a source of the run's snapshots and lock files from the store, never of current modules.
    """
    rows: Mapping[str, StepRun] = {row.step: row for row in earlier.record.steps}

    def read(services: Services, name: str) -> bytes | None:
        return earlier.modules.get(name) or services.store.blob(name)

    def source(steps: PreparedSteps, step: Step, _: OperationRecord | None) -> ModuleSource:
        row = rows[step.name]
        snapshot, lock = module_blobs(row) or (None, None)
        archive = read(steps.services, snapshot) if snapshot else None
        if archive is None or row.module_digest is None:
            raise missing_snapshot(earlier.record, row)
        unpacked = unpacked_snapshot(steps.services, row.module_digest, archive)
        return ModuleSource(unpacked, read(steps.services, lock) if lock else None)

    return source


def _snapshots(services: Services) -> frozenset[str]:
    """
    Return the names of the snapshots in the store; none is ever removed.
    """
    return frozenset(services.store.blobs(snapshot_blob("")))


def _check_secrets(request: RerunRequest, runner: StepRunner, earlier: PriorRun) -> None:
    """
    Raise Refused if a secret has changed since the earlier run and that was not accepted; raises
    Invalid if an accepted one has not changed.
    """
    key, run_id = runner.services.key, earlier.record.run_id
    changed = changed_secrets(earlier.deployment, runner.deployment, key)
    accepted = set(request.accept_changed_secret)
    names = known_secrets(earlier.deployment, runner.deployment)
    problems = []
    for name in sorted(accepted - set(changed)):
        why, hint = f"it is that of run {run_id}", f"changed: {', '.join(changed) or 'none'}"
        if name not in names:
            why, hint = f"run {run_id} had no such secret", did_you_mean(name, names)
        problems.append(Problem(f"--accept-changed-secret {name}: {why}", hint=hint))
    if problems:
        raise Invalid(problems)
    for name in sorted(accepted):
        runner.services.note(
            f"the secret {name} is not that of run {run_id}, as accepted", level="warning"
        )
    open_ones = [name for name in changed if name not in accepted]
    if not open_ones:
        return
    why = "not those of"
    if earlier.deployment.key_id != key_id(key):
        why = f"made with another project key ({KEY_VARIABLE}), so they cannot be compared with"
    raise Refused(
        "changed_secret",
        f"the digests of these secrets are {why} run {run_id}: {', '.join(open_ones)}",
        hint="if they are right as they are today: "
        + " ".join(f"--accept-changed-secret {name}" for name in changed),
        accepted_by=tuple(w for name in changed for w in ("--accept-changed-secret", name)),
    )
