"""
Every error the tool can exit with: one class, one cause, one exit code.

The message says what happened and where; the hint says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

#: Exit codes from the one that wins to the one that loses, when several apply.
PRECEDENCE = (1, 23, 21, 130, 143, 11, 10, 13, 12, 20, 22, 6, 5, 4, 3, 2, 0)


def worst(codes: Iterable[int]) -> int:
    """
    Return the exit code that stands for all of ``codes``; 0 for none.

    >>> worst([0, 2, 10])
    10
    """
    return min(codes, key=PRECEDENCE.index, default=0)


#: Why no mutating command may rely on an operation store that works: this machine has the records
#: of the blueprint, other machines would not see them, or it has seen newer ones.
StoreReason = Literal["records_elsewhere", "no_shared_store", "store_gone_back"]

#: Why an action is refused: stable codes, seen as ``error.code`` and in ``--json``.
Reason = Literal[
    "action_gone",
    "adopted",
    "approval_not_ours",
    "approval_of_another",
    "backend_changed",
    "changed_secret",
    "child_left",
    "dependents",
    "engine_change",
    "environment",
    "exists_already",
    "expectation",
    "foreign_lock",
    "foreign_record",
    "lineage",
    "may_have_run",
    "managed_already",
    "moved_on",
    "no_errored_state",
    "no_lock_to_break",
    "no_compensation",
    "not_as_described",
    "not_by_exec",
    "not_in_run",
    "not_kept",
    "not_lost",
    "not_ok",
    "not_retained",
    "not_the_one_found",
    "nothing_there",
    "nothing_new",
    "nothing_to_adopt",
    "policy",
    "other_blueprint",
    "other_command",
    "prevent_destroy",
    "reason_missing",
    "replaces_earlier",
    "request_token",
    "retained",
    "secret_needed",
    "secret_not_at_hand",
    "serial_back",
    "settling",
    "several_runs",
    "snapshot_missing",
    "state_of_another",
    "superseded",
    "moved",
    "targeted",
    "unknown_run",
    "unreconciled",
    "unrecorded_state",
    "untrusted",
    "unverified",
    "upstream",
    "vanished",
]


class Location(Struct, frozen=True):
    """
    A place in a file: path as shown to the user, line and column from 1 (0: unknown).
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column or 1}"


class Problem(Struct, frozen=True):
    """
    A problem in a blueprint, module, input or setting, and its place.
    """

    message: str
    at: Location | None = None
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.at}: " if self.at else ""
        return f"{where}{self.message}"

    def shown_from(self, directory: str) -> Problem:
        """
        Return the problem with its place relative to a directory above.
        """
        above = f"{directory}/"
        if self.at is None or not self.at.file.startswith(above):
            return self
        at = Location(self.at.file.removeprefix(above), self.at.line, self.at.column)
        return Problem(self.message, at, self.hint)


class OrchestratorError(Exception):
    """
    The base of every error that is not a bug. ``phase`` is the one in which it happened.
    """

    exit_code: ClassVar[int]
    code: ClassVar[str]
    phase: str = "plan"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Invalid(OrchestratorError):
    """
    Blueprint, module, input or settings are wrong; all problems at once. Its hint is theirs.
    """

    exit_code, code = 3, "invalid"
    phase = "blueprint"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        hints = dict.fromkeys(problem.hint for problem in self.problems if problem.hint)
        super().__init__("\n".join(map(str, self.problems)), hint="; ".join(hints))


class Refused(OrchestratorError):
    """
    Nothing is wrong with the input, but a rule of the tool forbids the action; ``reason`` names it.
    ``phase`` is the phase in which it was refused, ``accepted_by`` are the options of the command
    that accept what was refused.
    """

    exit_code, code = 4, "refused"

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        hint: str = "",
        phase: str = "plan",
        accepted_by: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.phase = phase
        self.accepted_by = accepted_by


class ApprovalMissing(OrchestratorError):
    """
    A mutation was not approved.
    """

    exit_code, code = 5, "approval_missing"


class PlanChanged(OrchestratorError):
    """
    The plan no longer matches what was approved.
    """

    exit_code, code = 6, "plan_changed"


class EngineFailed(OrchestratorError):
    """
    An engine process failed; ``phase`` says in which phase. ``diagnostics`` are the engine's
    diagnostics.
    """

    exit_code, code = 10, "engine_failed"

    def __init__(
        self, phase: str, message: str, *, hint: str = "", diagnostics: Sequence[object] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.phase = phase
        self.diagnostics = tuple(diagnostics)


class InDoubt(OrchestratorError):
    """
    It is unknown whether objects exist; ``recover`` says what is safe. ``phase`` is ``surgery`` if
    recorded objects have left the provider state; ``occupied`` are the addresses where it holds
    another object than the recorded one.
    """

    exit_code, code = 11, "in_doubt"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        phase: str = "readback",
        occupied: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.phase = phase
        self.occupied = occupied


class StateDamaged(InDoubt):
    """
    The stored provider state is damaged: truncated, or something else.
    """

    exit_code, code = 11, "in_doubt"


class CheckFailed(OrchestratorError):
    """
    Everything was applied, but a ``verify`` check failed.
    """

    exit_code, code = 12, "check_failed"


class DeadlinePassed(OrchestratorError):
    """
    A step exceeded its configured ``timeout``; recorded.
    """

    exit_code, code = 13, "deadline"


class Busy(OrchestratorError):
    """
    Somebody else works on it: the blueprint is claimed, a target is live, or the state is locked.
    """

    exit_code, code = 20, "busy"
    phase = "lock"


class StateLocked(Busy):
    """
    Somebody else holds the lock of the provider state; ``lock_id`` is None if unknown.
    """

    exit_code, code = 20, "busy"

    def __init__(self, message: str, *, lock_id: str | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lock_id = lock_id


class Fenced(OrchestratorError):
    """
    Another writer has appended an entry: we no longer own the target.
    """

    exit_code, code = 21, "fenced"
    phase = "record"


class StoreUnavailable(OrchestratorError):
    """
    The operation store cannot be read or written, or ``reason`` says why no mutating command may
    rely on it; nothing was mutated.
    """

    exit_code, code = 22, "store_unavailable"
    phase = "record"

    def __init__(self, message: str, *, hint: str = "", reason: StoreReason | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Spooled(OrchestratorError):
    """
    The engine finished and its outcome could not be recorded: it is in the spool.
    """

    exit_code, code = 23, "spooled"
    phase = "record"


class Usage(OrchestratorError):
    """
    The command line itself is wrong.
    """

    exit_code, code = 64, "usage"


class Stopped(OrchestratorError):
    """
    A signal stopped the run; what was under way is recorded.
    """

    exit_code, code = 130, "stopped"


class Terminated(Stopped):
    """
    SIGTERM stopped the run; what was under way is recorded.
    """

    exit_code, code = 143, "stopped"


class ExitCode(Struct, frozen=True):
    """
    One row of the documented table.
    """

    code: int
    meaning: str
    classes: tuple[type[OrchestratorError], ...] = ()


EXIT_CODES = (
    ExitCode(0, "done or nothing to do"),
    ExitCode(1, "our bug (traceback)"),
    ExitCode(2, "changes present, only with `--detailed-exitcode`"),
    ExitCode(3, "blueprint, module, input or settings invalid", (Invalid,)),
    ExitCode(4, "refused: gate, expectation, protection, policy", (Refused,)),
    ExitCode(5, "approval missing", (ApprovalMissing,)),
    ExitCode(6, "plan no longer matches what was approved", (PlanChanged,)),
    ExitCode(10, "engine failed, recorded", (EngineFailed,)),
    ExitCode(11, "outcome in doubt: `recover`", (InDoubt, StateDamaged)),
    ExitCode(12, "applied, but a `verify` check failed", (CheckFailed,)),
    ExitCode(13, "deadline passed, recorded", (DeadlinePassed,)),
    ExitCode(20, "busy: claimed, or the state is locked", (Busy, StateLocked)),
    ExitCode(21, "fenced: another writer took over", (Fenced,)),
    ExitCode(22, "operation store unavailable or unreadable, nothing mutated", (StoreUnavailable,)),
    ExitCode(23, "mutated, outcome spooled", (Spooled,)),
    ExitCode(64, "usage", (Usage,)),
    ExitCode(130, "stopped by SIGINT and recorded", (Stopped,)),
    ExitCode(143, "stopped by SIGTERM and recorded", (Terminated,)),
)
