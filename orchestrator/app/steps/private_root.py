"""
A private copy of a step's root on a local provider state: where a provider is asked, and where the
engine reads and writes provider states that are not the step's own.

OpenTofu may encrypt states. It refuses a clear one where it expects an encrypted one, so only the
engine itself puts a state there and takes it out again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import call, call_spec, failure, patiently, pull
from orchestrator.app.steps.preparation import PreparedStep, state_encryption
from orchestrator.domain.provider_state import PulledState, is_encrypted
from orchestrator.ports.engine import CallResult, EngineInfo, Init, Push
from orchestrator.ports.workdir import WorkDir


class PrivateRoot(Struct, frozen=True):
    """
    The root, initialised. Its calls leave their logs in ``evidence``.
    """

    services: Services
    work_dir: WorkDir
    engine: EngineInfo
    evidence: Path

    def set_state(self, state: bytes) -> None:
        """
        Make a clear state that of the root; OpenTofu encrypts what is pushed.
        """
        services, work_dir = self.services, self.work_dir
        if self.engine.kind != "tofu":
            services.files.write(Path(work_dir.location), state.decode())
            return
        clear = work_dir.directory / "pushed.tfstate"
        services.files.write(clear, state.decode())
        name = f"push-{services.ids.entry_id()[:8]}"
        spec = call_spec(services, work_dir, self.evidence, name, delete_after=(clear,))
        result = call(services, Push(clear, force=True), spec, stop=services.stop)
        if result.exit_code != 0:
            raise failure(result, "readback", services.stop)

    def decrypted(self, state: bytes) -> PulledState:
        """
        A stored state as the engine reads it; it becomes that of the root.
        """
        self.services.files.write(Path(self.work_dir.location), state.decode())
        name = f"pull-{self.services.ids.entry_id()[:8]}"
        return pull(self.services, self.work_dir, self.evidence, name)


@contextlib.contextmanager
def private_root(
    services: Services, prepared: PreparedStep, evidence: Path, *, extra: Mapping[str, str]
) -> Iterator[PrivateRoot]:
    """
    A private root without any state, with ``extra`` files in it; it is removed at the end.

    EngineFailed where it cannot be laid out or initialised.
    """
    with services.files.private(evidence) as place:
        work_dir = services.workdirs.scratch_copy(prepared.work_dir, place, extra=extra)

        def attempt(number: int) -> CallResult:
            spec = call_spec(services, work_dir, evidence, f"query-init-{number}")
            return call(services, Init(), spec, stop=services.stop)

        result = patiently(services, prepared.step.name, "readback", attempt)
        if result.exit_code != 0:
            raise failure(result, "readback", services.stop)
        yield PrivateRoot(services, work_dir, prepared.engine, evidence)


def keep_state(
    services: Services, prepared: PreparedStep, state: PulledState, evidence: Path, name: str
) -> None:
    """
    Keep a provider state in the file ``name`` of an attempt, durably: encrypted where the step's
    state is, so that nothing of ours holds in clear what the engine does not.
    """
    text = state.raw.decode()
    if state_encryption(services, prepared):
        place = services.files.inside(evidence, f"encrypt-{services.ids.entry_id()[:8]}")
        with private_root(services, prepared, place, extra={}) as root:
            root.set_state(state.raw)
            text = Path(root.work_dir.location).read_text()
    services.files.write(evidence / name, text)


def read_state_file(
    services: Services, prepared: PreparedStep, file: Path, evidence: Path
) -> PulledState:
    """
    The provider state in a file that the engine left for a step, with the step's key where it is
    encrypted; EngineFailed where it cannot be read.
    """
    raw = file.read_bytes()
    if not is_encrypted(raw):
        return services.engine.state_in_file(file)
    place = services.files.inside(evidence, f"decrypt-{services.ids.entry_id()[:8]}")
    with private_root(services, prepared, place, extra={}) as root:
        return root.decrypted(raw)
