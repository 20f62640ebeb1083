"""
The documentation says what the code says.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import click
import pytest

from docs.generate import documents
from orchestrator.cli.main import COMMANDS, cli, command_named
from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.errors import EXIT_CODES, PRECEDENCE, OrchestratorError, Reason
from orchestrator.loading.schema import parse_blueprint
from tests.project import REPOSITORY

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
GENERATED = documents()
PAGES = sorted(
    path.relative_to(REPOSITORY)
    for path in (
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        *REPOSITORY.glob("benchmarks/*.md"),
    )
)


def _subclasses(kind: type[OrchestratorError]) -> Iterator[type[OrchestratorError]]:
    for found in kind.__subclasses__():
        yield found
        yield from _subclasses(found)


@pytest.mark.parametrize("path", sorted(GENERATED), ids=str)
def test_generated_files_are_fresh(path: Path) -> None:
    """
    What is generated stands in the repository as it would be generated now (`make docs`).
    """
    assert (REPOSITORY / path).read_text(encoding="utf-8") == GENERATED[path]


def test_every_schema_is_of_a_document() -> None:
    """
    No schema is left of a document that is gone.
    """
    found = {path.relative_to(REPOSITORY) for path in REPOSITORY.glob("docs/schemas/*.json")}
    assert found <= GENERATED.keys()


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_documented_with_an_example(command: str) -> None:
    """
    The help of every command holds a description, and an example of the command itself.
    """
    page = GENERATED[Path("docs/cli.md")]
    section = page.split(f"## {command}\n", 1)[1].split("\n## ", 1)[0]
    example = section if command != "engine" else page.split("## engine info\n", 1)[1]
    assert re.search(rf"orchestrator (-C \S+ )?{command}\b.*\n(.*\n)*?.*Options", example)


def test_the_exit_code_table_is_that_of_the_error_classes() -> None:
    """
    Each error class has the exit code of the one row that names it; codes without a class are 0, 1
    and 2; every documented code but usage has its place in the order of precedence.
    """
    rows = {kind: row.code for row in EXIT_CODES for kind in row.classes}
    assert rows == {kind: kind.exit_code for kind in _subclasses(OrchestratorError)}
    assert {row.code for row in EXIT_CODES if not row.classes} == {0, 1, 2}
    assert {row.code for row in EXIT_CODES} == {*PRECEDENCE, 64}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """
    A relative link of a page names a file or directory of the repository.
    """
    file = REPOSITORY / page
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    inner = [target for target in targets if "://" not in target]
    assert [target for target in inner if not (file.parent / target).exists()] == []


def test_the_blueprint_of_the_reference_is_one() -> None:
    """
    The blueprint shown in docs/blueprint.md has the shape of a blueprint.
    """
    page = (REPOSITORY / "docs/blueprint.md").read_text(encoding="utf-8")
    shown = page.split("```yaml\n", 1)[1].split("```", 1)[0]
    problems = Problems()
    parse_blueprint(parse_document(shown, file="blueprint.md"), problems)
    problems.check()


def test_every_option_that_is_named_exists() -> None:
    """
    In the documentation and in what the tool says: a person types it as it stands there.
    """
    known = {
        "--help",
        "--version",
        *(word for command in _commands() for word in _options(command)),
    }
    texts = {
        str(page): (REPOSITORY / page).read_text()
        for page in PAGES
        if page.parts[0] != "benchmarks"
    }
    texts |= {text: text for text, _ in _constants() if " " in text}  # else words for programs

    named = {(option, place) for place, text in texts.items() for option in OPTION.findall(text)}
    assert [pair for pair in sorted(named) if pair[0] not in known] == []


def test_every_documented_code_occurs() -> None:
    """
    The reasons of refusals and all values that schemas list stand in the code, not in types alone.
    """
    listed = {*get_args(Reason)}
    for path in REPOSITORY.glob("docs/schemas/*.json"):
        listed |= set(_enumerated(json.loads(path.read_text())))
    used = {text for text, place in _constants() if place != "type"}

    assert sorted(listed - used) == []


def _commands() -> Iterator[click.Command]:
    yield cli
    for name in COMMANDS:
        command = command_named(name)
        yield command
        if isinstance(command, click.Group):
            yield from command.commands.values()


def _options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (*parameter.opts, *parameter.secondary_opts)


def _constants() -> Iterator[tuple[str, Literal["type", "value"]]]:
    """
    The texts in the code, each with whether it stands in a ``Literal``.
    """
    for path in REPOSITORY.glob("orchestrator/**/*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        types = [
            n for n in nodes if isinstance(n, ast.Subscript) and "Literal" in ast.dump(n.value)
        ]
        inside = {id(part) for found in types for part in ast.walk(found)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value, "type" if id(node) in inside else "value"


def _enumerated(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (item for item in schema.get("enum", ()) if isinstance(item, str))
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            yield from _enumerated(part)
