"""
A step's checks, retries, deadlines and identities: defaults from the module's ``module.yaml``,
overridden by the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from orchestrator.domain.addresses import is_resource_address
from orchestrator.domain.blueprint.blueprint import CheckKind, CheckSpec, RetryRule
from orchestrator.domain.blueprint.yaml_tree import Node, Problems, parse_document, without_nulls
from orchestrator.domain.record.objects import AbsenceMethod
from orchestrator.errors import Invalid
from orchestrator.loading.files import read_text
from orchestrator.loading.located_templates import LocatedTemplate, locate
from orchestrator.loading.schema import absence_method, duration

KEYS = (
    "verify",
    "identity",
    "search",
    "retry",
    "refused_on",
    "timeout",
    "verify_absence",
    "absence_timeout",
)
FILE = "module.yaml"
_CHECKS: tuple[CheckKind, ...] = ("http", "tcp", "command")
_SEARCH = ("data", "arguments", "ids", "provider")
#: What a search names becomes part of configuration: names only, and a path from a data source.
_SEARCH_FORMS = {
    "data": (re.compile(r"[a-z][a-z0-9_]*"), "the type of a data source, such as aws_instances"),
    "ids": (
        re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\d+|\*)\])*"),
        "an attribute of the data source, such as ids or servers[*].id",
    ),
    "provider": (
        re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)?"),
        "a provider configuration of the module, such as aws.west",
    ),
}
_RETRY_ATTEMPTS, _MAX_ATTEMPTS = 3, 20


class Behaviour(Struct, frozen=True):
    """
    The values of the keys in `KEYS`. ``timeout`` and ``absence_timeout`` are in seconds.
    """

    checks: tuple[tuple[CheckSpec, LocatedTemplate], ...] = ()
    retry: RetryRule | None = None
    refused_on: tuple[str, ...] = ()
    timeout: float | None = None
    verify_absence: AbsenceMethod | None = None
    absence_timeout: float | None = None
    identity: Mapping[str, LocatedTemplate] = field(default_factory=dict)
    search: Mapping[str, LocatedTemplate] = field(default_factory=dict)


def read_defaults(directory: Path, *, shown: str, problems: Problems) -> Mapping[str, Node]:
    """
    Return the fields of ``module.yaml`` in a module's directory; empty if there is none.
    """
    path = directory / FILE
    if not path.is_file():
        return {}
    name = f"{shown}/{FILE}"
    try:
        text = read_text(path, shown=name)
    except Invalid as exc:
        problems.extend(exc.problems)
        return {}
    return parse_defaults(text, shown=name, problems=problems)


def parse_defaults(text: str, *, shown: str, problems: Problems) -> Mapping[str, Node]:
    """
    Return the fields in the text of a ``module.yaml``.
    """
    try:
        node = parse_document(text, file=shown)
    except Invalid as exc:
        problems.extend(exc.problems)
        return {}
    return problems.settings(node, KEYS, what=shown)


def parse_behaviour(
    fields: Mapping[str, Node], defaults: Mapping[str, Node], problems: Problems
) -> Behaviour:
    """
    Return the step's behaviour: its fields override the module's defaults key by key; null removes
    a default.
    """
    merged = without_nulls({**defaults, **{key: fields[key] for key in KEYS if key in fields}})
    return Behaviour(
        checks=_checks(merged.get("verify"), problems),
        retry=_retry(merged.get("retry"), problems),
        refused_on=_patterns(merged.get("refused_on"), problems, what="refused_on"),
        timeout=duration(merged.get("timeout"), problems, what="timeout"),
        verify_absence=absence_method(merged.get("verify_absence"), problems),
        absence_timeout=duration(merged.get("absence_timeout"), problems, what="absence_timeout"),
        identity=_by_address(merged.get("identity"), problems, what="identity"),
        search=_searches(merged.get("search"), problems),
    )


def _checks(node: Node | None, problems: Problems) -> tuple[tuple[CheckSpec, LocatedTemplate], ...]:
    if node is None:
        return ()
    if node.kind != "list":
        problems.add(f"verify must be a list, not {node.shape}", node.at)
        return ()
    checks = []
    for item in node.items:
        fields = problems.fields(item, _CHECKS, what="a check")
        if len(fields) != 1:
            problems.add("a check is one of http, tcp, command", item.at)
            continue
        kind = next(kind for kind in _CHECKS if kind in fields)
        settings = fields[kind]
        if settings.kind != "map":
            problems.add(f"{kind} must be a map of settings, not {settings.shape}", settings.at)
            continue
        value = locate(settings, problems)
        checks.append((CheckSpec(kind, value.template), value))
    return tuple(checks)


def _retry(node: Node | None, problems: Problems) -> RetryRule | None:
    if node is None:
        return None
    fields = problems.settings(node, ("on", "attempts", "interval", "jitter"), what="retry")
    on, attempts = fields.get("on"), fields.get("attempts")
    if on is None:
        problems.add("retry says `on`: which errors are tried again", node.at)
        return None
    tries = _RETRY_ATTEMPTS
    if attempts is not None:
        value = attempts.value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_ATTEMPTS:
            message = f"retry.attempts must be a whole number from 1 to {_MAX_ATTEMPTS}"
            problems.add(message, attempts.at)
        else:
            tries = value
    times = {
        key: seconds
        for key in ("interval", "jitter")
        if (seconds := duration(fields.get(key), problems, what=f"retry.{key}")) is not None
    }
    return RetryRule(_patterns(on, problems, what="retry.on"), tries, **times)


def _patterns(node: Node | None, problems: Problems, *, what: str) -> tuple[str, ...]:
    entries = problems.entries(node, what=what)
    for text, item in entries:
        try:
            re.compile(text)
        except re.error as exc:
            problems.add(f"{what}: not a regular expression: {exc}", item.at)
    return tuple(text for text, _ in entries)


def _by_address(
    node: Node | None, problems: Problems, *, what: str
) -> Mapping[str, LocatedTemplate]:
    if node is None:
        return {}
    if node.kind != "map":
        problems.add(f"{what} must be a map by resource address, not {node.shape}", node.at)
        return {}
    for address in node.fields:
        if not is_resource_address(address):
            message = f"{address!r} is not a resource address such as aws_s3_bucket.this"
            problems.add(message, node.key_at[address])
    return {address: locate(item, problems) for address, item in node.fields.items()}


def _searches(node: Node | None, problems: Problems) -> Mapping[str, LocatedTemplate]:
    searches = _by_address(node, problems, what="search")
    for address, value in searches.items():
        fields = problems.settings(value.node, _SEARCH, what=f"search for {address}")
        for key, (form, meaning) in _SEARCH_FORMS.items():
            if key in fields:
                text = problems.text(fields[key], what=f"search.{key}")
                if text and not form.fullmatch(text):
                    problems.add(f"search.{key} must be {meaning}", fields[key].at)
            elif key != "provider":
                problems.add(f"the search for {address} says `{key}`", value.node.at)
        arguments = fields.get("arguments")
        if arguments is not None and arguments.kind != "map":
            message = f"search.arguments must be a map, not {arguments.shape}"
            problems.add(message, arguments.at)
    return searches
