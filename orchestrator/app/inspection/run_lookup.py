"""
Runs of the past, from this machine or from the operation store, and what they meant to do.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.recovery.rerun_rules import (
    Blocker,
    deployment_blob,
    failed_run,
    promotion_blocker,
    run_blocker,
    run_identity_blocker,
    run_to_follow,
    run_to_repeat,
)
from orchestrator.errors import Refused, StoreUnavailable

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.stored_deployment import StoredDeployment
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.store import OperationStore


class PriorRun(Struct, frozen=True):
    """
    An applying run of the past, and what it meant to do. ``modules`` are blobs of its snapshots and
    lock files, by name, where the run that comes from it has another operation store.
    """

    record: RunRecord
    deployment: StoredDeployment
    modules: Mapping[str, bytes] = {}


def find_run(files: RunFiles, store: OperationStore, run_id: str) -> RunRecord | None:
    """
    The record of a run; None where no run has that id.
    """
    local = files.read_run(run_id)
    if local is not None:
        return local
    stored = store.blob(f"runs/{run_id}/run.json")
    if stored is None:
        return None
    try:
        return RunRecord.model_validate_json(stored)
    except ValueError as exc:
        raise StoreUnavailable(f"the stored record of run {run_id} cannot be read") from exc


def store_of_run(stores: Iterable[OperationStore], run_id: str) -> OperationStore | None:
    """
    The first of the stores that has a run. StoreUnavailable where none of those that answer has it,
    and one does not.
    """
    silent: StoreUnavailable | None = None
    for store in stores:
        try:
            if store.blob(f"runs/{run_id}/run.json") is not None:
                return store
        except StoreUnavailable as exc:
            silent = silent or exc
    if silent is not None:
        raise silent
    return None


def stored_evidence(store: OperationStore, run_id: str, step: str) -> dict[str, bytes]:
    """
    What the operation store has of the files that a step left in a run; empty where it has none.
    """
    from orchestrator.domain.record.run_record import evidence_blob, unpack_evidence

    data = store.blob(evidence_blob(run_id, step))
    try:
        return unpack_evidence(data) if data else {}
    except ValueError as exc:
        raise StoreUnavailable(
            f"{store.url}: what step {step!r} left in run {run_id} cannot be read: {exc}",
            hint="the operation records are not affected",
        ) from exc


def run_to_retry(
    store: OperationStore, blueprint: str, environment: str, patterns: Sequence[str]
) -> str:
    """
    The run that the records of the steps name as failed; if those name none, the records of all
    steps: a step that never ran waits for another. Refused where that is not one run.
    """
    records = store.records(blueprint, environment)
    chosen = [record for record in records if _matches(record, patterns)]
    return _certain(run_to_repeat(chosen if any(map(failed_run, chosen)) else records))


def run_to_redeploy(
    files: RunFiles,
    store: OperationStore,
    run_id: str | None,
    *,
    project: str,
    blueprint: str,
    environment: str,
    patterns: Sequence[str],
) -> str:
    """
    The run that a new attempt at the steps comes after: ``run_id``, else by their records, else by
    those of all steps. Refused where that is not one run of the blueprint and environment.
    """
    if run_id is not None:
        run = find_run(files, store, run_id)
        stranger = run_identity_blocker(
            run_id, run, project=project, blueprint=blueprint, environment=environment
        )
        return _certain(stranger or run_id)
    records = store.records(blueprint, environment)
    chosen = [record for record in records if _matches(record, patterns)]
    return _certain(run_to_follow(chosen or records))


def _certain(result: str | Blocker) -> str:
    if isinstance(result, Blocker):
        raise refusal([result])
    return result


def read_prior_run(
    files: RunFiles,
    store: OperationStore,
    run_id: str,
    *,
    project: str,
    blueprint: str,
    environment: str | None,
) -> PriorRun:
    """
    A run that can be repeated. Refused where it cannot, as `rerun_rules.run_blocker` decides;
    StoreUnavailable where its deployment cannot be read.
    """
    from orchestrator.domain.blueprint.stored_deployment import (
        UnreadableDeployment,
        parse_deployment,
    )

    run = find_run(files, store, run_id)
    stored = store.blobs("deployments/")
    blocker = run_blocker(
        run_id, run, stored, project=project, blueprint=blueprint, environment=environment
    )
    if blocker is not None:
        raise refusal([blocker])
    assert run is not None, "an unknown run is a blocker"
    assert run.deployment is not None, "so is one without a deployment"
    text = store.blob(deployment_blob(run.deployment)) or b""
    try:
        return PriorRun(run, parse_deployment(text, run.deployment))
    except UnreadableDeployment as exc:
        raise StoreUnavailable(
            f"what run {run_id} meant to do cannot be read: {exc}",
            hint="another version of the tool wrote it, or the operation store is damaged",
        ) from exc


def check_promotable(stored: Collection[str], run: RunRecord, steps: Sequence[str]) -> None:
    """
    Refused, with all of them, where a step's module cannot be taken from the run and the snapshots
    that are ``stored``.
    """
    checks = (promotion_blocker(run, step, stored) for step in steps)
    blockers = [blocker for blocker in checks if blocker is not None]
    if blockers:
        raise refusal(blockers)


def refusal(blockers: Sequence[Blocker]) -> Refused:
    """
    The error that names all blockers, with the reason and hint of the first.
    """
    first = blockers[0]
    return Refused(first.reason, "\n".join(item.message for item in blockers), hint=first.hint)


def _matches(record: OperationRecord, patterns: Sequence[str]) -> bool:
    """
    Whether a step is one that the patterns name, those added by "+" aside.
    """
    step = record.target.step
    return not patterns or any(fnmatch.fnmatchcase(step, p.strip("+")) for p in patterns)
