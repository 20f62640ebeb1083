"""
``orchestrator demo``.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, is_interactive


class Narration:
    """
    The demo's voice: chapters, command lines, facts. Implements `orchestrator.demo.Narrator`.
    """

    def __init__(self, *, pause: bool) -> None:
        self._pause = pause
        self._chapters = 0

    def chapter(self, title: str) -> None:
        """
        A numbered headline; with ``pause`` it waits for a key before all but the first.
        """
        self._chapters += 1
        if self._pause and self._chapters > 1:
            click.pause("\n(any key goes on)")
        click.secho(f"\n=== {self._chapters}. {title}", bold=True)

    def command(self, line: str) -> None:
        """
        A command line as it would be typed.
        """
        click.secho(f"$ {line}", fg="cyan")

    def fact(self, text: str) -> None:
        """
        A fact that was checked.
        """
        click.secho(f"[checked] {text}", fg="green")

    def say(self, text: str) -> None:
        """
        Plain text.
        """
        click.echo(text)


@click.command("demo", short_help="See an apply fail, and the way back, on real modules.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the project of the demo is made and kept; a temporary one if not given.",
)
@options.engine
@click.option("--pause", is_flag=True, help="Wait for a key before each part.")
@click.pass_obj
def command(invocation: Invocation, directory: Path | None, engine: str | None, pause: bool) -> int:
    """
    Tell the main job on real Terraform modules that need no cloud: an apply fails after it created
    a server, the server still answers, `status` says so, the next apply goes on, destroy takes all
    down. Exits with 0 only if every step went as told; whatever happens, nothing is left running.

    \b
    Example:
      orchestrator demo
      orchestrator demo --engine embedded --directory ./demo
    """
    from orchestrator.demo import tell
    from orchestrator.errors import Usage

    if pause and not is_interactive():
        raise Usage("--pause waits for a key, and there is no terminal")
    where = invocation.absolute() / directory if directory is not None else None
    tell(Narration(pause=pause), directory=where, engine=engine)
    click.secho("\nThe story went as told; nothing is left running.", bold=True)
    return 0
