"""
Sources of input values other than literals: ``from:`` and ``${env.X}``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.text import Json
from orchestrator.errors import Invalid
from orchestrator.loading.files import read_text
from orchestrator.local_files import MAX_BYTES
from orchestrator.project import ProjectContext

SourceKind = Literal["env", "command", "file"]
_KINDS: tuple[SourceKind, ...] = ("env", "command", "file")
COMMAND_SECONDS = 120.0


class CommandFailed(Exception):
    """
    A ``from.command`` gave no value; the message never contains its output.
    """


class FromMapping(Struct, frozen=True):
    """
    A ``from:`` as written: an environment variable, a command (argv) or a file. ``digest`` is the
    digest that a rerun file recorded for the value.
    """

    kind: SourceKind
    argument: tuple[str, ...]
    node: Node
    digest: str | None = None

    @property
    def origin(self) -> str:
        what = "environment variable" if self.kind == "env" else self.kind
        return f"{what} {self.argument[0]}"

    def as_reference(self, base: Path) -> Json:
        """
        Return a ``from:`` mapping for the same source that can stand in any file.
        """
        name = self.argument[0]
        values = {"env": name, "command": list(self.argument), "file": str(base / name)}
        return {"from": {self.kind: values[self.kind]}}


def is_from(node: Node) -> bool:
    """
    Return whether a value is a ``from:`` mapping, not just a map with such a key.
    """
    inner = node.fields.get("from")
    return (
        inner is not None
        and node.fields.keys() <= {"from", "digest"}
        and inner.kind == "map"
        and len(inner.fields) == 1
        and inner.fields.keys() <= set(_KINDS)
    )


def parse_from(node: Node, problems: Problems) -> FromMapping | None:
    """
    Return the ``from:`` mapping of a node for which `is_from` is true.
    """
    fields = node.fields["from"].fields
    kind = next(kind for kind in _KINDS if kind in fields)
    value, digest_node = fields[kind], node.fields.get("digest")
    digest = problems.text(digest_node, what="digest") if digest_node else None
    if kind == "command":
        argument = problems.texts(value, what="from.command")
        if value.kind == "list" and not value.items:
            problems.add("from.command names no program", value.at)
    else:
        argument = tuple(filter(None, (problems.text(value, what=f"from.{kind}"),)))
    return FromMapping(kind, argument, value, digest) if argument else None


def fetch(
    source: FromMapping,
    *,
    base: Path,
    inside: Path | None,
    environ: Mapping[str, str],
    run_command: Callable[[Sequence[str]], str],
    problems: Problems,
) -> str | None:
    """
    Return the text from a source, without the final newline; None if there is none.

    A file must lie below ``inside``, if given: a blueprint must not read files outside its project.
    A variable that is not set is no problem here: the caller knows whether the value is required.
    """
    match source.kind:
        case "env":
            return environ.get(source.argument[0])
        case "command":
            try:
                return _without_newline(run_command(source.argument))
            except CommandFailed as exc:
                hint = "run it yourself to see what it says; its output is not shown here"
                name = source.argument[0]
                problems.add(f"the command {name!r} gave no value: {exc}", source.node.at, hint)
                return None
        case "file":
            name = source.argument[0]
            real = os.path.realpath(base / name) if "\0" not in name else name
            if inside is not None and not Path(real).is_relative_to(os.path.realpath(inside)):
                hint = "give it by --input-file, or with a variable ORCHESTRATOR_INPUT_<name>"
                message = f"from.file {name!r} is outside of the project"
                problems.add(message, source.node.at, hint)
                return None
            try:
                return _without_newline(read_text(base / name, shown=name))
            except Invalid as exc:
                why = exc.problems[0].message
                problems.add(f"from.file {name!r}: {why}", source.node.at)
                return None


def commands_of(project: ProjectContext) -> Callable[[Sequence[str]], str]:
    """
    Return a function that runs the programs for a project's inputs, in its directory. It raises
    CommandFailed if the operator forbids them.
    """
    trust = project.settings.trust

    def run(argv: Sequence[str]) -> str:
        if not trust.commands:
            raise CommandFailed(trust.forbidden("from.command", "commands: false"))
        return run_command(argv, directory=project.project_dir)

    return run


def run_command(argv: Sequence[str], *, directory: Path | None = None) -> str:
    """
    Run a program and return its stdout as UTF-8 text. No shell, no stdin, at most two minutes and
    as much as a file may hold; input values are not in its environment.

    Raises CommandFailed if it cannot be started, does not end, prints more, or exits with a code
    other than 0.
    """
    import subprocess  # here: most commands start none, and reading ones must not wait for it

    deadline = time.monotonic() + COMMAND_SECONDS
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=directory,
            env={k: v for k, v in os.environ.items() if not k.startswith(INPUT_VARIABLE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError) as exc:
        raise CommandFailed("it cannot be started") from exc
    with process:
        try:
            printed = _read_until(deadline, process.stdout)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as exc:
            process.kill()
            raise CommandFailed(f"no answer within {COMMAND_SECONDS:.0f} s") from exc
        except BaseException:
            process.kill()
            raise
    if code:
        raise CommandFailed(f"exit code {code}")
    try:
        return printed.decode()
    except UnicodeDecodeError as exc:
        raise CommandFailed("what it printed is not UTF-8 text") from exc


def _read_until(deadline: float, pipe: IO[bytes] | None) -> bytes:
    import selectors  # here: as subprocess above

    assert pipe is not None
    printed = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(printed) <= MAX_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                return bytes(printed)
            printed += piece
    raise CommandFailed(f"it printed more than {MAX_BYTES >> 20} MiB")


def _without_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
