"""
``orchestrator apply``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation

_TARGET = "Apply only this; the step is `ok` only if nothing else is left to change."


@click.command("apply", short_help="Bring the steps to what their modules say.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@click.option("--unfinished", is_flag=True, help="Leave out the steps that are ok already.")
@click.option(
    "--on-failure",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    help="After a failure start nothing more, or go on where nothing upstream failed.",
)
@options.approval
@options.jobs
@options.engine
@options.allow_engine_change
@options.engine_passthrough
@click.option("--replace", metavar="ADDRESS", multiple=True, help="Have the engine replace it.")
@click.option("--target", "targets", metavar="ADDRESS", multiple=True, help=_TARGET)
@options.accept_vanished
@click.option(
    "--skip-preflight",
    metavar="REASON",
    allow_from_autoenv=False,
    help="Start although some steps could not be made ready; the reason is recorded.",
)
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
    unfinished: bool,
    on_failure: str,
    approved: bool,
    confirm: str | None,
    jobs: int | None,
    engine: str | None,
    allow_engine_change: bool,
    parallelism: int | None,
    lock_timeout: str | None,
    refresh: bool,
    replace: tuple[str, ...],
    targets: tuple[str, ...],
    accept_vanished: str | None,
    skip_preflight: str | None,
    wait: bool,
    takeover: str | None,
    reason: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Apply the steps of BLUEPRINT, each as soon as the steps it needs are done.

    The intent is recorded before anything is changed. After a failure, fix the cause and run the
    same command again: what is done stays done.

    \b
    Example:
      orchestrator apply web-service -e staging -i cidr=10.9.0.0/16
      orchestrator apply web-service --step server+ --yes
    """
    from orchestrator.app.apply import apply
    from orchestrator.app.orders import Order
    from orchestrator.app.proposal import Wishes
    from orchestrator.app.schedule import OnFailure
    from orchestrator.cli.running import carry_out
    from orchestrator.loading.values import Need

    order = Order(
        verb="apply",
        steps=steps,
        exclude=exclude,
        on_failure=OnFailure(on_failure),
        unfinished=unfinished,
        wait=wait,
        allow_engine_change=allow_engine_change,
        confirm=confirm,
        reason=reason,
        skip_preflight=skip_preflight,
        takeover=takeover,
        wishes=Wishes(
            approved=approved,
            refresh=refresh,
            replace=replace,
            targets=targets,
            parallelism=parallelism,
            lock_timeout=lock_timeout,
            accept_vanished=accept_vanished,
        ),
    )
    return carry_out(
        invocation,
        options.choice(blueprint, environment, variables, input_files),
        order,
        apply,
        need=Need.VALUES,
        jobs=jobs,
        engine=engine,
        as_json=as_json,
        verbose=verbose,
    )
