"""
What an applying run keeps in the operation store before it mutates: all that a later run needs to
do the same again, of the steps that it may not get to as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.app.run.prepared_steps import PreparedSteps, SourceOf
from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.preparation import (
    read_lock_file,
    store_lock_content,
    store_once,
    store_snapshot,
)
from orchestrator.domain.blueprint.stored_deployment import content_digest, stored_form
from orchestrator.domain.record.run_record import StepRun, StepRunChanges
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.errors import OrchestratorError, StoreUnavailable
from orchestrator.ports.workdir import Snapshot


def store_deployment(runner: StepRunner) -> None:
    """
    Store the deployment of the run, without secrets, and set its digest in the run's record.
    """
    services = runner.services
    text = stored_form(runner.deployment, services.key).to_json().encode()
    digest = content_digest(text)
    store_once(services, deployment_blob(digest), text)
    runner.session.set_deployment(digest)


def store_snapshots(
    runner: StepRunner, steps: Sequence[str], source: SourceOf
) -> dict[str, OrchestratorError]:
    """
    Store the snapshot that each step is to be applied from, and the run's record with their
    digests. Returns the steps whose module could not be packed, with the error.
    """
    failures: dict[str, OrchestratorError] = {}
    rows: dict[str, StepRun] = {}
    for name in steps:
        try:
            snapshot = _snapshot(runner.steps, name, source)
        except StoreUnavailable:
            raise
        except OrchestratorError as exc:
            failures[name] = exc
            continue
        store_snapshot(runner.services, snapshot)
        lock = None
        prepared = runner.steps.prepared.get(name)
        if prepared is not None:
            lock = store_lock_content(
                runner.services, runner.services.workdirs.lock_file(prepared.work_dir)
            )
        pinned = {"module_digest": snapshot.digest, "lock_digest": lock}
        rows[name] = runner.session.result(name).model_copy(update=pinned)
    runner.session.report_all(rows)
    runner.session.publish()
    return failures


def _snapshot(steps: PreparedSteps, name: str, source: SourceOf) -> Snapshot:
    if name in steps.prepared:
        return steps.prepared[name].snapshot
    return source(steps, steps.deployment.steps[name], steps.records.get(name)).snapshot


def carried_over(runner: StepRunner, name: str) -> StepRunChanges:
    """
    The digests in the run's row of a step that the run skips as ok, so that a rerun of this run
    covers that step, too. Empty where the step was applied from another deployment.
    """
    record, services = runner.steps.records.get(name), runner.services
    if record is None or record.deployment != runner.session.run.deployment:
        return {}
    lock = read_lock_file(services, str(record.target.target), str(record.module_digest))
    return {
        "module_digest": record.module_digest,
        "lock_digest": store_lock_content(services, lock),
        "verification": record.verification,
    }
