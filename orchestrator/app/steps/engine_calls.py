"""
Engine calls that mutate nothing: retried on transient errors, with masked output.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from orchestrator.app.services import Services, stopped
from orchestrator.domain.blueprint.inputs import digest
from orchestrator.domain.events.events import StepRetried
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.masking import Masker
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.secrets import find_secrets
from orchestrator.domain.text import Json
from orchestrator.errors import (
    EngineFailed,
    OrchestratorError,
    StateDamaged,
    StateLocked,
)
from orchestrator.ports.engine import CallResult, CallSpec, Pull, Request
from orchestrator.ports.system import StopToken
from orchestrator.ports.workdir import WorkDir

#: Errors of ``init`` and ``plan`` that pass by themselves: registries and networks.
TRANSIENT = re.compile(
    r"connection (reset|refused|timed out)|i/o timeout|TLS handshake timeout|no such host"
    r"|temporary failure in name resolution|context deadline exceeded|Client\.Timeout"
    r"|could not query provider registry|failed to retrieve|unexpected EOF"
    r"|\b(429|502|503|504)\b|Too Many Requests|Service Unavailable|Bad Gateway",
    re.IGNORECASE,
)
TRIES = 3
#: What the engine says of a stored provider state that is none.
DAMAGED_STATE = re.compile(
    r"state file\s+(could\s+not\s+be\s+parsed\s+as\s+JSON|does\s+not\s+have\s+a\s+\"version\")"
)


def write_variables(services: Services, file: Path, values: Mapping[str, Json]) -> None:
    """
    Write the variable file of a call: 0600, removed when the call ends. One value per line, because
    the engine quotes the line of a value that it rejects.
    """
    services.files.write_input(file, json.dumps(values, indent=0))


def patiently(
    services: Services,
    step: str,
    phase: str,
    request: Request,
    work_dir: WorkDir,
    evidence: Path,
    name: str,
    *,
    variables: tuple[Path, Mapping[str, Json]] | None = None,
    delete_after: tuple[Path, ...] = (),
) -> CallResult:
    """
    Return the result of a call that mutates nothing, retried on transient errors. ``variables`` are
    its variable file and the values to write there.
    """
    for number in itertools.count(1):
        spec = call_spec(
            services, work_dir, evidence, f"{name}-{number}", delete_after=delete_after
        )
        try:
            if variables is not None:
                write_variables(services, *variables)
            result = call(services, request, spec, stop=services.stop)
        finally:
            if variables is not None:
                variables[0].unlink(missing_ok=True)
        if number == TRIES or result.exit_code == 0 or services.stop.stopping:
            return result
        error = error_text(result)
        if not TRANSIENT.search(error):
            return result
        services.sink.emit(
            StepRetried(
                at=services.clock.now(),
                step=step,
                phase=phase,
                attempt=number + 1,
                reason=error.splitlines()[0],
            )
        )
        services.pause(float(2**number))
    raise AssertionError("the last try ends the loop")


def call(services: Services, request: Request, spec: CallSpec, *, stop: StopToken) -> CallResult:
    """
    Make a call that mutates nothing. Its unmasked files are removed on return.
    """
    try:
        return services.engine.call(request, spec, stop=stop)
    finally:
        services.engine.discard(spec)


def pull(
    services: Services,
    work_dir: WorkDir,
    evidence: Path,
    name: str,
    *,
    stop: StopToken | None = None,
) -> PulledState:
    """
    Return the current provider state. Its sensitive outputs, and known secrets in others, are
    masked from here on.

    Our own stop applies unless another token is given.
    """
    spec, stop = call_spec(services, work_dir, evidence, name), stop or services.stop
    try:
        result = services.engine.call(Pull(), spec, stop=stop)
        if result.exit_code != 0:
            raise failure(result, "readback", stop)
        state = services.engine.pulled_state(result)
    finally:
        services.engine.discard(spec)
    return learn_secrets(services.masker, state)


def learn_secrets(
    masker: Masker, state: PulledState, record: OperationRecord | None = None
) -> PulledState:
    """
    Return the state with its secret outputs marked, also those that were secret when the target was
    applied: this run may not know the secrets they were made from. They are masked from here on.
    """
    shapes = {**record.outputs, **record.masked_outputs} if record else None
    # First those that the module calls sensitive: others may be made from them.
    for output in state.outputs.values():
        if output.sensitive:
            masker.add(output.value)
    state = state.with_secrets(masker.hides, shapes)
    for output in state.outputs.values():
        for value in output.secret_values:
            masker.add(value)
    return state


def mask_by_digest(
    services: Services, state: PulledState, digests: Collection[str]
) -> frozenset[str]:
    """
    Mask the values in a provider state with the wanted keyed digests from here on, and return the
    digests that were found.
    """
    secrets = find_secrets(
        (*state.attributes, *(output.value for output in state.outputs.values())),
        digests,
        partial(digest, key=services.key),
    )
    for value in secrets.values():
        services.masker.add(value)
    return frozenset(secrets)


def call_spec(
    services: Services,
    work_dir: WorkDir,
    evidence: Path,
    name: str,
    *,
    delete_after: tuple[Path, ...] = (),
    timeout: float | None = None,
) -> CallSpec:
    """
    Return the spec of a call in the step's working directory.
    """
    return CallSpec(
        directory=work_dir.directory,
        evidence=evidence,
        name=name,
        mask=services.masker.mask,
        delete_after=delete_after,
        timeout=timeout,
        grace=services.limits.grace,
        early_values=work_dir.early_values,
        module=work_dir.module,
        crash_log=services.files.crash_log(evidence),
    )


class KillOnly(Struct, frozen=True):
    """
    The stop token for reading what a mutation left: such a call completes even during a stop,
    unless killing is requested.
    """

    stop: StopToken

    @property
    def stopping(self) -> bool:
        return self.stop.killing

    @property
    def killing(self) -> bool:
        return self.stop.killing

    @property
    def exit_code(self) -> int:
        return self.stop.exit_code


def failure(result: CallResult, phase: str, stop: StopToken) -> OrchestratorError:
    """
    Return the error of a failed call that mutates nothing, or of its stop.
    """
    if stop.stopping:
        return stopped(stop)
    if result.lock is not None:
        return StateLocked(
            f"the provider state is locked: {result.lock}",
            lock_id=result.lock.id,
            hint="wait for its holder; `--lock-timeout 5m` lets the engine wait",
        )
    text = error_text(result) or f"exit code {result.exit_code}"
    if DAMAGED_STATE.search(text):
        return StateDamaged(
            "the provider state is damaged: what is stored as it can not be read",
            hint="the objects may be alive: restore the state; if it is lost, "
            "`reconcile --rebuild-state` imports what the record knows",
            phase="surgery",
        )
    errors = Journal.of(result.messages, whole=result.complete).errors
    return EngineFailed(phase, text, diagnostics=errors)


def error_text(result: CallResult) -> str:
    journal = Journal.of(result.messages, whole=result.complete)
    lines = []
    for error in journal.errors:
        where = f" ({error.at})" if error.at else ""
        lines.append(f"{error.summary}{where}\n{error.detail}".strip())
    return "\n".join(lines) or result.stderr_text.strip()
