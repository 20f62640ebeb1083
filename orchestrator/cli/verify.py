"""
``orchestrator verify``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("verify", short_help="Run the checks only and record their verdict.")
@options.blueprint
@options.environment
@options.inputs
@options.selection
@options.jobs
@options.engine
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
    jobs: int | None,
    engine: str | None,
    wait: bool,
    takeover: str | None,
    reason: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """
    Run the `verify` checks of what is applied, and record the verdict. Nothing else changes.

    \b
    Example:
      orchestrator verify web-service -e staging
    """
    from orchestrator.app.orders import Order
    from orchestrator.app.verify import verify
    from orchestrator.cli.running import carry_out
    from orchestrator.loading.values import Need

    order = Order(
        verb="verify", steps=steps, exclude=exclude, wait=wait, takeover=takeover, reason=reason
    )
    return carry_out(
        invocation,
        options.choice(blueprint, environment, variables, input_files),
        order,
        verify,
        need=Need.AVAILABLE,
        jobs=jobs,
        engine=engine,
        as_json=as_json,
        verbose=verbose,
    )
