"""
Everything a use case needs from outside, in one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from orchestrator.domain.events.events import Event, Note, PhaseStarted, PlanReady
from orchestrator.domain.masking import Masker
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.record import Actor, Source
from orchestrator.domain.record.run_record import SILENCE
from orchestrator.domain.redaction import redacted
from orchestrator.domain.target import Target
from orchestrator.errors import ApprovalMissing, Busy, Stopped, StoreUnavailable, Terminated
from orchestrator.ports.engine import Engine
from orchestrator.ports.store import OperationStore
from orchestrator.ports.system import (
    Approver,
    Checks,
    Clock,
    Ids,
    Processes,
    Sink,
    StopToken,
)
from orchestrator.ports.workdir import WorkDirs
from orchestrator.run_files import RunFiles, Spool

if TYPE_CHECKING:
    from orchestrator.domain.plan.violations import Violation


class Limits(Struct, frozen=True):
    """
    Times in seconds: the deadline of a mutation if its step sets none, the grace for an engine that
    ignores the stop (both None: unlimited), how long a dead engine's last request may be under way,
    how long an outcome waits for an unavailable operation store, the interval and validity of a
    heartbeat.
    """

    timeout: float | None = None
    grace: float | None = None
    settle: float = 60.0
    store_grace: float = 0.0
    heartbeat: float = 10.0
    silence: float = SILENCE


class RedactingSink(Struct, frozen=True):
    """
    A sink that masks every event with the secrets known so far.
    """

    sink: Sink
    masker: Masker

    def emit(self, event: Event) -> None:
        self.sink.emit(redacted(event, self.masker))


class Services(Struct, frozen=True):
    """
    The ports, and the facts about this invocation that every run records.

    ``is_shared``: several machines use the operation store and see the evidence in it. ``work``
    contains the targets' working directories. ``key`` is the project's key for keyed digests.
    ``refusal`` returns the error that mutating commands end with if they may not rely on the store;
    ``note_reconciled`` remembers which records older than this machine has seen are up to date
    again. ``neighbours`` returns the URLs of the stores of the blueprint's other environments.
    ``policy_rules`` returns the violations of Rego rules in files by a plan document. ``environ``
    is the environment of engines; ``stored_blobs`` are the digests, by name, of blobs known to be
    in the store. ``source`` asks git, once.
    """

    store: OperationStore
    spool: Spool
    files: RunFiles
    processes: Processes
    clock: Clock
    ids: Ids
    sink: Sink
    engine: Engine
    workdirs: WorkDirs
    work: Path
    checks: Checks
    policy_rules: Callable[[Sequence[Path], str, StopToken], Sequence[Violation]]
    approver: Approver
    stop: StopToken
    masker: Masker
    actor: Actor
    source: Callable[[], Source]
    key: bytes
    root: Path
    is_shared: bool = False
    refusal: Callable[[], StoreUnavailable | None] = lambda: None
    note_reconciled: Callable[[Target], None] = lambda _: None
    neighbours: Callable[[], Mapping[str, str]] = dict
    limits: Limits = field(default_factory=Limits)
    environ: Mapping[str, str] = field(default_factory=dict)
    stored_blobs: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> str:
        """
        The workspace selected by the environment; settings must allow one other than the default.
        """
        return self.environ.get("TF_WORKSPACE") or "default"

    def stamp(self) -> EntryStamp:
        return EntryStamp(at=self.clock.now(), entry_id=self.ids.entry_id(), actor=self.actor)

    def pause(self, seconds: float) -> None:
        """
        Wait for some seconds, or until a stop is requested.
        """
        end = self.clock.monotonic() + seconds
        while not self.stop.stopping and (remaining := end - self.clock.monotonic()) > 0:
            self.clock.sleep(min(remaining, 0.1))

    def report_phase(self, step: str, phase: str) -> None:
        """
        Tell the user which phase of a step begins.
        """
        self.sink.emit(PhaseStarted(at=self.clock.now(), step=step, phase=phase))

    def agree(self, step: str, question: str) -> None:
        """
        Ask the user about a step. Raises ApprovalMissing if the answer is no.
        """
        if not self.approver.agree(self.masker.mask(question)) and not self.stop.stopping:
            raise not_approved(step)

    def approve(self, verb: str, step: str, shown: PlanReady) -> None:
        """
        Ask the user to approve the plan of a step. Raises ApprovalMissing if the answer is no.
        """
        if not self.approver.approve(verb, step, shown) and not self.stop.stopping:
            raise not_approved(step)

    def check_not_stopped(self) -> None:
        """
        Raise Stopped if a signal came.
        """
        if self.stop.stopping:
            raise stopped(self.stop)

    def note(self, message: str, *, hint: str = "", level: str = "info", step: str = "") -> None:
        """
        Tell the user something they should know.
        """
        self.sink.emit(
            Note.model_validate(
                {
                    "at": self.clock.now(),
                    "step": step,
                    "level": level,
                    "message": message,
                    "hint": hint,
                }
            )
        )


def stopped(stop: StopToken) -> Stopped:
    """
    Return the error of work that a signal ended before anything was mutated.
    """
    kind = Terminated if stop.exit_code == Terminated.exit_code else Stopped
    return kind("stopped by a signal before anything was mutated")


def not_approved(step: str = "") -> ApprovalMissing:
    """
    Return the error of what the user was asked for and did not approve.
    """
    where = f"{step}: " if step else ""
    return ApprovalMissing(
        f"{where}not approved; nothing was changed",
        hint="run it again and answer yes, or approve with --yes",
    )


def await_others(services: Services, busy: Busy, *, wait: bool, seconds: float = 0.5) -> None:
    """
    With ``wait``, sleep for so long. Raises ``busy`` without it, and Stopped if a signal came.
    """
    services.check_not_stopped()
    if not wait:
        raise busy
    services.clock.sleep(seconds)
