"""
The configuration files of one directory, merged the way Terraform merges them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Constraint, EngineKind
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.hcl import Attribute, Block, HclFile, QuotedString, parse_hcl
from orchestrator.loading.hcl_json import parse_json
from orchestrator.regular_files import read_regular


@dataclass(slots=True)
class Configuration:
    """
    A directory's blocks by name, override files applied. ``backend`` is "cloud" for a cloud block.
    ``evaluated_early`` are the blocks that OpenTofu evaluates before it has loaded the rest.
    """

    variables: dict[str, Block] = field(default_factory=dict)
    outputs: dict[str, Block] = field(default_factory=dict)
    calls: dict[str, Block] = field(default_factory=dict)
    providers: list[Block] = field(default_factory=list)
    resources: list[Block] = field(default_factory=list)
    locals: dict[str, Attribute] = field(default_factory=dict)
    required_versions: list[Constraint] = field(default_factory=list)
    compatible_with: list[Constraint] = field(default_factory=list)
    required_providers: dict[str, Attribute] = field(default_factory=dict)
    backend: str | None = None
    evaluated_early: list[Block] = field(default_factory=list)
    quotes: list[QuotedString] = field(default_factory=list)
    is_for_one_engine: bool = False


def read_configuration(
    directory: Path,
    shown: str,
    *,
    engine: EngineKind = "terraform",
    called_at: Location | None = None,
) -> Configuration:
    """
    The configuration in ``directory`` as this kind of engine reads it; Invalid with the problems of
    all its files.

    ``called_at`` is the place that names the directory: where it is reported if it is no module.
    """
    problems: list[Problem] = []
    configuration = Configuration()
    overrides: list[HclFile] = []
    paths, configuration.is_for_one_engine = _files(
        directory, shown, engine, called_at or Location(shown)
    )
    for path in paths:
        name = f"{shown}/{path.name}"
        try:
            document = _parse(path, name)
        except Invalid as exc:
            problems.extend(exc.problems)
            continue
        configuration.quotes.extend(document.quotes)
        if _OVERRIDE.fullmatch(path.name):
            overrides.append(document)
        else:
            problems.extend(_add(configuration, document, engine))
    for document in overrides:
        problems.extend(_override(configuration, document, engine))
    if problems:
        raise Invalid(problems)
    return configuration


#: Of one configuration file. HashiCorp's parser is C underneath: it cannot be stopped.
MAX_BYTES = 4 * 1024 * 1024
_OVERRIDE = re.compile(r"(?:.*_)?override\.(?:tf|tofu)(?:\.json)?")
_ENDINGS = (".tf", ".tf.json")
#: OpenTofu reads these as well; each stands in for the file of the same name that ends in .tf.
_TOFU_ENDINGS = (".tofu", ".tofu.json")


def _files(
    directory: Path, shown: str, engine: EngineKind, at: Location
) -> tuple[list[Path], bool]:
    """
    The files that an engine of this kind reads, and whether the other kind would read others.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise Invalid([Problem(f"there is no module directory {shown}", at)]) from exc
    except OSError as exc:
        raise Invalid([Problem(f"cannot read {shown}: {exc.strerror}", at)]) from exc
    # What Terraform passes over: hidden files and those that editors leave.
    names = [name for name in names if not name.startswith((".", "#"))]
    paths = [name for name in names if name.endswith(_ENDINGS)]
    tofu_only = [name for name in names if name.endswith(_TOFU_ENDINGS)]
    if engine == "tofu":
        replaced = {re.sub(r"\.tofu(?=$|\.json$)", ".tf", name) for name in tofu_only}
        paths = sorted({*paths, *tofu_only} - replaced)
    if not paths:
        what = f"{shown} holds no .tf files: it is not a module"
        hint = ""
        if tofu_only:
            what = f"{shown} holds only .tofu files, which Terraform does not read"
            hint = "say `engine: {kind: tofu}` in the blueprint, or --engine tofu"
        raise Invalid([Problem(what, at, hint)])
    return [directory / name for name in paths], bool(tofu_only)


def _parse(path: Path, shown: str) -> HclFile:
    try:
        data = read_regular(path, limit=MAX_BYTES)
    except OSError as exc:
        raise Invalid([Problem(f"cannot be read: {exc.strerror}", Location(shown))]) from exc
    return parse_json(data, shown) if path.name.endswith(".json") else parse_hcl(data, shown)


_LABELS = {"variable": 1, "output": 1, "module": 1, "provider": 1, "resource": 2, "data": 2}


def _mislabelled(document: HclFile) -> list[Problem]:
    return [
        Problem(f"a {block.type} block has {count} name{'s' * (count > 1)} before its brace", at)
        for block in document.blocks
        if (count := _LABELS.get(block.type)) is not None and len(block.labels) != count
        for at in [block.at]
    ]


def _add(configuration: Configuration, document: HclFile, engine: EngineKind) -> list[Problem]:
    if problems := _mislabelled(document):
        return problems
    named = {
        "variable": configuration.variables,
        "output": configuration.outputs,
        "module": configuration.calls,
    }
    for block in document.blocks:
        match block.type:
            case "variable" | "output" | "module":
                blocks = named[block.type]
                name = block.labels[0]
                if name in blocks:
                    message = f'{block.type} "{name}" was declared before, at {blocks[name].at}'
                    problems.append(Problem(message, block.at))
                blocks[name] = block
            case "provider":
                configuration.providers.append(block)
            case "resource" | "data" | "ephemeral":
                configuration.resources.append(block)
            case "locals":
                configuration.locals.update(block.attributes)
            case "terraform":
                _settings(configuration, block, engine)
            case "language":
                _compatible_with(configuration, block, engine)
    return problems


#: From this version on OpenTofu heeds `required_version` in .tofu files only.
_TOFU_IGNORES_FROM = "1.12.0"


def _compatible_with(configuration: Configuration, block: Block, engine: EngineKind) -> None:
    for inner in block.inner("compatible_with"):
        version = inner.attributes.get("opentofu")
        if version is not None and engine == "tofu":
            configuration.compatible_with.append(Constraint(version.plain, version.at))


def _ignored_from(version: Attribute, engine: EngineKind) -> str | None:
    heeded = engine == "terraform" or version.at.file.endswith(_TOFU_ENDINGS)
    return None if heeded else _TOFU_IGNORES_FROM


def _settings(configuration: Configuration, block: Block, engine: EngineKind) -> None:
    if version := block.attributes.get("required_version"):
        until = _ignored_from(version, engine)
        configuration.required_versions.append(Constraint(version.plain, version.at, until))
    for providers in block.inner("required_providers"):
        configuration.required_providers.update(providers.attributes)
    for backend in block.inner("backend"):
        configuration.backend = "".join(backend.labels[:1])
    for kind in ("backend", "encryption"):
        configuration.evaluated_early.extend(block.inner(kind))
    if any(block.inner("cloud")):
        configuration.backend = "cloud"


def _override(configuration: Configuration, document: HclFile, engine: EngineKind) -> list[Problem]:
    """
    Merge an override file: arguments replace those of the block of the same name.
    """
    if problems := _mislabelled(document):
        return problems
    named = {
        "variable": configuration.variables,
        "output": configuration.outputs,
        "module": configuration.calls,
    }
    for block in document.blocks:
        match block.type:
            case "variable" | "output" | "module":
                blocks = named[block.type]
                base = blocks.get(block.labels[0])
                if base is None:
                    message = f'there is no {block.type} "{block.labels[0]}" to override'
                    problems.append(Problem(message, block.at))
                else:
                    merged = {**base.attributes, **block.attributes}
                    blocks[block.labels[0]] = replace(base, attributes=merged)
            case "provider":
                configuration.providers.append(block)
            case "resource":
                _override_lifecycle(configuration, block)
            case "locals":
                configuration.locals.update(block.attributes)
            case "terraform":
                if version := block.attributes.get("required_version"):
                    until = _ignored_from(version, engine)  # what is ignored replaces nothing
                    configuration.required_versions[:] = [
                        item for item in configuration.required_versions if item.until != until
                    ]
                _settings(configuration, block, engine)
    return problems


def _override_lifecycle(configuration: Configuration, block: Block) -> None:
    """
    Lay the lifecycle of an overriding resource over that of the one it overrides; nothing else of
    a resource is read here.
    """
    override = {k: v for inner in block.inner("lifecycle") for k, v in inner.attributes.items()}
    for index, base in enumerate(configuration.resources):
        if (base.type, base.labels) == (block.type, block.labels) and override:
            original = {k: v for i in base.inner("lifecycle") for k, v in i.attributes.items()}
            merged = Block("lifecycle", (), block.at, {**original, **override})
            others = tuple(inner for inner in base.blocks if inner.type != "lifecycle")
            configuration.resources[index] = replace(base, blocks=(*others, merged))
