"""
Reads a module's configuration without an engine.

What a provider configuration depends on is followed through locals, data sources, resources and
modules; where that cannot be told exactly, the result errs on the side of more dependencies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from orchestrator.domain.addresses import without_keys
from orchestrator.domain.blueprint.blueprint import (
    Constraint,
    EngineKind,
    Module,
    Output,
    ProtectedResource,
    ProviderDependencies,
    Variable,
)
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.configuration import Configuration, read_configuration
from orchestrator.loading.hcl import Attribute, Block, QuotedString


def split_reference(module_ref: str) -> tuple[str, str | None]:
    """
    Return the module directory and the package directory of a module reference.

    >>> split_reference("../infra//modules/web")
    ('../infra/modules/web', '../infra')
    >>> split_reference("../modules/web")
    ('../modules/web', None)
    """
    package, separator, sub = module_ref.partition("//")
    if not separator:
        return module_ref, None
    return f"{package.rstrip('/') or '/'}/{sub.strip('/')}".rstrip("/"), package or "/"


def read_module(
    directory: Path,
    *,
    shown: str,
    package: Path | None = None,
    engine: EngineKind = "terraform",
) -> Module:
    """
    Read the module in ``directory`` as this kind of engine reads it, with its local modules.

    ``shown`` is how the user refers to the directory: it begins the file names in messages.
    ``package`` is the directory around the module that is copied with it (``package//sub``). Raises
    Invalid, with every problem, if it or a local module is no valid configuration, refers to files
    that are not copied with it, or calls itself.
    """
    root = _absolute(directory)
    tree = _ModuleTree(root, shown, engine)
    tree.enter(root, shown, called_at=None)
    around = _absolute(package) if package else None
    tree.check_files(around)
    if tree.problems:
        raise Invalid(tree.problems)
    configuration = tree.modules[root].configuration
    own = _sources(configuration)
    return Module(
        directory=str(root),
        variables={name: _variable(block) for name, block in configuration.variables.items()},
        outputs={
            name: Output(name, _flag(block.attributes.get("sensitive")), block.at)
            for name, block in configuration.outputs.items()
        },
        required_versions=tuple(tree.required_versions()),
        local_modules=tuple(sorted(str(path) for path in tree.copied if path != root)),
        provider_sources=own,
        provider_blocks=tuple(sorted({block.labels[0] for block in configuration.providers})),
        backend=_backend(configuration),
        partial_backend=_partial_backend(configuration),
        provider_uses=None if tree.calls_elsewhere else {**tree.provider_uses(), **own},
        package=str(around) if around else None,
        provider_reach=tree.provider_dependencies(),
        protected=tuple(tree.protected(root, "")),
        read_for=engine if tree.is_for_one_engine() else None,
        early_variables=tuple(sorted(tree.early_variables(root))),
        passed_elsewhere=tuple(sorted(tree.passed_elsewhere(root))),
        encryption=_encryption(configuration),
    )


def _moves(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """
    Yield the ``from`` and ``to`` addresses of ``moved`` blocks, without instance keys.
    """
    for block in configuration.moves:
        ends = [block.attributes.get(name) for name in ("from", "to")]
        start, to = (without_keys(end.plain) if end else "" for end in ends)
        if start and to:
            yield start, to


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _backend(configuration: Configuration) -> str | None:
    """
    Return the type of the backend, "cloud" for a cloud block, None if there is neither.
    """
    blocks = configuration.backends
    if any(block.type == "cloud" for block in blocks):
        return "cloud"
    return "".join(blocks[-1].labels[:1]) if blocks else None


def _partial_backend(configuration: Configuration) -> str:
    """
    Return the backend type if the only backend block leaves all settings to ``init``, else "".
    """
    blocks = configuration.backends
    is_partial = len(blocks) == 1 and not (blocks[0].attributes or blocks[0].blocks)
    return "".join(blocks[0].labels[:1]) if is_partial else ""


def _flag(attribute: Attribute | None) -> bool:
    return attribute is not None and attribute.plain == "true"


def _variable(block: Block) -> Variable:
    attributes = block.attributes
    return Variable(
        name=block.labels[0],
        type=attributes["type"].plain if "type" in attributes else None,
        required="default" not in attributes,
        sensitive=_flag(attributes.get("sensitive")),
        ephemeral=_flag(attributes.get("ephemeral")),
        nullable="nullable" not in attributes or attributes["nullable"].plain != "false",
        at=block.at,
    )


_SOURCE = re.compile(r'(?:^|[{,\s])"?source"?\s*[=:]\s*"([^"]*)"')


def _sources(configuration: Configuration) -> dict[str, str]:
    """
    Return the providers in required_providers with their sources.
    """
    sources = {}
    for name, attribute in configuration.required_providers.items():
        match = _SOURCE.search(attribute.text)
        sources[name] = match[1] if match else f"hashicorp/{name}"
    return sources


def _implied(configuration: Configuration) -> dict[str, str]:
    """
    Return the providers that blocks use, with the sources that apply if none is declared.
    """
    names = {block.labels[0] for block in configuration.providers}
    for block in configuration.resources:
        chosen = block.attributes.get("provider")
        names.add(chosen.plain.split(".")[0] if chosen else block.labels[0].split("_")[0])
    for block in configuration.calls.values():
        if passed := block.attributes.get("providers"):
            names.update(re.findall(r'[=:]\s*"?([^\W\d][\w-]*)', passed.text))
    names.discard("terraform")
    return {name: f"hashicorp/{name}" for name in sorted(names)}


class _ReadModule(Struct, frozen=True):
    configuration: Configuration
    shown: str


_OUTWARD = re.compile(r"\$\{\s*path\.(module|root)\s*\}(/[^\"$%\s]*)")
_READS_FILES = re.compile(r"file\w*|templatefile")


class _ModuleTree:
    """
    A module and the local modules below it, each read once.
    """

    def __init__(self, root: Path, shown: str, engine: EngineKind) -> None:
        self._engine = engine
        self._root = root
        self._shown = shown
        self._open: list[Path] = []
        self.modules: dict[Path, _ReadModule] = {}
        self.problems: list[Problem] = []
        self.calls_elsewhere = False
        self._chosen: set[Path] = set()

    def enter(self, directory: Path, shown: str, *, called_at: Location | None) -> None:
        """
        Read a module and those it calls; a module that calls itself is a problem.
        """
        if directory in self._open:
            circle = [*self._open[self._open.index(directory) :], directory]
            names = " -> ".join(self.modules[path].shown for path in circle)
            self.problems.append(Problem(f"a module calls itself: {names}", called_at))
            return
        if directory in self.modules:
            return
        try:
            configuration = read_configuration(
                directory, shown, engine=self._engine, called_at=called_at
            )
        except Invalid as exc:
            self.problems.extend(exc.problems)
            return
        self.modules[directory] = _ReadModule(configuration, shown)
        self._open.append(directory)
        for block in configuration.calls.values():
            self._call(directory, shown, block)
        self._open.pop()

    def _call(self, directory: Path, shown: str, block: Block) -> None:
        source = block.attributes.get("source")
        child = _child(directory, block)
        if source is None or source.literal is None or child is None:
            self.calls_elsewhere = True  # a variable source of OpenTofu: the engine judges it
            if source is not None and (start := _VARIABLE_SOURCE.match(source.text)):
                self._chosen.add(_absolute(directory / start[1]))
            return
        self.enter(child, _join(shown, source.literal), called_at=source.at)

    @property
    def copied(self) -> frozenset[Path]:
        """
        The directories of the modules, and those from which a source with a variable may choose.
        """
        return frozenset((*self.modules, *(path for path in self._chosen if path.is_dir())))

    def early_variables(self, directory: Path) -> frozenset[str]:
        """
        Return the variables of the module in ``directory`` that an engine needs to load the
        configuration.
        """
        configuration = self.modules[directory].configuration
        expressions = [*configuration.evaluated_early]
        expressions += [_only(provider, {"for_each"}) for provider in configuration.providers]
        for call in configuration.calls.values():
            child = _child(directory, call)
            needed = self.early_variables(child) if child in self.modules else ()
            expressions.append(_only(call, {"source", "version", *needed}))
        declared = configuration.variables.items()
        constant = {name for name, block in declared if _flag(block.attributes.get("const"))}
        return _Walk(configuration).through(expressions).variables | constant

    def passed_elsewhere(self, directory: Path) -> frozenset[str]:
        """
        Return the variables of the module in ``directory`` that are passed to remote modules, if
        OpenTofu reads it.
        """
        if self._engine != "tofu":
            return frozenset()
        configuration = self.modules[directory].configuration
        expressions = []
        for call in configuration.calls.values():
            child = _child(directory, call)
            passed = self.passed_elsewhere(child) if child in self.modules else call.attributes
            expressions.append(_only(call, passed))
        return _Walk(configuration).through(expressions).variables

    def required_versions(self) -> Iterator[Constraint]:
        """
        Yield every constraint on the engine's version, the module's own first.
        """
        for visit in self.modules.values():
            yield from visit.configuration.required_versions
            yield from visit.configuration.compatible_with

    def is_for_one_engine(self) -> bool:
        """
        Return whether the other kind of engine would read different files anywhere in the tree.
        """
        return any(visit.configuration.is_for_one_engine for visit in self.modules.values())

    def provider_uses(self) -> dict[str, str]:
        """
        Return every provider used in the tree with its source; declared sources win over implied
        ones.
        """
        visits = [visit.configuration for visit in self.modules.values()]
        uses = {name: source for visit in visits for name, source in _implied(visit).items()}
        return uses | {name: source for visit in visits for name, source in _sources(visit).items()}

    def provider_dependencies(self) -> dict[str, ProviderDependencies]:
        """
        Return the dependencies of all provider configurations in the tree. One that the module
        passes to a local module ("module.aws") could depend on anything.
        """
        own = self.modules[self._root].configuration
        inner = {
            f"module.{block.labels[0]}"
            for directory, visit in self.modules.items()
            if directory != self._root
            for block in visit.configuration.providers
        }
        anything = ProviderDependencies(frozenset(own.variables), managed_objects=True)
        return {**provider_dependencies(own), **dict.fromkeys(sorted(inner), anything)}

    def protected(self, directory: Path, prefix: str) -> Iterator[ProtectedResource]:
        """
        Yield the resources with ``prevent_destroy`` under every address that a module call gives
        them, and under those that they were moved from. ``prefix`` is the address of the module in
        ``directory``, with a dot.
        """
        configuration = self.modules[directory].configuration
        resources = list(self._protected_now(directory, prefix))
        moves = [(prefix + to, prefix + start) for start, to in _moves(configuration)]
        for item in resources:  # grows while it is walked: a move may follow another
            addresses = {other.address for other in resources}
            resources += [
                replace(item, address=start + item.address.removeprefix(to))
                for to, start in moves
                if f"{item.address}.".startswith(f"{to}.")
                and start + item.address.removeprefix(to) not in addresses
            ]
        yield from resources

    def _protected_now(self, directory: Path, prefix: str) -> Iterator[ProtectedResource]:
        configuration = self.modules[directory].configuration
        for block in configuration.resources:
            for lifecycle in block.inner("lifecycle"):
                flag = lifecycle.attributes.get("prevent_destroy")
                if block.type == "resource" and flag is not None and flag.plain == "true":
                    file = os.path.relpath(flag.at.file, self._shown).replace(os.sep, "/")
                    yield ProtectedResource(
                        prefix + ".".join(block.labels), replace(flag.at, file=file)
                    )
        for name, block in configuration.calls.items():
            child = _child(directory, block)
            if child in self.modules:
                yield from self.protected(child, f"{prefix}module.{name}.")

    def check_files(self, package: Path | None) -> None:
        """
        Add a problem for each path that refers to a file which is not copied with the module.
        """
        copied = [*self.copied, *([package] if package else [])]
        for directory, visit in self.modules.items():
            for quote in visit.configuration.quotes:
                for written, base in self._paths(quote, directory):
                    target = _absolute(Path(f"{base}/{written}"))
                    if any(target.is_relative_to(path) for path in copied):
                        continue
                    self.problems.append(self._outside(quote, target))

    def _paths(self, quote: QuotedString, directory: Path) -> Iterator[tuple[str, Path]]:
        for match in _OUTWARD.finditer(quote.text):
            yield match[2].lstrip("/"), directory if match[1] == "module" else self._root
        if _READS_FILES.fullmatch(quote.caller) and quote.text.startswith("../"):
            # A bare relative path starts at the engine's working directory: the root module's.
            yield re.split(r"[$%]\{", quote.text)[0], self._root

    def _outside(self, quote: QuotedString, target: Path) -> Problem:
        common = Path(os.path.commonpath([self._root, target.parent]))
        parts = self._root.relative_to(common).parts
        outer = PurePosixPath(self._shown).parts
        reference = f"DIRECTORY//{'/'.join(parts)}"
        if len(outer) > len(parts) and outer[-len(parts) :] == parts:
            reference = f"{PurePosixPath(*outer[: -len(parts)])}//{'/'.join(parts)}"
        return Problem(
            f'"{quote.text.strip()}" names a file outside the module and its local modules, which'
            f' is not copied with it; refer to the module as "{reference}" to take it along',
            quote.at,
            hint="the directory before // is copied as a whole",
        )


#: A quoted template that begins with a relative directory, as HCL or (without quotes) JSON has it.
_VARIABLE_SOURCE = re.compile(r'"?(\.\.?/(?:[^"$%]*/)?)[^"]*\$\{')


def _child(directory: Path, call: Block) -> Path | None:
    """
    Return the directory of a local module that a call names, None for a remote one.
    """
    source = call.attributes.get("source")
    if source is None or source.literal is None:
        return None
    return _absolute(directory / source.literal) if _LOCAL.match(source.literal) else None


_LOCAL = re.compile(r"\.\.?(/|\Z)")


def _only(block: Block, attributes: Collection[str]) -> Block:
    """
    Return the block with only these attributes.
    """
    items = {name: item for name, item in block.attributes.items() if name in attributes}
    return Block(block.type, block.labels, block.at, items)


def _encryption(configuration: Configuration) -> str | None:
    """
    Return a digest of the module's state encryption and the locals it uses, independent of where
    the blocks stand; None if it has none.
    """
    blocks = [b for b in configuration.evaluated_early if b.type == "encryption"]
    walk = _Walk(configuration)
    walk.through(blocks)
    content: list[Json] = [_content(block) for block in blocks]
    if local_texts := walk.local_texts:
        content.append(local_texts)
    text = json.dumps(content)
    return hashlib.sha256(text.encode()).hexdigest() if blocks else None


def _content(block: Block) -> Json:
    texts = {name: item.text for name, item in block.attributes.items()}
    return [block.type, block.labels, texts, [_content(inner) for inner in block.blocks]]


def _join(shown: str, source: str) -> str:
    return os.path.normpath(f"{shown}/{source}").replace(os.sep, "/")


_REFERENCE = re.compile(r"(?<![\w.-])((?:data\.)?[^\W\d][\w-]*)\.([^\W\d][\w-]*)")


def provider_dependencies(configuration: Configuration) -> dict[str, ProviderDependencies]:
    """
    Return the dependencies of each provider configuration, by local name and alias: "aws",
    "aws.west".
    """
    blocks: dict[str, list[Block]] = {}
    for block in configuration.providers:
        alias = block.attributes.get("alias")
        name = f"{block.labels[0]}.{alias.plain}" if alias else block.labels[0]
        blocks.setdefault(name, []).append(block)
    return {name: _Walk(configuration).through(group) for name, group in sorted(blocks.items())}


class _Walk:
    """
    A walk along references that follows each once.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._locals = {name: item.text for name, item in configuration.locals.items()}
        self._calls = configuration.calls
        self._blocks = {
            ("data." if block.type == "data" else "") + ".".join(block.labels): block
            for block in configuration.resources
        }
        self._seen: set[str] = set()
        self._variables: set[str] = set()
        self._objects = False

    def through(self, blocks: Iterable[Block]) -> ProviderDependencies:
        for block in blocks:
            self._block(block)
        return ProviderDependencies(frozenset(self._variables), self._objects)

    @property
    def local_texts(self) -> dict[str, str]:
        """
        The expressions of the locals that the walk visited.
        """
        return {
            name: text
            for name, text in sorted(self._locals.items())
            if f"local.{name}" in self._seen
        }

    def _block(self, block: Block) -> None:
        for attribute in block.attributes.values():
            self._text(attribute.text)
        for inner in block.blocks:
            self._block(inner)

    def _text(self, text: str) -> None:
        for kind, name in _REFERENCE.findall(text):
            reference = f"{kind}.{name}"
            if reference in self._seen:
                continue
            self._seen.add(reference)
            if kind == "var":
                self._variables.add(name)
            elif kind == "local" and name in self._locals:
                self._text(self._locals[name])
            elif kind == "module" and name in self._calls:
                self._objects = True
                self._block(self._calls[name])
            elif reference in self._blocks:
                self._objects |= not kind.startswith("data.")
                self._block(self._blocks[reference])
