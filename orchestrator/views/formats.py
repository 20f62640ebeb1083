"""
Texts that all views share: actions, times, durations, counts, exit codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.domain.record.objects import Action, PlannedAction
from orchestrator.domain.record.record import Lineage, Retention
from orchestrator.domain.record.states import StepStatus, Verdict
from orchestrator.errors import EXIT_CODES

if TYPE_CHECKING:  # who shows no list of stores does not define the documents of status
    from orchestrator.domain.documents.status import UnreadStore


class ActionWords(Struct, frozen=True):
    """
    How an action is shown: its symbol, what is done, what was done, and the style of all.
    """

    symbol: str
    doing: str
    done: str
    style: str

    @property
    def mark(self) -> tuple[str, str]:
        """
        The symbol as a column before the address of an object.
        """
        return f"{self.symbol:>3} ", self.style


ACTIONS: dict[Action, ActionWords] = {
    "create": ActionWords("+", "creating", "created", "good"),
    "update": ActionWords("~", "updating", "updated", "warn"),
    "delete": ActionWords("-", "deleting", "deleted", "bad"),
    "replace": ActionWords("-/+", "replacing", "replaced", "bad"),
    "read": ActionWords("<=", "reading", "read", "dim"),
    "forget": ActionWords(".", "forgetting", "forgotten", "warn"),
    "import": ActionWords("<-", "importing", "imported", "good"),
    "noop": ActionWords(" ", "leaving", "unchanged", "dim"),
    "unknown": ActionWords("?", "changing", "changed", "bad"),
}
PHASES = {
    "prepare": "preparing",
    "init": "initialising",
    "plan": "planning",
    "apply": "applying",
    "destroy": "destroying",
    "verify": "checking",
    "compensate": "compensating",
    "before_destroy": "running before_destroy",
    "readback": "querying the provider",
    "import": "importing",
    "untaint": "untainting",
    "push": "saving the provider state",
    "unlock": "releasing the state lock",
    "exec": "running the engine's command",
}
STATUS_STYLE: dict[str, str] = {
    StepStatus.RUNNING: "cyan",
    StepStatus.OK: "good",
    StepStatus.ERROR: "bad",
    StepStatus.RETAINED: "magenta",
    StepStatus.ABSENT: "dim",
    StepStatus.DESTROYED: "dim",
    StepStatus.PENDING: "warn",
    StepStatus.SKIPPED: "dim",
    Verdict.INTERRUPTED: "bad",
    Verdict.DESTROYED_WITH_RETAINED: "magenta",
    Verdict.PARTIAL: "warn",
}


def utc(at: datetime) -> str:
    """
    Return an absolute time to the second.

    >>> utc(datetime(2026, 7, 15, 8, 10, 3, tzinfo=UTC))
    '2026-07-15 08:10:03 UTC'
    """
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime, now: datetime) -> str:
    """
    Describe roughly how long ago something was: "3 min ago".
    """
    seconds = (now - at).total_seconds()
    if seconds < 0:
        return "in the future (clocks differ)"
    if seconds < 5:
        return "just now"
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {'day' if unit == 'days' and count == 1 else unit} ago"
    return "just now"


def moment(at: datetime, now: datetime) -> str:
    """
    Return a relative and absolute time: "3 min ago (2026-07-15 08:10:03 UTC)".
    """
    return f"{ago(at, now)} ({utc(at)})"


def duration(seconds: float) -> str:
    """
    Return a duration as "0.4 s", "12 s", "3 min 5 s" or "2 h 7 min".
    """
    if seconds < 1:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def object_text(address: str, id_: str | None) -> str:
    """
    Return the address of an object, and its id if it is known.
    """
    return f"{address} [{id_}]" if id_ else address


def status_counts(statuses: Iterable[StepStatus]) -> str:
    """
    Count the steps by status: "2 ok, 1 error".
    """
    numbers = Counter(statuses)
    return ", ".join(f"{numbers[status]} {status}" for status in StepStatus if numbers[status])


def verdict_text(verdict: Verdict) -> str:
    """
    Return a verdict in words; an interruption, which somebody must see to, in capitals.
    """
    return verdict.upper() if verdict is Verdict.INTERRUPTED else verdict.replace("_", " ")


def retained_text(retained: Retention) -> str:
    """
    Return why something is retained, its owner, and its date of review.
    """
    return f"{retained.reason} ({retained.owner}, review by {retained.review_by})"


def planned(actions: Iterable[PlannedAction]) -> str:
    """
    Count the planned actions: "2 to create, 1 to delete"; "no changes" for none.
    """
    numbers: dict[Action, int] = {}
    for item in actions:
        both = item.imports and item.action != "import"  # taken in, and then changed
        for action in (item.action, *(("import",) if both else ())):
            numbers[action] = numbers.get(action, 0) + 1
    order = (action for action in ACTIONS if action in numbers)
    words = {"noop": "move"}  # nothing but the address of such an object changes
    counted = (f"{numbers[action]} to {words.get(action, action)}" for action in order)
    return ", ".join(counted) or "no changes"


def selection_text(selected: Sequence[str]) -> str:
    """
    Return the text before a blueprint's name if only some steps are selected: "a, b of ".
    """
    return f"{', '.join(selected)} of " if selected else ""


def unread_store_text(store: UnreadStore) -> str:
    """
    Return which operation store could not be read, and why.
    """
    where = "" if store.message.startswith(store.url) else f"{store.url}: "
    return f"{where}{store.message}"


def lineage_text(lineage: Lineage) -> str:
    """
    Describe the run that a run comes from: "retry of run ... (why)".
    """
    reason = f" ({lineage.reason})" if lineage.reason else ""
    link = "to" if lineage.kind == "rollback" else "of"
    return f"{lineage.kind} {link} run {lineage.from_run}{reason}"


def exit_meaning(code: int) -> str:
    """
    Return the meaning of an exit code, as the documented table has it.
    """
    meanings = (row.meaning for row in EXIT_CODES if row.code == code)
    return next(meanings, "unknown").replace("`", "")
