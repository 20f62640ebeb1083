"""
Prepares a step for a mutation: record, snapshot, working directory, ``init``.

Whatever can be found wrong is found here, for all steps, before the first of them mutates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.engine_calls import call, call_spec, error_text, failure, patiently
from orchestrator.app.steps.guards import StateBindings, check_state
from orchestrator.domain.blueprint.blueprint import Deployment, Output, Step
from orchestrator.domain.blueprint.inputs import ReferenceScope, digest
from orchestrator.domain.blueprint.references import Lookup, Resolved, Template, Unresolvable
from orchestrator.domain.blueprint.stored_deployment import (
    UnreadableDeployment,
    content_digest,
    parse_deployment,
    stored_form,
)
from orchestrator.domain.provider_state import PulledState, is_newer
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.run_record import PASSING_LOCKS, StateLock
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.rerun_rules import (
    deployment_blob,
    lock_blob,
    lock_file_blob,
    snapshot_blob,
)
from orchestrator.domain.secrets import replaced_at
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.domain.transitions.assessment import RefusalRules
from orchestrator.domain.values import replace
from orchestrator.errors import Busy, Invalid, Problem, Refused, StoreUnavailable
from orchestrator.ports.engine import EngineInfo, Exec, Init
from orchestrator.ports.workdir import Secret, Snapshot, WorkDir, WorkDirConfig

# Blobs that are written only where the store does not hold the same bytes already.


def read_lock_file(services: Services, target: str, snapshot: str) -> bytes | None:
    """
    Return the lock file that a target last used with the snapshot of this digest.
    """
    name = lock_blob(target, snapshot)
    lock = services.store.blob(name)
    if lock is not None:
        services.stored_blobs[name] = content_digest(lock)
    return lock


def store_lock_file(services: Services, target: str, snapshot: str, lock: bytes) -> None:
    """
    Store the lock file of a target for a snapshot, unless the store has it.
    """
    name, digest = lock_blob(target, snapshot), content_digest(lock)
    if services.stored_blobs.get(name) != digest:
        services.store.put_blob(name, lock)
        services.stored_blobs[name] = digest


def store_lock_content(services: Services, lock: bytes | None) -> str | None:
    """
    Store a lock file by its content and return the digest.
    """
    if lock is None:
        return None
    digest = content_digest(lock)
    store_once(services, lock_file_blob(digest), lock)
    return digest


def store_deployment(session: Session) -> None:
    """
    Store the run's deployment, without secrets, and set its digest in the run record.
    """
    text = stored_form(session.deployment, session.services.key).to_json().encode()
    digest = content_digest(text)
    store_once(session.services, deployment_blob(digest), text)
    session.update_run(deployment=digest)


def store_once(services: Services, name: str, data: bytes) -> None:
    """
    Store a content-addressed blob, once.
    """
    if name in services.stored_blobs:
        return
    if name not in services.store.blobs(name):
        services.store.put_blob(name, data)
    services.stored_blobs[name] = content_digest(data)


#: How the engine asks for a new choice of provider versions; it wraps its lines.
OUTDATED_LOCK = re.compile(r"init\s+-upgrade")


class PreparedStep(Struct, frozen=True):
    """
    A prepared step: its working directory is initialised and its newest record known. ``engine`` is
    the one in its working directory; ``configured`` is its provider configuration in the blueprint;
    ``bindings`` are the provider states of other targets, if it has none of its own yet.
    ``reconcile`` is the command that reconciles it, ``run_id`` the run that it was prepared for.
    """

    step: Step
    target: Target
    record: OperationRecord | None
    snapshot: Snapshot
    work_dir: WorkDir
    engine: EngineInfo
    reconcile: str
    run_id: str
    configured: Mapping[str, Resolved] = field(default_factory=dict)
    bindings: StateBindings = field(default_factory=StateBindings)


def check_recorded_state(
    services: Services,
    prepared: PreparedStep,
    state: PulledState,
    *,
    serial_may_fall: bool = False,
    may_be_missing: bool = False,
) -> None:
    """
    Compare the provider state of a step with its record, as `check_state` does, and note if it has
    moved.
    Law: state moved without us.
    """
    moved = check_state(
        str(prepared.target),
        prepared.record,
        state,
        prepared.reconcile,
        serial_may_fall=serial_may_fall,
        may_be_missing=may_be_missing,
    )
    if moved is not None:
        services.note(moved, level="warning", step=prepared.step.name)


class ModuleSource(Struct, frozen=True):
    """
    The source of a working directory: a snapshot, the initial lock file, and whether current or
    recorded inputs belong to it. ``configures_providers`` is False for work on the provider state
    alone.
    """

    snapshot: Snapshot
    lock: bytes | None
    inputs: Literal["current", "recorded"] = "current"
    configures_providers: bool = True

    def configures(self, provider: str) -> bool:
        """
        Return whether the provider with this local name needs its configuration.
        """
        return self.configures_providers and self.snapshot.uses_provider(provider)


def check_engine(info: EngineInfo, record: OperationRecord, *, allow_change: bool) -> str | None:
    """
    Raise Refused if another kind of engine wrote the target last; return a warning if a newer one
    did.
    """
    last, target = record.engine, record.target
    if record.status in NOTHING_THERE or last is None:
        return None
    if record.state_encryption and info.kind != "tofu":
        raise Refused(
            "engine_change",
            f"{target}: its provider state is encrypted, and {info.kind} cannot read it",
            hint=f"use --engine {last.kind}; to change the engine, apply without encryption first",
        )
    if allow_change:
        return None
    if last.kind != info.kind:
        raise Refused(
            "engine_change",
            f"{target} was last written by {last.kind} {last.version}, this is {info.kind} "
            f"{info.version}",
            hint=f"use --engine {last.kind}, or accept the change with --allow-engine-change",
        )
    if is_newer(last.version, info.version):
        return (
            f"its provider state was last written by {last.kind} {last.version}, this is "
            f"{info.version}: an older engine may not understand what it reads"
        )
    return None


def snapshot_of(services: Services, step: Step, record: OperationRecord | None) -> Snapshot:
    """
    Return the snapshot that the record names, else one of the current module.
    """
    applied = record.module_digest if record else None
    stored = stored_snapshot(services, applied) if applied else None
    if stored is None:
        current = services.workdirs.snapshot(step.module)
        if applied not in (None, current.digest):
            services.note(
                f"the snapshot {applied} that it was applied from is not in the store; the module "
                "is used as it is now",
                level="warning",
                step=step.name,
            )
        return current
    return stored


def stored_snapshot(services: Services, digest: str) -> Snapshot | None:
    """
    Return the snapshot of this digest, None if the store lacks it.
    """
    archive = services.store.blob(snapshot_blob(digest))
    return unpacked_snapshot(services, digest, archive) if archive is not None else None


def unpacked_snapshot(services: Services, digest: str, archive: bytes) -> Snapshot:
    """
    Return the snapshot in an archive. Raises StoreUnavailable if its digest is another.
    """
    snapshot = services.workdirs.unpack(archive)
    if snapshot.digest != digest:
        raise StoreUnavailable(
            f"the stored snapshot {digest} holds {snapshot.digest} instead",
            hint="the operation store is damaged; restore it",
        )
    return snapshot


def applied_outputs(services: Services, deployment: str, step: str) -> Sequence[Output]:
    """
    Return the outputs that the module of a step declared in the deployment of this digest; none if
    unknown.
    """
    text = services.store.blob(deployment_blob(deployment))
    try:
        outputs = parse_deployment(text or b"", deployment).steps[step].module.outputs
    except (UnreadableDeployment, KeyError):
        return ()
    return tuple(outputs.values())


def recorded_inputs_text(services: Services, record: OperationRecord | None) -> bytes | None:
    """
    Return the document with a target's recorded inputs, None if it was never applied.

    Raises StoreUnavailable if neither the store nor the run on this machine has what the record
    names.
    """
    if record is None or record.resolved_inputs_file is None:
        return None
    stored = services.store.blob(record.resolved_inputs_file)
    match record.resolved_inputs_file.split("/", 4):
        case ["runs", run_id, "steps", _, name] if stored is None:  # an export has records only
            stored = services.files.masked(run_id, record.target.step).get(name)
        case _:
            pass
    if stored is None:
        raise StoreUnavailable(
            f"{record.target}: the recorded inputs {record.resolved_inputs_file} are "
            "not in the operation store",
            hint="is it the store that the target was applied with?",
        )
    return stored


def lay_out(
    services: Services,
    deployment: Deployment,
    step: Step,
    source: ModuleSource,
    record: OperationRecord | None,
    lookup: Lookup,
    *,
    engine: EngineInfo,
    early_values: Mapping[str, Json],
) -> WorkDir:
    """
    Lay out the step's working directory with backend and providers around the snapshot.

    Raises Refused if the provider state would differ from the one in the record, Invalid if backend
    or providers need an unavailable value.
    """
    static = ReferenceScope(deployment, step).look_up
    backend = _resolved(step, "backend", step.backend.config, static)
    setup = WorkDirConfig(
        backend_type=step.backend.type,
        backend_config=backend if isinstance(backend, dict) else {},
        providers={
            name: _resolved(step, f"providers.{name}", template, lookup)
            for name, template in step.providers.items()
            if source.configures(name)
        },
        lock_file=source.lock,
        early_values=early_values,
        early_digest=digest(dict(early_values), services.key) if early_values else "",
    )
    target = deployment.target(step.name)
    work_dir = replace(
        services.workdirs.prepare(
            target, source.snapshot, setup, f"{engine.kind} {engine.version}"
        ),
        module=os.path.normpath(Path(deployment.path).parent / step.module_ref),
    )
    bound = record.provider_state if record else None
    configured = (work_dir.backend_type, work_dir.location, services.workspace)
    if record is not None and record.status in NOTHING_THERE:
        return work_dir
    if bound is not None and (bound.backend, bound.location, bound.workspace) != configured:
        raise Refused(
            "backend_changed",
            f"{target} is bound to the provider state {bound.backend} {bound.location} (workspace "
            f"{bound.workspace}), not to {work_dir.backend_type} {work_dir.location} (workspace "
            f"{services.workspace})",
            hint=f"to move it there: `orchestrator backend move '{target}'`; else set the backend "
            "back",
        )
    return work_dir


def _resolved(step: Step, setting: str, template: Template, lookup: Lookup) -> object:
    """
    Return the value of a setting with each sensitive leaf wrapped in Secret.
    """
    try:
        resolved = template.resolve(lookup)
    except Unresolvable as exc:
        raise Invalid([Problem(f"{setting} of step {step.name!r}: {exc}", step.at)]) from exc
    return replaced_at(resolved.value, resolved.secrets, lambda _path, leaf: Secret(leaf))


def lock_of(services: Services, record: OperationRecord | None, snapshot: Snapshot) -> bytes | None:
    """
    Return the lock file that was used with this very snapshot; that of another one would prevent an
    upgrade.
    """
    if record is None or record.module_digest != snapshot.digest:
        return None
    return read_lock_file(services, str(record.target), snapshot.digest)


def initialise(
    services: Services,
    step: str,
    work_dir: WorkDir,
    snapshot: Snapshot,
    evidence: Path,
    *,
    serial: int,
) -> None:
    """
    Run ``init``; registry and network errors are retried.

    If the module changed its provider constraints and has no lock file of its own, new provider
    versions are selected. ``serial`` makes the names of the calls unique.
    """
    services.report_phase(step, "init")

    request, name = Init(work_dir.backend_file), f"init-{serial}"
    result = patiently(services, step, "init", request, work_dir, evidence, name)
    if (
        result.exit_code != 0
        and not snapshot.has_lock_file
        and OUTDATED_LOCK.search(error_text(result))
    ):
        services.note(
            "the module no longer accepts the provider versions it was locked to: new ones are "
            "selected",
            level="warning",
            step=step,
        )
        spec = call_spec(services, work_dir, evidence, f"init-{serial}-upgrade")
        upgrade = Init(work_dir.backend_file, upgrade=True)
        result = call(services, upgrade, spec, stop=services.stop)
    if result.exit_code != 0:
        raise failure(result, "init", services.stop)
    services.workdirs.mark_initialised(work_dir)


def state_encryption(services: Services, prepared: PreparedStep) -> str:
    """
    Return the keyed digest of the engine's state encryption settings, "" without encryption.
    """
    settings = services.environ.get("TF_ENCRYPTION", ""), prepared.snapshot.encryption
    if prepared.engine.kind != "tofu" or not any(settings):
        return ""
    return digest([*settings, dict(prepared.work_dir.early_values)], services.key)


def refusal_rules(step: Step) -> RefusalRules:
    """
    Return the step's rules for errors by which its provider reports that it did nothing.
    """
    return RefusalRules(step.refused_on, step.retry.on if step.retry else ())


# The lock of a step's provider state, asked for.


#: Takes the lock for a moment, changes nothing, and loads no provider.
_ASK = ("state", "rm", "-no-color", "-dry-run", "-lock-timeout=0s", "terraform_data.nobody")
_EMPTY = "No state file was found"


def state_lock_of(services: Services, prepared: PreparedStep) -> StateLock | None:
    """
    Return the lock on a step's provider state, None if it is not locked.
    """
    number = services.ids.entry_id()[:8]
    evidence = services.files.attempt(prepared.run_id, prepared.step.name, 1)
    spec = call_spec(services, prepared.work_dir, evidence, f"lock-{number}")
    result = call(services, Exec(_ASK), spec, stop=services.stop)
    if result.lock is None and result.exit_code != 0 and _EMPTY not in result.stderr_text:
        raise failure(result, "lock", services.stop)
    return result.lock


def check_engine_gone(services: Services, prepared: PreparedStep) -> None:
    """
    Raise Busy if the step's provider state is locked by a lock that ends with its process: then an
    engine is alive, whatever is known of the run.
    """
    if prepared.work_dir.backend_type not in PASSING_LOCKS:
        return
    lock = state_lock_of(services, prepared)
    if lock is not None:
        raise Busy(
            f"{prepared.step.name}: an engine that is alive holds the lock of its state: {lock}",
            hint="wait for its end; nothing was changed",
        )
