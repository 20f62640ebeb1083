"""
Masks secrets in records, events and documents before they leave the process (law: secrets travel
with values).

The types of the fields decide: every text except a `Word` is masked, also in fields added later.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

from orchestrator.domain.masking import Masker
from orchestrator.domain.text import Json, MachineWord

Model = TypeVar("Model", bound=BaseModel)
Redaction = Callable[[Masker, Json], Json]

_PLAIN = (bool, int, float, date, Enum, NoneType)


def redacted(model: Model, masker: Masker) -> Model:
    """
    Return the model with every text masked that is no `Word`, including unknown fields.
    """
    changes = {name: redact(masker, getattr(model, name)) for name, redact in _plan(type(model))}
    changes |= masker.mask_json(model.model_extra or {})
    return model.model_copy(update=changes)


@cache
def _plan(model: type[BaseModel]) -> tuple[tuple[str, Redaction], ...]:
    """
    Return the fields of a model that may hold text, each with its redaction.
    """
    plan = []
    for name, field in model.model_fields.items():
        redact = redaction_of(Annotated[field.annotation, *field.metadata, None])
        if redact is not None:
            plan.append((name, redact))
    return tuple(plan)


def redaction_of(annotation: Any) -> Redaction | None:
    """
    Return how a value of this type is redacted, None if it holds no text. Raises TypeError for an
    unsupported type.
    """
    origin, kinds = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        is_word = any(isinstance(mark, MachineWord) for mark in kinds[1:])
        return None if is_word else redaction_of(kinds[0])
    if annotation is str:
        return Masker.mask
    if annotation is Any:
        return Masker.mask_json
    if origin is Literal:
        return None
    if origin in (Union, UnionType):  # a text, a model, a collection or nothing
        redactions = [redact for kind in kinds if (redact := redaction_of(kind)) is not None]
        if len(redactions) > 1:
            raise TypeError(f"{kinds}: redaction cannot tell which of these a value is")
        if not redactions:
            return None
        of_one = redactions[0]
        return lambda masker, value: None if value is None else of_one(masker, value)
    if origin is tuple:
        of_item = [redaction_of(kind) for kind in kinds if kind is not Ellipsis]
        of_each = next((redact for redact in of_item if redact is not None), None)
        if of_each is None:
            return None
        if kinds[1:] != (Ellipsis,):
            raise TypeError(f"tuple{kinds}: only tuples of one kind are redacted")
        return lambda masker, items: tuple(of_each(masker, item) for item in items)
    if origin is dict:
        of_key, of_value = map(redaction_of, kinds)
        if of_key is None and of_value is None:
            return None
        return lambda masker, items: {
            of_key(masker, name) if of_key else name: of_value(masker, item) if of_value else item
            for name, item in items.items()
        }
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return lambda masker, model: redacted(model, masker)
    if isinstance(annotation, type) and issubclass(annotation, _PLAIN):
        return None
    raise TypeError(f"{annotation} is a type of field that redaction does not know")
