"""
The ``policy`` and ``drift`` of a blueprint: checked, with every problem told.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import DriftRule, Policy
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.transitions.retention import is_date
from orchestrator.loading.schema import without_nulls
from orchestrator.trust import Trust

_DRIFT = ("address", "attribute", "reason", "until")
_FIELDS = (
    "no_destroy",
    "protected_steps",
    "additive_only",
    "max_destroys",
    "required_tags",
    "regions",
    "rego",
)


def parse_policy(
    node: Node | None, steps: Collection[str], root: Path, trust: Trust, problems: Problems
) -> Policy:
    """
    The policy as it is written, in the project in ``root``; an empty one where there is none.
    """
    if node is None:
        return Policy()
    fields = without_nulls(problems.fields(node, _FIELDS, what="policy"))
    lists = {
        name: problems.texts(fields[name], what=f"policy.{name}") if name in fields else ()
        for name in ("no_destroy", "protected_steps", "required_tags", "regions")
    }
    for pattern in lists["protected_steps"]:
        if not any(fnmatchcase(step, pattern) for step in steps):
            at = fields["protected_steps"].at
            problems.add(f"there is no step {pattern!r}", at, did_you_mean(pattern, steps))
    additive, most = fields.get("additive_only"), fields.get("max_destroys")
    return Policy(
        **lists,
        rego=_rules(fields["rego"], root, trust, problems) if "rego" in fields else (),
        additive_only=problems.flag(additive, what="policy.additive_only") if additive else False,
        max_destroys=_count(most, problems) if most else None,
    )


def parse_drift_rules(node: Node | None, problems: Problems) -> tuple[DriftRule, ...]:
    """
    The rules of ``drift: {ignore: [...]}``, each with a reason.
    """
    if node is None:
        return ()
    listed = without_nulls(problems.fields(node, ("ignore",), what="drift")).get("ignore")
    if listed is None or listed.kind != "list":
        problems.add("drift.ignore must be a list of maps", (listed or node).at)
        return ()
    return tuple(_drift_rule(item, problems) for item in listed.items)


def _drift_rule(node: Node, problems: Problems) -> DriftRule:
    what = "drift.ignore"
    fields = without_nulls(problems.fields(node, _DRIFT, what=what))
    for name in ("address", "reason"):
        if name not in fields:
            problems.add(f"{what} needs {name}: what is accepted, and why", node.at)
    texts = {
        name: problems.text(fields[name], what=f"{what}.{name}")
        for name in _DRIFT
        if name in fields
    }
    until = texts.get("until")
    if until and not is_date(until):
        problems.add(f"{what}.until must be a date such as 2027-06-30", fields["until"].at)
    return DriftRule(
        address=texts.get("address", ""),
        reason=texts.get("reason", ""),
        attribute=texts.get("attribute", "*"),
        until=until,
    )


def _rules(node: Node, root: Path, trust: Trust, problems: Problems) -> tuple[str, ...]:
    """
    The paths of the rules, relative to the project.
    """
    trust.check_command("policy.rego", node.at, problems)
    places = []
    for text in problems.texts(node, what="policy.rego"):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(node.at.file), text))
        if not (root / place).resolve().is_relative_to(root.resolve()):
            problems.add(f"policy.rego: {text!r} lies outside of the project", node.at)
        elif not (root / place).exists():
            problems.add(f"policy.rego: there is no {place!r}", node.at)
        places.append(place)
    return tuple(places)


def _count(node: Node, problems: Problems) -> int | None:
    value = node.plain
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    problems.add("policy.max_destroys must be a whole number, 0 or more", node.at)
    return None
