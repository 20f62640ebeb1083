"""
What a plan of a step would change, readable: objects with their attributes before and after,
outputs, inputs and where their values come from, checks, what changed outside the engine.

No secret is in it: a sensitive value is null, one within a structure is replaced by a text.
"""

from __future__ import annotations

from typing import Literal

from orchestrator.domain.json_model import JsonModel
from orchestrator.domain.record.objects import Action, object_name
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import Json, Word

#: Stands for a value, within a structure, that only the apply makes known.
UNKNOWN = "(known after apply)"


class AttributeChange(JsonModel):
    """
    An attribute, or a value within it, that a plan changes.

    ``before`` and ``after`` are null where there is no value, where it is ``sensitive``, and where
    it is not ``known`` before the apply. ``equivalent``: nothing but its notation changes, such as
    null and an empty list, or the order of the keys of a JSON text.
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
    What a plan does with an object, and why.

    ``reason`` is the engine's word for it; ``replace_paths`` are the attributes that force a
    replacement, which makes the new object before it deletes the old one with ``create_first``.
    ``importing`` is the id by which it is taken into the provider state; ``deposed`` the key of a
    former object that waits for its deletion.
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
        The object among those at its address.
        """
        return object_name(self.address, self.deposed)

    @property
    def equivalent(self) -> bool:
        """
        Whether nothing of the object but its notation changes.
        """
        return bool(self.attributes) and all(item.equivalent for item in self.attributes)


class OutputValueChange(JsonModel):
    """
    An output that a plan changes; the values are as those of an `AttributeChange`.
    """

    name: Word
    action: Action = "update"
    before: Json = None
    after: Json = None
    sensitive: bool = False
    known: bool = True


class InputChange(JsonModel):
    """
    An input of a step that is not what the step was applied with. ``source`` says where the value
    comes from; one that is not ``known`` is known after an apply.
    """

    name: Word
    before: Json = None
    after: Json = None
    sensitive: bool = False
    known: bool = True
    source: str = ""


class CheckResult(JsonModel):
    """
    What a ``check`` block, or a condition of the module, says of the plan.
    """

    address: Word
    status: Literal["pass", "fail", "error", "unknown"]
    problems: tuple[str, ...] = ()


class PlanDiagnostic(JsonModel):
    """
    A warning or an error of the engine. ``file`` is relative to the project where it lies in it.
    """

    severity: Literal["error", "warning"]
    summary: str
    detail: str = ""
    file: Word | None = None
    line: int | None = None
    address: Word | None = None

    @classmethod
    def of_diagnostic(cls, item: Diagnostic) -> PlanDiagnostic:
        """
        A diagnostic, whose file is named as it is in the project.
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
    What the plan of one step would change.

    ``resources`` are the objects that it does something with, reads of data sources among them;
    ``drift`` those that changed or vanished outside the engine. ``module_changed``: the module is
    another one than the step was applied from.
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
        Whether the plan was read and something is in it.
        """
        return any(getattr(self, name) for name in PlanChanges.model_fields)
