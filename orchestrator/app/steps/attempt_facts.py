"""
The facts of an attempt, before it mutates: for its entries, and for later runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from orchestrator.app.session import Session
from orchestrator.app.steps.engine_plan import Direction, PlanOptions
from orchestrator.app.steps.preparation import (
    PreparedStep,
    state_encryption,
    store_lock_content,
    store_lock_file,
    store_once,
)
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.blueprint.stored_deployment import content_digest
from orchestrator.domain.provider_query.scope import fingerprint, scope
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.entry_changes import EntryChanges, changes_in_run
from orchestrator.domain.record.record import EngineRef, ProviderState, TargetRef
from orchestrator.domain.recovery.rerun_rules import snapshot_blob
from orchestrator.domain.target import hook_of

_RESOLVED = "resolved.inputs.yml"
_LOCKED_PROVIDER = re.compile(
    rb'^provider "(?P<address>[^"]+)" \{[^}]*?^\s*version\s*=\s*"(?P<version>[^"]+)"', re.M | re.S
)


class AttemptFacts:
    """
    The facts of one attempt at a step, whose files are in ``evidence``.

    A destroy uses the recorded inputs and leaves their record unchanged.
    """

    def __init__(
        self,
        session: Session,
        prepared: PreparedStep,
        inputs: StepInputs,
        options: PlanOptions,
        *,
        verb: Direction,
        attempt: int,
        evidence: Path,
    ) -> None:
        self._session = session
        self._services = session.services
        self._prepared = prepared
        self._inputs = inputs
        self._options = options
        self._verb = verb
        self._attempt = attempt
        self._evidence = evidence

    def write_inputs(self) -> None:
        """
        Write the module's input values and, once per run, the blueprint's inputs, for people and
        for later runs.
        """
        self._services.files.write(self._evidence / _RESOLVED, self._resolved_inputs)
        self._session.rerun_inputs()

    def of(self, state: PulledState) -> EntryChanges:
        """
        Return the fields of an entry that is written while the provider state is ``state``.
        """
        services, root, engine = self._services, self._prepared.work_dir, self._prepared.engine
        providers = _providers(services.workdirs.lock_file(root))
        snapshot = self._prepared.snapshot
        changes: EntryChanges = {
            **changes_in_run(self._session.run_id, attempt=self._attempt),
            "provider_state": ProviderState(
                backend=root.backend_type,
                location=root.location,
                workspace=services.workspace,
                lineage=state.lineage or None,
                serial=state.serial if state.lineage else None,
            ),
            "source": services.source(),
            "engine": EngineRef(kind=engine.kind, version=engine.version),
            "lineage": self._session.run.lineage,
            "module_digest": snapshot.digest,
            "providers": providers,
            "protected": tuple(item.address for item in snapshot.protected),
        }
        if self._prepared.record is None or self._verb == "apply":
            changes |= self._applied(providers)
        return changes

    def _applied(self, providers: Mapping[str, str]) -> EntryChanges:
        """
        Return the fields that an apply sets. A destroy uses the recorded inputs and keeps these
        fields.
        """
        deployment, step = self._session.deployment, self._prepared.step
        target = deployment.target(step.name)
        return {
            "project": deployment.project,
            "target_ref": TargetRef(
                blueprint=target.blueprint, environment=target.environment, step=target.step
            ),
            "module_ref": step.module_ref,
            "targets": self._options.targets,
            "inputs_digest": self._inputs.digest(self._services.key),
            "resolved_inputs_file": self._resolved_inputs_file,
            "resolved_inputs_digest": self._resolved_inputs_digest,
            "rerun_inputs_file": f"runs/{self._session.run_id}/{self._session.rerun_inputs()}",
            "parent": str(deployment.target(step.owned_by)) if step.owned_by else None,
            "needs": tuple(sorted(step.needs)),
            "deployment": self._session.run.deployment,
            "verify_absence": step.verify_absence,
            "scope": scope(
                {*self._prepared.snapshot.all_provider_sources.values(), *providers},
                self._services.environ,
                self._prepared.configured,
                fingerprint,
            ),
            "state_encryption": state_encryption(self._services, self._prepared),
        }

    @cached_property
    def _resolved_inputs(self) -> str:
        return self._inputs.resolved_text(self._session.deployment, self._services.key)

    @cached_property
    def _resolved_inputs_digest(self) -> str:
        return content_digest(self._resolved_inputs.encode())

    @property
    def _resolved_inputs_file(self) -> str:
        """
        The blob of the resolved inputs: that of an earlier run if they are equal, else that of this
        attempt.
        """
        record = self._prepared.record
        if record is not None and record.resolved_inputs_digest == self._resolved_inputs_digest:
            return record.resolved_inputs_file or f"{self._place}/{_RESOLVED}"
        return f"{self._place}/{_RESOLVED}"

    @property
    def _place(self) -> str:
        """
        The attempt's directory in records, relative to the tool's own.
        """
        relative = self._evidence.relative_to(self._session.directory).as_posix()
        return f"runs/{self._session.run_id}/{relative}"

    def store_for_reruns(self) -> None:
        """
        Store what a later run on another machine needs; durable on return.
        """
        services, snapshot = self._services, self._prepared.snapshot
        step = self._prepared.step.name
        store_once(services, snapshot_blob(snapshot.digest), snapshot.archive)
        lock = services.workdirs.lock_file(self._prepared.work_dir)
        if lock is not None:
            target = str(self._session.deployment.target(step))
            store_lock_file(services, target, snapshot.digest, lock)
        if self._verb == "apply":
            lock_digest = store_lock_content(services, lock)
            if hook_of(step) is None:  # the run has a row for each step, none for its actions
                self._session.update_row(
                    step, module_digest=snapshot.digest, lock_digest=lock_digest
                )
            if self._resolved_inputs_file.startswith(self._place):
                text = self._resolved_inputs.encode()
                services.store.put_blob(self._resolved_inputs_file, text)
            self._session.store_rerun_inputs()


def _providers(lock_file: bytes | None) -> Mapping[str, str]:
    """
    Return the addresses and versions of the providers in a lock file.
    """
    if lock_file is None:
        return {}
    return {
        match["address"].decode(): match["version"].decode()
        for match in _LOCKED_PROVIDER.finditer(lock_file)
    }
