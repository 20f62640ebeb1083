"""
The command line: one group whose commands are imported when they are called, and the only place
that catches all errors.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator import __version__
from orchestrator.cli.invocation import (
    MAKES_RUN,
    Invocation,
    open_missing,
    silence,
    watched_streams,
)
from orchestrator.domain.text import is_text, shown_text
from orchestrator.errors import Invalid, OrchestratorError, Problem, Usage

if TYPE_CHECKING:
    from orchestrator.views.page import Paper

# Looking for plugins of pydantic reads the metadata of every installed package, and none of them
# has any business with records.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
# Even then the module that would look for them is imported, and for its sake the library's readers
# of package metadata and mail: 20 ms of every start. Where pydantic has another one this is unused.
_no_plugins = types.ModuleType("pydantic.plugin._loader")
vars(_no_plugins)["get_plugins"] = tuple
sys.modules.setdefault(_no_plugins.__name__, _no_plugins)

#: The variables that options are read from, and those of them that have names of their own.
_OPTIONS = "ORCHESTRATOR_"
VARIABLES = (
    "ORCHESTRATOR_ENGINE",
    "ORCHESTRATOR_ENVIRONMENT",
    "ORCHESTRATOR_JOBS",
    "ORCHESTRATOR_KEY",
    "ORCHESTRATOR_REQUEST_TOKEN",
    "ORCHESTRATOR_STORE_GRACE",
    "ORCHESTRATOR_TRUST",
)

#: Every command and the module that holds it, where it is called ``<name>_command``.
COMMANDS = {
    "adopt": "imports",
    "apply": "apply",
    "backend": "store",
    "compensate": "reconcile",
    "demo": "init",
    "destroy": "apply",
    "drift": "plan",
    "engine": "engine",
    "exec": "engine",
    "gate": "gate",
    "graph": "validate",
    "history": "runs",
    "import": "imports",
    "init": "init",
    "outputs": "status",
    "plan": "plan",
    "reconcile": "reconcile",
    "recover": "status",
    "redeploy": "rerun",
    "release": "retain",
    "retain": "retain",
    "retry": "rerun",
    "rollback": "rerun",
    "runs": "runs",
    "schema": "validate",
    "status": "status",
    "store": "store",
    "validate": "validate",
    "verify": "reconcile",
}


def command_named(name: str) -> click.Command:
    module = importlib.import_module(f"orchestrator.cli.{COMMANDS[name]}")
    command: click.Command = getattr(module, f"{name}_command")
    return command


class Commands(click.Group):
    """
    A group that imports a command only when it is called, to keep start-up short.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from orchestrator.domain.text import did_you_mean

            hint = did_you_mean(args[0], COMMANDS)
            raise click.UsageError(f"{exc.message} {hint}".strip(), ctx) from exc


@click.command(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "ORCHESTRATOR",
        "max_content_width": 100,
    },
)
@click.option(
    "-C",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Work as if called in DIR.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "off"]),
    default="off",
    help="Also log every event to stderr, for finding faults of the tool.",
)
@click.version_option(__version__, prog_name="orchestrator")
@click.pass_context
def cli(ctx: click.Context, directory: Path, log_level: str) -> None:
    """
    Run the Terraform/OpenTofu modules of a blueprint in order, and keep a durable record of what
    was attempted, where it stopped and what is safe next.

    \b
    Example:
      orchestrator apply web-service
      orchestrator status web-service
      orchestrator destroy web-service
    """
    ctx.obj = Invocation(directory=directory, log_level=log_level)
    for variable in sorted(os.environ):
        if variable.startswith(_OPTIONS) and variable not in VARIABLES:
            _warn_of_misspelt(variable)


@cli.result_callback()
@click.pass_context
def _ended(ctx: click.Context, /, code: int | None, **_: object) -> tuple[int, bool]:
    """
    Return the exit code of the command, and whether a run record holds its result.
    """
    return code or 0, MAKES_RUN in ctx.meta


def _warn_of_misspelt(variable: str) -> None:
    """
    Warn about an environment variable that is not read but has a name close to one that is.
    """
    from orchestrator.domain.text import did_you_mean

    begun = [name for name in VARIABLES if name.startswith(variable) or variable.startswith(name)]
    hint = did_you_mean(variable, begun or VARIABLES, cutoff=0.5 if begun else 0.9)
    if hint.startswith("did you mean"):
        click.echo(f"warning: the environment variable {variable} is not read: {hint}", err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return the exit code. Bugs are raised with their traceback.
    """
    open_missing()
    words = list(arguments if arguments is not None else sys.argv[1:])
    ours = words[: words.index("--")] if "--" in words else words  # what follows is the engine's
    as_json = "--json" in ours
    code, recorded = 0, False
    with watched_streams(json=as_json) as stdout:
        try:
            _check_text(words)
            result = cli.main(args=words, prog_name="orchestrator", standalone_mode=False)
            code, recorded = result if isinstance(result, tuple) else (result or 0, False)
        except click.exceptions.Exit as exc:
            code = exc.exit_code
        except click.Abort:
            code = 130
        except KeyboardInterrupt:
            code = 130
        except click.ClickException as exc:
            _show(Usage(exc.format_message()), exc.show, words, json=as_json)
            code = Usage.exit_code
        except OrchestratorError as exc:
            _show(exc, partial(_explain, exc, words), words, json=as_json)
            code = exc.exit_code
        stdout.flush()
    if stdout.lost is not None:
        silence(sys.stdout)
        code = code or _report_lost_output(stdout.lost, recorded=recorded)
    try:
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)
    return code


def _check_text(words: Sequence[str]) -> None:
    """
    Raise Invalid if an argument, or an option from the environment, is not valid UTF-8: records and
    JSON can hold nothing else.
    """
    options = ((f"the variable {n}", v) for n, v in os.environ.items() if n.startswith(_OPTIONS))
    arguments = ((f"the argument {shown_text(word)!r}", word) for word in words)
    for what, text in (*arguments, *options):
        if not is_text(text):
            hint = "in what encoding was it written?"
            raise Invalid([Problem(f"{what} is not UTF-8 text", hint=hint)])


def _report_lost_output(lost: OSError, *, recorded: bool) -> int:
    """
    Report that the result could not be written, and return the exit code. It is 0 if the reader
    closed the pipe, as `| head` does, or if the result is ``recorded``.
    """
    if isinstance(lost, BrokenPipeError):
        return 0
    exc = Usage(f"the result could not be written to stdout: {lost.strerror}")
    with suppress(OSError):
        if not recorded:
            _explain(exc)
            return exc.exit_code
        click.echo(f"warning: {exc.message}; `orchestrator runs` shows it", err=True)
    return 0


def _show(
    exc: OrchestratorError, explain: Callable[[], None], words: Sequence[str], *, json: bool
) -> None:
    """
    Show the error on stderr and, with ``json``, as a document on stdout.
    """
    explain()
    if json:
        from orchestrator.views.errors import error_document

        click.echo(error_document(exc, _paper(words)).to_json(indent=None))


def _explain(exc: OrchestratorError, words: Sequence[str] = ()) -> None:
    from orchestrator.views.errors import error_text

    click.echo(error_text(exc, _paper(words)), err=True)


def _paper(words: Sequence[str]) -> Paper:
    """
    Return the paper for stderr by the program's arguments.
    """
    from orchestrator.cli.invocation import paper

    with cli.make_context("orchestrator", list(words), resilient_parsing=True):
        return paper(sys.stderr)
