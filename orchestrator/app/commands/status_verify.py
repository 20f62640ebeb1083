"""
``status --expect destroyed --verify``: the provider states behind the records are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from orchestrator.app.run.gone_steps import look_at_gone_steps
from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.errors import Refused


def verify_gone(services: Services, deployment: Deployment, steps: Sequence[str]) -> None:
    """
    Refused where the provider state of a step that is recorded as gone holds objects, or cannot be
    looked at: then nobody may rely on the record.
    """
    with (
        services.workdirs.lock(deployment.blueprint, deployment.environment),
        services.files.scratch() as scratch,
    ):
        prepared = PreparedSteps(
            services,
            deployment,
            evidence=partial(_evidence, scratch),
            jobs=4,
            allow_engine_change=True,
        )
        prepared.read_records(wait=False)
        found = look_at_gone_steps(prepared, steps)
    odd = {**found.alive, **found.unread}
    if odd:
        where = f"{deployment.blueprint}/{deployment.environment}"
        said = "; ".join(exc.message.splitlines()[0] for exc in odd.values())
        hint = next(iter(odd.values())).hint
        raise Refused("expectation", f"{where} is not known to be destroyed: {said}", hint=hint)


def _evidence(scratch: Path, step: str) -> Path:
    place = scratch / step
    place.mkdir(mode=0o700, exist_ok=True)
    return place
