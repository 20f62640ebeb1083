"""
Orphans: targets whose step, environment or blueprint is gone from the project. They are found by
their records, and not attributed to another blueprint file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.app.inspection.read_context import alive_orphans, check_owner
from orchestrator.domain.blueprint.blueprint import Deployment, EngineRequirement, StoreLocation
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.recovery.rerun_rules import deployment_blob
from orchestrator.domain.target import step_of
from orchestrator.errors import Invalid, Problem, Refused, StoreUnavailable
from orchestrator.ports.store import NEIGHBOURS

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.stored_deployment import Orphan
    from orchestrator.ports.store import OperationStore


def noted_stores(store: OperationStore) -> Iterator[tuple[tuple[str, str], str]]:
    """
    Yield the shared stores that runs have noted in this one: blueprint and environment, and URL.
    """
    for name in store.blobs(NEIGHBOURS):
        _, *place = name.split("/")
        url = (store.blob(name) or b"").decode("utf-8", "replace")
        if len(place) == 2 and StoreLocation(url=url).is_shared:
            yield (place[0], place[1]), url


def find_orphans(store: OperationStore, base: Deployment) -> dict[str, Orphan]:
    """
    Return the orphans of a deployment, each with the deployment it was applied from. A destroyed
    step counts if its hook's module may have left objects.

    Raises Refused if an orphan belongs to another project or file, or if the store lacks its
    deployment; StoreUnavailable if that cannot be read.
    """
    from orchestrator.domain.blueprint.stored_deployment import (
        Orphan,
        UnreadableDeployment,
        parse_deployment,
    )

    orphans, missing = {}, []
    for record in alive_orphans(base, store.records(base.blueprint, base.environment)):
        check_owner(record, base.project, (base.path, *base.moved_from))
        step = step_of(record.target.step)
        if step != record.target.step:
            own = store.newest(base.target(step))
            if own is None or own.status not in NOTHING_THERE:
                continue  # the step is an orphan itself
            record = own if record.deployment is None else record
        digest = record.deployment
        text = store.blob(deployment_blob(digest)) if digest else None
        if digest is None or text is None:
            missing.append(str(record.target))
            continue
        try:
            frozen = parse_deployment(text, digest)
        except UnreadableDeployment as exc:
            raise StoreUnavailable(
                f"what {record.target} was applied from cannot be read: {exc}",
                hint="another version of the tool wrote it, or the operation store is damaged",
            ) from exc
        if step not in frozen.steps:
            missing.append(str(record.target))
            continue
        orphans[step] = Orphan(step, record.run_id, frozen)
    if missing:
        raise Refused(
            "not_kept",
            f"the operation store does not have what was applied: {', '.join(missing)}",
            hint="put the steps back into the blueprint, apply them, and remove them again; or "
            "destroy them while they are in it",
        )
    return orphans


def gone_blueprint(
    store: OperationStore, project: str, wanted: str, environment: str | None
) -> Deployment | None:
    """
    Return a blueprint without steps that has records but no file; None without records. ``wanted``
    is its name or the former path of its file.

    Raises Refused if the records are of several files, Invalid if none is of the environment.
    """
    records = [
        record
        for record in store.records()
        if record.project == project
        and wanted in (record.target.blueprint, record.source.blueprint_path)
    ]
    if not records:
        return None
    name, chosen = records[0].target.blueprint, environment or "default"
    paths = sorted({record.source.blueprint_path for record in records})
    if len(paths) > 1:
        raise Refused(
            "foreign_record",
            f"{wanted} is recorded for several blueprint files: {', '.join(paths)}",
            hint="put the right one back",
        )
    environments = sorted({record.target.environment for record in records})
    if chosen not in environments:
        hint = f"recorded are: {', '.join(environments)}"
        raise Invalid([Problem(f"nothing is recorded of {name}/{chosen}", hint=hint)])
    return without_steps(project, name, chosen, paths[0])


def without_steps(
    project: str,
    blueprint: str,
    environment: str,
    path: str,
    *,
    moved_from: tuple[str, ...] = (),
    operations: StoreLocation | None = None,
) -> Deployment:
    """
    Return the deployment of a blueprint in an environment of which only records are left.
    """
    return Deployment(
        project=project,
        blueprint=blueprint,
        environment=environment,
        project_dir="",
        path=path,
        inputs={},
        steps={},
        graph=Graph({}),
        engine=EngineRequirement(),
        operations=operations or StoreLocation(),
        moved_from=moved_from,
    )
