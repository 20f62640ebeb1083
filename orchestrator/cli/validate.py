"""
``orchestrator validate``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper
from orchestrator.cli.reports import annotate_problems


@click.command("validate", short_help="Check blueprints and their modules.")
@click.argument("blueprints", metavar="[BLUEPRINT]...", nargs=-1)
@options.environment
@options.inputs
@options.engine
@options.json_document
@click.pass_obj
def command(
    invocation: Invocation,
    blueprints: tuple[str, ...],
    environment: str | None,
    variables: tuple[str, ...],
    input_files: tuple[Path, ...],
    engine: str | None,
    as_json: bool,
) -> int:
    """
    Check BLUEPRINTs with their modules, inputs and references; all of the project if none is named.
    All problems at once, each with its place. No engine runs.

    \b
    Example:
      orchestrator validate
      orchestrator validate web-service -e prod
    """
    from orchestrator.domain.documents.documents import CheckedBlueprint, ValidationDocument
    from orchestrator.engine.workdir.snapshot import pack_problems
    from orchestrator.errors import Invalid, Problem
    from orchestrator.loading.deployment import load_deployment
    from orchestrator.loading.inputs import InputPolicy, unread_variables
    from orchestrator.loading.project import project_files, unread_files
    from orchestrator.loading.summary import blueprint_names, environment_names
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.errors import problem_documents, validation_text

    project = invocation.project()
    checked: list[CheckedBlueprint] = []
    problems: list[Problem] = []
    unread: list[str] = []
    files = project_files(project)
    for name in blueprints or (*blueprint_names(project), *files.stray_files()):
        try:
            names = (environment,) if environment else environment_names(project, name)
            for each in names:
                selection = BlueprintSelection(
                    name, each, variables, input_files, engine_option=engine
                )
                deployment = load_deployment(project, selection, InputPolicy.CHECK_ONLY)
                unread += unread_files(deployment, files)
                unread += unread_variables(project.environ, deployment.inputs)
                modules = (step.module for step in deployment.steps_and_hooks().values())
                if unpackable := pack_problems(modules):
                    raise Invalid([item.shown_from(deployment.project_dir) for item in unpackable])
        except Invalid as exc:
            problems += [problem for problem in exc.problems if problem not in problems]
        else:
            checked.append(
                CheckedBlueprint(
                    blueprint=deployment.blueprint,
                    file=deployment.path,
                    environments=names,
                    steps=tuple(deployment.steps),
                )
            )
    for sentence in dict.fromkeys(unread):
        click.echo(f"warning: {sentence}", err=True)
    annotate_problems(problems, project.project_dir, project.environ)
    document = ValidationDocument(
        valid=not problems,
        blueprints=tuple(checked),
        problems=problem_documents(problems),
    )
    click.echo(document.to_json() if as_json else validation_text(document, paper(sys.stdout)))
    return Invalid.exit_code if problems else 0
