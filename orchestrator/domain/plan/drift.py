"""
Drift without what is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from orchestrator.domain.addresses import is_like, meant_by
from orchestrator.domain.blueprint.policy import DriftRule
from orchestrator.domain.plan.changes import ResourceChange


def remaining_drift(
    drift: Iterable[ResourceChange], rules: Iterable[DriftRule], today: date
) -> tuple[ResourceChange, ...]:
    """
    The drift that no rule accepts today and that is more than another notation.
    """
    valid = [rule for rule in rules if rule.until is None or today.isoformat() <= rule.until]

    def accepted(item: ResourceChange, path: str) -> bool:
        return any(
            meant_by(rule.address, item.address) and _covers(rule.attribute, path) for rule in valid
        )

    remaining = []
    for item in drift:
        if item.action == "delete":
            if not accepted(item, ""):
                remaining.append(item)
            continue
        attributes = [a for a in item.attributes if not a.equivalent and not accepted(item, a.path)]
        if attributes:
            remaining.append(item.model_copy(update={"attributes": tuple(attributes)}))
    return tuple(remaining)


def _covers(attribute: str, path: str) -> bool:
    """
    Whether a rule's attribute covers a path: itself or one below it. A vanished object has the path
    "".
    """
    return is_like(attribute, path) or path.startswith((f"{attribute}.", f"{attribute}["))
