"""
The composition root: the only file that names concrete classes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.errors import EngineFailed, Invalid, Problem
from orchestrator.project import BlueprintSelection, ProjectContext
from orchestrator.settings import project_key

if TYPE_CHECKING:
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.domain.blueprint.summary import BlueprintSummary
    from orchestrator.domain.documents.documents import StatusListDocument
    from orchestrator.domain.record.record import Claim
    from orchestrator.domain.target import Target
    from orchestrator.loading.linking import StoredModule
    from orchestrator.loading.values import InputPolicy
    from orchestrator.ports.engine import EngineInfo
    from orchestrator.ports.run_files import RunFiles
    from orchestrator.ports.store import OperationStore
    from orchestrator.ports.system import Approver, Sink, StopToken

SILENCE = 60.0  # seconds without a heartbeat after which a run that cannot be seen counts as silent


def summarize(project: ProjectContext, selection: BlueprintSelection) -> BlueprintSummary:
    """
    The blueprint as reading commands need it.
    """
    from orchestrator.loading.summary import load_summary

    return load_summary(
        selection.blueprint,
        project_dir=project.project_dir,
        settings=project.settings,
        environ=project.environ,
        environment=selection.environment,
        variables=selection.variables,
        input_files=selection.input_files,
        directory=project.directory,
    )


def blueprint_names(project: ProjectContext) -> list[str]:
    """
    The names of the project's blueprints, sorted.
    """
    from orchestrator.loading.project import ProjectFiles

    return sorted(ProjectFiles(project.project_dir, project.settings.module_roots).blueprints())


def blueprint_of(project: ProjectContext, target: Target) -> str:
    """
    How to name the blueprint of a target: by the path in its record where no blueprint under
    ``blueprints/`` has the name.
    """
    if target.blueprint in blueprint_names(project):
        return target.blueprint
    store, _ = open_store(project, "local", None)
    try:
        record = store.newest(target)
    finally:
        store.close()
    return record.source.blueprint_path if record else target.blueprint


def environments(project: ProjectContext, blueprint: str) -> tuple[str, ...]:
    """
    The environments that a blueprint declares.
    """
    from orchestrator.loading.summary import environment_names

    return environment_names(
        blueprint,
        project_dir=project.project_dir,
        settings=project.settings,
        directory=project.directory,
    )


def summarize_all(project: ProjectContext) -> list[BlueprintSummary]:
    """
    Every blueprint of the project in each of its environments; Invalid with the problems of all
    that are wrong.
    """
    found: list[BlueprintSummary] = []
    problems: list[Problem] = []
    for name in blueprint_names(project):
        try:
            for environment in environments(project, name):
                found.append(summarize(project, BlueprintSelection(name, environment)))
        except Invalid as exc:
            problems += [problem for problem in exc.problems if problem not in problems]
    if problems:
        raise Invalid(problems)
    return found


def status_of_all(project: ProjectContext) -> StatusListDocument:
    """
    The status of every blueprint and environment that has a file, each from its own store, and of
    those that have only records left in the project's.
    """
    from orchestrator.app.commands.status import left_over, status_of
    from orchestrator.domain.documents.documents import StatusListDocument

    declared = summarize_all(project)
    documents = []
    for each in declared:
        with open_read_context(project, each.backend.type, each.operations_url) as desk:
            documents.append(status_of(desk, each))
    with open_read_context(project) as desk:
        documents += left_over(desk, {(each.blueprint, each.environment) for each in declared})
    return StatusListDocument(project=project.settings.project, blueprints=tuple(documents))


def summary_of(project: ProjectContext, target: Target) -> BlueprintSummary | None:
    """
    The outline that a target belongs to; None where its blueprint is no longer in the project.
    """
    if target.blueprint not in blueprint_names(project):
        return None
    if target.environment not in environments(project, target.blueprint):
        return None
    return summarize(project, BlueprintSelection(target.blueprint, target.environment))


def load_deployment(
    project: ProjectContext,
    selection: BlueprintSelection,
    need: InputPolicy,
    kept: Mapping[str, StoredModule] | None = None,
) -> Deployment:
    """
    The blueprint in its environment with inputs and modules, checked as a whole; ``kept`` are
    modules of an earlier run in place of those in the project.
    """
    from orchestrator.domain.blueprint.check_settings import validate_check
    from orchestrator.loading.deployment import load
    from orchestrator.loading.sources import run_command

    return load(
        selection.blueprint,
        project_dir=project.project_dir,
        settings=project.settings,
        environ=project.environ,
        environment=selection.environment,
        variables=selection.variables,
        input_files=selection.input_files,
        directory=project.directory,
        input_policy=need,
        run_command=partial(run_command, directory=project.project_dir),
        validate_check=validate_check,
        stored_modules=kept,
    )


@contextmanager
def open_archive(
    project: ProjectContext, found: BlueprintSummary | None
) -> Iterator[tuple[RunFiles, OperationStore]]:
    """
    The runs of this machine and the operation store of a blueprint; the project's own without one.
    """
    from orchestrator.stores.runs import RunDirectory

    backend, url = (found.backend.type, found.operations_url) if found else ("local", None)
    store, _ = open_store(project, backend, url)
    try:
        yield RunDirectory(project.own_dir / "runs"), store
    finally:
        store.close()


def open_store(
    project: ProjectContext, backend: str, url: str | None
) -> tuple[OperationStore, str | None]:
    """
    The operation store of a blueprint, and a warning where it is not beside the provider state.
    """
    from orchestrator.stores import store_urls

    found, warning = store_urls.store_url(
        backend, url or project.settings.operations_url, project.project_dir
    )
    store = store_urls.open_store(
        found,
        project_dir=project.project_dir,
        project=project.settings.project,
        environ=project.environ,
    )
    return store, warning


@contextmanager
def open_named_store(
    project: ProjectContext,
    url: str | None,
    blueprint: str | None = None,
    environment: str | None = None,
) -> Iterator[OperationStore]:
    """
    The store that ``url`` names, else the one of a blueprint, else the project's own.
    """
    found = summarize(project, BlueprintSelection(blueprint, environment)) if blueprint else None
    backend, named = (found.backend.type, found.operations_url) if found else ("local", None)
    store, _ = open_store(project, backend, url or named)
    try:
        yield store
    finally:
        store.close()


def scratch_claim(project: ProjectContext) -> Claim:
    """
    A claim of this process on a blueprint and environment that nobody else uses.
    """
    from orchestrator.domain.record.record import Claim
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.system import RandomIds, SystemClock, actor

    now, ids = SystemClock().now(), RandomIds()
    return Claim(
        blueprint="store-check",
        environment=ids.entry_id(),
        run_id=ids.run_id(now),
        command="store check",
        owner=SystemProcesses().me(),
        actor=actor(project.environ),
        taken_at=now,
    )


@contextmanager
def open_read_context(
    project: ProjectContext, backend: str = "local", url: str | None = None
) -> Iterator[ReadContext]:
    """
    What reading commands read with.
    """
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.stores.runs import RunDirectory
    from orchestrator.stores.spool import DirectorySpool
    from orchestrator.system import SystemClock

    store, _ = open_store(project, backend, url)
    try:
        yield ReadContext(
            project=project.settings.project,
            store=store,
            spool=DirectorySpool(project.own_dir / "spool"),
            files=RunDirectory(project.own_dir / "runs"),
            processes=SystemProcesses(),
            silence=SILENCE,
            work=project.own_dir / "work",
            today=SystemClock().now().date(),
        )
    finally:
        store.close()


def choose_engine(
    project: ProjectContext, option: str | None, found: Deployment | None
) -> EngineInfo:
    """
    The engine that would be used, and why.
    """
    from orchestrator.domain.blueprint.blueprint import EngineRequirement
    from orchestrator.engine.choose import choose

    recorded = None
    if found is not None:
        store, _ = open_store(project, backend_of(found), found.operations_url)
        try:
            recorded = _recorded_kind(store, found)
        finally:
            store.close()
    try:
        return choose(
            option or project.settings.engine,
            found.engine if found else EngineRequirement(),
            recorded,
            project.environ,
            lambda program: shutil.which(program, path=project.environ.get("PATH")),
            cache=project.own_dir / "cache",
        )
    except EngineFailed as exc:  # nothing has run: it is the choice that is wrong
        raise Invalid([Problem(exc.message, hint=exc.hint)]) from exc


@contextmanager
def open_services(
    project: ProjectContext,
    found: Deployment,
    *,
    engine: str | None,
    sink: Sink,
    stop: StopToken,
    approver: Approver,
    check_module_versions: bool = True,
) -> Iterator[Services]:
    """
    What a command works with that runs an engine.

    Invalid where the engine is not one that blueprint and modules accept; Refused where the
    environment would change silently what is applied.
    """
    from orchestrator.app.redacting_sink import RedactingSink
    from orchestrator.app.services import Limits, Services
    from orchestrator.checks import SystemChecks
    from orchestrator.domain.masking import Masker
    from orchestrator.engine.process.environment import child_environment
    from orchestrator.engine.process.identity import SystemProcesses
    from orchestrator.engine.terraform import TerraformEngine
    from orchestrator.engine.workdir.workdir import DirectoryWorkDirs
    from orchestrator.stores.runs import RunDirectory
    from orchestrator.stores.spool import DirectorySpool
    from orchestrator.system import RandomIds, SystemClock, actor, source

    environment, notes = child_environment(
        project.environ, allow=project.settings.allow_environment
    )
    info = choose_engine(project, engine, found)
    if check_module_versions:
        _check_versions(info, found)
    masker = Masker()
    for value in found.secrets():
        masker.add(value)
    store, warning = open_store(project, backend_of(found), found.operations_url)
    processes, clock = SystemProcesses(), SystemClock()
    try:
        ready = Services(
            store=store,
            spool=DirectorySpool(project.own_dir / "spool"),
            files=RunDirectory(project.own_dir / "runs"),
            processes=processes,
            clock=clock,
            ids=RandomIds(),
            sink=RedactingSink(sink, masker),
            engine=TerraformEngine(info, environment=environment, processes=processes),
            work=project.own_dir / "work",
            workdirs=DirectoryWorkDirs(project.own_dir / "work", project.project_dir),
            checks=SystemChecks(clock),
            approver=approver,
            stop=stop,
            masker=masker,
            actor=actor(project.environ),
            source=source(project.project_dir, found.path),
            key=project_key(project.project_dir),
            root=project.project_dir,
            workspace=environment.get("TF_WORKSPACE") or "default",
            environ=environment,
            limits=Limits(
                timeout=project.settings.timeout,
                grace=project.settings.grace,
                settle=project.settings.settle_seconds,
                silence=SILENCE,
            ),
        )
        for note in (*notes, *([warning] if warning else [])):
            ready.note(note, level="warning")
        yield ready
    finally:
        store.close()


def _check_versions(info: EngineInfo, found: Deployment) -> None:
    from orchestrator.engine.versions import check_versions

    wanted = []
    if found.engine.version is not None:
        wanted.append((f"blueprint {found.blueprint}", found.engine.version))
    for step in found.steps.values():
        for constraint in step.module.required_versions:
            wanted.append((f"module {step.module_ref} of step {step.name}", constraint))
    problems = check_versions(info, wanted)
    if problems:
        raise Invalid(problems)


def backend_of(found: Deployment) -> str:
    """
    The backend that decides where the store lies: the first that is not local.
    """
    types: Sequence[str] = [step.backend.type for step in found.steps.values()]
    return next((kind for kind in types if kind != "local"), "local")


def _recorded_kind(store: OperationStore, found: Deployment) -> str | None:
    records = store.records(found.blueprint, found.environment)
    latest = max(
        (record for record in records if record.engine is not None),
        key=lambda record: record.updated_at,
        default=None,
    )
    return latest.engine.kind if latest and latest.engine else None
