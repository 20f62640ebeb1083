"""
Approvals: what was approved of a plan, and whether another plan stays within that.

Paths and values are stored as keyed digests only: an approval may leave the machine.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, Self

from pydantic import Field

from orchestrator.domain.blueprint.inputs import digest
from orchestrator.domain.json_model import BlueprintDocument, JsonModel
from orchestrator.domain.plan.changes import PlannedObject
from orchestrator.domain.plan.differences import attribute_path
from orchestrator.domain.record.objects import Action
from orchestrator.domain.text import Json, ValuePath, Word

#: In place of the digest of a value that only the apply made known.
_UNKNOWN = "unknown"
_SHOWN = 5  # differences of one object that are told


class ApprovedObject(JsonModel):
    """
    An approved action on an object, or on an output (``output.NAME``). ``values`` maps the digest
    of each path to the digest of its planned value, or to "unknown".
    """

    address: Word
    action: Action
    deposed: Word | None = None
    values: dict[Word, Word] = Field(default_factory=dict)


class ApprovedStep(JsonModel):
    """
    The reviewed plan of a step. ``lock_file`` and ``module`` are digests of what was planned;
    ``given`` are those of its inputs from the blueprint, by name.
    """

    step: Word
    status: Literal["planned", "unchanged", "deferred"]
    objects: tuple[ApprovedObject, ...] = ()
    module: Word | None = None
    lock_file: Word | None = None
    given: dict[Word, Word] = Field(default_factory=dict)
    lineage: Word | None = None


class Approval(BlueprintDocument):
    """
    The reviewed plan of a run: an apply or destroy with it changes nothing else. ``replace`` and
    ``targets`` are the addresses that it was made for, as options of the engine. ``signature``
    covers all other fields, with the project's key.
    """

    schema_: Literal["orchestrator.approval/1"] = Field("orchestrator.approval/1", alias="schema")
    command: Literal["apply", "destroy"]
    created_at: datetime
    steps: tuple[ApprovedStep, ...]
    replace: tuple[Word, ...] = ()
    targets: tuple[Word, ...] = ()
    signature: Word = ""

    def signed(self, key: bytes) -> Self:
        return self.model_copy(update={"signature": self._signature(key)})

    def is_signed(self, key: bytes) -> bool:
        return hmac.compare_digest(self.signature, self._signature(key))

    def step(self, name: str) -> ApprovedStep | None:
        """
        Return what was shown of a step, None if nothing was.
        """
        return next((item for item in self.steps if item.step == name), None)

    def _signature(self, key: bytes) -> str:
        # Approvals of earlier versions were signed without the options of the engine.
        unused = {name for name in ("replace", "targets") if not getattr(self, name)}
        content = self.model_dump(mode="json", by_alias=True, exclude={"signature", *unused})
        return digest({"approval": content}, key)


def approved_objects(objects: Iterable[PlannedObject], key: bytes) -> tuple[ApprovedObject, ...]:
    return tuple(
        ApprovedObject(
            address=item.address,
            action=item.action,
            deposed=item.deposed,
            values={_path_digest(path, key): value for path, value in _values(item, key)},
        )
        for item in objects
    )


def not_covered(approved: ApprovedStep, planned: Sequence[PlannedObject], key: bytes) -> list[str]:
    """
    Return what a plan does beyond the approval; empty if it does the same or less.

    A value that was unknown may be known now; a known value must be the same.
    """
    by_key = {(item.address, item.action, item.deposed): item for item in approved.objects}
    differences: list[str] = []
    for item in planned:
        shown = by_key.get((item.address, item.action, item.deposed))
        if shown is None:
            others = [a.action for a in approved.objects if a.address == item.address]
            instead = f" (approved: {', '.join(others)})" if others else ""
            differences.append(f"{item.address}: {item.action} was not approved{instead}")
        else:
            differences += _other_values(item, shown.values, key)
    return differences


def _other_values(item: PlannedObject, approved: Mapping[str, str], key: bytes) -> Iterator[str]:
    names: list[str] = []
    missing = {path for path, value in approved.items() if value != _UNKNOWN}
    for path, value in _values(item, key):
        if any(approved.get(_path_digest(path[:n], key)) == _UNKNOWN for n in range(len(path) + 1)):
            continue
        here = _path_digest(path, key)
        missing.discard(here)
        if approved.get(here) != value:
            names.append(attribute_path(path) or "it")
    for name in names[:_SHOWN]:
        yield f"{item.address}: {name} is not what was approved"
    if len(names) > _SHOWN:
        yield f"{item.address}: {len(names) - _SHOWN} more values are not what was approved"
    if missing and not names:
        yield f"{item.address}: values that were approved are gone"


def _path_digest(path: ValuePath, key: bytes) -> str:
    return digest({"path": list(path)}, key)


def _values(item: PlannedObject, key: bytes) -> Iterator[tuple[ValuePath, str]]:
    """
    Yield the path of each planned value with its digest or "unknown".
    """
    for path, value, known in _leaves((), item.after, item.unknown):
        yield path, digest(value, key) if known else _UNKNOWN


def _leaves(path: ValuePath, value: Json, unknown: Json) -> Iterator[tuple[ValuePath, Json, bool]]:
    if unknown is True:
        yield path, None, False
    elif isinstance(value, dict) or (isinstance(unknown, dict) and unknown):
        fields = value if isinstance(value, dict) else {}
        marks = unknown if isinstance(unknown, dict) else {}
        for name in {**fields, **marks}:
            if name in fields or "true" in json.dumps(marks.get(name)):  # unknown in part
                yield from _leaves((*path, name), fields.get(name), marks.get(name))
        if not fields and not marks:
            yield path, {}, True
    elif isinstance(value, list) and value:
        marks_of = unknown if isinstance(unknown, list) else []
        for index, part in enumerate(value):
            mark = marks_of[index] if index < len(marks_of) else False
            yield from _leaves((*path, index), part, mark)
    else:
        yield path, value, True
