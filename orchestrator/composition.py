"""
The composition root: the only place that names the concrete classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from orchestrator.project import ProjectContext
from orchestrator.run_files import RunFiles, Spool
from orchestrator.stores import project_store
from orchestrator.system import RandomIds, SystemClock, actor, source, warn

if TYPE_CHECKING:
    from orchestrator.app.commands.store_holder import StoreHolder
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.domain.store_location import StoreLocation
    from orchestrator.ports.system import Approver, Sink, StopToken
    from orchestrator.stores.watched_store import WatchedStore


def open_store(
    project: ProjectContext, location: StoreLocation | None = None, tell: project_store.Tell = warn
) -> closing[WatchedStore]:
    """
    Return the store at a location, else the project's own; ``tell`` gets what speaks against it.
    """
    return closing(project_store.open_project_store(project, location or project.operations, tell))


def store_holder(project: ProjectContext, command: str) -> StoreHolder:
    """
    Return this process as the claim holder of a ``store`` command.
    """
    from orchestrator.app.commands.store_holder import store_holder
    from orchestrator.engine.process.identity import SystemProcesses

    who = actor(project.environ)
    return store_holder(SystemProcesses(), SystemClock(), RandomIds(), who, command)


def run_files(project: ProjectContext) -> RunFiles:
    """
    Return the run files of this machine.
    """
    return RunFiles(project.own_dir / "runs")


@contextmanager
def open_read_context(
    project: ProjectContext, location: StoreLocation | None = None
) -> Iterator[ReadContext]:
    """
    Yield the context of commands that only read records.
    """
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.engine.process.identity import SystemProcesses

    with open_store(project, location) as store:
        yield ReadContext(
            project=project.settings.project,
            store=store,
            spool=Spool(project.own_dir / "spool"),
            files=run_files(project),
            processes=SystemProcesses(),
            work=project.own_dir / "work",
            today=SystemClock().now().date(),
            refusal=store.refusal,
            changed_secrets=partial(project_store.changed_secrets, project, store),
        )


@contextmanager
def open_services(
    project: ProjectContext,
    deployment: Deployment,
    *,
    engine: str | None,
    sink: Sink,
    stop: StopToken,
    approver: Approver,
    current_modules: bool = True,
    records: bool = True,
    store_grace: float | None = None,
) -> Iterator[Services]:
    """
    Yield the services of a command that runs an engine and, with ``records``, writes records.
    Raises Invalid if ``current_modules``, those of the project, do not accept the engine.
    """
    from orchestrator.app.services import RedactingSink, Services
    from orchestrator.checks import SystemChecks
    from orchestrator.domain.masking import Masker
    from orchestrator.engine.process.environment import child_environment, environment_secrets
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.engine.terraform import project_engine
    from orchestrator.engine.workdir.workdir import DirectoryWorkDirs
    from orchestrator.loading.deployment import check_trusted
    from orchestrator.loading.notes import project_notes
    from orchestrator.loading.summary import neighbour_urls
    from orchestrator.rego import rego_violations

    own, allowed, clock = project.own_dir, project.settings.allow_environment, SystemClock()
    check_trusted(project.settings.trust, deployment)
    gogc = project.settings.gogc
    environment, notes = child_environment(project.environ, allow=allowed, gogc=gogc)
    masker = Masker([*deployment.secrets(), *environment_secrets(environment)])
    public_url = partial(project_store.public_url, project.environ)
    with open_store(project, deployment.operations) as store:
        services = Services(
            store=store,
            spool=Spool(own / "spool"),
            files=run_files(project),
            processes=SystemProcesses(),
            clock=clock,
            ids=RandomIds(),
            sink=RedactingSink(sink, masker),
            engine=project_engine(
                project, engine, deployment, store.unwatched, environment, check=current_modules
            ),
            work=own / "work",
            workdirs=DirectoryWorkDirs(own / "work", project.project_dir),
            checks=SystemChecks(clock, environment),
            policy_rules=partial(rego_violations, environment),
            approver=approver,
            stop=stop,
            masker=masker,
            actor=actor(project.environ),
            source=cache(partial(source, project.project_dir, deployment.path)),
            key=project_store.project_key(
                store, project.project_dir, project.environ, create=records
            ),
            root=project.project_dir,
            is_shared=deployment.operations.is_shared,
            refusal=store.refusal,
            note_reconciled=store.note_reconciled,
            neighbours=partial(neighbour_urls, project, deployment, public_url),
            environ=environment,
            limits=project.limits(deployment.operations, store_grace),
        )
        for note in (*notes, *project_notes(project, deployment, current_modules=current_modules)):
            services.note(note, level="warning")
        yield services
