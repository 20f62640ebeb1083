"""
Rules for repeating a run: retry, rollback and promotion, judged by records alone.

Each function is called before the remedy is offered and again when it is executed, so both say the
same: the refusal. Nothing here reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import RunRecord, StepRun
from orchestrator.domain.record.states import READY, Status, StepStatus
from orchestrator.errors import Refused

#: The commands whose runs apply; only these can be repeated.
APPLYING = ("apply", "retry", "redeploy", "rollback")


def deployment_blob(deployment: str) -> str:
    return f"deployments/{deployment}"


def snapshot_blob(digest: str) -> str:
    return f"snapshots/{digest}"


def lock_blob(target: str, snapshot: str) -> str:
    """
    Return the blob name of the lock file that a target last used with a snapshot.
    """
    return f"locks/{target}/{snapshot}"


def lock_file_blob(digest: str) -> str:
    return f"lockfiles/{digest}"


def step_of(run: RunRecord, step: str) -> StepRun | None:
    """
    Return the run's row of a step, None if the step was not part of it.
    """
    return next((row for row in run.steps if row.step == step), None)


def failed_run(record: OperationRecord) -> str | None:
    """
    Return the run that a record names as failed, interrupted, or as an apply that changed nothing;
    None if it names none.
    """
    if record.status in (Status.ERROR, Status.RUNNING):
        return record.run_id
    attempt = record.last_attempt
    failed = attempt is not None and attempt.command == "apply" and attempt.error is not None
    return attempt.run_id if attempt is not None and failed else None


def run_to_repeat(records: Sequence[OperationRecord]) -> str | Refused:
    """
    Return the one run that the records name as failed; no other is guessed.
    """
    failed = {record.target.step: failed_run(record) for record in records}
    runs = {step: run for step, run in failed.items() if run is not None}
    return _single_run(runs, "failed")


def run_to_follow(records: Sequence[OperationRecord]) -> str | Refused:
    """
    Return the run that a new attempt follows: the failed one, else the one that all records come
    from.
    """
    if not records:
        first = "`orchestrator apply` is the first attempt"
        return Refused("unknown_run", "no run of it is known here", hint=first)
    if any(failed_run(record) for record in records):
        return run_to_repeat(records)
    return _single_run({record.target.step: record.run_id for record in records}, "were run")


def _single_run(run_of_step: Mapping[str, str], what: str) -> str | Refused:
    runs = sorted(set(run_of_step.values()))
    if len(runs) == 1:
        return runs[0]
    if not runs:
        message = f"no record names steps that {what}"
        return Refused(
            "unknown_run",
            message,
            hint="name the run with --from-run; `orchestrator runs` lists them",
        )
    listed = ", ".join(f"{step} in {run}" for step, run in sorted(run_of_step.items()))
    return Refused(
        "several_runs",
        f"steps {what} in several runs: {listed}",
        hint="name one step with --step, or the run with --from-run",
    )


def run_blocker(
    run_id: str,
    run: RunRecord | None,
    stored: Collection[str],
    *,
    project: str,
    blueprint: str,
    environment: str | None,
) -> Refused | None:
    """
    Return what forbids to repeat a run, whatever the step. ``stored`` are the blob names in the
    operation store; ``environment`` is None if the run may be of any.
    """
    stranger = run_identity_blocker(
        run_id, run, project=project, blueprint=blueprint, environment=environment
    )
    if run is None or stranger is not None:
        return stranger
    if run.command not in APPLYING:
        return Refused(
            "other_command",
            f"run {run_id} was `{run.command}`: only what applied can be done again",
            hint="`orchestrator runs` lists the others",
        )
    if run.deployment is None or deployment_blob(run.deployment) not in stored:
        return Refused(
            "snapshot_missing",
            f"what run {run_id} meant to do is not in the operation store",
            hint="it ended before its first step, an older version made it, or it is another "
            "store; `orchestrator redeploy` works from the files as they are now",
        )
    return None


def run_identity_blocker(
    run_id: str,
    run: RunRecord | None,
    *,
    project: str,
    blueprint: str,
    environment: str | None,
) -> Refused | None:
    """
    Return what forbids to use a run: it does not exist, or belongs to another project or blueprint.
    """
    if run is None:
        options = f"--blueprint {blueprint}" + (f" -e {environment}" if environment else "")
        hint = f"`orchestrator runs {options}` lists them"
        return Refused("unknown_run", f"there is no run {run_id}", hint=hint)
    if run.project != project:
        return Refused(
            "foreign_record",
            f"run {run_id} is of project {run.project!r}, this is {project!r}",
            hint="where it is ours, orchestrator.yaml says so: `project: NAME`",
        )
    if run.blueprint != blueprint or environment not in (None, run.environment):
        expected = f"{blueprint}/{environment}" if environment else blueprint
        return Refused(
            "other_blueprint",
            f"run {run_id} is of {run.blueprint}/{run.environment}, not of {expected}",
            hint=f"`orchestrator runs --blueprint {blueprint}` lists the right ones",
        )
    return None


def retry_blocker(
    run: RunRecord, step: str, record: OperationRecord | None, stored: Collection[str]
) -> Refused | str | None:
    """
    Return what forbids to retry a step of a failed run, or why there is nothing to retry. The run
    has passed `run_blocker`; doubts are checked later, when the provider state can be read.
    """
    row = step_of(run, step)
    if row is None:
        return _not_in_run(run, step)
    later = record is not None and record.run_id > run.run_id
    if record is not None and record.status in READY and record.compensation is None:
        if later or record.run_id == run.run_id:
            return f"already ok, by run {record.run_id}"
        if row.status in (StepStatus.OK, StepStatus.RETAINED, StepStatus.SKIPPED):
            return "already ok"
    if record is not None and later:
        return Refused(
            "superseded",
            f"{step} has been worked on since, by run {record.run_id}: it is `{record.status}`",
            hint="retry that run instead, or name the one to go back to with `orchestrator "
            "rollback`",
        )
    if record is not None and _is_moved(record, run):
        return Refused(
            "moved",
            f"the provider state of {step} was moved after run {run.run_id}",
            hint="apply the current files: `orchestrator redeploy`",
        )
    return _snapshot_blocker(run, row, stored)


def _is_moved(record: OperationRecord, run: RunRecord) -> bool:
    """
    Return whether the record of a step that the run applied names another deployment since.
    """
    known = record.deployment is not None and run.deployment is not None
    return known and record.run_id == run.run_id and record.deployment != run.deployment


def rollback_blocker(
    run: RunRecord, step: str, stored: Collection[str], *, unverified: bool
) -> Refused | None:
    """
    Return what forbids to roll a step back to a run; ``unverified`` accepts one whose checks did
    not run. The run has passed `run_blocker`.
    """
    row = step_of(run, step)
    if row is None:
        return _not_in_run(run, step)
    if not _reached_goal(row):
        return _not_ok(run, row)
    verdict = row.verification.verdict if row.verification else "unverified"
    if verdict != "verified" and not unverified:
        return Refused(
            "unverified",
            f"{step} was not verified in run {run.run_id}: it has no checks",
            hint="go back to it all the same with --unverified REASON",
        )
    return _snapshot_blocker(run, row, stored)


def promotion_blocker(run: RunRecord, step: str, stored: Collection[str]) -> Refused | None:
    """
    Return what forbids to use the module of a step from a run. The run has passed `run_blocker`.
    """
    row = step_of(run, step)
    if row is None:
        return _not_in_run(run, step)
    return _snapshot_blocker(run, row, stored) if _reached_goal(row) else _not_ok(run, row)


def _reached_goal(row: StepRun) -> bool:
    """
    Return whether the step ended ok in the run, or was skipped because the same deployment had been
    applied.
    """
    if row.status is StepStatus.SKIPPED:
        return row.module_digest is not None
    return row.status in (StepStatus.OK, StepStatus.RETAINED)


def _not_in_run(run: RunRecord, step: str) -> Refused:
    names = ", ".join(row.step for row in run.steps)
    return Refused(
        "not_in_run", f"{step} was not part of run {run.run_id}", hint=f"it had: {names}"
    )


def _not_ok(run: RunRecord, row: StepRun) -> Refused:
    why = f" ({row.reason})" if row.reason else ""
    hint = "name a run in which it ended ok; `orchestrator runs` lists them"
    if row.status is StepStatus.SKIPPED:
        hint = "another run applied it: `orchestrator history` of the target names it"
    return Refused(
        "not_ok", f"{row.step} is `{row.status}` in run {run.run_id}{why}, not ok", hint=hint
    )


def _snapshot_blocker(run: RunRecord, row: StepRun, stored: Collection[str]) -> Refused | None:
    if row.module_digest is not None and snapshot_blob(row.module_digest) in stored:
        return None
    return missing_snapshot(run, row)


def module_blobs(row: StepRun) -> tuple[str, ...]:
    """
    Return the blob names of the step's snapshot and lock file in the run.
    """
    if row.module_digest is None:
        return ()
    lock = lock_blob(row.target, row.module_digest)
    if row.lock_digest is not None:
        lock = lock_file_blob(row.lock_digest)
    return snapshot_blob(row.module_digest), lock


def missing_snapshot(run: RunRecord, row: StepRun) -> Refused:
    return Refused(
        "snapshot_missing",
        f"the module of {row.step} as of run {run.run_id} is not in the operation store",
        hint="is it the store that the run used? "
        "`orchestrator redeploy` works from the files as they are now",
    )
