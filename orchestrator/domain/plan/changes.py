"""
The changes in a step's plan, readable: objects with attributes before and after, outputs, inputs
with their sources, checks, and changes outside the engine.

It contains no secret: a sensitive value is null, one within a structure is replaced by a text.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, Self

from orchestrator.domain.addresses import is_like, meant_by
from orchestrator.domain.blueprint.blueprint import DriftRule
from orchestrator.domain.json_model import JsonModel
from orchestrator.domain.record.objects import Action, PlannedAction, object_name
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import Json, Word

#: Stands for a value, within a structure, that only the apply makes known.
UNKNOWN = "(known after apply)"


class AttributeChange(JsonModel):
    """
    An attribute, or a value within it, that a plan changes.

    ``before`` and ``after`` are null if there is no value, if it is ``sensitive``, or if it is not
    ``known`` before the apply. ``equivalent``: only the notation changes, such as null and an empty
    list, or the key order of a JSON text.
    """

    path: str
    change: Literal["added", "removed", "changed", "reordered"] = "changed"
    before: Json = None
    after: Json = None
    sensitive: bool = False
    known: bool = True
    forces_replacement: bool = False
    equivalent: bool = False


class ResourceChange(JsonModel):
    """
    A planned action on an object, and its reason.

    ``reason`` is the engine's word; ``replace_paths`` are the attributes that force a replacement;
    with ``create_first`` the new object is created before the old one is deleted. ``importing`` is
    the id by which it is imported; ``deposed`` the key of a deposed object.
    """

    address: Word
    type: Word
    name: Word
    index: Word | int | None = None
    module: Word | None = None
    action: Action
    engine_word: Word | None = None
    reason: Word | None = None
    replace_paths: tuple[str, ...] = ()
    create_first: bool = False
    previous_address: Word | None = None
    importing: str | None = None
    deposed: Word | None = None
    attributes: tuple[AttributeChange, ...] = ()

    @property
    def named(self) -> str:
        """
        The address, with the deposed key if there is one.
        """
        return object_name(self.address, self.deposed)

    @property
    def equivalent(self) -> bool:
        """
        Whether only the notation of the object changes.
        """
        return bool(self.attributes) and all(item.equivalent for item in self.attributes)


class OutputValueChange(JsonModel):
    """
    An output that a plan changes; values as in `AttributeChange`.
    """

    name: Word
    action: Action = "update"
    before: Json = None
    after: Json = None
    sensitive: bool = False
    known: bool = True


class InputChange(JsonModel):
    """
    An input that differs from what the step was applied with. ``source`` says where the value comes
    from; one that is not ``known`` is known after an apply.
    """

    name: Word
    before: Json = None
    after: Json = None
    sensitive: bool = False
    known: bool = True
    source: str = ""


class CheckResult(JsonModel):
    """
    The result of a ``check`` block or a condition of the module in a plan.
    """

    address: Word
    status: Literal["pass", "fail", "error", "unknown"]
    problems: tuple[str, ...] = ()


class PlanDiagnostic(JsonModel):
    """
    A warning or an error of the engine. ``file`` is relative to the project if it is inside.
    """

    severity: Literal["error", "warning"]
    summary: str
    detail: str = ""
    file: Word | None = None
    line: int | None = None
    address: Word | None = None

    @property
    def at(self) -> str | None:
        """
        The place, "file:line".
        """
        return f"{self.file}:{self.line}" if self.line else self.file

    @classmethod
    def of_diagnostic(cls, item: Diagnostic) -> Self:
        """
        Return a diagnostic with its file relative to the project.
        """
        file, line = item.place
        return cls(
            severity=item.severity,
            summary=item.summary,
            detail=item.detail,
            file=file,
            line=line,
            address=item.address,
        )


class PlanChanges(JsonModel):
    """
    The changes in a step's plan.

    ``resources`` are the objects with an action, including reads of data sources; ``drift`` those
    that changed or vanished outside the engine. ``module_changed``: the module differs from the one
    the step was applied from.
    """

    resources: tuple[ResourceChange, ...] = ()
    drift: tuple[ResourceChange, ...] = ()
    outputs_changed: tuple[OutputValueChange, ...] = ()
    inputs_changed: tuple[InputChange, ...] = ()
    module_changed: bool = False
    checks: tuple[CheckResult, ...] = ()
    diagnostics: tuple[PlanDiagnostic, ...] = ()

    @property
    def has_changes(self) -> bool:
        """
        Whether the plan was read and has changes.
        """
        return any(getattr(self, name) for name in PlanChanges.model_fields)


# What a saved plan holds, secrets included.


#: What the address of an output begins with among the objects of a plan.
OUTPUT = "output."


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """
    A planned action on an object, or on an output (``output.NAME``), and its planned values,
    secrets included; ``unknown`` is true for values known only after apply. ``previous_address`` is
    that before a move.
    """

    address: str
    action: Action
    deposed: str | None = None
    after: Json = field(default=None, repr=False)
    unknown: Json = False
    previous_address: str | None = None

    @property
    def is_output(self) -> bool:
        return self.address.startswith(OUTPUT)


@dataclass(frozen=True, slots=True)
class PlanContent:
    """
    The content of a saved plan: actions, addresses that it only moves, changed outputs, and the
    values of all. ``secrets`` are the sensitive values, ``objects`` the changes with all values:
    both stay in memory. ``regions`` are those of the provider configurations that set one, None if
    the plan does not tell it.
    """

    actions: tuple[PlannedAction, ...]
    moved: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()
    changes: PlanChanges = field(default_factory=PlanChanges)
    secrets: tuple[Json, ...] = field(default=(), repr=False)
    objects: tuple[PlannedObject, ...] = ()
    regions: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def only_reads_for_checks(self) -> bool:
        """
        Whether the plan does no more than to read again what `check` blocks look at, which an
        engine calls a change.
        """
        reads = {item.reason for item in self.changes.resources}
        return not self.actions and not self.outputs and reads == {"read_because_check_nested"}


# Drift without what is accepted.


def remaining_drift(
    drift: Iterable[ResourceChange], rules: Iterable[DriftRule], today: date
) -> tuple[ResourceChange, ...]:
    """
    Return the drift that no rule accepts today and that is more than a difference in notation.
    """
    valid = [rule for rule in rules if rule.until is None or today.isoformat() <= rule.until]

    def accepted(item: ResourceChange, path: str) -> bool:
        return any(
            meant_by(rule.address, item.address) and _covers(rule.attribute, path) for rule in valid
        )

    remaining = []
    for item in drift:
        if item.action == "delete":
            if not accepted(item, ""):
                remaining.append(item)
            continue
        attributes = [a for a in item.attributes if not a.equivalent and not accepted(item, a.path)]
        if attributes:
            remaining.append(item.model_copy(update={"attributes": tuple(attributes)}))
    return tuple(remaining)


def _covers(attribute: str, path: str) -> bool:
    """
    Return whether a rule's attribute covers a path: the same or one below it. A vanished object has
    the path "".
    """
    return is_like(attribute, path) or path.startswith((f"{attribute}.", f"{attribute}["))
