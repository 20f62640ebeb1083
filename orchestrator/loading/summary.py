"""
From a blueprint's name to its `BlueprintSummary`, quickly: for commands that only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.domain.blueprint.blueprint import BlueprintSummary, InputValue, StepSummary
from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.loading.blueprint_file import operations_url, read_blueprint, resolve_inputs
from orchestrator.loading.environments import DEFAULT
from orchestrator.loading.files import read_text
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.project import project_files
from orchestrator.loading.raw_steps import RawStep, backend_rules, step_graph
from orchestrator.loading.schema import parse_blueprint, without_nulls
from orchestrator.loading.sources import commands_of
from orchestrator.loading.store_locations import inputs_of_location, store_backend, store_location
from orchestrator.project import BlueprintSelection, ProjectContext


def load_summary(
    project: ProjectContext,
    selection: BlueprintSelection,
    *,
    run_command: Callable[[Sequence[str]], str] | None = None,
) -> BlueprintSummary:
    """
    The blueprint in an environment as reading commands need it: no module is read, and inputs are
    looked at only where the place of the operation store depends on them.

    Invalid with all problems that show without modules.
    """
    reading = read_blueprint(project, selection)
    problems, blueprint = reading.problems, reading.blueprint
    graph = step_graph(reading.raw_steps, problems)
    backend = store_backend(reading)
    backend_rules(blueprint, {}).check(backend.config, problems)
    url = operations_url(reading, need=InputPolicy.REQUIRED) or project.settings.operations_url
    problems.check()
    inputs: dict[str, InputValue] = {}
    used = inputs_of_location(reading, url)
    if used:
        inputs = resolve_inputs(
            reading,
            need=InputPolicy.AVAILABLE,
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
    The environments that a blueprint declares, ("default",) if none, as they stand in the file.
    """
    files = project_files(project)
    path = files.find(blueprint, directory=project.directory)
    shown = files.show(path)
    problems = Problems()
    tree = parse_document(read_text(path, shown=shown), file=shown)
    return tuple(parse_blueprint(tree, problems).environments) or (DEFAULT,)


def _step_summary(raw_step: RawStep, needs: frozenset[str]) -> StepSummary:
    declared = without_nulls(raw_step.fields)
    return StepSummary(
        name=raw_step.name,
        module_ref=raw_step.module.text if raw_step.module else "",
        needs=needs,
        owned_by=raw_step.owned_by.text if raw_step.owned_by else None,
        retain=raw_step.retain,
        compensate="compensate" in declared,
        before_destroy="before_destroy" in declared,
        providers={name: item.template for name, item in raw_step.providers.items()},
        at=raw_step.at,
    )
