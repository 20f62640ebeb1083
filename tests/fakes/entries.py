"""
Entries, claims and leases for tests: complete, and small where nothing is said.
"""

from __future__ import annotations

from orchestrator.domain.record.entry_changes import EntryChanges, changes_in_run
from orchestrator.domain.record.record import (
    Actor,
    OperationRecord,
    ProviderState,
    Source,
    TargetRef,
)
from orchestrator.domain.record.run_record import Claim, Lease, ProcessIdentity, RunRecord, StepRun
from orchestrator.domain.record.states import Status
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from tests.fakes.clock import START

ACTOR = Actor(user="ada", host="workshop")
OWNER = ProcessIdentity(
    host="workshop", boot_id="b00t", pid=4711, pid_namespace="pid:[1]", started=99
)
NETWORK = Target("web", "prod", "network")


def entry(
    target: Target = NETWORK, sequence: int = 1, entry_id: str | None = None, **fields: Json
) -> OperationRecord:
    """
    An entry of a target; its id is unique for target and sequence unless given.
    """
    filled: dict[str, Json] = {
        "module_ref": "modules/network",
        "status": Status.OK,
        "run_id": "20300102T030405Z-000001",
        "project": "acme",
        "target_ref": TargetRef(
            blueprint=target.blueprint, environment=target.environment, step=target.step
        ),
        "sequence": sequence,
        "entry_id": entry_id or f"{target}#{sequence}",
        "updated_at": START,
        "actor": ACTOR,
        "source": Source(blueprint_path="blueprints/web.yaml"),
    }
    return OperationRecord.model_validate(filled | fields)


def run_record(run_id: str, *rows: StepRun, **fields: Json) -> RunRecord:
    """
    The record of an apply with these rows.
    """
    filled: dict[str, Json] = {
        "run_id": run_id,
        "project": "acme",
        "blueprint": "web",
        "environment": "prod",
        "command": "apply",
        "actor": ACTOR,
        "source": Source(blueprint_path="blueprints/web.yaml"),
        "started_at": START,
        "deployment": "sha256:d",
        "steps": rows,
    }
    return RunRecord.model_validate(filled | fields)


def facts(run_id: str = "run-2", *, provider_state: ProviderState | None = None) -> EntryChanges:
    """
    What a run knows of a target, as its first entry needs it.
    """
    known = entry()
    return {
        **changes_in_run(run_id, provider_state=provider_state),
        "source": known.source,
        "engine": None,
        "project": known.project,
        "target_ref": known.target_ref,
        "module_ref": known.module_ref,
    }


def claim(run_id: str, *, blueprint: str = "web", environment: str = "prod") -> Claim:
    return Claim(
        blueprint=blueprint,
        environment=environment,
        run_id=run_id,
        command="apply",
        owner=OWNER,
        actor=ACTOR,
        taken_at=START,
    )


def lease(run_id: str, *, age: float = 0.0) -> Lease:
    return Lease(run_id=run_id, owner=OWNER, age=age)
