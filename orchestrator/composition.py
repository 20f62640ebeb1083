"""
The composition root: the only file that names concrete classes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import Refused
from orchestrator.private_place import close_files
from orchestrator.project import ProjectContext
from orchestrator.settings import DEFAULT_PROJECT

if TYPE_CHECKING:
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.domain.blueprint.store_location import StoreLocation
    from orchestrator.domain.record.record import OperationRecord
    from orchestrator.domain.record.run_record import Claim
    from orchestrator.ports.engine import EngineInfo
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.system import Approver, Sink, StopToken
    from orchestrator.stores.sequence_memory import WatchedStore

SHARED_GRACE = 60.0  # seconds for which an outcome waits for a shared store that is away
SILENCE = 60.0  # seconds without a heartbeat after which a run that cannot be seen counts as silent


def _open_store(
    project: ProjectContext,
    location: StoreLocation | None,
    tell: Callable[[str], None],
) -> WatchedStore:
    """
    The store at a location, else the project's own. ``tell`` is told where it is not the one to
    rely on.
    """
    from orchestrator.stores import store_urls
    from orchestrator.stores.placement import StorePlacement, sqlite_records
    from orchestrator.stores.schema import is_ours
    from orchestrator.stores.sequence_memory import SequenceMemory, WatchedStore

    location = location or project.operations
    trust = project.settings.trust
    if not trust.allows_store(location.url, project.project_dir):
        raise Refused(
            "untrusted",
            trust.forbidden(f"the operation store {location.url}", "stores"),
            hint="name one of its stores by `operations.url`",
        )
    file = store_urls.sqlite_file(location.url, project.project_dir)
    # What a URL names may be anything, `/dev/null` or `/`: only what is ours is closed.
    if file is not None and is_ours(file):
        close_files((file,), _say)
    store = store_urls.open_store(
        location.url,
        project_dir=project.project_dir,
        project=project.settings.project,
        environ=project.environ,
        config=location.config,
    )
    # A store in memory begins anew with every process.
    place = Path(os.devnull) if store.url == "memory:" else project.own_dir / "seen"
    memory = SequenceMemory(place, store.url)
    placement = StorePlacement(location, sqlite_records(project.project_dir))
    return WatchedStore(store, memory, placement, tell)


def _say(message: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"warning: {message}\n")


@contextmanager
def open_store(
    project: ProjectContext,
    location: StoreLocation | None = None,
    tell: Callable[[str], None] = _say,
) -> Iterator[WatchedStore]:
    """
    The store at a location, else the project's own.
    """
    store = _open_store(project, location, tell)
    try:
        yield store
    finally:
        store.close()


def scratch_claim(project: ProjectContext) -> Claim:
    """
    A claim of this process on a blueprint and environment that nobody else uses.
    """
    from orchestrator.app.commands.store import scratch_claim
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.system import RandomIds, SystemClock, actor

    return scratch_claim(SystemProcesses(), SystemClock(), RandomIds(), actor(project.environ))


def run_files(project: ProjectContext) -> RunFiles:
    """
    The runs of this machine.
    """
    from orchestrator.stores.runs import RunDirectory

    return RunDirectory(project.own_dir / "runs")


@contextmanager
def open_read_context(
    project: ProjectContext, location: StoreLocation | None = None
) -> Iterator[ReadContext]:
    """
    What reading commands read with.
    """
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.stores.spool import DirectorySpool
    from orchestrator.system import SystemClock

    with open_store(project, location) as store:
        yield ReadContext(
            project=project.settings.project,
            store=store,
            spool=DirectorySpool(project.own_dir / "spool"),
            files=run_files(project),
            processes=SystemProcesses(),
            silence=SILENCE,
            work=project.own_dir / "work",
            today=SystemClock().now().date(),
            gone_back=store.gone_back,
        )


@contextmanager
def open_read_contexts(
    project: ProjectContext, locations: Sequence[StoreLocation]
) -> Iterator[list[ReadContext]]:
    """
    What commands read with that look into several stores.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(open_read_context(project, place)) for place in locations]


def choose_engine(
    project: ProjectContext, option: str | None, deployment: Deployment | None
) -> EngineInfo:
    """
    The engine that would be used, and why; Invalid where it is not to be had.
    """
    if deployment is None:
        return _engine_for(project, option, None, [])
    with open_store(project, deployment.operations) as store:
        return _engine_for(project, option, deployment, _records(store, deployment))


def _records(store: WatchedStore, deployment: Deployment) -> list[OperationRecord]:
    """
    The records of a deployment. What is wrong with the store is told by those who rely on it.
    """
    return store.unwatched.records(deployment.blueprint, deployment.environment)


def _engine_for(
    project: ProjectContext,
    option: str | None,
    deployment: Deployment | None,
    records: Sequence[OperationRecord],
) -> EngineInfo:
    from orchestrator.engine.choose import choose_for

    option = option or project.settings.engine
    cache = project.own_dir / "cache"
    return choose_for(option, deployment, records, project.environ, cache=cache)


@contextmanager
def open_services(
    project: ProjectContext,
    deployment: Deployment,
    *,
    engine: str | None,
    sink: Sink,
    stop: StopToken,
    approver: Approver,
    check_module_versions: bool = True,
    records: bool = True,
    store_grace: float | None = None,
) -> Iterator[Services]:
    """
    What a command works with that runs an engine; ``records`` tells that it writes records, and
    ``store_grace`` for how many seconds their store is waited for, if not as the settings say.

    Invalid where the engine is not one that blueprint and modules accept; Refused where the
    environment would change silently what is applied.
    """
    from orchestrator.app.redacting_sink import RedactingSink
    from orchestrator.app.services import Limits, Services
    from orchestrator.checks import SystemChecks
    from orchestrator.domain.masking import Masker
    from orchestrator.engine.plugin_cache import plugin_cache
    from orchestrator.engine.process.environment import child_environment, environment_secrets
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.engine.terraform import TerraformEngine
    from orchestrator.engine.versions import check_accepted
    from orchestrator.engine.workdir.workdir import DirectoryWorkDirs
    from orchestrator.loading.forbidden import check_trusted
    from orchestrator.loading.inputs import unread_variables
    from orchestrator.loading.project import project_files
    from orchestrator.loading.unread_files import unread_files
    from orchestrator.rego import RegoRules
    from orchestrator.stores.project_key import project_key
    from orchestrator.stores.spool import DirectorySpool
    from orchestrator.stores.store_urls import is_shared
    from orchestrator.system import RandomIds, SystemClock, actor, source

    settings = project.settings
    check_trusted(settings.trust, deployment)
    environment, notes = child_environment(
        project.environ, allow=settings.allow_environment, gogc=settings.gogc
    )
    with open_store(project, deployment.operations) as store:
        info = _engine_for(project, engine, deployment, _records(store, deployment))
        processes = SystemProcesses()
        program = TerraformEngine(
            info,
            environment=environment,
            processes=processes,
            plugin_cache=plugin_cache(environment, project.own_dir / "cache" / "providers"),
        )
        if check_module_versions:
            check_accepted(program.info_in, deployment)
        shared = is_shared(deployment.operations.url)
        clock = SystemClock()
        masker = Masker([*deployment.secrets(), *environment_secrets(environment)])
        services = Services(
            store=store,
            spool=DirectorySpool(project.own_dir / "spool"),
            files=run_files(project),
            processes=processes,
            clock=clock,
            ids=RandomIds(),
            sink=RedactingSink(sink, masker),
            engine=program,
            work=project.own_dir / "work",
            workdirs=DirectoryWorkDirs(project.own_dir / "work", project.project_dir),
            checks=SystemChecks(clock, environment),
            policy_rules=RegoRules(environment),
            approver=approver,
            stop=stop,
            masker=masker,
            actor=actor(project.environ),
            source=source(project.project_dir, deployment.path),
            key=project_key(store, project.project_dir, project.environ, create=records),
            root=project.project_dir,
            is_shared=shared,
            workspace=environment.get("TF_WORKSPACE") or "default",
            environ=environment,
            limits=Limits(
                timeout=settings.timeout,
                grace=settings.grace,
                settle=settings.settle_seconds,
                store_grace=next(
                    seconds
                    for seconds in (store_grace, settings.store_grace, SHARED_GRACE * shared)
                    if seconds is not None
                ),
                silence=SILENCE,
            ),
        )
        if check_module_versions:  # the modules are those of the project, not of a record
            notes += unread_files(deployment, project_files(project))
        if shared and settings.project == DEFAULT_PROJECT:
            notes.append(
                "the project has no name (`project:` in orchestrator.yaml): in a shared store "
                "another project without one would meet the same records"
            )
        notes += unread_variables(project.environ, deployment.inputs)
        for note in notes:
            services.note(note, level="warning")
        yield services


def read_archived(archive: bytes, name: str) -> str:
    """
    The text of a file in a module archive, "" where there is none.
    """
    from orchestrator.engine.workdir.snapshot import text_of, unpack

    return text_of(unpack(archive), name)
