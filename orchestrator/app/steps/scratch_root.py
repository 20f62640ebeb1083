"""
A private copy of a root to ask the provider from: nothing done there changes provider state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.app.steps.preparation import PreparedStep, call, call_spec, failure, patiently
from orchestrator.ports.engine import CallResult, Init
from orchestrator.ports.workdir import WorkDir


@contextlib.contextmanager
def private_root(
    services: Services,
    prepared: PreparedStep,
    evidence: Path,
    *,
    state: bytes,
    extra: Mapping[str, str],
) -> Iterator[WorkDir]:
    """
    The step's configuration on a copy of ``state`` (`WorkDirs.scratch_copy`), initialised; gone at
    the end. Its calls leave their logs in ``evidence``.

    EngineFailed where it cannot be laid out or initialised.
    """
    with services.files.private(evidence) as place:
        root = services.workdirs.scratch_copy(prepared.work_dir, place, state=state, extra=extra)

        def attempt(number: int) -> CallResult:
            spec = call_spec(services, root, evidence, f"private-init-{number}")
            return call(services, Init(), spec, stop=services.stop)

        result = patiently(services, prepared.step.name, "readback", attempt)
        if result.exit_code != 0:
            raise failure(result, "readback", services.stop)
        yield root
