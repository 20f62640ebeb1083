"""
``orchestrator destroy``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("destroy", short_help="Take the steps down until they are confirmed gone.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@click.option(
    "--on-failure",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    help="After a failure start nothing more, or go on where no dependent is left.",
)
@options.approval
@options.jobs
@options.engine
@options.allow_engine_change
@options.engine_passthrough
@options.accept_vanished
@options.wait
@options.takeover
@options.reason
@options.verbose
@options.json_lines
@click.pass_obj
def command(
    invocation: Invocation,
    blueprint: str,
    environment: str | None,
    variables: tuple[str, ...],
    input_files: tuple[Path, ...],
    steps: tuple[str, ...],
    exclude: tuple[str, ...],
    on_failure: str,
    approved: bool,
    confirm: str | None,
    jobs: int | None,
    engine: str | None,
    allow_engine_change: bool,
    parallelism: int | None,
    lock_timeout: str | None,
    refresh: bool,
    accept_vanished: str | None,
    wait: bool,
    takeover: str | None,
    reason: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Destroy the steps of BLUEPRINT, dependents first.

    Uses the inputs and the module snapshots that were recorded when they were applied. A step is
    `destroyed` only when that is confirmed; otherwise run the same command again.

    \b
    Example:
      orchestrator destroy web-service -e staging
      orchestrator destroy web-service --step bootstrap --yes
    """
    from orchestrator.app.destroy import destroy
    from orchestrator.app.orders import Order
    from orchestrator.app.proposal import Wishes
    from orchestrator.app.schedule import OnFailure
    from orchestrator.cli.running import carry_out
    from orchestrator.loading.values import Need

    order = Order(
        verb="destroy",
        steps=steps,
        exclude=exclude,
        on_failure=OnFailure(on_failure),
        wait=wait,
        allow_engine_change=allow_engine_change,
        confirm=confirm,
        reason=reason,
        takeover=takeover,
        wishes=Wishes(
            approved=approved,
            refresh=refresh,
            parallelism=parallelism,
            lock_timeout=lock_timeout,
            accept_vanished=accept_vanished,
        ),
    )
    return carry_out(
        invocation,
        options.choice(blueprint, environment, variables, input_files),
        order,
        destroy,
        need=Need.AVAILABLE,
        jobs=jobs,
        engine=engine,
        as_json=as_json,
        verbose=verbose,
        check_module_versions=False,
    )
