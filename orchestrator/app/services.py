"""
Everything a use case needs from outside, in one value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from orchestrator.domain.events.events import Note
from orchestrator.domain.masking import Masker
from orchestrator.domain.record.entry_changes import EntryStamp
from orchestrator.domain.record.record import Actor, Source
from orchestrator.domain.record.run_record import SILENCE
from orchestrator.domain.target import Target
from orchestrator.ports.engine import Engine
from orchestrator.ports.run_files import RunFiles
from orchestrator.ports.store import OperationStore, Spool
from orchestrator.ports.system import (
    Approver,
    Checks,
    Clock,
    Ids,
    PolicyRules,
    Processes,
    Sink,
    StopToken,
)
from orchestrator.ports.workdir import WorkDirs


class Limits(Struct, frozen=True):
    """
    Times in seconds: a mutation's deadline where its step sets none, how long an engine that
    ignores the stop is waited for (None: for ever, both), how long a dead engine's last request may
    still be under way, how long an outcome waits for an operation store that is away, how often and
    how long a heartbeat counts.
    """

    timeout: float | None = None
    grace: float | None = None
    settle: float = 60.0
    store_grace: float = 0.0
    heartbeat: float = 10.0
    silence: float = SILENCE


class Services(Struct, frozen=True):
    """
    The ports, and the few facts about this invocation that every run records.

    ``is_shared`` tells that the operation store is one for several machines: then they see what a
    run left here. ``work`` is where the targets' working directories are. ``key`` is the project's
    secret for keyed digests. ``gone_back`` says which records are older than this machine has seen
    them, ``note_reconciled`` takes down which of them are up to date again. ``environ`` is what
    engines are given; ``stored_blobs`` the digests, by name, of blobs that this process knows to be
    in the store.
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
    policy_rules: PolicyRules
    approver: Approver
    stop: StopToken
    masker: Masker
    actor: Actor
    source: Source
    key: bytes
    root: Path
    is_shared: bool = False
    gone_back: Callable[[], Sequence[str]] = tuple
    note_reconciled: Callable[[Target], None] = lambda _: None
    limits: Limits = field(default_factory=Limits)
    environ: Mapping[str, str] = field(default_factory=dict)
    stored_blobs: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> str:
        """
        The workspace that the environment selects; the settings have to allow another one.
        """
        return self.environ.get("TF_WORKSPACE") or "default"

    def stamp(self) -> EntryStamp:
        """
        Return a stamp for an entry written now.
        """
        return EntryStamp(at=self.clock.now(), entry_id=self.ids.entry_id(), actor=self.actor)

    def pause(self, seconds: float) -> None:
        """
        Wait so long, or until somebody asks us to stop.
        """
        end = self.clock.monotonic() + seconds
        while not self.stop.stopping and (remaining := end - self.clock.monotonic()) > 0:
            self.clock.sleep(min(remaining, 0.1))

    def note(self, message: str, *, hint: str = "", level: str = "info", step: str = "") -> None:
        """
        Tell the person something they should know.
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
