"""
Loads a `BlueprintSummary` by the name of its blueprint, quickly: for commands that only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from urllib.parse import parse_qsl, urlsplit

from orchestrator.domain.blueprint.blueprint import (
    Backend,
    BlueprintSummary,
    Deployment,
    InputValue,
    StepSummary,
)
from orchestrator.domain.blueprint.references import Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document, without_nulls
from orchestrator.domain.store_location import DATABASES, StoreLocation, location_beside
from orchestrator.domain.target import Target
from orchestrator.errors import Invalid, Problem, Refused, StoreUnavailable
from orchestrator.loading.blueprint_file import (
    ReadBlueprint,
    operations_url,
    read_blueprint,
    resolve_inputs,
)
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.reference_rules import known_values
from orchestrator.loading.schema import DEFAULT, parse_blueprint
from orchestrator.loading.sources import commands_of
from orchestrator.loading.steps import RawStep, backend_rules, step_graph
from orchestrator.local_files import read_text
from orchestrator.ports.store import NEIGHBOURS, OperationStore
from orchestrator.project import BlueprintSelection, ProjectContext

# Where the operation stores of blueprints lie: as ``operations.url`` says, else beside the
# provider states.


#: Settings of backends that say where a state lies inside the bucket or database.
_OF_THE_STATE = ("key", "prefix", "workspace_key_prefix", "schema_name")
#: What an `operations.url` begins with that a backend block has the credentials for.
_SCHEMES = {"s3": "s3://", "gcs": "gs://", "azurerm": "az://"}


def store_backend(reading: ReadBlueprint) -> Backend:
    """
    Return the backend that decides the default location of the operation store: that of the
    environment, or, if that is local, the first one of a step that is not.
    """
    backends = (reading.backend, *(step.backend for step in reading.raw_steps.values()))
    return next((item for item in backends if item.type != "local"), reading.backend)


def _location_settings(backend: Backend, url: str | None) -> Template:
    """
    Return the part of a backend block that a location depends on: without the setting that names
    the state, and nothing if ``operations.url`` needs no credentials from the block.
    """
    scheme, raw = _SCHEMES.get(backend.type), backend.config.raw
    if not isinstance(raw, Mapping) or not (
        url is None or (scheme is not None and url.startswith(scheme))
    ):
        return Template({})
    return Template({key: item for key, item in raw.items() if key not in _OF_THE_STATE})


def store_location(
    reading: ReadBlueprint, inputs: Mapping[str, InputValue], url: str | None
) -> StoreLocation:
    """
    Return the location of the operation store. ``url`` is ``operations.url``, None if not set. A
    backend block with values that are not known here gives no location.
    """
    backend, config = store_backend(reading), {}
    values = {name: item.value for name, item in inputs.items()}
    look_up = known_values(reading.blueprint.name, reading.effective.name, inputs=values)
    with suppress(Unresolvable):
        config = _location_settings(backend, url).resolve(look_up).value
    if url is None:
        return location_beside(backend.type, config)
    return StoreLocation(backend.type, url, config)


def load_summary(
    project: ProjectContext,
    selection: BlueprintSelection,
    *,
    run_command: Callable[[Sequence[str]], str] | None = None,
) -> BlueprintSummary:
    """
    Load the blueprint in an environment for commands that only read: no module is read, and inputs
    are resolved only if the location of the store depends on them.

    Raises Invalid with all problems that can be found without modules.
    """
    reading = read_blueprint(project, selection)
    problems, blueprint = reading.problems, reading.blueprint
    graph = step_graph(reading.raw_steps, problems)
    backend = store_backend(reading)
    backend_rules(blueprint, {}).check(backend.config, problems)
    url = (
        operations_url(reading, input_policy=InputPolicy.REQUIRED)
        or project.settings.operations_url
    )
    problems.check()
    inputs: dict[str, InputValue] = {}
    used = _location_settings(backend, url).names("input")
    if used:
        inputs = resolve_inputs(
            reading,
            input_policy=InputPolicy.AVAILABLE,
            used=used,
            run_command=run_command or commands_of(project),
        )
        backend_rules(blueprint, inputs).check(backend.config, problems)
        problems.check()
    return BlueprintSummary(
        project=project.settings.project,
        called_in=project.called_in,
        blueprint=blueprint.name,
        environment=reading.effective.name,
        project_dir=str(reading.project.project_dir),
        path=reading.project.show(reading.path),
        steps={
            name: _step_summary(raw_step, graph.needs(name))
            for name, raw_step in reading.raw_steps.items()
        },
        graph=graph,
        operations=store_location(reading, inputs, url),
        protected=reading.effective.protected,
        policy=reading.policy,
        moved_from=blueprint.moved_from,
    )


def environment_names(project: ProjectContext, blueprint: str) -> tuple[str, ...]:
    """
    Return the environments that a blueprint declares, as declared; ("default",) if none.
    """
    path = project.find_blueprint(blueprint)
    shown = project.show(path)
    problems = Problems()
    tree = parse_document(read_text(path, shown=shown), file=shown)
    return tuple(parse_blueprint(tree, problems).environments) or (DEFAULT,)


def _step_summary(raw_step: RawStep, needs: frozenset[str]) -> StepSummary:
    declared = without_nulls(raw_step.fields)
    return StepSummary(
        name=raw_step.name,
        module_ref=raw_step.module_ref,
        needs=needs,
        owned_by=raw_step.owned_by.text if raw_step.owned_by else None,
        retain=raw_step.retain,
        compensate="compensate" in declared,
        before_destroy="before_destroy" in declared,
        providers=raw_step.providers,
        at=raw_step.at,
    )


# The blueprints of a project, in each of their environments.


def all_summaries(project: ProjectContext) -> list[BlueprintSummary]:
    """
    Return every blueprint of the project in each of its environments. Raises Invalid with the
    problems of all.
    """
    summaries: list[BlueprintSummary] = []
    problems: list[Problem] = []
    for name in sorted(project.blueprints()):
        try:
            summaries += _summaries(project, name)
        except Invalid as exc:
            problems += [problem for problem in exc.problems if problem not in problems]
    if problems:
        raise Invalid(problems)
    return summaries


def _summaries(
    project: ProjectContext, blueprint: str, environment: str | None = None
) -> Iterator[BlueprintSummary]:
    """
    Yield a blueprint in each of its environments, or only in ``environment``.
    """
    for name in environment_names(project, blueprint):
        if environment in (None, name):
            yield load_summary(project, BlueprintSelection(blueprint, name))


def summary_of_target(project: ProjectContext, target: Target) -> BlueprintSummary | None:
    """
    Return the blueprint and environment of a target, None if the project no longer has them.
    """
    if target.blueprint not in project.blueprints():
        return None
    if target.environment not in environment_names(project, target.blueprint):
        return None
    return load_summary(project, BlueprintSelection(target.blueprint, target.environment))


def store_locations(
    project: ProjectContext, blueprint: str | None = None, environment: str | None = None
) -> list[StoreLocation]:
    """
    Return the distinct operation stores of the project and its blueprints, or only those of
    ``blueprint`` or ``environment``. A blueprint that cannot be read is skipped.
    """
    locations = [] if blueprint or environment else [project.operations]
    for name in sorted(project.blueprints()):
        if blueprint in (None, name):
            with suppress(Invalid):
                for summary in _summaries(project, name, environment):
                    if summary.operations not in locations:
                        locations.append(summary.operations)
    return locations or [project.operations]


StoreOpener = Callable[[StoreLocation], AbstractContextManager[OperationStore]]


def neighbour_urls(
    project: ProjectContext, deployment: Deployment, url_of: Callable[[StoreLocation], str]
) -> dict[str, str]:
    """
    Return the URLs, without credentials, of the shared stores that the blueprint's other
    environments have for themselves. None is opened: who runs here may have no credentials there.
    An environment that cannot be read is skipped, and one that names no store.
    """
    urls = {}
    with suppress(Invalid):
        for name in environment_names(project, deployment.path):
            with suppress(Invalid, StoreUnavailable):
                selection = BlueprintSelection(deployment.path, name)
                location = load_summary(project, selection).operations
                if location.is_shared and location != deployment.operations:
                    urls[name] = url_of(location)
    return urls


def seen_locations(
    project: ProjectContext,
    known: Sequence[StoreLocation],
    is_wanted: Callable[[str, str], bool],
    open_store: StoreOpener,
) -> list[StoreLocation]:
    """
    Return the operation stores in which this machine has seen entries of a wanted blueprint and
    environment, or that runs have noted in a known store: once that is removed from the blueprint,
    no file says where its records are. Each gets the configuration of a known store of its kind. A
    known store that cannot be read is skipped.
    """
    urls = {
        url: True
        for url, places in project.seen_stores().items()
        if any(is_wanted(*place) for place in places)
    }
    servers: dict[tuple[str, str], StoreLocation] = {}
    noted: list[str] = []
    for location in known:
        if location.is_shared:
            with suppress(StoreUnavailable, Refused), open_store(location) as store:
                servers.setdefault(_server(store.url), location)
                for name in store.blobs(NEIGHBOURS):
                    _, *place = name.split("/")
                    url = (store.blob(name) or b"").decode("utf-8", "replace")
                    if len(place) == 2 and StoreLocation(url=url).is_shared and is_wanted(*place):
                        noted.append(url)
    for url in noted:
        urls.setdefault(url, _server(url) in servers)
    kinds = {scheme: location for (scheme, _), location in servers.items()}
    return [
        _reached_as(servers.get(_server(url), kinds.get(_server(url)[0])), url)
        if is_trusted
        else StoreLocation(url=url, is_trusted=False)
        for url, is_trusted in urls.items()
    ]


def _reached_as(known: StoreLocation | None, url: str) -> StoreLocation:
    """
    Return the location of a URL that has no credentials, with those of a known store.
    """
    if known is None:
        return StoreLocation(url=url)
    named = urlsplit(known.url or "")
    if named.scheme in DATABASES:
        if not (named.netloc or named.path.strip("/")):
            named = urlsplit(str(known.config.get("conn_str") or ""))
        with_user = named._replace(path=urlsplit(url).path) if named.netloc else urlsplit(url)
        return StoreLocation(url=with_user.geturl())
    return StoreLocation(url=url, config={**known.config, **dict(parse_qsl(named.query))})


def _server(url: str) -> tuple[str, str]:
    """
    Return the part of a store's URL that says who gets the credentials: the host of a database, the
    account or endpoint of a bucket.
    """
    parts = urlsplit(url)
    return parts.scheme, parts.netloc if parts.scheme in DATABASES else parts.query


def blueprint_reference(
    project: ProjectContext,
    target: Target,
    open_store: StoreOpener,
) -> str:
    """
    Return how to name the blueprint of a target on a command line: by the path in its record if no
    blueprint under ``blueprints/`` has the name.
    """
    if target.blueprint in project.blueprints():
        return target.blueprint
    with open_store(project.operations) as store:
        record = store.newest(target)
    return record.source.blueprint_path if record else target.blueprint
