"""
The content of a provider state: objects and outputs, secrets included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal

from msgspec import Struct

from orchestrator.domain.record.objects import ObjectKey, ObjectRef, object_name
from orchestrator.domain.record.record import EngineRef
from orchestrator.domain.secrets import NO_SHAPE, secret_leaves, value_at, without_leaves
from orchestrator.domain.text import Json, ValuePath
from orchestrator.domain.values import replace


class StateObject(Struct, frozen=True):
    """
    A managed resource instance in provider state. ``id`` is None if the type has none;
    ``configuration`` names the provider configuration that manages it, with module and alias.
    """

    address: str
    type: str
    provider: str
    id: str | None
    tainted: bool = False
    deposed: str | None = None
    configuration: str = ""

    @property
    def key(self) -> ObjectKey:
        return self.address, self.id

    @property
    def label(self) -> str:
        """
        The name of the object with its id.
        """
        return f"{object_name(self.address, self.deposed)} ({self.id})"


class StateOutput(Struct, frozen=True):
    """
    An output in provider state. ``sensitive`` is the module's declaration; ``secret_leaves`` are
    the places of known secrets in an output that is not declared sensitive.
    """

    value: Json
    sensitive: bool
    secret_leaves: frozenset[ValuePath] = frozenset()

    @property
    def withheld(self) -> bool:
        """
        Whether the output is neither shown nor recorded.
        """
        return self.sensitive or bool(self.secret_leaves)

    @property
    def secret_values(self) -> tuple[Json, ...]:
        if self.sensitive:
            return (self.value,)
        return tuple(value_at(self.value, leaf) for leaf in sorted(self.secret_leaves, key=str))

    @property
    def shape(self) -> Json:
        """
        The value with its secret leaves replaced.
        """
        return without_leaves(self.value, self.secret_leaves)


class PulledState(Struct, frozen=True):
    """
    The result of a ``state pull``. A state that was never written has no lineage and serial 0.
    ``engine_version`` is that of the engine that wrote it. ``secrets`` are the sensitive values of
    its objects, ``attributes`` all values. ``raw`` is the state itself, secrets included: it stays
    in memory or in a 0600 file.
    """

    lineage: str | None
    serial: int
    objects: tuple[StateObject, ...]
    outputs: dict[str, StateOutput]
    secrets: tuple[Json, ...] = ()
    attributes: tuple[Json, ...] = ()
    raw: bytes = b""
    engine_version: str | None = None

    def with_secrets(
        self, hides: Callable[[Json], bool], shapes: Mapping[str, Json] | None = None
    ) -> PulledState:
        """
        Return the state with secrets marked in outputs that the module does not declare sensitive:
        the leaves for which ``hides`` is true, and those replaced in ``shapes``, the values by name
        as they were recorded.
        """
        outputs = dict(self.outputs)
        for name, output in self.outputs.items():
            if not output.sensitive:
                shape = (shapes or {}).get(name, NO_SHAPE)
                leaves = output.secret_leaves | secret_leaves(output.value, hides, shape)
                outputs[name] = replace(output, secret_leaves=leaves)
        return replace(self, outputs=outputs)

    @property
    def document(self) -> Mapping[str, Json]:
        """
        The state as the engine wrote it, {} if never written.
        """
        return state_document(self.raw) if self.raw.strip() else {}

    @property
    def exact(self) -> bool:
        """
        Whether floats hold all numbers of the state exactly: engines use more digits.
        """
        rounded: list[str] = []

        def number(text: str) -> float:
            if Decimal(text) != Decimal(repr(float(text))):
                rounded.append(text)
            return 0.0

        if self.raw.strip():
            state_document(self.raw, parse_float=number)
        return not rounded

    @property
    def inventory(self) -> tuple[ObjectRef, ...]:
        """
        The objects as a record holds them, without their attributes.
        """
        return tuple(
            ObjectRef(
                address=item.address,
                type=item.type,
                provider=item.provider,
                id=item.id,
                deposed=item.deposed,
            )
            for item in self.objects
        )

    @property
    def tainted(self) -> tuple[str, ...]:
        """
        The addresses of tainted objects, which the next apply replaces.
        """
        return tuple(item.address for item in self.objects if item.tainted)

    @property
    def ids(self) -> dict[str, str | None]:
        """
        The id of the current object at each address.
        """
        return {item.address: item.id for item in self.objects if item.deposed is None}

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(item.address for item in self.objects)

    def moved(self, addresses: Mapping[str, str]) -> PulledState:
        """
        Return the state after a plan's moves: new addresses by the previous ones.
        """
        objects = (
            replace(item, address=addresses.get(item.address, item.address))
            for item in self.objects
        )
        return replace(self, objects=tuple(objects))

    def without(self, addresses: Collection[str]) -> PulledState:
        return replace(
            self, objects=tuple(item for item in self.objects if item.address not in addresses)
        )


def state_document(raw: bytes, *, parse_float: Callable[[str], float] = float) -> dict[str, Json]:
    """
    Return the JSON document of a provider state. Raises ValueError if there is none. Text before
    and after it is ignored: engines print warnings there.
    """
    text = raw.decode()
    start = 0 if text.startswith("{") else text.find("\n{") + 1
    data, _ = json.JSONDecoder(parse_float=parse_float).raw_decode(text, start)
    if not isinstance(data, dict):
        raise ValueError("not a provider state: no JSON object")
    return data


def is_encrypted(raw: bytes) -> bool:
    """
    Return whether the stored state in ``raw`` is encrypted by OpenTofu.
    """
    try:
        return "encrypted_data" in state_document(raw)
    except ValueError:
        return False


# Which engine wrote a provider state last, as the state itself tells.


#: The registries whose addresses an engine writes where a module names no other one.
_REGISTRIES = (("registry.opentofu.org/", "tofu"), ("registry.terraform.io/", "terraform"))


def last_writer(state: PulledState | None, *known: EngineRef | None) -> EngineRef | None:
    """
    Return the engine that wrote ``state``: the one of ``known`` with its version. Otherwise its
    version, with the kind from its providers' addresses or from the first known engine.
    """
    engines = [engine for engine in known if engine is not None]
    version = state.engine_version if state else None
    if state is None or version is None or not engines:
        return engines[0] if engines else None
    for engine in engines:
        if engine.version == version:
            return engine
    sources = {item.provider for item in state.objects}
    kinds = {kind for source in sources for host, kind in _REGISTRIES if source.startswith(host)}
    kind = kinds.pop() if len(kinds) == 1 else engines[0].kind
    return engines[0].model_copy(update={"kind": kind, "version": version})


def is_newer(version: str, other: str) -> bool:
    """
    Return whether an engine version is newer than another; pre-releases count as their release.

    >>> is_newer("1.15.5", "1.11.4"), is_newer("1.9.0", "1.10.0-beta1")
    (True, False)
    """
    one, two = (
        [int(part) for part in re.findall(r"\d+", text.partition("-")[0])]
        for text in (version, other)
    )
    return one > two
