"""
Which step needs which, and what a backend may refer to: the checks that take no module.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.blueprint.blueprint import InputValue
from orchestrator.domain.blueprint.graph import CycleFound, Graph
from orchestrator.domain.blueprint.yaml_tree import Problems
from orchestrator.domain.suggestions import did_you_mean
from orchestrator.errors import Location
from orchestrator.loading.located_templates import ReferenceRules
from orchestrator.loading.raw_steps import RawStep
from orchestrator.loading.schema import RawBlueprint


def backend_rules(blueprint: RawBlueprint, values: Mapping[str, InputValue]) -> ReferenceRules:
    """
    What a backend's configuration may refer to: no environment variable, whose value counts as
    sensitive, and no input that is sensitive by itself or its value.
    """
    sensitive = {item.name for item in blueprint.inputs.values() if item.sensitive}
    sensitive.update(name for name, value in values.items() if value.sensitive)
    return ReferenceRules("a backend", inputs=blueprint.inputs, env=False, sensitive=sensitive)


def step_graph(drafts: Mapping[str, RawStep], problems: Problems) -> Graph:
    """
    The graph of the steps by explicit and implied needs; an empty one where they form a circle.
    """
    needs: dict[str, dict[str, Location]] = {}
    for name, draft in drafts.items():
        for upstream, at in draft.needs.items():
            if upstream == name:
                problems.add(f"step {name!r} needs itself", at)
            elif upstream not in drafts:
                problems.add(f"there is no step {upstream!r}", at, did_you_mean(upstream, drafts))
        everything = {**draft.implied_needs, **draft.needs}
        needs[name] = {s: at for s, at in everything.items() if s in drafts and s != name}
    try:
        graph = Graph(needs)
    except CycleFound as exc:
        problems.add(str(exc), needs[exc.path[0]][exc.path[1]])
        return Graph({})
    for name, draft in drafts.items():
        owner = draft.owned_by
        if owner is None:
            continue
        if owner.text not in drafts:
            hint = did_you_mean(owner.text, drafts)
            problems.add(f"there is no step {owner.text!r}", owner.at, hint)
        elif owner.text not in graph.upstreams(name):
            message = f"step {name!r} is owned by {owner.text!r} but does not need it"
            problems.add(message, owner.at, f"add `needs: [{owner.text}]`")
    return graph
