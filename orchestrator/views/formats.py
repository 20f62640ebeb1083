"""
Words that views share: actions, times, counts, exit codes; faults, diagnostics, doubts, absence,
hooks and the last heartbeat of a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from orchestrator.domain.record.objects import (
    Absence,
    Action,
    Doubt,
    PlannedAction,
    Readback,
    ReleasedObject,
)
from orchestrator.domain.record.record import (
    Attempt,
    Diagnostic,
    Fault,
    HookResult,
    Lineage,
    Retention,
)
from orchestrator.domain.record.run_record import Completed, InFlight
from orchestrator.domain.record.states import StepStatus, Verdict
from orchestrator.errors import EXIT_CODES, Reason
from orchestrator.views.page import Page, Part

if TYPE_CHECKING:
    from orchestrator.domain.documents.status import UnreadStore
    from orchestrator.domain.plan.changes import PlanDiagnostic


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


# Parts of records in words.


_LONG = 12  # lines of an engine's explanation; the rest is for those who ask
_MANY = 12  # addresses in a list that only informs; lists of doubt are never shortened
_FAULTS: dict[str, str] = {
    "settings": "the settings are wrong",
    "blueprint": "the blueprint is wrong",
    "module": "the module is wrong",
    "engine": "the engine could not run",
    "init": "init failed",
    "plan": "plan failed",
    "lock": "the state is locked",
    "apply": "apply failed",
    "verify": "applied, but a check failed",
    "destroy": "destroy failed",
    "readback": "querying the provider failed",
    "record": "recording failed",
    "surgery": "the state operation failed",
}
#: Codes of what did not fail, but left something to do.
UNFINISHED = {
    "unapplied": "taken over, not applied yet",
    "targeted": "applied in part, as requested",
}
_CODES = UNFINISHED | {
    "remaining": "destroyed in part: objects remain",
    "vanished": "objects have vanished",
    "unconfirmed": "absence is not confirmed",
    "in_doubt": "objects are in doubt",
    "approval_missing": "not approved",
    "errored_state": "the provider state could not be saved",
    "state_put_aside": "the provider state that was not saved has been set aside",
    "state_unreadable": "the provider state could not be read afterwards",
    "not_started": "the engine could not be started",
    "never_started": "the engine was never started",
    "killed": "the engine was killed",
    "fenced": "another run took over",
    "invalid": "its blueprint, module or input is wrong",
    "compensation_failed": "its compensation failed",
    "compensation_unknown": "its compensation was interrupted",
    "before_destroy_failed": "not destroyed: its before_destroy hook failed",
    "before_destroy_unknown": "not destroyed: its before_destroy hook was interrupted",
}
#: Warnings of the engine of which we say the details ourselves: what a targeted run leaves out, and
#: what is forgotten.
_TOLD_BY_US = (
    "Resource targeting is in effect",
    "Applied changes may be incomplete",
    "Some objects will no longer be managed by Terraform",
    "Some objects will no longer be managed by OpenTofu",
)
#: The style of what became of an action.
ACTION_VERDICT = {
    "running": "cyan",
    "done": "good",
    "failed": "bad",
    "unknown": "bad",
    "skipped": "warn",
}
_METHODS = {
    "state": "by state",
    "provider": "by the provider",
    "parent": "with its parent",
    "never_applied": "never applied",
    "person": "by a person's word",
}


def absence_text(absence: Absence) -> str:
    """
    Describe how absence was confirmed; for a person's word, what they said and in which run.
    """
    reasons = {
        f"{item.why or 'no reason given'}, run {item.run_id}" if item.run_id else item.why or ""
        for item in absence.checked
        if item.state == "forgotten"
    }
    method = _METHODS.get(absence.method, absence.method)
    return f"{method}: {'; '.join(sorted(reasons))}" if reasons else method


def fault_text(fault: Fault) -> str:
    """
    Describe a fault in a few words: its phase, or that it was stopped.
    """
    match fault.code:
        case "stopped" | "interrupted":
            return f"{fault.code} during {fault.hook or fault.phase}"
        case "deadline":
            return f"deadline passed during {fault.hook or fault.phase}"
        case _:
            refused = "refused" if fault.code in get_args(Reason) else None
            return _CODES.get(fault.code) or refused or _FAULTS[fault.phase]


def attempt_text(attempt: Attempt) -> str:
    """
    Describe a failed attempt: "apply failed and changed nothing: quota".
    """
    how = "failed" if attempt.mutated else "failed and changed nothing"
    return f"{attempt.command} {how}: {attempt.error.summary if attempt.error else 'unknown'}"


def tainted_text(addresses: Iterable[str]) -> str:
    return f"{', '.join(addresses)} (half-made: the next apply replaces it)"


def failed_text(code: str | None, command: str | None) -> str:
    """
    Return what failed, before the time: "apply failed", or what is left to do "since".
    """
    unfinished = UNFINISHED.get(code or "")
    return f"{unfinished}, since" if unfinished else f"{command or 'a command'} failed"


def released_texts(released: Iterable[ReleasedObject]) -> list[str]:
    """
    List the released objects by how: "1 forgotten: a.b (id-1) lives on".
    """
    items = list(released)
    endings = {
        "forgotten": ("lives on", "live on"),
        "vanished": ("was not found any more", "were not found any more"),
    }
    texts = []
    for how, (one, several) in endings.items():
        names = [
            f"{item.address} ({item.id})" if item.id else item.address
            for item in items
            if item.how == how
        ]
        if names:
            ending = one if len(names) == 1 else several
            texts.append(f"{len(names)} {how}: {', '.join(names)} {ending}")
    return texts


def diagnostic(
    page: Page, item: Diagnostic | PlanDiagnostic, *, indent: int, whole: bool = False
) -> None:
    """
    Add a diagnostic: summary, place and detail; of a long detail only the beginning, unless the
    ``whole`` of it is to be shown.
    """
    whole = whole or page.paper.verbose
    style = "bad" if item.severity == "error" else "warn"
    page.line((item.severity, style), ": ", (item.summary, "bold"), indent=indent)
    location = diagnostic_location(item)
    if location:
        page.line((location, "dim"), indent=indent + 2)
    detail = item.detail.strip("\n").splitlines()
    if not item.detail.strip() or item.detail.strip() == item.summary.strip():
        return
    if item.summary in _TOLD_BY_US and not whole:
        return
    shown = len(detail) if whole or len(detail) <= _LONG else _LONG - 1
    page.text("\n".join(detail[:shown]), indent=indent + 2)
    if shown < len(detail):
        page.line((f"({len(detail) - shown} more lines; -v shows them)", "dim"), indent=indent + 2)


def diagnostic_text(item: Diagnostic) -> str:
    location = diagnostic_location(item)
    detail = "" if item.summary in _TOLD_BY_US else " ".join(item.detail.split())
    text = joined(item.summary, detail)
    return f"{text} ({location})" if location else text


def diagnostic_location(item: Diagnostic | PlanDiagnostic) -> str:
    """
    Return the object and the place in the module that a diagnostic names.
    """
    return ", ".join(part for part in (item.address, item.at) if part)


def doubt_text(item: Doubt, *, shown: str = "") -> str:
    """
    Describe an object in doubt: symbol, address, id, since when and why, without the text that the
    screen already shows (``shown``).
    """
    since = f", {item.action} began {utc(item.started_at)}" if item.started_at else ""
    name = object_text(item.address, item.id)
    return f"{ACTIONS[item.action].symbol} {name}{since}{shortened_why(item.why, shown)}"


#: A fact about a step: its label, the label's style, and the text.
Fact = tuple[str, str, Part]


def add_facts(page: Page, facts: Iterable[Fact], *, width: int = 0) -> None:
    """
    Add facts as a table; labels take at least ``width`` columns.
    """
    page.table([[(f"{label:<{width}}", style), text] for label, style, text in facts], indent=4)


def heartbeat_facts(
    in_flight: Iterable[InFlight],
    completed: Sequence[Completed],
    more: int,
    *,
    alive: bool,
    verbose: bool,
) -> Iterator[Fact]:
    """
    Yield the last heartbeat: the newest completed objects and all in flight. Those are marked as
    bad if the run is not ``alive``.
    """
    shown = completed if verbose else completed[-_MANY:]
    if more := more + len(completed) - len(shown):
        yield "done", "good", f"{more} more, before these"
    for item in shown:
        name = f"{ACTIONS[item.action].symbol} {object_text(item.address, item.id)}"
        yield "done", "good", f"{name}, {ACTIONS[item.action].done}"
    for flight in in_flight:
        name = f"{ACTIONS[flight.action].symbol} {flight.address}"
        text = f"{name}, {ACTIONS[flight.action].doing} since {utc(flight.started_at)}"
        yield "under way", "cyan" if alive else "bad", text


def shortened_why(why: str, shown: str) -> str:
    """
    Return ": " and the reason of a doubt, without the error at its end if that is ``shown``
    already; empty if nothing remains.
    """
    text = " ".join(shown.split())
    head, _, error = why.partition(": ")
    if why in text:
        return ""
    repeated = bool(error) and " ".join(error.split()) in text
    return f": {head if repeated else why}"


def readback_texts(readback: Readback | None, *, brief: bool = False) -> list[str]:
    """
    Describe the provider's answer about an object in doubt and, unless ``brief``, where to look.
    """
    if readback is None:
        return []
    ids = " or ".join(readback.ids)
    head = readback.verdict if readback.verdict == "exists" or not ids else "may be"
    lines = [f"{head} {ids}".rstrip() + f" (queried {utc(readback.at)}): {readback.why}"]
    if readback.ownership is not None:
        lines.append(f"{readback.ownership}: {readback.evidence}")
    look = None if brief else readback.look
    if look is not None:
        until = utc(look.until)
        period = f"before {until}"
        if look.since is not None:
            since = utc(look.since)
            period = f"at {until}" if since == until else f"from {since} to {until}"
        lines.append(f"look for what was made {period}")
        for label, values in (("provider", look.provider), ("inputs", look.inputs)):
            if values:
                pairs = ", ".join(f"{name}={value}" for name, value in values.items())
                lines.append(f"{label}: {pairs}")
        if look.declare:
            offer = f"or add what fits to the step in {look.file}, and reconcile:"
            lines.append("\n".join([offer, *look.declare]).replace("\n", "\n  "))
    return lines


def hook_text(run: HookResult, now: datetime) -> str:
    """
    Describe the result of a hook: when, in which run, and why.
    """
    outcome = "unknown, it was interrupted" if run.verdict == "unknown" else run.verdict
    reason = f" ({run.reason})" if run.reason else ""
    when = moment(run.ended_at or run.at, now)
    return f"{outcome} {when}, run {run.run_id}{reason}: {run.by}"


def shortened_list(items: Sequence[str]) -> str:
    """
    Return the items separated by commas, or the first of many and their number.
    """
    if len(items) <= _MANY:
        return ", ".join(items)
    return f"{', '.join(items[:_MANY])} and {len(items) - _MANY} more"


def joined(*parts: str | None) -> str:
    return "; ".join(part for part in parts if part)
