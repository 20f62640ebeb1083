"""
What is made ready before a step may mutate: record, snapshot, working directory, ``init``.

Whatever can be found wrong is found here, for all steps, before the first of them mutates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.domain.blueprint import Deployment, Step
from orchestrator.domain.events import PhaseStarted, StepRetried
from orchestrator.domain.inputs import Lookup, static_lookup
from orchestrator.domain.journal import Journal
from orchestrator.domain.messages import Message, PulledState
from orchestrator.domain.record import OperationRecord
from orchestrator.domain.references import Resolved, Template
from orchestrator.errors import (
    Busy,
    EngineFailed,
    OrchestratorError,
    Refused,
    Stopped,
    StoreUnavailable,
    Terminated,
)
from orchestrator.ports import (
    Answer,
    Init,
    Pull,
    Root,
    RootSetup,
    Secret,
    Site,
    Snapshot,
    StopToken,
)

#: Errors of ``init`` and ``plan`` that pass by themselves: registries and networks.
TRANSIENT = re.compile(
    r"connection (reset|refused|timed out)|i/o timeout|TLS handshake timeout|no such host"
    r"|temporary failure in name resolution|context deadline exceeded|Client\.Timeout"
    r"|could not query provider registry|failed to retrieve|unexpected EOF"
    r"|\b(429|502|503|504)\b|Too Many Requests|Service Unavailable|Bad Gateway",
    re.IGNORECASE,
)
TRIES = 3


@dataclass(frozen=True, slots=True)
class Prepared:
    """
    A step that is ready: its working directory is initialised and its newest record known.
    """

    step: Step
    record: OperationRecord | None
    snapshot: Snapshot
    root: Root


def check_owner(deployment: Deployment, record: OperationRecord) -> None:
    """
    Refused where a record is another project's or another blueprint file's.
    """
    target = record.target.target
    if record.project != deployment.project:
        raise Refused(
            "foreign_record",
            f"{target} is recorded for project {record.project!r}, this is {deployment.project!r}",
            hint="give the blueprint another name, or another operation store",
        )
    path = record.source.blueprint_path
    if path not in {deployment.path, *deployment.moved_from}:
        raise Refused(
            "foreign_record",
            f"{target} is recorded for the blueprint file {path}, this is {deployment.path}",
            hint=f"if the file was moved, add `moved_from: [{path}]` to the blueprint; "
            "if it is another blueprint, give it another name",
        )


def check_engine(services: Services, record: OperationRecord, *, allow_change: bool) -> None:
    """
    Refused where another kind of engine wrote the target last.
    """
    info = services.engine.info
    if record.engine is None or record.engine.kind == info.kind or allow_change:
        return
    raise Refused(
        "engine_change",
        f"{record.target.target} was last written by {record.engine.kind} {record.engine.version}, "
        f"this is {info.kind} {info.version}",
        hint=f"use --engine {record.engine.kind}, or accept the change with --allow-engine-change",
    )


def snapshot_of(services: Services, step: Step, record: OperationRecord | None) -> Snapshot:
    """
    The snapshot that the record names, else the module as it is now.
    """
    current = services.workdirs.snapshot(step.module)
    wanted = record.module_digest if record else None
    if wanted is None or wanted == current.digest:
        return current
    archive = services.store.blob(f"snapshots/{wanted}")
    if archive is None:
        services.note(
            f"the snapshot {wanted[:19]} that it was applied from is not in the store; "
            "the module is used as it is now",
            level="warning",
            step=step.name,
        )
        return current
    stored = services.workdirs.unpack(archive)
    if stored.digest != wanted:
        raise StoreUnavailable(
            f"the stored snapshot {wanted[:19]} holds {stored.digest[:19]} instead",
            hint="the operation store is damaged; restore it",
        )
    return stored


def lay_out(
    services: Services,
    deployment: Deployment,
    step: Step,
    snapshot: Snapshot,
    record: OperationRecord | None,
    lookup: Lookup,
) -> Root:
    """
    The step's working directory, laid out from a snapshot with backend and providers around it.

    Refused where the provider state would be another than the record is bound to.
    """
    setup = RootSetup(
        backend_type=step.backend.type,
        backend_config=_mapping(step.backend.config, static_lookup(deployment, step)),
        providers={
            name: _hidden(template.resolve(lookup)) for name, template in step.providers.items()
        },
        lock_file=_lock_file(services, record),
    )
    info = services.engine.info
    target = deployment.target(step.name)
    root = services.workdirs.prepare(target, snapshot, setup, f"{info.kind} {info.version}")
    bound = record.provider_state if record else None
    found = (root.backend_type, root.location, services.workspace)
    if bound is not None and (bound.backend, bound.location, bound.workspace) != found:
        raise Refused(
            "backend_changed",
            f"{target} is bound to the provider state {bound.backend} {bound.location} (workspace "
            f"{bound.workspace}), not to {root.backend_type} {root.location} (workspace "
            f"{services.workspace})",
            hint="set the backend back, or destroy the target where it is before it moves",
        )
    return root


def _lock_file(services: Services, record: OperationRecord | None) -> bytes | None:
    if record is None or record.module_digest is None:
        return None
    return services.store.blob(f"locks/{record.target.target}/{record.module_digest}")


def initialise(services: Services, step: str, root: Root, evidence: Path) -> None:
    """
    Run ``init`` where the last one no longer holds; registry and network errors are tried again.
    """
    if not root.init_needed:
        return
    services.sink.emit(PhaseStarted(at=services.clock.now(), step=step, phase="init"))

    def attempt(number: int) -> Answer:
        site = make_site(services, root, evidence, f"init-{number}")
        return services.engine.call(Init(), site, stop=services.stop, observe=unseen)

    answer = patiently(services, step, "init", attempt)
    if answer.exit_code != 0:
        raise failure(answer, "init", services.stop)
    services.workdirs.initialised(root)


def patiently(
    services: Services, step: str, phase: str, attempt: Callable[[int], Answer]
) -> Answer:
    """
    The answer of a call that mutates nothing, made again while its error is a passing one.
    """
    for number in range(1, TRIES):
        answer = attempt(number)
        said = _error_text(answer)
        if answer.exit_code == 0 or services.stop.stopping or not TRANSIENT.search(said):
            return answer
        services.sink.emit(
            StepRetried(
                at=services.clock.now(),
                step=step,
                phase=phase,
                attempt=number + 1,
                reason=said.splitlines()[0] if said else "",
            )
        )
        services.clock.sleep(float(2**number))
    return attempt(TRIES)


def pull(services: Services, root: Root, evidence: Path, name: str) -> PulledState:
    """
    The provider state as it is now; its sensitive outputs are masked from here on.
    """
    site = make_site(services, root, evidence, name)
    answer = services.engine.call(Pull(), site, stop=Undisturbed(), observe=unseen)
    if answer.exit_code != 0:
        raise failure(answer, "readback", Undisturbed())
    state = services.engine.state(answer)
    for output in state.outputs.values():
        if output.sensitive:
            services.masker.add(output.value)
    return state


def make_site(
    services: Services,
    root: Root,
    evidence: Path,
    name: str,
    *,
    delete_after: tuple[Path, ...] = (),
    timeout: float | None = None,
) -> Site:
    """
    A site in the step's working directory.
    """
    return Site(
        directory=root.directory,
        evidence=evidence,
        name=name,
        mask=services.masker.mask,
        delete_after=delete_after,
        timeout=timeout,
        grace=services.limits.grace,
    )


def stopped(stop: StopToken) -> Stopped:
    """
    The error of work that a signal ended before anything was mutated.
    """
    kind = Terminated if stop.exit_code == Terminated.exit_code else Stopped
    return kind("stopped by a signal before anything was mutated")


class Undisturbed:
    """
    The stop token of a call that reads what is left: it runs to its end even while we are stopping.
    """

    stopping = False
    killing = False
    exit_code = 0


def failure(answer: Answer, phase: str, stop: StopToken) -> OrchestratorError:
    """
    The error of a call that mutates nothing; of one that we stopped, that it was stopped.
    """
    if stop.stopping:
        return stopped(stop)
    if answer.lock is not None:
        return Busy(
            f"the provider state is locked: {answer.lock}",
            hint="wait for its holder; `--lock-timeout 5m` lets the engine wait",
        )
    said = _error_text(answer) or f"exit code {answer.exit_code}"
    errors = Journal.of(answer.messages, whole=answer.whole).errors
    return EngineFailed(phase, said, diagnostics=errors)


def _error_text(answer: Answer) -> str:
    journal = Journal.of(answer.messages, whole=answer.whole)
    lines = []
    for found in journal.errors:
        where = f" ({found.at})" if found.at else ""
        lines.append(f"{found.summary}{where}\n{found.detail}".strip())
    return "\n".join(lines) or answer.stderr_text.strip()


def _mapping(template: Template, lookup: Lookup) -> Mapping[str, object]:
    value = _hidden(template.resolve(lookup))
    return value if isinstance(value, dict) else {}


def _hidden(resolved: Resolved) -> object:
    """
    The value with each sensitive leaf wrapped in Secret.
    """
    value = resolved.value
    for path in resolved.secrets:
        value = _wrap(value, path)
    return value


def _wrap(value: object, path: tuple[str | int, ...]) -> object:
    if not path:
        return Secret(value)
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {key: _wrap(item, rest) if key == first else item for key, item in value.items()}
    if isinstance(value, list):
        return [_wrap(item, rest) if index == first else item for index, item in enumerate(value)]
    return Secret(value)


def unseen(_: Message) -> None:
    """
    For calls whose messages are only read at their end.
    """
