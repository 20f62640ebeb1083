"""
The configuration generated around a module: backend and providers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from orchestrator.domain.blueprint.references import escaped
from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem
from orchestrator.ports.workdir import Secret, Snapshot, WorkDirConfig

#: An override file, so that it takes the place of a backend block of the module's own; of several
#: override files the engine heeds the last by name, so this one sorts behind what people write.
#: Native syntax: a module that reads its own files by a pattern such as "*.json" must not see it.
#: One that reads all of them sees the same on each machine: the settings lie elsewhere (ADR 30).
BACKEND_FILE = "zzzz_orchestrator_override.tf"
#: What earlier versions of this tool called it: it goes from their working directories.
FORMER_BACKEND_FILES = ("orchestrator_override.tf.json", "zzzz_orchestrator_override.tf.json")
#: No override file: provider aliases and variables can only be declared outside of one. Only JSON
#: leaves it to the provider's schema whether a map is a block or a value.
PROVIDER_FILE = "orchestrator_providers.tf.json"
SECRET_VARIABLE = "orchestrator_secret_{}"
#: The settings of backends that are blocks; all others are values.
_BLOCKS = {"remote": ("workspaces",), "kubernetes": ("exec",), "cos": ("assume_role",)}
#: Escapes of JSON that the native syntax does not have.
_ESCAPES = {r"\b": r"\u0008", r"\f": r"\u000c"}
_NAME = re.compile(r"[^\W\d][\w-]*")


class Generated(Struct, frozen=True):
    """
    The generated configuration: files by name with their text. ``variables`` are the secrets that
    the text refers to. ``backend`` are the backend settings as a file for ``init``; ``terraform``
    is the terraform block that holds backend and required providers, ``provider_blocks`` the
    content of the provider file.
    """

    files: Mapping[str, str]
    backend: str
    terraform: Mapping[str, Json]
    variables: Mapping[str, Json] = field(default_factory=dict)
    provider_blocks: Mapping[str, list[Json]] = field(default_factory=dict)


def generate(
    snapshot: Snapshot,
    setup: WorkDirConfig,
    *,
    backend: Mapping[str, Json],
    shown: str,
) -> Generated:
    """
    Return the files for a snapshot, with ``backend`` as the backend's settings.

    Providers that the module does not use are left out. Raises Invalid if the module configures a
    provider itself, if a source contradicts the module's, or if a backend setting is secret.
    ``shown`` names the step in messages.
    """
    providers = {
        name: value
        for name, value in sorted(setup.providers.items())
        if snapshot.uses_provider(name)
    }
    if problems := list(_problems(snapshot, setup, providers, shown)):
        raise Invalid(problems)
    variables: dict[str, Json] = {}
    required = _required(snapshot, providers)
    provider_blocks: dict[str, list[Json]] = {}
    for name, value in providers.items():
        ours = ("source", "version") if name in required else ("source",)
        provider_blocks[name] = [
            {key: _render(item, variables) for key, item in block.items() if key not in ours}
            for block in _blocks(value)
        ]
    settings: dict[str, Json] = {"backend": {setup.backend_type: dict(backend)}}
    if required:
        settings["required_providers"] = required
    kind, files = setup.backend_type, {}
    if required or snapshot.partial_backend != kind:
        files[BACKEND_FILE] = backend_text({**settings, "backend": {kind: {}}})
    if provider_blocks:
        content: dict[str, Json] = {"provider": provider_blocks}
        if variables:
            content["variable"] = {name: {"sensitive": True} for name in variables}
        files[PROVIDER_FILE] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    lines = "".join(f"{line}\n" for line in _settings(kind, backend))
    return Generated(files, lines, settings, variables, provider_blocks)


def backend_text(settings: Mapping[str, Json]) -> str:
    """
    Return a ``terraform`` block with backend and required providers; values are literals.

    >>> print(backend_text({"backend": {"s3": {"key": "a${b}"}}}), end="")
    terraform {
      backend "s3" {
        key = "a$${b}"
      }
    }
    """
    lines: list[str] = []
    for kind, config in settings.get("backend", {}).items():
        inner = (f"    {line}" for line in _settings(kind, config))
        lines += [f"  backend {json.dumps(kind)} {{", *inner, "  }"]
    required = settings.get("required_providers")
    if required:
        entries = [f"    {name} = {_expression(entry)}" for name, entry in required.items()]
        lines += ["  required_providers {", *entries, "  }"]
    return "\n".join(["terraform {", *lines, "}"]) + "\n"


def _settings(kind: str, config: Mapping[str, Json]) -> Iterator[str]:
    for name, value in config.items():
        if name not in _BLOCKS.get(kind, ()):
            yield f"{name} = {_expression(value)}"
            continue
        for block in _blocks(value):
            inner = (f"  {key} = {_expression(item)}" for key, item in block.items())
            yield from (f"{name} {{", *inner, "}")


def _expression(value: Json) -> str:
    """
    Return a value in HCL's native syntax, which accepts objects and lists in JSON notation.
    """
    text = json.dumps(_render(value, {}), ensure_ascii=False)
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[0], match[0]), text)


def _blocks(value: Json) -> list[Mapping[str, Json]]:
    """
    Return a provider's configurations: one mapping, or a list of them with aliases.
    """
    return list(value) if isinstance(value, list | tuple) else [value or {}]


def _problems(
    snapshot: Snapshot, setup: WorkDirConfig, providers: Mapping[str, Json], shown: str
) -> Iterator[Problem]:
    for key, value in setup.backend_config.items():
        secrets: dict[str, Json] = {}
        _render(value, secrets)
        if secrets:
            yield Problem(
                f"{shown}: backend setting `{key}` is sensitive, and the engine keeps backend "
                "settings in plain files; give credentials by the environment variables of the "
                f'"{setup.backend_type}" backend'
            )
    for name, value in providers.items():
        if name in snapshot.provider_blocks:
            yield Problem(
                f'{shown}: the module configures provider "{name}" itself; remove its provider '
                f'block, or "{name}" from the `providers` of the blueprint'
            )
        blocks = _blocks(value)
        if not all(isinstance(block, Mapping) for block in blocks):
            yield Problem(f'{shown}: provider "{name}" must be a mapping or a list of mappings')
            continue
        aliases = [block.get("alias") for block in blocks]
        if len(set(map(str, aliases))) < len(aliases):
            yield Problem(f'{shown}: provider "{name}" needs a different `alias` per configuration')
        for alias in aliases:
            if alias is not None and not (isinstance(alias, str) and _NAME.fullmatch(alias)):
                yield Problem(f'{shown}: provider "{name}" has an `alias` that is no name')
        declared = snapshot.provider_sources.get(name)
        for source in {block["source"] for block in blocks if "source" in block}:
            if declared is not None and not _is_same(source, declared):
                yield Problem(
                    f'{shown}: provider "{name}" is {declared} for the module and {source} for '
                    "the blueprint"
                )


def _required(snapshot: Snapshot, providers: Mapping[str, Json]) -> dict[str, Json]:
    """
    Return the required_providers entries that the module lacks, with the source from the blueprint
    or from the local module that uses the provider.
    """
    required: dict[str, Json] = {}
    for name, value in providers.items():
        if name in snapshot.provider_sources:
            continue
        settings = {key: item for block in _blocks(value) for key, item in block.items()}
        source = settings.get("source") or (snapshot.provider_uses or {}).get(name)
        if source and source != f"hashicorp/{name}":
            version = {"version": settings["version"]} if "version" in settings else {}
            required[name] = {"source": source, **version}
    return required


def _is_same(one: str, other: str) -> bool:
    # A source may leave out the host of the engine's own registry.
    length = min(one.count("/"), other.count("/")) + 1
    return one.split("/")[-length:] == other.split("/")[-length:]


def _render(value: Json, variables: dict[str, Json]) -> Json:
    """
    Return a value in Terraform's JSON syntax: literals escaped, and secrets replaced by references
    to generated variables, which are numbered in order of appearance and added to ``variables``.
    """
    match value:
        case Secret(Mapping() as inner):
            # Each leaf apart: the mapping may be a block, which no variable can stand for.
            return _render({k: Secret(v) for k, v in inner.items()}, variables)
        case Secret(list() | tuple() as inner):
            return _render([Secret(v) for v in inner], variables)
        case Secret(inner):
            name = SECRET_VARIABLE.format(len(variables) + 1)
            variables[name] = inner
            return f"${{var.{name}}}"
        case Mapping():
            return {escaped(str(k)): _render(v, variables) for k, v in value.items()}
        case list() | tuple():
            return [_render(item, variables) for item in value]
        case str():
            return escaped(value)
        case _:
            return value
