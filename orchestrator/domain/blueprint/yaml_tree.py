"""
A YAML document as a tree of nodes that know their place in the file.

Scalars follow the YAML 1.2 core rules: ``on``, ``yes``, dates, ``1:30`` and ``010`` are text; only
null, true, false and decimal numbers are not.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Literal

from msgspec import Struct, field

from orchestrator.domain.text import Json, did_you_mean, scalar_text
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem


class _LatePattern:
    """
    A pattern that is compiled when it is first used.
    """

    def __init__(self, pattern: str, flags: int) -> None:
        self._arguments = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(re.compile(*self._arguments), name)


@contextmanager
def _late_patterns_of_yaml() -> Iterator[None]:
    """
    Let PyYAML compile its patterns when it uses them. The one of its own reader, for which libyaml
    stands in, took a fourteenth of a `status`: it has all of Unicode in it.
    """
    compile_now = re.compile

    def compile_later(pattern: Any, flags: int = 0) -> Any:
        of_yaml = sys._getframe(1).f_globals["__name__"].startswith("yaml.")
        return _LatePattern(pattern, flags) if of_yaml else compile_now(pattern, flags)

    re.compile = compile_later
    try:
        yield
    finally:
        re.compile = compile_now


with _late_patterns_of_yaml():
    import yaml

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

#: Nesting and number of nodes (aliases counted as often as they are used) that a document may have.
MAX_DEPTH, MAX_NODES = 60, 200_000

#: A reference that begins a value: braces mean a mapping there.
_UNQUOTED = re.compile(r"(?:[:,\[{]|- )\s*\$\{")
_NUMBER = re.compile(r"[-+]?(?:0|[1-9]\d{0,199})(\.\d{1,200})?([eE][-+]?\d{1,3})?")
_WORDS: Mapping[str, Json] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

Kind = Literal["scalar", "list", "map"]


class Node(Struct, frozen=True):
    """
    A scalar, list or map and where it stands.

    ``value`` of a scalar is text, number, bool or None; ``text`` is a scalar as it was written.
    ``inner`` is the number of columns from ``at`` to the first character of the text, None if the
    text spans lines or holds escapes. ``key_at`` are the places of a map's keys.
    """

    kind: Kind
    at: Location
    value: Json = None
    text: str = ""
    inner: int | None = None
    items: tuple[Node, ...] = ()
    fields: Mapping[str, Node] = field(default_factory=dict)
    key_at: Mapping[str, Location] = field(default_factory=dict)
    size: int = 1

    @property
    def plain(self) -> Json:
        """
        The value without places, as `json.loads` would return it.
        """
        match self.kind:
            case "scalar":
                return self.value
            case "list":
                return [item.plain for item in self.items]
            case "map":
                return {key: node.plain for key, node in self.fields.items()}

    @property
    def shape(self) -> str:
        """
        The kind of the value, for messages; never the value itself.
        """
        if self.kind != "scalar":
            return f"a {self.kind}"
        match self.value:
            case None:
                return "null"
            case bool():
                return "a bool"
            case int() | float():
                return "a number"
            case _:
                return "text"

    def merged(self, over: Node) -> Node:
        """
        Return this map merged recursively with ``over``, whose keys win; if either is no map,
        ``over``.
        """
        if self.kind != "map" or over.kind != "map":
            return over
        fields = dict(self.fields)
        for key, node in over.fields.items():
            fields[key] = fields[key].merged(node) if key in fields else node
        return replace(over, fields=fields, key_at={**self.key_at, **over.key_at})

    def find(self, path: Sequence[str | int]) -> Node:
        """
        Return the node at ``path``, or the deepest existing one on the way there.
        """
        node = self
        for part in path:
            match part:
                case str() if part in node.fields:
                    node = node.fields[part]
                case int() if part < len(node.items):
                    node = node.items[part]
                case _:
                    break
        return node

    def location(self, path: Sequence[str | int] = (), offset: int = 0) -> Location:
        """
        Return the place of character ``offset`` of the text at ``path``, as exactly as is known.
        """
        node = self.find(path)
        if node.inner is None or not node.at.line:
            return node.at
        return replace(node.at, column=node.at.column + node.inner + offset)


def node_of(value: Json, at: Location) -> Node:
    """
    Return a node for a value that was not read from YAML; all of it has the same place.
    """
    match value:
        case Mapping():
            fields = {str(key): node_of(item, at) for key, item in value.items()}
            return Node("map", at, fields=fields, key_at=dict.fromkeys(fields, at))
        case list() | tuple():
            return Node("list", at, items=tuple(node_of(item, at) for item in value))
        case str():
            return Node("scalar", at, value=value, text=value)
        case _:
            return Node("scalar", at, value=value, text=scalar_text(value))


def plain_scalar(text: str) -> Json:
    """
    Return the value of an unquoted YAML scalar.

    >>> [plain_scalar(text) for text in ("on", "12", "1.50", "010", "~", "2027-06-30")]
    ['on', 12, 1.5, '010', None, '2027-06-30']
    """
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if number[1] is None and number[2] is None:
        return int(text)
    return text if is_inexact(text) else float(text)


def is_inexact(text: str) -> bool:
    """
    Return whether a text is a number that a float cannot hold exactly as written; engines keep more
    digits.

    >>> [is_inexact(text) for text in ("0.1", "1.50", "1e22", "1e400", "0.12345678901234567890")]
    [False, False, False, True, True]
    """
    number = _NUMBER.fullmatch(text)
    if number is None or (number[1] is None and number[2] is None):
        return False
    value = float(text)
    return not math.isfinite(value) or Decimal(text) != Decimal(repr(value))


def parse_document(text: str, *, file: str) -> Node:
    """
    Return the only document in ``text``. Raises Invalid with every problem; ``file`` names the file
    in their places.

    An empty document is the scalar None.
    """
    try:
        loader = _Loader(text)
    except UnicodeEncodeError as exc:
        raise Invalid([Problem("is not UTF-8 text", Location(file))]) from exc
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        at = Location(file, mark.line + 1, mark.column + 1) if mark else Location(file)
        what = exc.problem or exc.context or "cannot be parsed"
        line = text.splitlines()[mark.line : mark.line + 1] if mark else []
        hint = 'quote references: "${...}"' if _UNQUOTED.search("".join(line)) else ""
        raise Invalid([Problem(f"not valid YAML: {what}", at, hint)]) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        what = str(exc).partition("\n")[0]
        raise Invalid([Problem(f"not valid YAML: {what}", Location(file))]) from exc
    finally:
        loader.dispose()
    if root is None:
        return Node("scalar", Location(file, 1, 1))
    builder = _Builder(file)
    node = builder.build(root, depth=0)
    if builder.problems:
        raise Invalid(builder.problems)
    return node


#: What is wrong with a number that would be rounded. The number itself may be a secret.
INEXACT = "a number that would be rounded: it is too large, or has too many digits; quote a text"


class _Loader(_Base):
    """
    Composes nodes without resolving the meaning of scalars.
    """

    def resolve(self, kind: type[yaml.Node], value: object, implicit: object) -> str:
        if kind is yaml.ScalarNode:
            plain = isinstance(implicit, tuple) and implicit[0]
            return "plain" if plain else "quoted"
        return "collection"


class _Builder:
    """
    Converts composed YAML nodes into ours. An alias gives the same node again.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._built: dict[int, Node] = {}
        self._open: set[int] = set()

    def build(self, node: yaml.Node, *, depth: int) -> Node:
        cached = self._built.get(id(node))
        if cached is not None:
            return cached
        at = self._at(node)
        if id(node) in self._open:
            return self._bad("an alias refers to what contains it", at)
        if depth > MAX_DEPTH:
            return self._bad("nested too deeply", at)
        if node.tag not in ("plain", "quoted", "collection"):
            self._bad(f"tags such as {node.tag!r} are not supported", at)
        self._open.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            built = self._scalar(node, at)
        elif isinstance(node, yaml.SequenceNode):
            items = tuple(self.build(item, depth=depth + 1) for item in node.value)
            built = Node("list", at, items=items, size=1 + sum(item.size for item in items))
        else:
            built = self._map(node, at, depth + 1)
        self._open.discard(id(node))
        if built.size > MAX_NODES:
            built = self._bad("too large once its aliases are expanded", at)
        self._built[id(node)] = built
        return built

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Node:
        text: str = node.value
        quoted = 1 if node.style in ("'", '"') else 0
        same_line = node.start_mark.line == node.end_mark.line
        width = node.end_mark.column - node.start_mark.column
        inner = quoted if same_line and width == len(text) + 2 * quoted else None
        value = plain_scalar(text) if node.tag == "plain" else text
        if node.tag == "plain" and is_inexact(text):
            return self._bad(INEXACT, at)
        return Node("scalar", at, value=value, text=text, inner=inner)

    def _map(self, node: yaml.Node, at: Location, depth: int) -> Node:
        fields: dict[str, Node] = {}
        key_at: dict[str, Location] = {}
        inherited: list[Node] = []
        for key, value in node.value:
            place = self._at(key)
            if not isinstance(key, yaml.ScalarNode):
                self._bad("a key must be text", place)
                continue
            built = self.build(value, depth=depth)
            name: str = key.value
            if name == "<<" and key.tag == "plain":
                inherited.extend(built.items if built.kind == "list" else (built,))
            elif name in fields:
                self._bad(f"duplicate key {name!r}: first at line {key_at[name].line}", place)
            else:
                fields[name], key_at[name] = built, place
        for base in inherited:
            if base.kind != "map":
                self._bad("'<<' takes a map or a list of maps", base.at)
            for name, value_node in base.fields.items():
                fields.setdefault(name, value_node)
                key_at.setdefault(name, base.key_at[name])
        size = 1 + sum(item.size for item in fields.values())
        return Node("map", at, fields=fields, key_at=key_at, size=size)

    def _at(self, node: yaml.Node) -> Location:
        return Location(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _bad(self, message: str, at: Location) -> Node:
        self.problems.append(Problem(message, at))
        return Node("scalar", at)


class Problems:
    """
    Collects problems, so that all of them are reported at once.
    """

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, message: str, at: Location | None, hint: str = "") -> None:
        self._found.setdefault(Problem(message, at, hint))

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._found.setdefault(problem)

    def check(self) -> None:
        """
        Raise Invalid if there are any problems, sorted by file and line.
        """
        if self._found:
            raise Invalid(sorted(self._found, key=_by_place))

    def fields(self, node: Node, known: Iterable[str], *, what: str) -> Mapping[str, Node]:
        """
        Return the fields of a map whose keys must be ``known``; empty if the node is null or no
        map.
        """
        if node.kind == "scalar" and node.value is None:
            return {}
        if node.kind != "map":
            self.add(f"{what} must be a map, not {node.shape}", node.at)
            return {}
        names = list(known)
        for key in node.fields:
            if key not in names:
                message = f"unknown key {key!r} in {what}"
                self.add(message, node.key_at[key], did_you_mean(key, names))
        return {key: value for key, value in node.fields.items() if key in names}

    def settings(self, node: Node | None, known: Iterable[str], *, what: str) -> dict[str, Node]:
        """
        Return the `fields` that are set: null means the same as an absent key.
        """
        return without_nulls(self.fields(node, known, what=what)) if node else {}

    def text(self, node: Node, *, what: str) -> str:
        """
        Return a scalar that must be non-empty text; "" if it is not.
        """
        if node.kind == "scalar" and isinstance(node.value, str) and node.value:
            return node.value
        hint = "put it in quotes" if node.kind == "scalar" and node.text else ""
        shape = "empty" if node.value == "" else node.shape
        self.add(f"{what} must be text, not {shape}", node.at, hint)
        return ""

    def url(self, node: Node, *, what: str) -> str:
        """
        Return a URL or path, which must not hold control characters; "" if it is invalid.
        """
        text = self.text(node, what=what)
        if text.isprintable():
            return text
        self.add(f"{what} holds a control character", node.at)
        return ""

    def entries(self, node: Node | None, *, what: str) -> list[tuple[str, Node]]:
        """
        Return the items of a list of texts, each with its node; none for a key that is not set.
        """
        if node is None:
            return []
        if node.kind != "list":
            self.add(f"{what} must be a list, not {node.shape}", node.at)
            return []
        pairs = [(self.text(item, what=f"each entry of {what}"), item) for item in node.items]
        return [(text, item) for text, item in pairs if text]

    def texts(self, node: Node | None, *, what: str) -> tuple[str, ...]:
        return tuple(text for text, _ in self.entries(node, what=what))

    def flag(self, node: Node | None, *, what: str) -> bool:
        """
        Return a bool; False if it is none, or for a key that is not set.
        """
        if node is None:
            return False
        if isinstance(node.value, bool):
            return node.value
        self.add(f"{what} must be true or false, not {node.shape}", node.at)
        return False


def without_nulls(fields: Mapping[str, Node]) -> dict[str, Node]:
    return {
        name: node
        for name, node in fields.items()
        if not (node.kind == "scalar" and node.value is None)
    }


def _by_place(problem: Problem) -> tuple[str, int, int]:
    at = problem.at or Location("")
    return at.file, at.line, at.column
