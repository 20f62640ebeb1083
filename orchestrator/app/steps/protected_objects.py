"""
What neither a destroy nor a rollback may take down: found before anything is destroyed, all of it
at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from orchestrator.app.services import Services
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.errors import Location, OrchestratorError, Refused

_KEYS = re.compile(r'\[(?:\d+|"(?:[^"\\]|\\.)*")\]')


def check_protected(
    services: Services,
    deployment: Deployment,
    records: Iterable[OperationRecord],
    *,
    confirmed: str | None,
) -> None:
    """
    Refused where ``prevent_destroy`` protects recorded objects, in the recorded module or in the
    current one: a new protection counts at once, and only an apply removes an old one. The error
    names every object and the place that protects it, and also the environment where that is
    protected and was not ``confirmed`` by its name.
    """
    protected = [
        line
        for record in records
        if record.status not in NOTHING_THERE
        for line in _protected_lines(services, deployment, record)
    ]
    if not protected:
        return
    listed = "".join(f"\n  {line}" for line in protected)
    unconfirmed = deployment.protected and confirmed != deployment.environment
    also = f"; and {deployment.environment} is a protected environment" if unconfirmed else ""
    name = f"; and add --confirm {deployment.environment}" if unconfirmed else ""
    raise Refused(
        "prevent_destroy",
        f"nothing is destroyed: prevent_destroy holds {len(protected)} of the objects{also}"
        f"{listed}",
        hint="leave the steps out (--exclude), or take `prevent_destroy` out of their modules and "
        f"apply them{name}",
    )


def check_protected_since(
    services: Services, deployment: Deployment, record: OperationRecord | None, journal: Journal
) -> None:
    """
    Refused where the plan of a rollback would destroy what the module that was applied since then
    protects: the engine knows the earlier module only.
    """
    doomed = {item.address for item in journal.planned if item.action in ("delete", "replace")}
    if record is None or not doomed:
        return
    protected = _protected_lines(services, deployment, record, doomed)
    if protected:
        raise Refused(
            "prevent_destroy",
            f"it would destroy what prevent_destroy holds since then: {'; '.join(protected)}",
            hint="take `prevent_destroy` out of the module and apply that first",
        )


def _protected_lines(
    services: Services,
    deployment: Deployment,
    record: OperationRecord,
    doomed: Collection[str] | None = None,
) -> list[str]:
    """
    One line for each object of a target, of those ``doomed`` if they are given, that its module
    protects. Modules from a registry are not in the snapshot: the plan of their step finds what
    they protect.
    """
    places = _places(services, deployment, record)
    step, module = record.target.step, record.module_ref
    return [
        f"{step}: {ref.address}, by {module}: {places[address]}"
        for ref in record.resources.inventory
        if (address := _KEYS.sub("", ref.address)) in places
        and (doomed is None or ref.address in doomed)
    ]


def _places(
    services: Services, deployment: Deployment, record: OperationRecord
) -> Mapping[str, Location]:
    """
    The protected addresses of a target's module, as it was applied and as it is now, and where each
    is protected. A module that cannot be read now protects nothing more.
    """
    snapshots = []
    step = deployment.steps.get(record.target.step)
    if step is not None and record.target.step not in deployment.orphans:
        with suppress(OrchestratorError):
            snapshots.append(services.workdirs.snapshot(step.module))
    digest = record.module_digest
    archive = services.store.blob(f"snapshots/{digest}") if digest else None
    if archive is not None:
        snapshots.append(services.workdirs.unpack(archive))
    return {item.address: item.at for snapshot in snapshots for item in snapshot.protected}
