"""
``orchestrator status``, ``outputs`` and ``recover``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, print_document
from orchestrator.cli.running import reading_services, recorded_summary

if TYPE_CHECKING:
    from orchestrator.domain.documents.status import StatusDocument
    from orchestrator.project import BlueprintSelection


@click.command("status", short_help="Show the recorded status of every step.")
@click.argument("blueprint", metavar="[BLUEPRINT]", required=False)
@options.environment
@options.selection
@click.option("--all", "everything", is_flag=True, help="Every blueprint and environment.")
@click.option(
    "--expect",
    type=click.Choice(["ok", "destroyed"]),
    help="Exit with 4 unless this is the verdict.",
)
@click.option(
    "--allow-retained",
    is_flag=True,
    help="With --expect destroyed: retained steps may exist until their review is overdue.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="With --expect destroyed: also check the provider states of steps recorded as gone.",
)
@options.verbose
@options.json_document
@click.pass_context
def status_command(
    ctx: click.Context,
    blueprint: str | None,
    environment: str | None,
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    everything: bool,
    expect: str | None,
    allow_retained: bool,
    verify: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Show the recorded status of BLUEPRINT: what was attempted, where it stopped, what is in doubt.

    \b
    Example:
      orchestrator status web-service -e staging
      orchestrator status web-service --expect ok --json
      orchestrator status web-service --expect destroyed --allow-retained
      orchestrator status web-service --expect destroyed --verify
      orchestrator status --all
    """
    from orchestrator import composition
    from orchestrator.app.commands.status import check_expectation, status_of, status_of_all
    from orchestrator.app.inspection.read_context import select_targets
    from orchestrator.errors import StoreUnavailable, Usage
    from orchestrator.loading.summary import all_summaries, seen_locations
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.status import status_list_text, status_text

    invocation: Invocation = ctx.obj
    project = invocation.project()
    if allow_retained and expect != "destroyed":
        raise Usage("--allow-retained goes with --expect destroyed")
    if verify and (expect != "destroyed" or everything or blueprint is None):
        raise Usage("--verify goes with BLUEPRINT --expect destroyed")
    if everything or blueprint is None:
        is_explicit = ctx.get_parameter_source("environment") is ParameterSource.COMMANDLINE
        if steps or exclude or is_explicit:
            raise Usage("--all shows everything: leave out --step, --exclude and --env")
        summaries = all_summaries(project)
        graphs = {(item.blueprint, item.environment): item.graph for item in summaries}
        listed = status_of_all(
            project.settings.project,
            summaries,
            partial(composition.open_read_context, project),
            seen_locations(
                project,
                [item.operations for item in summaries],
                lambda *place: place not in graphs,
                partial(composition.open_store, project),
            ),
        )
        print_document(listed, status_list_text, as_json=as_json, verbose=verbose)
        for document in listed.blueprints:
            graph = graphs.get((document.blueprint, document.environment))
            check_expectation(document, expect, allow_retained=allow_retained, graph=graph)
        is_known = not any(store.blueprint for store in listed.unread_stores)
        return 0 if is_known else StoreUnavailable.exit_code
    summary = recorded_summary(project, blueprint, environment)
    with composition.open_read_context(project, summary.operations) as reader:
        selected = select_targets(reader, summary, steps, exclude)
        document = status_of(reader, summary, selected)
        if expect is not None:
            reader.check_not_gone_back()
    print_document(document, status_text, as_json=as_json, verbose=verbose)
    check_expectation(document, expect, allow_retained=allow_retained, graph=summary.graph)
    if verify:
        _verify(invocation, BlueprintSelection(blueprint, environment), document)
    return 0


def _verify(
    invocation: Invocation, selection: BlueprintSelection, document: StatusDocument
) -> None:
    """
    Check the provider states of a status document. Raises Refused if they contradict it.
    """
    from orchestrator.app.run.orphans import verify_gone
    from orchestrator.loading.deployment import load_deployment
    from orchestrator.loading.inputs import InputPolicy

    project = invocation.project()
    deployment = load_deployment(project, selection, InputPolicy.AVAILABLE)
    steps = [row.step for row in document.steps if row.step in deployment.steps]
    with reading_services(invocation, project, deployment, engine=None) as services:
        verify_gone(services, deployment, steps)


@click.command("outputs", short_help="Show the recorded outputs of the steps.")
@options.blueprint
@options.environment
@options.selection
@options.json_document
@click.pass_obj
def outputs_command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Show the recorded outputs of the steps of BLUEPRINT. Sensitive ones are named without their
    value: `orchestrator exec TARGET -- output` asks the engine.

    \b
    Example:
      orchestrator outputs web-service -e staging
      orchestrator outputs web-service --step network --json
    """
    from orchestrator import composition
    from orchestrator.app.commands.status import outputs_of
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection
    from orchestrator.views.listings import outputs_text

    project = invocation.project()
    summary = load_summary(project, BlueprintSelection(blueprint, environment))
    selected = summary.graph.select_some(steps, exclude) if steps or exclude else None
    with composition.open_read_context(project, summary.operations) as reader:
        document = outputs_of(reader, summary, selected)
    print_document(document, outputs_text, as_json=as_json)
    return 0


@click.command("recover", short_help="Show what is known of every step, and what is safe now.")
@options.blueprint
@options.environment
@options.selection
@options.verbose
@options.json_document
@click.pass_obj
def recover_command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Show what is known of BLUEPRINT, and for each step what can be done: wait, reconcile, verify,
    retry, redeploy, rollback, compensate, destroy, or look by hand; each with its reason and the
    exact command. Nothing is changed, and a command is refused if its step has moved on since.

    \b
    Example:
      orchestrator recover web-service -e staging
      orchestrator recover web-service --step server --json
    """
    from datetime import UTC, datetime

    from orchestrator import composition
    from orchestrator.app.commands.recover import recover
    from orchestrator.app.inspection.read_context import select_targets
    from orchestrator.views.recovery import recovery_text

    project = invocation.project()
    summary = recorded_summary(project, blueprint, environment)
    with composition.open_read_context(project, summary.operations) as reader:
        selected = select_targets(reader, summary, steps, exclude)
        settle = project.settings.settle_seconds
        document = recover(reader, summary, selected, now=datetime.now(UTC), settle=settle)
    print_document(document, recovery_text, as_json=as_json, verbose=verbose)
    return 0
