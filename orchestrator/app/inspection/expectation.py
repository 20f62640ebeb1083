"""
What a pipeline expects of a blueprint: ``status --expect``.
"""

from __future__ import annotations

from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.documents.documents import StatusDocument, StepState
from orchestrator.domain.record.states import NOTHING_THERE, StepStatus
from orchestrator.domain.target import hook_of
from orchestrator.errors import InDoubt, Refused

GONE = tuple(StepStatus(str(status)) for status in NOTHING_THERE)
#: What an attempt may have found of a step that is recorded as it is expected, by its error's code.
_FINDINGS = {
    InDoubt.code: "objects in doubt",
    "vanished": "none of its objects",
    "lineage": "another provider state",
    "serial_back": "an older provider state",
}


def check_expectation(
    document: StatusDocument,
    expected: str | None,
    *,
    allow_retained: bool = False,
    graph: Graph | None = None,
) -> None:
    """
    Refused where the expectation does not hold; None expects nothing.

    ``ok`` is about the verdict, and about what the newest attempt of a step found. ``destroyed``
    holds if every target is destroyed or absent, or with ``allow_retained`` retained and its review
    not overdue, and nothing is in doubt or orphaned. By ``graph``, what such a retained step needs
    may be there too: a destroy keeps it.
    """
    if expected is None:
        return
    where = f"{document.blueprint}/{document.environment}"
    if document.selected:
        where = f"{', '.join(document.selected)} of {where}"
    if expected == "destroyed" and document.orphaned:
        raise Refused(
            "expectation",
            f"{where} is not destroyed: alive and no longer in the blueprint: "
            + ", ".join(document.orphaned),
        )
    doubtful = [row.step for row in document.steps if row.in_doubt]
    if doubtful:
        raise Refused(
            "expectation", f"{where} is not {expected}: in doubt in {', '.join(doubtful)}"
        )
    rows = [row for row in document.steps if _counts(row, document)]
    if expected == "destroyed":
        needed = _needed_by_retained(document, graph) if allow_retained and graph else frozenset()
        reasons = {row.step: _why_not_destroyed(row, allow_retained=allow_retained) for row in rows}
        deviations = [reason for step, reason in reasons.items() if reason and step not in needed]
    elif str(document.verdict) == expected:
        deviations = [reason for row in rows if (reason := _deviation(row))]
    else:
        deviations = [f"{row.step} is {row.status}" for row in rows if row.status != expected]
    if deviations:
        verdict = document.verdict
        state = f"not {expected}" if str(verdict) == expected else f"{verdict}, not {expected}"
        raise Refused("expectation", f"{where} is {state}: {', '.join(deviations)}")


def _counts(row: StepState, document: StatusDocument) -> bool:
    """
    Whether the row counts. A hook's module, whose objects stay on purpose, and an orphaned target
    count only where they failed or are running.
    """
    beside = hook_of(row.step) is not None or row.target in document.orphaned
    return not beside or row.status in (StepStatus.ERROR, StepStatus.RUNNING)


def _needed_by_retained(document: StatusDocument, graph: Graph) -> frozenset[str]:
    """
    The steps that are ok, and stay because a retained step needs them.
    """
    retained = [
        row.step
        for row in document.steps
        if row.status is StepStatus.RETAINED and not row.review_overdue and row.step in graph
    ]
    needed = {up for step in retained for up in graph.upstreams(step)}
    return frozenset(
        row.step for row in document.steps if row.step in needed and row.status is StepStatus.OK
    )


def _deviation(row: StepState) -> str:
    """
    Why a step with the expected status is not as expected: its newest attempt found that its
    objects or its provider state are not what is recorded, or it was compensated since its apply.
    Empty where neither is so.
    """
    tried = row.failed_attempt
    finding = _FINDINGS.get(tried.error.code) if tried is not None and tried.error else None
    if tried is not None and finding is not None:
        return f"the newest {tried.command} of {row.step} found {finding}"
    if row.compensation is None:
        return ""
    return f"the compensation of {row.step} is {row.compensation.verdict}"


def _why_not_destroyed(row: StepState, *, allow_retained: bool) -> str:
    """
    Why a step does not count as destroyed; empty where it does.
    """
    if row.failed_attempt is not None:
        return f"the newest {row.failed_attempt.command} of {row.step} failed"
    if row.status in GONE:
        return ""
    if row.status is not StepStatus.RETAINED or row.retained is None:
        return f"{row.step} is {row.status}"
    if row.review_overdue:
        return f"{row.step} is retained, and its review was due on {row.retained.review_by}"
    return "" if allow_retained else f"{row.step} is retained (--allow-retained accepts that)"
