"""
Violations of the policy by a plan.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Literal

from orchestrator.domain.addresses import is_like, meant_by
from orchestrator.domain.blueprint.blueprint import Policy
from orchestrator.domain.json_model import JsonModel
from orchestrator.domain.plan.changes import PlannedObject
from orchestrator.domain.record.objects import Action
from orchestrator.domain.text import Json, Word, count

# One thing that a policy forbids of a plan.


Rule = Literal[
    "no_destroy",
    "protected_steps",
    "additive_only",
    "max_destroys",
    "required_tags",
    "regions",
    "rego",
]


class Violation(JsonModel):
    """
    A planned action that a rule forbids or warns about: of an object, or, without an address, of a
    step or run. Without a step it is about the whole plan.
    """

    rule: Rule
    step: Word = ""
    address: Word = ""
    verdict: Literal["fail", "warn"] = "fail"
    message: str

    @property
    def text(self) -> str:
        return f"{self.address} {self.message} ({self.rule})".strip()


_LOSSES: frozenset[Action] = frozenset({"delete", "replace", "forget"})
_TAGS = ("tags_all", "tags", "effective_labels", "labels")
_TAG_BLOCKS = "tag"
_REGION = ("region", "location")


def violations_of_plan(
    policy: Policy,
    step: str,
    objects: Collection[PlannedObject],
    *,
    regions: Mapping[str, str | None],
    destroyed: int,
) -> Iterator[Violation]:
    """
    Yield the violations in a step's plan. ``regions`` are those of its provider configurations by
    name; ``destroyed`` counts what the run destroys before this step.
    """
    changing = [item for item in objects if not item.is_output]
    for item in changing:
        for rule, check in _RULES.items():
            message = check(policy, step, item)
            if message is not None:
                yield Violation(rule=rule, step=step, address=item.address, message=message)
    total = destroyed + destroys(changing)
    if policy.max_destroys is not None and destroyed <= policy.max_destroys < total:
        lost = count(total, "object")
        message = f"{lost} would be destroyed or replaced, and {policy.max_destroys} may be"
        yield Violation(rule="max_destroys", step=step, message=message)
    if policy.regions and changing:
        for name, region in regions.items():
            if region not in policy.regions:
                where = region or "a region that the plan does not tell (no literal or variable)"
                message = f"the provider {name} works in {where}; allowed: {_list(policy.regions)}"
                yield Violation(rule="regions", step=step, message=message)


def violations_of_steps(
    policy: Policy,
    steps: Iterable[tuple[str, Collection[PlannedObject], Mapping[str, str | None]]],
) -> Iterator[Violation]:
    """
    Yield the violations in the plans of steps (name, objects, regions), in the order of the run.
    """
    destroyed = 0
    for step, objects, regions in steps:
        yield from violations_of_plan(policy, step, objects, regions=regions, destroyed=destroyed)
        destroyed += destroys(objects)


def destroys(objects: Collection[PlannedObject]) -> int:
    """
    Return how many objects a plan destroys or replaces.
    """
    return sum(item.action in ("delete", "replace") for item in objects)


def _no_destroy(policy: Policy, step: str, item: PlannedObject) -> str | None:
    if item.action not in _LOSSES:
        return None
    for pattern in policy.no_destroy:
        # A plan may move an object and destroy it where it is then.
        if any(meant_by(pattern, at) for at in (item.address, item.previous_address) if at):
            return f"{_DOES[item.action]}, and {pattern} may not be"
    return None


def _protected(policy: Policy, step: str, item: PlannedObject) -> str | None:
    if item.action in _LOSSES and any(is_like(name, step) for name in policy.protected_steps):
        return f"{_DOES[item.action]}, and the step {step} is protected"
    return None


def _additive(policy: Policy, step: str, item: PlannedObject) -> str | None:
    if policy.additive_only and item.action not in ("create", "import", "noop", "read"):
        return f"{_DOES.get(item.action, 'would change')}, and only additions are allowed"
    return None


def _tags(policy: Policy, step: str, item: PlannedObject) -> str | None:
    if not policy.required_tags or item.action not in ("create", "update", "replace", "import"):
        return None
    after = item.after if isinstance(item.after, dict) else {}
    unknown = item.unknown if isinstance(item.unknown, dict) else {}
    values = [part[name] for name in _TAGS for part in (after, unknown) if name in part]
    if isinstance(after.get(_TAG_BLOCKS), list):
        values.append(after[_TAG_BLOCKS])
    if not values:
        return None  # it can have none
    present = {key for value in values for key in _tag_keys(value)}
    missing = [tag for tag in policy.required_tags if tag not in present]
    if not missing:
        return None
    if any(value is True for value in values):
        return f"has tags that only the apply makes known, and needs {_list(missing)}"
    return f"has no tag {_list(missing)}"


def _tag_keys(value: Json) -> Iterator[str]:
    """
    Yield the keys of tags: a map, a list of texts, or blocks with a ``key`` each.
    """
    for item in value if isinstance(value, dict | list) else ():
        key = item.get("key") if isinstance(item, dict) else item
        if isinstance(key, str):
            yield key


def _regions(policy: Policy, step: str, item: PlannedObject) -> str | None:
    if not policy.regions or not isinstance(item.after, dict) or item.action == "delete":
        return None
    for name in _REGION:
        region: Json = item.after.get(name)
        if isinstance(region, str) and region and region not in policy.regions:
            return f"would be in {region}; allowed: {_list(policy.regions)}"
    return None


_DOES: Mapping[Action, str] = {
    "delete": "would be destroyed",
    "replace": "would be replaced",
    "forget": "would be forgotten",
    "update": "would be updated",
}
_RULES: Mapping[Rule, Callable[[Policy, str, PlannedObject], str | None]] = {
    "no_destroy": _no_destroy,
    "protected_steps": _protected,
    "additive_only": _additive,
    "required_tags": _tags,
    "regions": _regions,
}


def _list(names: Collection[str]) -> str:
    return ", ".join(names)
