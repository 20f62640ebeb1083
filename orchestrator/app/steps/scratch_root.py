"""
A private copy of a root to ask the provider from: nothing done there changes provider state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.app.steps.preparation import PreparedStep, call, failure, make_site, patiently
from orchestrator.ports import Answer, Init, Root


@contextlib.contextmanager
def private_root(
    services: Services,
    prepared: PreparedStep,
    evidence: Path,
    *,
    state: bytes,
    extra: Mapping[str, str],
) -> Iterator[Root]:
    """
    The step's configuration on a copy of ``state`` (`WorkDirs.private_copy`), initialised; gone at
    the end. Its calls leave their logs in ``evidence``.

    EngineFailed where it cannot be laid out or initialised.
    """
    with services.files.private(evidence) as place:
        root = services.workdirs.private_copy(prepared.root, place, state=state, extra=extra)

        def attempt(number: int) -> Answer:
            site = make_site(services, root, evidence, f"private-init-{number}")
            return call(services, Init(), site, stop=services.stop)

        answer = patiently(services, prepared.step.name, "readback", attempt)
        if answer.exit_code != 0:
            raise failure(answer, "readback", services.stop)
        yield root
