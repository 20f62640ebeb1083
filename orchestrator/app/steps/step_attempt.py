"""
An attempt at a step, and what it records before it mutates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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


class StepAttempt:
    """
    One attempt at a step of a run: what it works with, its files in ``evidence``, and what it
    records before it mutates, for its entries and for later runs.

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
        attempt: int = 1,
    ) -> None:
        self.session = session
        self.services = session.services
        self.prepared = prepared
        self.inputs = inputs
        self.options = options
        self.verb = verb
        self.attempt = attempt
        self.step = prepared.step
        self.target = str(prepared.target)
        self.evidence = self.services.files.attempt(session.run_id, self.step.name, attempt)
        self._resolved = inputs.resolved_text(session.deployment, self.services.key)
        self._resolved_digest = content_digest(self._resolved.encode())
        # Inputs that are those of the earlier entry are stored already.
        path = self.evidence.relative_to(session.directory).as_posix()
        own, record = f"runs/{session.run_id}/{path}/{_RESOLVED}", prepared.record
        same = record is not None and record.resolved_inputs_digest == self._resolved_digest
        earlier = record.resolved_inputs_file if record is not None and same else None
        self._resolved_file = earlier or own
        self._stores_inputs = self._resolved_file == own

    def write_inputs(self) -> None:
        """
        Write the module's input values and, once per run, the blueprint's inputs, for people and
        for later runs.
        """
        self.services.files.write(self.evidence / _RESOLVED, self._resolved)
        self.session.rerun_inputs()

    def facts(self, state: PulledState) -> EntryChanges:
        """
        Return the fields of an entry that is written while the provider state is ``state``.
        """
        services, root, engine = self.services, self.prepared.work_dir, self.prepared.engine
        lock_file = services.workdirs.lock_file(root) or b""
        providers = {
            match["address"].decode(): match["version"].decode()
            for match in _LOCKED_PROVIDER.finditer(lock_file)
        }
        snapshot = self.prepared.snapshot
        changes: EntryChanges = {
            **changes_in_run(self.session.run_id, attempt=self.attempt),
            "provider_state": ProviderState(
                backend=root.backend_type,
                location=root.location,
                workspace=services.workspace,
                lineage=state.lineage or None,
                serial=state.serial if state.lineage else None,
            ),
            "source": services.source(),
            "engine": EngineRef(kind=engine.kind, version=engine.version),
            "lineage": self.session.run.lineage,
            "module_digest": snapshot.digest,
            "providers": providers,
            "protected": tuple(item.address for item in snapshot.protected),
        }
        if self.prepared.record is None or self.verb == "apply":
            changes |= self._applied(providers)
        return changes

    def _applied(self, providers: Mapping[str, str]) -> EntryChanges:
        """
        Return the fields that an apply sets. A destroy uses the recorded inputs and keeps these
        fields.
        """
        deployment, step = self.session.deployment, self.prepared.step
        target = deployment.target(step.name)
        return {
            "project": deployment.project,
            "target_ref": TargetRef(
                blueprint=target.blueprint, environment=target.environment, step=target.step
            ),
            "module_ref": step.module_ref,
            "targets": self.options.targets,
            "inputs_digest": self.inputs.digest(self.services.key),
            "resolved_inputs_file": self._resolved_file,
            "resolved_inputs_digest": self._resolved_digest,
            "rerun_inputs_file": f"runs/{self.session.run_id}/{self.session.rerun_inputs()}",
            "parent": str(deployment.target(step.owned_by)) if step.owned_by else None,
            "needs": tuple(sorted(step.needs)),
            "deployment": self.session.run.deployment,
            "verify_absence": step.verify_absence,
            "scope": scope(
                {*self.prepared.snapshot.all_provider_sources.values(), *providers},
                self.services.environ,
                self.prepared.configured,
                fingerprint,
            ),
            "state_encryption": state_encryption(self.services, self.prepared),
        }

    def store_for_reruns(self) -> None:
        """
        Store what a later run on another machine needs; durable on return.
        """
        services, snapshot = self.services, self.prepared.snapshot
        step = self.prepared.step.name
        store_once(services, snapshot_blob(snapshot.digest), snapshot.archive)
        lock = services.workdirs.lock_file(self.prepared.work_dir)
        if lock is not None:
            target = str(self.session.deployment.target(step))
            store_lock_file(services, target, snapshot.digest, lock)
        if self.verb == "apply":
            lock_digest = store_lock_content(services, lock)
            if hook_of(step) is None:  # the run has a row for each step, none for its actions
                self.session.update_row(
                    step, module_digest=snapshot.digest, lock_digest=lock_digest
                )
            if self._stores_inputs:
                services.store.put_blob(self._resolved_file, self._resolved.encode())
            self.session.store_rerun_inputs()
