"""
``orchestrator runs`` and ``history``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, print_document

if TYPE_CHECKING:
    from orchestrator.app.inspection.read_context import ReadContext
    from orchestrator.domain.store_location import StoreLocation
    from orchestrator.project import ProjectContext


@contextmanager
def _open_all(
    project: ProjectContext, locations: Sequence[StoreLocation]
) -> Iterator[list[ReadContext]]:
    from orchestrator import composition

    with ExitStack() as stack:
        yield [
            stack.enter_context(composition.open_read_context(project, place))
            for place in locations
        ]


@click.group("runs", short_help="List the runs, newest first.", invoke_without_command=True)
@click.option("--blueprint", metavar="NAME", help="Only runs of this blueprint.")
@click.option("-e", "--env", "environment", metavar="NAME", help="Only runs in this environment.")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of runs."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def runs_command(
    ctx: click.Context,
    blueprint: str | None,
    environment: str | None,
    limit: int,
    as_json: bool,
) -> int | None:
    """
    List the runs, newest first; `runs show RUN` shows one in full.

    \b
    Example:
      orchestrator runs --blueprint web-service
      orchestrator runs show 20261129T123000Z-3f9a1c
    """
    if ctx.invoked_subcommand is not None:
        return None
    from orchestrator.app.commands.history import newest_runs
    from orchestrator.errors import StoreUnavailable
    from orchestrator.loading.summary import store_locations
    from orchestrator.views.runs import runs_text

    invocation: Invocation = ctx.obj
    project = invocation.project()
    locations = store_locations(project, blueprint, environment)
    with _open_all(project, locations) as readers:
        document = newest_runs(readers, blueprint, environment, limit)
    print_document(document, runs_text, as_json=as_json)
    return 0 if document.is_whole else StoreUnavailable.exit_code


@runs_command.command("show")
@click.argument("run_id", metavar="RUN")
@click.option("-v", "--verbose", is_flag=True, help="More details.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def show(invocation: Invocation, run_id: str, verbose: bool, as_json: bool) -> int:
    """
    Show one run: the result of each step, and where the evidence is.

    \b
    Example:
      orchestrator runs show 20261129T123000Z-3f9a1c
    """
    from orchestrator.app.commands.history import run_details
    from orchestrator.loading.summary import store_locations
    from orchestrator.views.runs import run_text

    project = invocation.project()
    with _open_all(project, store_locations(project)) as readers:
        document = run_details(readers, run_id)
    print_document(document, run_text, as_json=as_json, verbose=verbose)
    return 0


@runs_command.command("logs")
@click.argument("run_id", metavar="RUN")
@click.argument("step", metavar="STEP")
@click.pass_obj
def logs(invocation: Invocation, run_id: str, step: str) -> int:
    """
    Print the engine's output in a step of a run, secrets masked: call by call, from this machine or
    from the operation store.

    \b
    Example:
      orchestrator runs logs 20261129T123000Z-3f9a1c server
    """
    from orchestrator.app.commands.history import step_logs
    from orchestrator.domain.text import escaped
    from orchestrator.loading.summary import store_locations

    project = invocation.project()
    with _open_all(project, store_locations(project)) as readers:
        logs_by_call = step_logs(readers, run_id, step)
    for call, text in logs_by_call.items():
        click.echo(f"==> attempt {call.replace('/', ', ', 1)}")
        click.echo(escaped(text), nl=not text.endswith("\n"))  # earlier versions kept it raw
    return 0


@click.command("history", short_help="Show every entry of a target's record.")
@click.argument("target", metavar="TARGET")
@options.verbose
@options.json_document
@click.pass_obj
def history_command(invocation: Invocation, target: str, verbose: bool, as_json: bool) -> int:
    """
    Show every entry of TARGET (<blueprint>/<environment>/<step>), newest first.

    \b
    Example:
      orchestrator history web-service/default/server
    """
    from orchestrator import composition
    from orchestrator.app.commands.history import history_of
    from orchestrator.loading.summary import summary_of_target
    from orchestrator.views.runs import history_text

    parsed = options.parse_target(target)
    project = invocation.project()
    summary = summary_of_target(project, parsed)
    with composition.open_read_context(project, summary.operations if summary else None) as reader:
        document = history_of(reader, parsed)
    print_document(document, history_text, as_json=as_json, verbose=verbose)
    return 0
