"""
The dependency graph of steps: order, closures and selections.
"""

from __future__ import annotations

import fnmatch
import graphlib
import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from orchestrator.domain.target import HookKind
from orchestrator.domain.text import Json, did_you_mean
from orchestrator.errors import Usage


class CycleFound(ValueError):
    """
    Steps depend on each other in a cycle; each step of ``path`` needs the next, the last equals the
    first. ``what`` says how they depend.
    """

    def __init__(self, path: Sequence[str], what: str = "steps need each other") -> None:
        self.path = tuple(path)
        super().__init__(f"{what}: {' -> '.join(self.path)}")


class Graph:
    """
    Steps and the steps that each of them needs. Immutable; compared by value.

    Raises CycleFound if steps form a cycle, ValueError if one needs an unknown step.

    >>> graph = Graph({"app": ["net"], "net": [], "dns": ["app"]})
    >>> graph.order
    ('net', 'app', 'dns')
    >>> sorted(graph.upstreams("dns"))
    ['app', 'net']
    """

    __slots__ = ("_dependents", "_needs", "order")

    def __init__(self, needs: Mapping[str, Collection[str]]) -> None:
        self._needs = {step: frozenset(upstream) for step, upstream in needs.items()}
        for step, upstreams in self._needs.items():
            for upstream in upstreams - self._needs.keys():
                raise ValueError(f"step {step!r} needs {upstream!r}, which is no step")
        dependents: dict[str, set[str]] = {step: set() for step in self._needs}
        for step, upstreams in self._needs.items():
            for upstream in upstreams:
                dependents[upstream].add(step)
        self._dependents = {step: frozenset(names) for step, names in dependents.items()}
        #: The steps in topological order; where that leaves a choice, as declared.
        self.order = _sorted(self._needs)

    @classmethod
    def unordered(cls, steps: Iterable[str]) -> Graph:
        """
        Return the graph of steps of which none needs another.
        """
        return cls(dict.fromkeys(steps, ()))

    def needs(self, step: str) -> frozenset[str]:
        """
        Return the direct upstreams of a step.
        """
        return self._needs[step]

    def upstreams(self, step: str) -> frozenset[str]:
        """
        Return all upstreams of a step, direct and indirect.
        """
        return _closure(step, self._needs)

    def dependents(self, step: str) -> frozenset[str]:
        """
        Return all dependents of a step, direct and indirect.
        """
        return _closure(step, self._dependents)

    def reversed(self) -> Graph:
        """
        Return the graph for a destroy: each step needs its dependents.
        """
        return Graph({step: self._dependents[step] for step in reversed(self._needs)})

    def subset(self, steps: Collection[str]) -> Graph:
        """
        Return the graph of some steps. Dependencies through a step that is left out become direct
        ones.
        """
        members = set(steps)
        return Graph({s: self.upstreams(s) & members for s in self._needs if s in members})

    def select(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> tuple[str, ...]:
        """
        Return the steps that match ``patterns`` and not ``exclude``, in order; no patterns select
        all.

        A pattern is a name or glob; ``S+`` adds the dependents, ``+S`` the upstreams. Raises Usage
        if one matches nothing.
        """
        chosen = self._matching(patterns) if patterns else set(self._needs)
        left_out = self._matching(exclude)
        return tuple(step for step in self.order if step in chosen and step not in left_out)

    def select_some(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> tuple[str, ...]:
        """
        Select as `select` does; raises Usage if the exclusions leave nothing.
        """
        selected = self.select(patterns, exclude)
        if exclude and not selected:
            raise Usage("no step is selected", hint="everything that is named is excluded too")
        return selected

    def _matching(self, patterns: Iterable[str]) -> set[str]:
        steps: set[str] = set()
        for pattern in patterns:
            name = pattern.removeprefix("+").removesuffix("+")
            matches = [step for step in self._needs if fnmatch.fnmatchcase(step, name)]
            if not matches:
                is_glob = any(character in name for character in "*?[")
                what = "no step matches" if is_glob else "there is no step"
                raise Usage(f"{what} {name!r}", hint=did_you_mean(name, self._needs))
            for step in matches:
                steps.add(step)
                if pattern.startswith("+"):
                    steps |= self.upstreams(step)
                if pattern.endswith("+"):
                    steps |= self.dependents(step)
        return steps

    def __contains__(self, step: object) -> bool:
        return step in self._needs

    def __len__(self) -> int:
        return len(self._needs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self._needs == other._needs


def _sorted(needs: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    position = {step: number for number, step in enumerate(needs)}
    sorter = graphlib.TopologicalSorter(
        {step: sorted(upstreams, key=position.__getitem__) for step, upstreams in needs.items()}
    )
    try:
        sorter.prepare()
    except graphlib.CycleError as exc:
        raise CycleFound(_from_first(exc.args[1], position)) from None
    order: list[str] = []
    waiting: list[tuple[int, str]] = []
    while sorter.is_active():
        for step in sorter.get_ready():
            heapq.heappush(waiting, (position[step], step))
        _, step = heapq.heappop(waiting)
        order.append(step)
        sorter.done(step)
    return tuple(order)


def _from_first(cycle: Sequence[str], position: Mapping[str, int]) -> list[str]:
    """
    Return the cycle reversed, so that each step needs the next, and rotated to begin with the step
    declared first.

    graphlib lists a cycle the other way: each step is needed by the next.
    """
    circle = list(reversed(cycle))[:-1]
    start = circle.index(min(circle, key=position.__getitem__))
    return [*circle[start:], *circle[:start], circle[start]]


def _closure(step: str, edges: Mapping[str, Collection[str]]) -> frozenset[str]:
    reachable: set[str] = set()
    waiting = list(edges[step])
    while waiting:
        current = waiting.pop()
        if current not in reachable:
            reachable.add(current)
            waiting.extend(edges[current])
    return frozenset(reachable)


# The hooks of steps: in which order they compensate, and where the state of a hook's root lies.


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


def compensation_order(graph: Graph, after: Mapping[str, Sequence[str] | None]) -> Graph:
    """
    Return the graph of the steps that declare a compensation: which compensation waits for which.

    ``after`` maps each of them to the steps it names, None if it names none: then it waits for its
    dependents, except those that declare to come after it. Raises CycleFound if they wait for each
    other.

    >>> graph = Graph({"net": [], "db": ["net"], "app": ["db"]})
    >>> compensation_order(graph, {"net": None, "app": None}).order
    ('app', 'net')
    >>> compensation_order(graph, {"net": None, "app": ["net"]}).order
    ('net', 'app')
    """
    waits: dict[str, set[str]] = {}
    for step in reversed([step for step in graph.order if step in after]):
        declared = after[step]
        if declared is not None:
            waits[step] = set(declared) & after.keys()
            continue
        dependents = graph.dependents(step) & after.keys()
        waits[step] = {
            dependent for dependent in dependents if step not in (after[dependent] or ())
        }
    try:
        return Graph(waits)
    except CycleFound as exc:
        raise CycleFound(exc.path, "compensations wait for each other") from None


def derived_backend(
    backend: str, config: Mapping[str, Json], kind: HookKind
) -> dict[str, Json] | None:
    """
    Return the backend settings for a module hook: those of its step with another name for the
    state. Returns None if it is not known which setting of this backend names the state.

    The kind of the hook is put in front of the file extension. References in the settings are kept.

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
