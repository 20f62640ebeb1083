"""
What an applying run keeps in the operation store before it mutates: all that a later run needs to
do the same again, of the steps that it may not get to as well (DESIGN 7, 10).
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.app.bench import Bench, PinOf
from orchestrator.app.crew import Crew
from orchestrator.app.earlier import find_run
from orchestrator.app.keeping import keep_blob, keep_lock, keep_snapshot
from orchestrator.domain.frozen import freeze, text_digest
from orchestrator.domain.lineage import deployment_blob, step_of
from orchestrator.domain.record import StepRun
from orchestrator.errors import OrchestratorError, StoreUnavailable
from orchestrator.ports import Snapshot


def keep_deployment(crew: Crew) -> None:
    """
    Keep what the run means to do, without secrets, and name it in the run's record.
    """
    services = crew.services
    text = freeze(crew.deployment, services.key).to_json()
    digest = text_digest(text)
    keep_blob(services, deployment_blob(digest), text.encode())
    crew.session.means(digest)


def keep_steps(crew: Crew, steps: Sequence[str], pin: PinOf) -> dict[str, OrchestratorError]:
    """
    Keep the snapshot that each step is to be applied from, and the run's record with their digests;
    by step, what could not be packed.
    """
    failures: dict[str, OrchestratorError] = {}
    rows: dict[str, StepRun] = {}
    for name in steps:
        try:
            snapshot = _snapshot(crew.bench, name, pin)
        except StoreUnavailable:
            raise
        except OrchestratorError as exc:
            failures[name] = exc
            continue
        keep_snapshot(crew.services, snapshot)
        lock = None
        prepared = crew.bench.prepared.get(name)
        if prepared is not None:
            lock = keep_lock(crew.services, crew.services.workdirs.lock_file(prepared.root))
        pinned = {"module_digest": snapshot.digest, "lock_digest": lock}
        rows[name] = crew.session.result(name).model_copy(update=pinned)
    crew.session.report_all(rows)
    crew.session.publish()
    return failures


def _snapshot(bench: Bench, name: str, pin: PinOf) -> Snapshot:
    if name in bench.prepared:
        return bench.prepared[name].snapshot
    return pin(bench, bench.deployment.steps[name], bench.records.get(name)).snapshot


def vouched(crew: Crew, name: str) -> StepRun | None:
    """
    The row of the run that made a step ok, if that run meant the same as this one does: then this
    run stands for the step too. None if it meant something else.
    """
    record = crew.bench.records.get(name)
    run = find_run(crew.services.files, crew.services.store, record.run_id) if record else None
    if record is None or run is None or run.deployment != crew.session.run.deployment:
        return None
    row = step_of(run, name)
    return row if row is not None and row.module_digest == record.module_digest else None
