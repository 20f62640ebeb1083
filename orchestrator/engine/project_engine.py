"""
The engine of a project: chosen, accepted by the modules, with a cache of providers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.domain.blueprint.blueprint import Deployment, EngineRequirement
from orchestrator.domain.record.record import EngineRef, OperationRecord
from orchestrator.engine.choose import choose
from orchestrator.engine.plugin_cache import plugin_cache
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.engine.versions import check_accepted
from orchestrator.errors import EngineFailed, Invalid, Problem
from orchestrator.ports.engine import EngineInfo
from orchestrator.ports.store import OperationStore
from orchestrator.project import ProjectContext


def choose_for(
    project: ProjectContext,
    option: str | None,
    deployment: Deployment | None,
    records: Sequence[OperationRecord],
) -> EngineInfo:
    """
    The engine for a deployment and its records, or for none: ``option`` before the settings of the
    project. Invalid where it is not to be had:
    nothing has run, so it is the choice that is wrong.
    """

    environ, cache = project.environ, project.own_dir / "cache"

    def which(program: str) -> str | None:
        return shutil.which(program, path=environ.get("PATH"))

    option = option or project.settings.engine
    requirement = deployment.engine if deployment else EngineRequirement()
    try:
        return choose(option, requirement, _last_writer(records), environ, which, cache=cache)
    except EngineFailed as exc:
        raise Invalid([Problem(exc.message, hint=exc.hint)]) from exc


def _last_writer(records: Iterable[OperationRecord]) -> EngineRef | None:
    """
    The engine that last wrote the provider state of the newest of these records.
    """
    written = [record for record in records if record.engine is not None]
    latest = max(written, key=lambda record: record.updated_at, default=None)
    return latest.engine if latest else None


def project_engine(
    project: ProjectContext,
    option: str | None,
    deployment: Deployment,
    store: OperationStore,
    environment: Mapping[str, str],
    *,
    check: bool,
) -> TerraformEngine:
    """
    The engine that `choose_for` chooses by the records in ``store``, as a program that starts from
    ``environment``; with ``check`` Invalid where the modules do not accept it.
    """
    records = store.records(deployment.blueprint, deployment.environment)
    engine = TerraformEngine(
        choose_for(project, option, deployment, records),
        environment=environment,
        plugin_cache=plugin_cache(environment, project.own_dir / "cache" / "providers"),
    )
    if check:
        check_accepted(engine.info_in, deployment)
    return engine
