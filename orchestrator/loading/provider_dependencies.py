"""
What provider configurations are made from, followed through locals, data sources, resources and
modules. Where it cannot be told exactly, more is named than is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.domain.blueprint.blueprint import ProviderDependencies
from orchestrator.loading.configuration import Configuration
from orchestrator.loading.hcl import Block

_REFERENCE = re.compile(r"(?<![\w.-])((?:data\.)?[^\W\d][\w-]*)\.([^\W\d][\w-]*)")


def provider_dependencies(configuration: Configuration) -> dict[str, ProviderDependencies]:
    """
    The reach of each provider configuration, by local name and alias: "aws", "aws.west".
    """
    blocks: dict[str, list[Block]] = {}
    for block in configuration.providers:
        alias = block.attributes.get("alias")
        name = f"{block.labels[0]}.{alias.plain}" if alias else block.labels[0]
        blocks.setdefault(name, []).append(block)
    return {name: _Walk(configuration).through(found) for name, found in sorted(blocks.items())}


class _Walk:
    """
    One walk along references, each followed once.
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
