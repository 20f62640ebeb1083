"""
The events of a run: as plain lines for people, as JSON lines for programs, and as log lines.

Each line of a step for people begins with its name, so that parallel steps can be told apart.
Nothing moves the cursor, so that a log is the same as the terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Any, TextIO

from orchestrator.domain.events.events import (
    CheckEvent,
    EngineDiagnostic,
    EngineLine,
    Event,
    Note,
    ObjectEvent,
    PhaseStarted,
    PlanReady,
    RunFinished,
    RunStarted,
    SignalSeen,
    StepDeferred,
    StepFinished,
    StepRetried,
)
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.target import hook_of
from orchestrator.domain.text import Json, escaped
from orchestrator.ports.system import Sink
from orchestrator.views.formats import (
    ACTIONS,
    PHASES,
    STATUS_STYLE,
    diagnostic,
    diagnostic_location,
    duration,
    lineage_text,
    object_text,
)
from orchestrator.views.page import Page, Paper, Part, callable_from, cells
from orchestrator.views.plan import planned_actions
from orchestrator.views.summary import alarm, outcome_text, run_summary

_STEP_STYLES = ("cyan", "magenta", "blue", "green", "yellow")
_MAX_PREFIX = 24
_HEARTBEAT = 10.0  # seconds between two lines on an object that takes long, in its first minute
_SLOW_HEARTBEAT = 60.0
_ECHO = "Executing: ["  # a provisioner's command line: it is in the log
_QUIET_PHASES = ("prepare",)  # too short to be news


class HumanView:
    """
    A sink that writes a run as lines of text.

    ``paper`` holds width, colour and verbosity; its time is that of the events. If the stream
    breaks, the view stops writing: a mutation must not fail because of its display.
    """

    def __init__(self, stream: TextIO, paper: Paper) -> None:
        self._stream = stream
        self._paper = paper.on(stream)
        self._lock = Lock()
        self._broken = False
        self._signalled = False
        self._target = ""
        self._steps: dict[str, int] = {}
        self._prefix_width = 0
        self._beats: dict[tuple[str, str], datetime] = {}
        self._under_way: dict[tuple[str, str], ObjectEvent] = {}
        self._alarms: list[Note] = []
        self._pending: list[str] | None = None

    def emit(self, event: Event) -> None:
        """
        Write the event; never raises.
        """
        with self._lock:
            if self._broken:
                return
            try:
                text = self._text(event)
            # A bug in a view must not end a run half-way: the event is shown as it came.
            except Exception as exc:
                text = f"[not rendered: {exc!r}] {event.model_dump_json()}\n"
            self._write(text)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """
        Delay all output until the body ends, so that a question stands alone.
        """
        with self._lock:
            self._pending = []
        try:
            yield
        finally:
            with self._lock:
                pending, self._pending = self._pending or [], None
                self._write("".join(pending))

    def _write(self, text: str) -> None:
        if self._pending is not None:
            self._pending.append(text)
            return
        try:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._broken = True

    def _text(self, event: Event) -> str:
        page = Page(self._paper, prefix=self._prefix(event.step))
        match event:
            case RunStarted():
                self._started(page, event)
            case RunFinished():
                run_summary(page, event, target=self._target, alarms=self._alarms)
            case Note():
                self._note(page, event)
            case PhaseStarted():
                if event.phase not in _QUIET_PHASES or self._paper.verbose:
                    page.line((f"{PHASES.get(event.phase, event.phase)} ...", "dim"))
            case PlanReady():
                planned_actions(page, event)
            case StepDeferred():
                waits = ", ".join(event.waits_for)
                page.line(("deferred", "warn"), f": {event.reason} (waits for {waits})")
            case ObjectEvent():
                self._object(page, event)
            case EngineLine():
                if event.line.startswith(_ECHO) and not self._paper.verbose:
                    return ""
                page.line((f"{event.address}: " if event.address else "", "dim"), event.line)
            case EngineDiagnostic():
                self._diagnostic(page, event)
            case CheckEvent():
                word = ("passed", "good") if event.passed else ("failed", "bad")
                detail = f" ({event.detail})" if event.detail else ""
                page.line(f"check {event.name}: ", word, detail)
            case StepRetried():
                retry = f"attempt {event.attempt} of {event.phase}"
                page.line(("retry", "warn"), f": {retry}: {event.reason}")
            case StepFinished():
                self._finished(page, event)
            case SignalSeen():
                self._signal(page, event)
            case _:
                page.line(event.model_dump_json())
        return page.render()

    def _prefix(self, step: str) -> tuple[Part, ...]:
        if not step:
            return ()
        action = hook_of(step)
        if action is not None:  # a root of its own, named for where it belongs
            step = " ".join(action)
        number = self._steps.setdefault(step, len(self._steps))
        bar = Page(self._paper).glyph("|")
        pad = " " * max(self._prefix_width - cells(step), 0)
        return ((f"{step}{pad} {bar} ", _STEP_STYLES[number % len(_STEP_STYLES)]),)

    def _started(self, page: Page, event: RunStarted) -> None:
        self._target = f"{event.blueprint}/{event.environment}"
        self._prefix_width = min(max(map(cells, event.steps), default=0), _MAX_PREFIX)
        self._steps = {step: number for number, step in enumerate(event.steps)}
        reason = event.engine_why.removeprefix(f"{event.engine} ")
        why = f" ({reason})" if reason else ""
        page.line(
            (f"{event.command} {self._target}", "bold"),
            f"  run {event.run_id}  ",
            (f"{event.engine}{why}", "dim"),
        )
        rows: list[list[Part]] = []
        if event.lineage:
            rows.append([("from", "dim"), lineage_text(event.lineage)])
        if self._paper.verbose:
            rows.append([("records", "dim"), event.store])
            rows.append([("evidence", "dim"), event.directory])
        page.table(rows, indent=2)

    def _note(self, page: Page, event: Note) -> None:
        if event.level == "error":
            self._alarms.append(event)
            alarm(page, event.model_copy(update={"step": ""}))
            return
        style = "warn" if event.level == "warning" else "cyan"
        page.line(
            (event.level if event.level == "warning" else "note", style), f": {event.message}"
        )
        if event.hint:
            page.next(event.hint, indent=2)

    def _object(self, page: Page, event: ObjectEvent) -> None:
        key = (event.step, event.address)
        name = object_text(event.address, event.id)
        words = ACTIONS[event.action]
        symbol: Part = (words.symbol, words.style)
        took = "" if event.elapsed is None else f" after {duration(event.elapsed)}"
        match event.state:
            case "began":
                self._beats[key] = event.at
                self._under_way[key] = event
                if self._paper.verbose:  # else the end says it, or the heartbeat
                    page.line(symbol, f" {name}: {words.doing}", hang=4)
            case "going":
                self._under_way.setdefault(key, event)
                if self._beat_due(key, event):
                    page.line(symbol, f" {name}: still {words.doing}{took}", hang=4)
            case "done":
                self._under_way.pop(key, None)
                page.line(symbol, f" {name}: ", (words.done, "good"), took, hang=4)
            case "failed":
                self._under_way.pop(key, None)
                page.line(symbol, f" {name}: ", (f"{event.action} failed", "bad"), took, hang=4)

    def _beat_due(self, key: tuple[str, str], event: ObjectEvent) -> bool:
        every = _HEARTBEAT if (event.elapsed or 0) <= _SLOW_HEARTBEAT else _SLOW_HEARTBEAT
        last = self._beats.get(key)
        # The engine's own heartbeat is every 10 s, give or take some milliseconds.
        if last is not None and (event.at - last).total_seconds() < every - 0.5:
            return False
        self._beats[key] = event.at
        return True

    def _diagnostic(self, page: Page, event: EngineDiagnostic) -> None:
        item = event.diagnostic
        if self._paper.verbose:
            diagnostic(page, item, indent=0)
            return
        # The whole of it stands in the summary, once.
        location = diagnostic_location(item)
        style = "bad" if item.severity == "error" else "warn"
        page.line(
            (item.severity, style),
            f": {item.summary}",
            (f" ({location})" if location else "", "dim"),
        )

    def _finished(self, page: Page, event: StepFinished) -> None:
        took = f" in {duration(event.seconds)}" if event.seconds else ""
        page.line(
            (event.status, STATUS_STYLE[event.status]), f"{took}: {outcome_text(event.result)}"
        )
        is_over = event.status not in (StepStatus.ERROR, StepStatus.RUNNING)
        for key in [key for key in self._under_way if is_over and key[0] == event.step]:
            del self._under_way[key]

    def _signal(self, page: Page, event: SignalSeen) -> None:
        page.line((event.signal, "alarm"), (f" {event.message}", "bold"))
        if self._signalled:
            return
        self._signalled = True
        for item in self._under_way.values():
            page.line(
                f"under way: {item.step}: {ACTIONS[item.action].symbol} {item.address}, "
                f"{ACTIONS[item.action].doing} since {item.at:%H:%M:%S} UTC",
                indent=2,
            )


class NotesView:
    """
    A sink for reading commands, whose result is a document: it shows notes and retries, and at a
    terminal also progress.
    """

    def __init__(self, stream: TextIO, paper: Paper) -> None:
        self._view = HumanView(stream, paper)
        self._shown = (Note, StepRetried, *((PhaseStarted,) if stream.isatty() else ()))

    def emit(self, event: Event) -> None:
        """
        Write the event if the document does not contain it.
        """
        if isinstance(event, self._shown):
            self._view.emit(event)


# JSON lines, for programs.


class JsonLinesView:
    """
    A sink that writes each event as one line of JSON; the last line of a run is ``run_finished``.

    If the stream breaks, it stops writing: a mutation must not fail because of its display.
    ``called_in`` is the ``-C`` directory for commands in hints.
    """

    def __init__(self, stream: TextIO, *, called_in: str = "") -> None:
        self._stream = stream
        self._called_in = called_in
        self._lock = Lock()
        self._broken = False

    def emit(self, event: Event) -> None:
        """
        Write the event; never raises if the stream is closed or full.
        """
        # ASCII, so that no encoding of the stream and no line separator of Unicode can break it.
        document = event.model_dump(mode="json", by_alias=True)
        if self._called_in:
            document = _with_hints_from(self._called_in, document)
        line = escaped(json.dumps(document))
        with self._lock:
            if self._broken:
                return
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                self._broken = True


def _with_hints_from(called_in: str, value: Json) -> Any:
    """
    Return the document with ``-C`` in the commands of its hints.
    """
    match value:
        case dict():
            return {
                key: callable_from(called_in, item)
                if key == "hint" and isinstance(item, str)
                else _with_hints_from(called_in, item)
                for key, item in value.items()
            }
        case list():
            return [_with_hints_from(called_in, item) for item in value]
        case _:
            return value


# Events as log lines for those who look for faults of the tool, beside what is shown to people.


class LoggedSink:
    """
    A sink that logs every event to a stream as JSON and passes it on.

    ``debug`` logs everything, ``info`` leaves out the output of engines and provisioners. Events
    are already masked.
    """

    def __init__(self, shown: Sink, stream: TextIO, *, level: str) -> None:
        import structlog

        self._shown = shown
        self._log = structlog.wrap_logger(
            structlog.PrintLogger(stream),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.JSONRenderer(default=str),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(
                logging.DEBUG if level == "debug" else logging.INFO
            ),
        )

    def emit(self, event: Event) -> None:
        """
        Log the event and pass it on.
        """
        fields = event.model_dump(mode="json", exclude={"type"}, exclude_defaults=True)
        write = self._log.debug if event.type in ("line", "object") else self._log.info
        with contextlib.suppress(OSError):  # a closed stderr must not end a mutation
            write(event.type, **fields)
        self._shown.emit(event)
