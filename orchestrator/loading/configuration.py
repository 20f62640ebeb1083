"""
The configuration files of a directory, merged as Terraform merges them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import Constraint, EngineKind
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.loading.hcl import Attribute, Block, QuotedString, parse_configuration
from orchestrator.local_files import read_regular


@dataclass(slots=True)
class Configuration:
    """
    A directory's blocks by name, with override files applied. ``backends`` are the backend and
    cloud blocks of all files; the last one counts. ``evaluated_early`` are the blocks that OpenTofu
    evaluates while it loads the configuration.
    """

    variables: dict[str, Block] = field(default_factory=dict)
    outputs: dict[str, Block] = field(default_factory=dict)
    calls: dict[str, Block] = field(default_factory=dict)
    providers: list[Block] = field(default_factory=list)
    resources: list[Block] = field(default_factory=list)
    moves: list[Block] = field(default_factory=list)
    locals: dict[str, Attribute] = field(default_factory=dict)
    required_versions: list[Constraint] = field(default_factory=list)
    compatible_with: list[Constraint] = field(default_factory=list)
    required_providers: dict[str, Attribute] = field(default_factory=dict)
    backends: list[Block] = field(default_factory=list)
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
    Return the configuration in ``directory`` as this kind of engine reads it. Raises Invalid with
    the problems of all files.

    ``called_at`` is the place that refers to the directory; it is reported if the directory is no
    module.
    """
    problems: list[Problem] = []
    configuration = Configuration()
    overrides: list[list[Block]] = []
    paths, configuration.is_for_one_engine = _files(
        directory, shown, engine, called_at or Location(shown)
    )
    for path in paths:
        name = f"{shown}/{path.name}"
        try:
            blocks, quotes = parse_configuration(read_regular(path, limit=MAX_BYTES), name)
        except OSError as exc:
            problems.append(Problem(f"cannot be read: {exc.strerror}", Location(name)))
            continue
        except Invalid as exc:
            problems.extend(exc.problems)
            continue
        if mislabelled := _mislabelled(blocks):
            problems.extend(mislabelled)
            continue
        configuration.quotes.extend(quotes)
        if _OVERRIDE.fullmatch(path.name):
            overrides.append(blocks)
        else:
            problems.extend(_merge(configuration, blocks, engine, overrides=False))
    for blocks in overrides:
        problems.extend(_merge(configuration, blocks, engine, overrides=True))
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
    Return the files that this kind of engine reads, and whether the other kind would read different
    ones.
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


_LABELS = {"variable": 1, "output": 1, "module": 1, "provider": 1, "resource": 2, "data": 2}


#: Names of variables that mean something else in a block that calls a module.
_RESERVED = frozenset(
    {"_", "count", "depends_on", "for_each", "lifecycle", "locals", "provider", "providers"}
    | {"source", "version"}
)


def _mislabelled(blocks: Iterable[Block]) -> list[Problem]:
    """
    Return the problems with the names of blocks; an engine finds them only at ``init``.
    """
    problems = []
    for block in blocks:
        kind, labels, count = block.type, block.labels, _LABELS.get(block.type)
        if count is None:
            continue
        if len(labels) != count:
            message = f"a {kind} block has {count} name{'s' * (count > 1)} before its brace"
        elif kind == "variable" and labels[0] in _RESERVED:
            message = f'a variable cannot be named "{labels[0]}": blocks that call a module use it'
        elif wrong := [name for name in labels if not name.replace("-", "_").isidentifier()]:
            message = (
                f'"{wrong[0]}" is no name: letters, digits, _ and -, no digit at the beginning'
            )
        else:
            continue
        problems.append(Problem(message, block.at))
    return problems


def _merge(
    configuration: Configuration, blocks: Iterable[Block], engine: EngineKind, *, overrides: bool
) -> list[Problem]:
    """
    Add the blocks of a file. In one that ``overrides`` the arguments of a block replace those of
    the block of the same name.
    """
    problems: list[Problem] = []
    by_kind = {
        "variable": configuration.variables,
        "output": configuration.outputs,
        "module": configuration.calls,
    }
    for block in blocks:
        match block.type:
            case "variable" | "output" | "module" as kind:
                named, name = by_kind[kind], block.labels[0]
                base = named.get(name)
                if overrides and base is not None:
                    merged = {**base.attributes, **block.attributes}
                    named[name] = replace(base, attributes=merged)
                    continue
                if overrides:
                    problems.append(Problem(f'there is no {kind} "{name}" to override', block.at))
                    continue
                if base is not None:
                    message = f'{kind} "{name}" was declared before, at {base.at}'
                    problems.append(Problem(message, block.at))
                named[name] = block
            case "provider":
                configuration.providers.append(block)
            case "locals":
                configuration.locals.update(block.attributes)
            case "terraform":
                _settings(configuration, block, engine, overrides=overrides)
            case "resource" if overrides:
                _override_lifecycle(configuration, block)
            case "resource" | "data" | "ephemeral" if not overrides:
                configuration.resources.append(block)
            case "moved" if not overrides:
                configuration.moves.append(block)
            case "language" if not overrides and engine == "tofu":
                for inner in block.inner("compatible_with"):
                    if version := inner.attributes.get("opentofu"):
                        configuration.compatible_with.append(Constraint(version.plain, version.at))
    return problems


#: From this version on OpenTofu heeds `required_version` in .tofu files only.
_TOFU_IGNORES_FROM = "1.12.0"


def _settings(
    configuration: Configuration, block: Block, engine: EngineKind, *, overrides: bool
) -> None:
    if version := block.attributes.get("required_version"):
        heeded = engine == "terraform" or version.at.file.endswith(_TOFU_ENDINGS)
        until = None if heeded else _TOFU_IGNORES_FROM
        versions = configuration.required_versions
        if overrides:  # what is ignored replaces nothing
            versions[:] = [item for item in versions if item.until != until]
        versions.append(Constraint(version.plain, version.at, until))
    for providers in block.inner("required_providers"):
        configuration.required_providers.update(providers.attributes)
    for kind in ("backend", "cloud"):
        configuration.backends.extend(block.inner(kind))
    for kind in ("backend", "encryption"):
        configuration.evaluated_early.extend(block.inner(kind))


def _override_lifecycle(configuration: Configuration, block: Block) -> None:
    """
    Merge the lifecycle block of an overriding resource; the rest of a resource is not needed here.
    """
    override = {k: v for inner in block.inner("lifecycle") for k, v in inner.attributes.items()}
    for index, base in enumerate(configuration.resources):
        if (base.type, base.labels) == (block.type, block.labels) and override:
            original = {k: v for i in base.inner("lifecycle") for k, v in i.attributes.items()}
            merged = Block("lifecycle", (), block.at, {**original, **override})
            others = tuple(inner for inner in base.blocks if inner.type != "lifecycle")
            configuration.resources[index] = replace(base, blocks=(*others, merged))
