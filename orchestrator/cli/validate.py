"""
``orchestrator validate``, ``graph`` and ``schema``: work on the blueprint, without records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, paper, print_document
from orchestrator.cli.options import affected, affected_options
from orchestrator.cli.reports import annotate_problems


@click.command("validate", short_help="Check blueprints and their modules.")
@click.argument("blueprints", metavar="[BLUEPRINT]...", nargs=-1)
@options.environment
@options.inputs
@options.engine
@options.json_document
@click.pass_obj
def validate_command(
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
    Reports all problems at once, each with its place. No engine runs.

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
    from orchestrator.loading.notes import stray_files, unread_files
    from orchestrator.loading.summary import environment_names
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.errors import problem_documents, validation_text

    project = invocation.project()
    checked: list[CheckedBlueprint] = []
    problems: list[Problem] = []
    unread: list[str] = []
    for name in blueprints or (*sorted(project.blueprints()), *stray_files(project)):
        try:
            names = (environment,) if environment else environment_names(project, name)
            for each in names:
                selection = BlueprintSelection(
                    name, each, variables, input_files, engine_option=engine
                )
                deployment = load_deployment(project, selection, InputPolicy.CHECK_ONLY)
                unread += unread_files(project, deployment)
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
    print_document(document, validation_text, as_json=as_json)
    return Invalid.exit_code if problems else 0


@click.command("graph", short_help="Draw the dependencies of the steps.")
@options.blueprint
@options.environment
@affected_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "dot", "mermaid", "json", "matrix"]),
    default="text",
    show_default=True,
    help="The output format; matrix is one line of JSON for the jobs of a pipeline.",
)
@click.pass_obj
def graph_command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    form: str,
    *,
    changed_since: str | None,
    affected_by: tuple[Path, ...],
) -> int:
    """
    Draw the steps of BLUEPRINT in the order of an apply.

    A matrix has one entry per step, for a job with `apply --step STEP`; jobs of one wave may run
    concurrently if they use the same --request-token.

    \b
    Example:
      orchestrator graph web-service --format mermaid
      orchestrator graph web-service --changed-since origin/main --format matrix
    """
    from orchestrator.app.commands.history import graph_document
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.listings import graph_dot, graph_matrix, graph_mermaid, graph_text

    project = invocation.project()
    selection = BlueprintSelection(blueprint, environment)
    touched = None
    if changed_since is not None or affected_by:
        from orchestrator.loading.deployment import load_deployment
        from orchestrator.loading.inputs import InputPolicy

        deployment = load_deployment(project, selection, InputPolicy.AVAILABLE)
        touched = affected(project, deployment, changed_since, affected_by)
    document = graph_document(load_summary(project, selection), touched)
    texts = {
        "text": lambda: graph_text(document, paper(sys.stdout)),
        "dot": lambda: graph_dot(document),
        "mermaid": lambda: graph_mermaid(document),
        "json": lambda: document.to_json(),
        "matrix": lambda: graph_matrix(document),
    }
    click.echo(texts[form]())
    return 0


@click.command("schema", short_help="Print the JSON Schema of a document.")
@click.argument("name", metavar="[NAME]", required=False)
def schema_command(name: str | None) -> int:
    """
    Print the JSON Schema of a document; without NAME, list the names.

    \b
    Example:
      orchestrator schema status
    """
    from orchestrator.domain.documents.schemas import DOCUMENTS
    from orchestrator.domain.text import did_you_mean
    from orchestrator.errors import Usage

    if name is None:
        click.echo("\n".join(sorted(DOCUMENTS)))
        return 0
    if name not in DOCUMENTS:
        raise Usage(f"there is no document {name!r}", hint=did_you_mean(name, DOCUMENTS))
    click.echo(json.dumps(DOCUMENTS[name].model_json_schema(by_alias=True), indent=2))
    return 0
