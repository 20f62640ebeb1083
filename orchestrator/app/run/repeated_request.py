"""
Requests with a token. A repeated one, for example of a restarted CI job, returns the run that it
made before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from orchestrator.app.inspection.earlier_runs import find_run
from orchestrator.app.run.request import RunRequest
from orchestrator.app.services import Services, await_others
from orchestrator.app.session import claimed
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import digest
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.record.states import Liveness
from orchestrator.errors import (
    Busy,
    CheckFailed,
    DeadlinePassed,
    EngineFailed,
    InDoubt,
    Refused,
    Spooled,
    StoreUnavailable,
)

#: Where a store has the run of each request.
REQUESTS = "requests/"

#: How a run ends that has done what it could; any other end leaves the request to be made again.
_OWN_END = {
    0,
    *(error.exit_code for error in (EngineFailed, InDoubt, CheckFailed, DeadlinePassed, Spooled)),
}


def earlier_run(
    services: Services,
    deployment: Deployment,
    request: RunRequest,
    selected: Sequence[str],
    run_id: str,
) -> RunRecord | None:
    """
    Return the run that has carried out this request, which has a token; None if ``run_id`` is to do
    so.

    Raises Refused if the token was used for another request, Busy while that run is in progress;
    with ``wait`` it is waited for. A run that was interrupted, or failed before it recorded
    anything, is repeated: its steps are settled as usual.
    """
    store = services.store
    name, own = _stored_request(services, deployment, request, selected, run_id)
    while True:
        stored = _parsed(store.create_blob(name, own))
        if stored["run_id"] == run_id:
            return None
        if stored["digest"] != _parsed(own)["digest"]:
            raise Refused(
                "request_token",
                f"the token {request.options.request_token} was given to another request: run "
                f"{stored['run_id']} has other inputs or options",
                hint="give each request a token of its own",
            )
        current = store.claim(deployment.blueprint, deployment.environment)
        own_claims = [
            claim
            for claim in (current.holders if current is not None else ())
            if claim.run_id == stored["run_id"]
            and services.processes.liveness(claim.owner) is not Liveness.GONE
        ]
        if not own_claims:
            break
        await_others(services, claimed(services, own_claims[0]), wait=request.options.wait)
    run = find_run(services.files, store, stored["run_id"])
    return run if run is not None and _came_to_its_end(run) else None


def take_request(
    services: Services,
    deployment: Deployment,
    request: RunRequest,
    selected: Sequence[str],
    run_id: str,
) -> None:
    """
    Record, while holding the claim, that ``run_id`` carries out the request: a run without the
    claim must not take the request from the one that has it. Raises Busy if another run has carried
    it out while this one waited for the claim.
    """
    store = services.store
    name, own = _stored_request(services, deployment, request, selected, run_id)
    stored = _parsed(store.create_blob(name, own))
    if stored["run_id"] == run_id:
        return
    run = find_run(services.files, store, stored["run_id"])
    if run is not None and _came_to_its_end(run):
        raise Busy(
            f"run {run.run_id} has carried this request out meanwhile",
            hint="run the same command again: it returns that run",
        )
    store.put_blob(name, own)


def run_of_request(data: bytes | None) -> str | None:
    """
    Return the run stored in the blob of a request.
    """
    return _parsed(data)["run_id"] if data else None


def _stored_request(
    services: Services,
    deployment: Deployment,
    request: RunRequest,
    selected: Sequence[str],
    run_id: str,
) -> tuple[str, bytes]:
    """
    Return the name of a request's blob, and its content for this run: with a digest that is equal
    for equal requests.
    """
    key = [deployment.project, deployment.blueprint, deployment.environment, request.verb]
    about = json.dumps([*key, *sorted(selected), request.options.request_token])
    approval = request.options.plan.approval
    parts = {
        "arguments": request.arguments(),
        "inputs": {name: item.value for name, item in deployment.inputs.items()},
        "approval": approval.to_json() if approval is not None else None,
    }
    content = json.dumps({"run_id": run_id, "digest": digest(parts, services.key)}).encode()
    return REQUESTS + hashlib.sha256(about.encode()).hexdigest(), content


def _came_to_its_end(run: RunRecord) -> bool:
    recorded = any(row.sequence is not None for row in run.steps)
    return run.exit_code == 0 or (run.exit_code in _OWN_END and recorded)


def _parsed(data: bytes) -> dict[str, str]:
    try:
        stored = json.loads(data)
        return {"run_id": str(stored["run_id"]), "digest": str(stored["digest"])}
    except (ValueError, TypeError, KeyError) as exc:
        raise StoreUnavailable("the stored run of a request cannot be read") from exc
