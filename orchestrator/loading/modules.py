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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from orchestrator.domain.addresses import without_keys
from orchestrator.domain.blueprint.blueprint import (
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
from orchestrator.loading.hcl import Block, QuotedString


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
    tree.enter(root, shown)
    around = _absolute(package) if package else None
    tree.check_files(around)
    if tree.problems:
        raise Invalid(tree.problems)
    configuration, all_of_them = tree.modules[root], tree.modules.values()
    own, backends = _sources(configuration), configuration.backends
    uses = {name: f"hashicorp/{name}" for each in all_of_them for name in _implied(each)}
    for each in all_of_them:
        uses |= _sources(each)
    backend = "".join(backends[-1].labels[:1]) if backends else None
    is_partial = len(backends) == 1 and not (backends[0].attributes or backends[0].blocks)
    return Module(
        directory=str(root),
        variables={name: _variable(block) for name, block in configuration.variables.items()},
        outputs={
            name: Output(name, _flag(block, "sensitive"), block.at)
            for name, block in configuration.outputs.items()
        },
        required_versions=tuple(
            constraint
            for each in all_of_them
            for constraint in (*each.required_versions, *each.compatible_with)
        ),
        local_modules=tuple(sorted(str(path) for path in tree.copied if path != root)),
        provider_sources=own,
        provider_blocks=tuple(sorted({block.labels[0] for block in configuration.providers})),
        backend="cloud" if any(block.type == "cloud" for block in backends) else backend,
        partial_backend=backend or "" if is_partial else "",
        provider_uses=None if tree.calls_elsewhere else {**uses, **own},
        package=str(around) if around else None,
        provider_reach=tree.provider_dependencies(),
        protected=tuple(tree.protected(root, "")),
        read_for=engine if any(each.is_for_one_engine for each in all_of_them) else None,
        early_variables=tuple(sorted(tree.early_variables(root))),
        passed_elsewhere=tuple(sorted(tree.passed_elsewhere(root))),
        encryption=_encryption(configuration),
    )


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _flag(block: Block, name: str) -> bool:
    return name in block.attributes and block.attributes[name].plain == "true"


def _variable(block: Block) -> Variable:
    attributes = block.attributes
    return Variable(
        name=block.labels[0],
        type=attributes["type"].plain if "type" in attributes else None,
        required="default" not in attributes,
        sensitive=_flag(block, "sensitive"),
        ephemeral=_flag(block, "ephemeral"),
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


def _implied(configuration: Configuration) -> list[str]:
    """
    Return the names of the providers that blocks use.
    """
    names = {block.labels[0] for block in configuration.providers}
    for block in configuration.resources:
        chosen = block.attributes.get("provider")
        names.add(chosen.plain.split(".")[0] if chosen else block.labels[0].split("_")[0])
    for block in configuration.calls.values():
        if passed := block.attributes.get("providers"):
            names.update(re.findall(r'[=:]\s*"?([^\W\d][\w-]*)', passed.text))
    return sorted(names - {"terraform"})


_OUTWARD = re.compile(r"\$\{\s*path\.(module|root)\s*\}(/[^\"$%\s]*)")
_READS_FILES = re.compile(r"file\w*|templatefile")
#: A quoted template that begins with a relative directory, as HCL or (without quotes) JSON has it.
_VARIABLE_SOURCE = re.compile(r'"?(\.\.?/(?:[^"$%]*/)?)[^"]*\$\{')


@dataclass(slots=True)
class _ModuleTree:
    """
    A module and the local modules below it, each read once.
    """

    root: Path
    shown: str
    engine: EngineKind
    modules: dict[Path, Configuration] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    calls_elsewhere: bool = False
    chosen: set[Path] = field(default_factory=set)

    def enter(
        self,
        directory: Path,
        shown: str,
        called_at: Location | None = None,
        callers: Mapping[Path, str] = MappingProxyType({}),
    ) -> None:
        """
        Read a module and those it calls; a module that calls itself is a problem. ``callers`` are
        the modules on the way to it, as they are shown.
        """
        if directory in callers:
            circle = list(callers.values())[list(callers).index(directory) :]
            names = " -> ".join([*circle, circle[0]])
            self.problems.append(Problem(f"a module calls itself: {names}", called_at))
            return
        if directory in self.modules:
            return
        try:
            configuration = read_configuration(
                directory, shown, engine=self.engine, called_at=called_at
            )
        except Invalid as exc:
            self.problems.extend(exc.problems)
            return
        self.modules[directory] = configuration
        for block in configuration.calls.values():
            source = block.attributes.get("source")
            child = _child(directory, block)
            if source is not None and source.literal is not None and child is not None:
                below = os.path.normpath(f"{shown}/{source.literal}").replace(os.sep, "/")
                self.enter(child, below, source.at, {**callers, directory: shown})
                continue
            self.calls_elsewhere = True  # a variable source of OpenTofu: the engine judges it
            if source is not None and (start := _VARIABLE_SOURCE.match(source.text)):
                self.chosen.add(_absolute(directory / start[1]))

    @property
    def copied(self) -> frozenset[Path]:
        """
        The directories of the modules, and those from which a source with a variable may choose.
        """
        return frozenset((*self.modules, *(path for path in self.chosen if path.is_dir())))

    def early_variables(self, directory: Path) -> frozenset[str]:
        """
        Return the variables of the module in ``directory`` that an engine needs to load the
        configuration.
        """
        configuration = self.modules[directory]
        texts = [text for block in configuration.evaluated_early for text in _texts(block)]
        for provider in configuration.providers:
            texts += _texts(provider, only={"for_each"})
        for call in configuration.calls.values():
            child = _child(directory, call)
            needed = self.early_variables(child) if child in self.modules else ()
            texts += _texts(call, only={"source", "version", *needed})
        declared = configuration.variables.items()
        constant = {name for name, block in declared if _flag(block, "const")}
        return _variables(_reached(configuration, texts)) | constant

    def passed_elsewhere(self, directory: Path) -> frozenset[str]:
        """
        Return the variables of the module in ``directory`` that are passed to remote modules, if
        OpenTofu reads it.
        """
        if self.engine != "tofu":
            return frozenset()
        configuration, texts = self.modules[directory], list[str]()
        for call in configuration.calls.values():
            child = _child(directory, call)
            passed = self.passed_elsewhere(child) if child in self.modules else call.attributes
            texts += _texts(call, only=passed)
        return _variables(_reached(configuration, texts))

    def provider_dependencies(self) -> dict[str, ProviderDependencies]:
        """
        Return what each provider configuration in the tree depends on, by local name and alias:
        "aws", "aws.west". One that the module passes to a local module ("module.aws") could depend
        on anything.
        """
        own = self.modules[self.root]
        texts: dict[str, list[str]] = {}
        for block in own.providers:
            alias = block.attributes.get("alias")
            name = f"{block.labels[0]}.{alias.plain}" if alias else block.labels[0]
            texts.setdefault(name, []).extend(_texts(block))
        managed = {f"module.{name}" for name in own.calls}
        managed |= {".".join(block.labels) for block in own.resources if block.type != "data"}
        dependencies = {}
        for name in sorted(texts):
            reached = _reached(own, texts[name])
            is_managed = not reached.isdisjoint(managed)
            dependencies[name] = ProviderDependencies(_variables(reached), is_managed)
        inner = {
            f"module.{block.labels[0]}"
            for directory, configuration in self.modules.items()
            if directory != self.root
            for block in configuration.providers
        }
        anything = ProviderDependencies(frozenset(own.variables), managed_objects=True)
        return {**dependencies, **dict.fromkeys(sorted(inner), anything)}

    def protected(self, directory: Path, prefix: str) -> list[ProtectedResource]:
        """
        Return the resources with ``prevent_destroy`` under every address that a module call gives
        them, and under those that they were moved from. ``prefix`` is the address of the module in
        ``directory``, with a dot.
        """
        configuration, resources = self.modules[directory], list[ProtectedResource]()
        for block in configuration.resources:
            for lifecycle in block.inner("lifecycle"):
                if block.type == "resource" and _flag(lifecycle, "prevent_destroy"):
                    at = lifecycle.attributes["prevent_destroy"].at
                    at = replace(at, file=os.path.relpath(at.file, self.shown).replace(os.sep, "/"))
                    resources.append(ProtectedResource(prefix + ".".join(block.labels), at))
        for name, block in configuration.calls.items():
            child = _child(directory, block)
            if child in self.modules:
                resources += self.protected(child, f"{prefix}module.{name}.")
        moves = []
        for block in configuration.moves:
            ends = [block.attributes.get(name) for name in ("from", "to")]
            start, to = (without_keys(end.plain) if end else "" for end in ends)
            if start and to:
                moves.append((prefix + to, prefix + start))
        for item in resources:  # grows while it is walked: a move may follow another
            addresses = {other.address for other in resources}
            resources += [
                replace(item, address=start + item.address.removeprefix(to))
                for to, start in moves
                if f"{item.address}.".startswith(f"{to}.")
                and start + item.address.removeprefix(to) not in addresses
            ]
        return resources

    def check_files(self, package: Path | None) -> None:
        """
        Add a problem for each path that refers to a file which is not copied with the module.
        """
        copied = [*self.copied, *([package] if package else [])]
        for directory, configuration in self.modules.items():
            for quote in configuration.quotes:
                paths = [
                    (directory if match[1] == "module" else self.root, match[2].lstrip("/"))
                    for match in _OUTWARD.finditer(quote.text)
                ]
                if _READS_FILES.fullmatch(quote.caller) and quote.text.startswith("../"):
                    # A bare relative path starts at the engine's working directory: the root
                    # module's.
                    paths.append((self.root, re.split(r"[$%]\{", quote.text)[0]))
                for base, written in paths:
                    target = _absolute(Path(f"{base}/{written}"))
                    if not any(target.is_relative_to(path) for path in copied):
                        self.problems.append(self._outside(quote, target))

    def _outside(self, quote: QuotedString, target: Path) -> Problem:
        common = Path(os.path.commonpath([self.root, target.parent]))
        parts = self.root.relative_to(common).parts
        outer = PurePosixPath(self.shown).parts
        reference = f"DIRECTORY//{'/'.join(parts)}"
        if len(outer) > len(parts) and outer[-len(parts) :] == parts:
            reference = f"{PurePosixPath(*outer[: -len(parts)])}//{'/'.join(parts)}"
        return Problem(
            f'"{quote.text.strip()}" names a file outside the module and its local modules, which'
            f' is not copied with it; refer to the module as "{reference}" to take it along',
            quote.at,
            hint="the directory before // is copied as a whole",
        )


def _child(directory: Path, call: Block) -> Path | None:
    """
    Return the directory of a local module that a call names, None for a remote one.
    """
    source = call.attributes.get("source")
    if source is None or source.literal is None or not _LOCAL.match(source.literal):
        return None
    return _absolute(directory / source.literal)


_LOCAL = re.compile(r"\.\.?(/|\Z)")


def _encryption(configuration: Configuration) -> str | None:
    """
    Return a digest of the module's state encryption and the locals it uses, independent of where
    the blocks stand; None if it has none.
    """
    blocks = [block for block in configuration.evaluated_early if block.type == "encryption"]
    if not blocks:
        return None
    content: list[Json] = [_content(block) for block in blocks]
    reached = _reached(configuration, [text for block in blocks for text in _texts(block)])
    locals_ = sorted(configuration.locals.items())
    if texts := {name: item.text for name, item in locals_ if f"local.{name}" in reached}:
        content.append(texts)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _content(block: Block) -> Json:
    texts = {name: item.text for name, item in block.attributes.items()}
    return [block.type, block.labels, texts, [_content(inner) for inner in block.blocks]]


def _texts(block: Block, only: Collection[str] | None = None) -> Iterator[str]:
    """
    Yield the expressions in a block, or ``only`` those of some of its arguments.
    """
    for name, item in block.attributes.items():
        if only is None or name in only:
            yield item.text
    for inner in block.blocks if only is None else ():
        yield from _texts(inner)


_REFERENCE = re.compile(r"(?<![\w.-])((?:data\.)?[^\W\d][\w-]*\.[^\W\d][\w-]*)")


def _reached(configuration: Configuration, texts: Iterable[str]) -> set[str]:
    """
    Return the references in expressions, such as "var.region", and those in all that they lead to.
    """
    content = {
        ("data." if block.type == "data" else "") + ".".join(block.labels): _texts(block)
        for block in configuration.resources
    }
    content |= {f"module.{name}": _texts(call) for name, call in configuration.calls.items()}
    content |= {f"local.{name}": iter([item.text]) for name, item in configuration.locals.items()}
    reached: set[str] = set()
    waiting = list(texts)
    while waiting:
        for reference in _REFERENCE.findall(waiting.pop()):
            if reference not in reached:
                reached.add(reference)
                waiting += content.get(reference, ())
    return reached


def _variables(references: Iterable[str]) -> frozenset[str]:
    return frozenset(
        reference.removeprefix("var.") for reference in references if reference.startswith("var.")
    )
