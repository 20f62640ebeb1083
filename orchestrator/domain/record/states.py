"""
The lifecycle of a target, as data.

``TABLE`` holds the allowed transitions and their triggers. Every change of a status calls
`advance`; an illegal move raises and changes nothing. The diagram in docs/ is generated from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Status(StrEnum):
    """
    The stored status of a target. No record is ``None`` in code and shown as ``pending``.
    """

    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    RETAINED = "retained"
    ABSENT = "absent"
    DESTROYED = "destroyed"


class StepStatus(StrEnum):
    """
    The status of a step in a run: a target's statuses, and two for steps that did not run.
    """

    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    RETAINED = "retained"
    ABSENT = "absent"
    DESTROYED = "destroyed"
    PENDING = "pending"
    SKIPPED = "skipped"


class Condition(StrEnum):
    """
    The condition of a ``running`` record, derived when it is read, never stored.
    """

    LIVE = "live"
    INTERRUPTED = "interrupted"
    SILENT = "silent"


class Liveness(StrEnum):
    """
    The liveness of a process, as far as this machine can tell.
    """

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # another host, boot of an unknown host, or pid namespace


class Verdict(StrEnum):
    """
    The summary of a blueprint in an environment.
    """

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    PENDING = "pending"
    OK = "ok"
    DESTROYED = "destroyed"
    DESTROYED_WITH_RETAINED = "destroyed_with_retained"
    PARTIAL = "partial"


#: What dependents can build on, and what nobody needs to destroy.
READY = (Status.OK, Status.RETAINED)
NOTHING_THERE = (Status.ABSENT, Status.DESTROYED)


class Trigger(StrEnum):
    """
    An event that moves a status.
    """

    START = "start"  # a mutation is about to begin: the marker
    SUCCEED = "succeed"  # the mutation ended well and its checks hold
    KEEP = "keep"  # the same, on a target that is retained
    FAIL = "fail"  # the mutation, or a check after it, failed
    REVERT = "revert"  # proven: the mutation touched nothing, or was surgery
    GONE = "gone"  # our destroy is confirmed
    MISSING = "missing"  # confirmed: nothing there, and we did not destroy it
    UNAPPLIED = "unapplied"  # without a mutation: objects taken over that are not as described
    UNCONFIRMED = "unconfirmed"  # without a mutation: objects turned out to be in doubt
    UNCHANGED = "unchanged"  # a plan without changes, and the checks hold
    CHECK_FAIL = "check_fail"  # a check failed without a mutation
    SETTLE = "settle"  # reconcile found the target sound, without a mutation
    OBSERVE = "observe"  # evidence was taken down; it settles nothing
    RETAIN = "retain"
    RELEASE = "release"


class IllegalMove(Exception):
    """
    The table does not allow the trigger in this status: a bug in the caller.
    """


_ANY_BUT_RUNNING = (None, Status.OK, Status.ERROR, Status.RETAINED, Status.ABSENT, Status.DESTROYED)

TABLE: dict[Trigger, dict[Status | None, Status]] = {
    Trigger.START: dict.fromkeys(_ANY_BUT_RUNNING, Status.RUNNING),
    Trigger.SUCCEED: {Status.RUNNING: Status.OK},
    Trigger.KEEP: {Status.RUNNING: Status.RETAINED},
    Trigger.FAIL: {Status.RUNNING: Status.ERROR},
    Trigger.GONE: {Status.RUNNING: Status.DESTROYED, Status.ERROR: Status.DESTROYED},
    Trigger.MISSING: {
        None: Status.ABSENT,
        Status.RUNNING: Status.ABSENT,
        Status.ERROR: Status.ABSENT,
        Status.OK: Status.ABSENT,
    },
    Trigger.UNCHANGED: dict.fromkeys(
        (None, Status.OK, Status.ERROR, Status.ABSENT, Status.DESTROYED), Status.OK
    )
    | {Status.RETAINED: Status.RETAINED},
    Trigger.UNAPPLIED: dict.fromkeys((None, Status.ABSENT, Status.DESTROYED), Status.ERROR),
    Trigger.UNCONFIRMED: dict.fromkeys(
        (Status.OK, Status.ERROR, Status.ABSENT, Status.DESTROYED), Status.ERROR
    ),
    Trigger.CHECK_FAIL: dict.fromkeys(
        (None, Status.OK, Status.ERROR, Status.ABSENT, Status.DESTROYED), Status.ERROR
    ),
    Trigger.SETTLE: {Status.ERROR: Status.OK, Status.OK: Status.OK},
    Trigger.OBSERVE: {s: s for s in Status if s is not Status.RUNNING},
    Trigger.RETAIN: {Status.OK: Status.RETAINED, Status.RETAINED: Status.RETAINED},
    Trigger.RELEASE: {Status.RETAINED: Status.OK},
}


def advance(status: Status | None, trigger: Trigger, *, before: Status | None = None) -> Status:
    """
    Return the status after ``trigger``.

    ``REVERT`` goes back to ``before``, the status the marker was written over. A target that had no
    record goes to ``absent``: its provider state was seen empty before the marker (the guards
    refuse anything else) and nothing began since.

    >>> advance(None, Trigger.START)
    <Status.RUNNING: 'running'>
    """
    if trigger is Trigger.REVERT and status is Status.RUNNING:
        return Status.ABSENT if before is None else before
    try:
        return TABLE[trigger][status]
    except KeyError:
        shown = status or "no record"
        raise IllegalMove(f"{trigger} is not possible from {shown}") from None


def verdict(steps: Iterable[tuple[Status | None, Condition | None]]) -> Verdict:
    """
    Return the verdict over the steps; the first rule that holds decides.
    """
    rows = list(steps)
    statuses = {status for status, _ in rows}
    conditions = {condition for status, condition in rows if status is Status.RUNNING}
    if Condition.LIVE in conditions:
        return Verdict.RUNNING
    if conditions:
        return Verdict.INTERRUPTED
    if Status.ERROR in statuses:
        return Verdict.ERROR
    if statuses <= {None}:
        return Verdict.PENDING
    if statuses <= {Status.OK, Status.RETAINED}:
        return Verdict.OK
    if statuses <= {Status.ABSENT, Status.DESTROYED}:
        return Verdict.DESTROYED
    if statuses <= {Status.ABSENT, Status.DESTROYED, Status.RETAINED}:
        return Verdict.DESTROYED_WITH_RETAINED
    return Verdict.PARTIAL
