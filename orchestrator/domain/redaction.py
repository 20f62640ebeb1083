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
Redaction = Callable[[Json, Masker], Json]

_PLAIN = (bool, int, float, date, Enum, NoneType)


def redacted(model: Model, masker: Masker) -> Model:
    """
    Return the model with every text masked that is no `Word`, including unknown fields.
    """
    changes = {name: redact(getattr(model, name), masker) for name, redact in _plan(type(model))}
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
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        is_word = any(isinstance(mark, MachineWord) for mark in arguments[1:])
        return None if is_word else redaction_of(arguments[0])
    if annotation is str:
        return lambda text, masker: masker.mask(text)
    if annotation is Any:
        return lambda value, masker: masker.mask_json(value)
    if origin is Literal:
        return None
    if origin in (Union, UnionType):
        return _of_union(arguments)
    if origin is tuple:
        return _of_tuple(arguments)
    if origin is dict:
        return _of_dict(*arguments)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return redacted
    if isinstance(annotation, type) and issubclass(annotation, _PLAIN):
        return None
    raise TypeError(f"{annotation} is a type of field that redaction does not know")


def _of_union(kinds: tuple[Any, ...]) -> Redaction | None:
    """
    Return the redaction of a union. It holds a text, a model, a collection or nothing; at most one
    of its types is redacted.
    """
    redactions = [redaction for kind in kinds if (redaction := redaction_of(kind)) is not None]
    if len(redactions) > 1:
        raise TypeError(f"{kinds}: redaction cannot tell which of these a value is")
    if not redactions:
        return None
    (redact,) = redactions
    return lambda value, masker: None if value is None else redact(value, masker)


def _of_tuple(kinds: tuple[Any, ...]) -> Redaction | None:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        redact = redaction_of(kinds[0])
        if redact is None:
            return None
        return lambda items, masker: tuple(redact(item, masker) for item in items)
    if any(redaction_of(kind) is not None for kind in kinds):
        raise TypeError(f"tuple{kinds}: only tuples of one kind are redacted")
    return None


def _of_dict(key: Any, value: Any) -> Redaction | None:
    of_key, of_value = redaction_of(key) or _as_it_is, redaction_of(value) or _as_it_is
    if of_key is of_value is _as_it_is:
        return None
    return lambda items, masker: {
        of_key(name, masker): of_value(item, masker) for name, item in items.items()
    }


def _as_it_is(value: Json, masker: Masker) -> Json:
    return value
