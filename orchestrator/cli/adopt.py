"""
``orchestrator adopt``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation


@click.command("adopt", short_help="Take existing provider state under records.")
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
    Take the provider state that steps of BLUEPRINT have already, made by somebody else, under
    records. Nothing is changed: a step is adopted only where a plan on it is empty.

    \b
    Example:
      orchestrator adopt web-service -e staging --step network
    """
    from orchestrator.app.adopt import adopt
    from orchestrator.app.orders import Order
    from orchestrator.cli.running import carry_out
    from orchestrator.loading.values import Need

    order = Order(
        verb="adopt", steps=steps, exclude=exclude, wait=wait, takeover=takeover, reason=reason
    )
    return carry_out(
        invocation,
        options.choice(blueprint, environment, variables, input_files),
        order,
        adopt,
        need=Need.VALUES,
        jobs=jobs,
        engine=engine,
        as_json=as_json,
        verbose=verbose,
    )
