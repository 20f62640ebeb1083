"""
From a blueprint's name to a checked `Deployment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Constraint, Deployment, EngineWish, Step
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.loading.behaviour import parse_behaviour
from orchestrator.loading.blueprint_file import (
    ProjectSettings,
    environment_variables,
    operations_url,
    read,
    resolve_inputs,
    used_inputs,
)
from orchestrator.loading.environments import merge_step
from orchestrator.loading.hooks import parse_actions
from orchestrator.loading.input_precedence import Given
from orchestrator.loading.linking import CheckValidator, Kept, Linker, ModuleReader
from orchestrator.loading.modules import read_module
from orchestrator.loading.raw_steps import parse_step
from orchestrator.loading.schema import given
from orchestrator.loading.sources import run_command
from orchestrator.loading.values import Need, check_written


def load(
    path_or_name: str,
    *,
    root: Path,
    settings: ProjectSettings,
    environ: Mapping[str, str],
    environment: str | None = None,
    variables: Sequence[str] = (),
    input_files: Sequence[Path] = (),
    directory: Path | None = None,
    need: Need = Need.VALUES,
    run_command: Callable[[Sequence[str]], str] = run_command,
    read_module: ModuleReader = read_module,
    validate_check: CheckValidator | None = None,
    kept: Mapping[str, Kept] | None = None,
) -> Deployment:
    """
    The blueprint in an environment, with its inputs and modules, checked as a whole.

    Relative paths of the command line start at ``directory`` (default: ``root``). ``variables`` are
    the NAME=VALUE of ``-i``; ``kept`` are modules of an earlier run in place of those in the
    project. Invalid with all problems found.
    """
    reading = read(path_or_name, root, settings, environment, directory)
    problems, blueprint = reading.problems, reading.blueprint
    for item in blueprint.environments.values():
        for name, node in item.steps.items():
            merged = merge_step(blueprint.steps[name], node)
            draft = parse_step(name, merged, blueprint.step_at[name], reading.effective, problems)
            parse_behaviour(draft.fields, {}, problems)
            parse_actions(draft, problems)
    check_written(blueprint, problems)
    linker = Linker(
        blueprint=blueprint,
        project=reading.project,
        base=reading.path.parent,
        read_module=read_module,
        validate_check=validate_check,
        problems=problems,
        wanted="recorded" if need is Need.AVAILABLE else "present",
        kept=kept or {},
    )
    linked = linker.link(reading.drafts)
    need = need if reading.chosen else Need.CHECKS
    values = linked.values()
    unavailable: dict[str, str] = {}
    inputs = resolve_inputs(
        reading,
        Given(variables, input_files, environ, directory or root),
        need=need,
        used=used_inputs(values),
        run_command=run_command,
        secret=used_inputs(linked.secret_values()),
        unavailable=unavailable,
    )
    linked.check_values(inputs, Problems() if need is Need.AVAILABLE else problems)
    actions = linked.action_values()
    env = environment_variables(values, environ, need=need, problems=problems)
    # What an action refers to need not be set before the action is carried out.
    env |= environment_variables(actions, environ, need=Need.AVAILABLE, problems=problems)
    url = operations_url(reading, environ, need=need)
    engine = _engine(reading.effective.common.engine, problems)
    problems.check()
    return Deployment(
        project=settings.project,
        blueprint=blueprint.name,
        environment=reading.effective.name,
        root=str(reading.project.root),
        path=reading.project.show(reading.path),
        inputs=inputs,
        steps=_as_kept(linked.steps(), kept or {}),
        graph=linked.graph,
        engine=engine,
        operations_url=url or settings.operations_url,
        protected=reading.effective.protected,
        moved_from=blueprint.moved_from,
        env=env,
        unavailable=unavailable,
    )


def _as_kept(steps: Mapping[str, Step], kept: Mapping[str, Kept]) -> dict[str, Step]:
    """
    The steps, those with a kept module referring to it as the blueprint did then.
    """
    return {
        name: replace(step, module_ref=kept[name].module_ref) if name in kept else step
        for name, step in steps.items()
    }


def _engine(node: Node | None, problems: Problems) -> EngineWish:
    if node is None:
        return EngineWish()
    fields = given(problems.fields(node, ("kind", "version"), what="engine"))
    kind, version = fields.get("kind"), fields.get("version")
    constraint = None
    if version is not None:
        text = problems.text(version, what="engine.version")
        constraint = Constraint(text, version.at) if text else None
    match kind.value if kind else None:
        case "terraform":
            return EngineWish("terraform", constraint)
        case "tofu":
            return EngineWish("tofu", constraint)
        case None:
            return EngineWish(None, constraint)
        case _:
            at = kind.at if kind else node.at
            problems.add("engine.kind must be `terraform` or `tofu`", at)
            return EngineWish(None, constraint)
