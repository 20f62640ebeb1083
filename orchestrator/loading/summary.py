"""
From a blueprint's name to its `Outline`, quickly: for commands that only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Backend, InputValue
from orchestrator.domain.blueprint.summary import Outline, OutlinedStep
from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.loading.blueprint_file import (
    ProjectSettings,
    operations_url,
    read,
    resolve_inputs,
    used_inputs,
)
from orchestrator.loading.dependencies import backend_rules, link_needs
from orchestrator.loading.environments import DEFAULT
from orchestrator.loading.files import read_text
from orchestrator.loading.input_precedence import Given
from orchestrator.loading.project import Project
from orchestrator.loading.raw_steps import Draft
from orchestrator.loading.schema import given, parse_blueprint
from orchestrator.loading.sources import run_command
from orchestrator.loading.values import Need


def outline(
    path_or_name: str,
    *,
    root: Path,
    settings: ProjectSettings,
    environ: Mapping[str, str],
    environment: str | None = None,
    variables: Sequence[str] = (),
    input_files: Sequence[Path] = (),
    directory: Path | None = None,
    run_command: Callable[[Sequence[str]], str] = run_command,
) -> Outline:
    """
    The blueprint in an environment as reading commands need it: no module is read, and inputs are
    looked at only where the place of the operation store depends on them.

    Invalid with all problems that show without modules.
    """
    reading = read(path_or_name, root, settings, environment, directory)
    problems, blueprint = reading.problems, reading.blueprint
    graph = link_needs(reading.drafts, problems)
    backend = reading.backend
    backend_rules(blueprint, {}).check(backend.config, problems)
    url = operations_url(reading, environ, need=Need.VALUES) or settings.operations_url
    problems.check()
    inputs: dict[str, InputValue] = {}
    used = used_inputs([backend.config])
    if used and url is None:
        inputs = resolve_inputs(
            reading,
            Given(variables, input_files, environ, directory or root),
            need=Need.AVAILABLE,
            used=used,
            run_command=run_command,
        )
        backend_rules(blueprint, inputs).check(backend.config, problems)
        problems.check()
    return Outline(
        project=settings.project,
        blueprint=blueprint.name,
        environment=reading.effective.name,
        environments=tuple(blueprint.environments) or (DEFAULT,),
        root=str(reading.project.root),
        path=reading.project.show(reading.path),
        steps={name: _outlined(draft, graph.needs(name)) for name, draft in reading.drafts.items()},
        graph=graph,
        backend=Backend(backend.type, backend.config.template),
        inputs={name: value for name, value in inputs.items() if name in used},
        operations_url=url,
        protected=reading.effective.protected,
        moved_from=blueprint.moved_from,
    )


def environment_names(
    path_or_name: str, *, root: Path, settings: ProjectSettings, directory: Path | None = None
) -> tuple[str, ...]:
    """
    The environments that a blueprint declares, ("default",) if none, as they stand in the file.
    """
    project = Project(root.resolve(), settings.module_roots)
    path = project.find(path_or_name, directory=directory or root)
    shown = project.show(path)
    problems = Problems()
    blueprint = parse_blueprint(parse_document(read_text(path, shown=shown), file=shown), problems)
    return tuple(blueprint.environments) or (DEFAULT,)


def _outlined(draft: Draft, needs: frozenset[str]) -> OutlinedStep:
    declared = given(draft.fields)
    return OutlinedStep(
        name=draft.name,
        module_ref=draft.module.text if draft.module else "",
        needs=needs,
        owned_by=draft.owned_by.text if draft.owned_by else None,
        retain=draft.retain,
        compensate="compensate" in declared,
        before_destroy="before_destroy" in declared,
        providers={name: item.template for name, item in draft.providers.items()},
        at=draft.at,
    )
