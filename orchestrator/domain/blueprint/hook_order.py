"""
The hooks of steps: in which order they compensate, and where the state of a hook's root lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.target import HookKind
from orchestrator.domain.text import Json

#: The setting of a backend that tells its states apart, and its value where none is given.
_STATE_NAMES: Mapping[str, tuple[str, str | None]] = {
    "local": ("path", None),
    "s3": ("key", None),
    "azurerm": ("key", None),
    "gcs": ("prefix", ""),
    "pg": ("schema_name", "terraform_remote_state"),
    "consul": ("path", None),
    "kubernetes": ("secret_suffix", None),
}
#: What separates the parts of such a name where a dot cannot stand in it.
_SEPARATORS = {"pg": "_", "kubernetes": "-"}


class CompensationCycle(ValueError):
    """
    Compensations wait for each other; each step of ``path`` waits for the next, the last is the
    first.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self.path = tuple(path)
        super().__init__("compensations wait for each other: " + " -> ".join(self.path))


def compensation_order(graph: Graph, after: Mapping[str, Sequence[str] | None]) -> Graph:
    """
    Which compensation waits for which, over the steps that declare one.

    ``after`` holds for each of them the steps that it names, None where it names none: then it
    waits for its dependents, but for those that say themselves that they come after it.
    CompensationCycle where they wait for each other.

    >>> graph = Graph({"net": [], "db": ["net"], "app": ["db"]})
    >>> compensation_order(graph, {"net": None, "app": None}).order
    ('app', 'net')
    >>> compensation_order(graph, {"net": None, "app": ["net"]}).order
    ('net', 'app')
    """
    waits: dict[str, set[str]] = {}
    for step in reversed([step for step in graph.order if step in after]):
        named = after[step]
        if named is not None:
            waits[step] = set(named) & after.keys()
            continue
        dependents = graph.dependents(step) & after.keys()
        waits[step] = {
            dependent for dependent in dependents if step not in (after[dependent] or ())
        }
    try:
        return Graph(waits)
    except CycleFound as exc:
        raise CompensationCycle(exc.path) from None


def derived_backend(
    backend: str, config: Mapping[str, Json], kind: HookKind
) -> dict[str, Json] | None:
    """
    The settings of a step's backend with another name for the state: the state of a hook's own
    root. None for a backend of which it is not known how its states are told apart.

    The name of the hook goes in before the ending. References in the settings stay as they are.

    >>> derived_backend("s3", {"key": "${blueprint.name}/${step.name}.tfstate"}, "compensate")
    {'key': '${blueprint.name}/${step.name}.compensate.tfstate'}
    """
    setting, default = _STATE_NAMES.get(backend, ("", None))
    name = config.get(setting, default)
    if not isinstance(name, str):
        return None
    separator = _SEPARATORS.get(backend, ".")
    # The ending is what follows the last dot after the last reference and the last directory.
    tail = name[max(name.rfind("}"), name.rfind("/")) + 1 :]
    dot = tail.rfind(".")
    cut = len(name) if dot < 0 or separator != "." else len(name) - len(tail) + dot
    stem = name[:cut]
    infix = separator if stem and not stem.endswith("/") else ""
    word = kind.replace("_", "-") if separator == "-" else kind
    return {**config, setting: f"{stem}{infix}{word}{name[cut:]}"}
