"""
Which engine wrote a provider state last, as the state itself tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import EngineRef

#: The registries whose addresses an engine writes where a module names no other one.
_REGISTRIES = (("registry.opentofu.org/", "tofu"), ("registry.terraform.io/", "terraform"))


def last_writer(state: PulledState | None, *known: EngineRef | None) -> EngineRef | None:
    """
    The engine that wrote ``state``: the one of ``known`` whose version it names. Else its version
    with the kind that its providers' addresses tell, or that of the first one known.
    """
    engines = [engine for engine in known if engine is not None]
    version = state.engine_version if state else None
    if state is None or version is None or not engines:
        return engines[0] if engines else None
    for engine in engines:
        if engine.version == version:
            return engine
    kind = _kind_told(item.provider for item in state.objects)
    return engines[0].model_copy(update={"kind": kind or engines[0].kind, "version": version})


def _kind_told(providers: Iterable[str]) -> str | None:
    kinds = {kind for source in providers for host, kind in _REGISTRIES if source.startswith(host)}
    return kinds.pop() if len(kinds) == 1 else None


def is_newer(version: str, other: str) -> bool:
    """
    Whether a version of an engine is newer than another one; of pre-releases the release counts.

    >>> is_newer("1.15.5", "1.11.4"), is_newer("1.9.0", "1.10.0-beta1")
    (True, False)
    """
    return _numbers(version) > _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("-")[0]))
