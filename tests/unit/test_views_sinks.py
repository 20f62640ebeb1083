"""
The two sinks: what they promise to a run, whatever happens to their stream.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from time import sleep

import pytest

from orchestrator.domain.events.events import (
    EngineDiagnostic,
    Event,
    Note,
    ObjectEvent,
    PhaseStarted,
    RunFinished,
)
from orchestrator.domain.record.record import Diagnostic, Fault, Lineage
from orchestrator.ports.system import Sink
from orchestrator.views.events import HumanView, JsonLinesView, NotesView
from orchestrator.views.page import Paper
from tests.golden.streams import CAPACITY, START, STREAMS, at, failed_apply, started

VIEWS: dict[str, Callable[[io.StringIO], Sink]] = {
    "human": lambda stream: HumanView(stream, Paper(now=START, width=100)),
    "jsonl": JsonLinesView,
}


class Broken(io.StringIO):
    """
    A stream that breaks at the third write, as a closed pipe or a full disk does.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.writes = 0

    def write(self, text: str, /) -> int:
        self.writes += 1
        if self.writes >= 3:
            raise self.error
        return super().write(text)


class Halting(io.StringIO):
    """
    A stream that lets other threads run within a write.
    """

    def write(self, text: str, /) -> int:
        for char in text:
            super().write(char)
            sleep(0)
        return len(text)


def shown(events: list[Event], *, verbose: bool = False) -> str:
    stream = io.StringIO()
    view = HumanView(stream, Paper(now=START, width=100, verbose=verbose))
    for event in events:
        view.emit(event)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "words"), [("retry", "retry of run R1"), ("rollback", "rollback to run R1")]
)
def test_a_run_begins_with_the_one_it_comes_from(kind: str, words: str) -> None:
    """
    Law: runs are never edited.
    Whoever watches a retry or rollback sees from which run, and why.
    """
    lineage = Lineage(kind=kind, from_run="R1", reason="v2 is slow")
    begun = started(kind).model_copy(update={"lineage": lineage})

    assert f"{words} (v2 is slow)" in shown([begun])
    assert "R1" not in shown([started("apply")])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(28, "No space left"), ValueError("closed file")], ids=repr
)
def test_a_broken_stream_ends_the_view_not_the_run(view: str, error: Exception) -> None:
    """
    A sink does not raise; after its stream broke it does not write again.
    """
    stream = Broken(error)
    sink = VIEWS[view](stream)
    for event in failed_apply():
        sink.emit(event)
    assert stream.writes == 3


@pytest.mark.parametrize("view", VIEWS)
def test_a_stream_that_is_not_utf8_gets_every_event(view: str) -> None:
    """
    Text that an encoding lacks is escaped, never a reason to go quiet.
    """
    raw = io.BytesIO()
    sink = VIEWS[view](io.TextIOWrapper(raw, encoding="ascii"))  # type: ignore[arg-type]
    sink.emit(Note(at=START, message="Zürich 漢字 \u2028 end"))
    sink.emit(Note(at=START, message="second"))
    assert raw.getvalue().count(b"\n") == 2
    assert b"second" in raw.getvalue()


@pytest.mark.parametrize("view", VIEWS)
def test_lines_of_parallel_steps_stay_whole(view: str) -> None:
    """
    Threads that emit at once never mix their lines.
    """
    stream = Halting()
    sink = VIEWS[view](stream)

    def emit(step: str) -> None:
        for _ in range(50):
            sink.emit(PhaseStarted(at=START, step=step, phase="apply"))

    threads = [Thread(target=emit, args=(f"step-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 200
    assert len(set(lines)) == 4


def test_each_line_of_a_step_carries_its_name() -> None:
    """
    Wrapped lines and details too: any line of a log tells whose it is.
    """
    text = "word " * 100 + "\n" + "second line"
    note = Note(at=START, step="network", message=text, hint=text)
    lines = shown([started("apply"), note]).splitlines()[5:]
    assert len(lines) > 8
    assert all(line.startswith("network   | ") for line in lines)


def test_every_event_has_a_rendering_of_its_own() -> None:
    """
    No kind of event falls through to its raw form.
    """
    seen = {type(event) for make in STREAMS.values() for event in make()}
    assert seen == set(Event.__subclasses__())
    assert [name for name, make in STREAMS.items() if '"type":' in shown(make())] == []


def test_an_event_that_cannot_be_rendered_is_shown_as_it_came() -> None:
    """
    A bug in a view neither raises nor hides the event.
    """
    whole = ObjectEvent(at=at(1), step="s", state="began", address="a.b", action="create")
    odd = whole.model_copy(update={"action": "melt"})
    assert '"address":"a.b"' in shown([odd])


def test_a_diagnostic_is_told_in_full_once() -> None:
    """
    The detail stands in the summary; the progress has its summary and place only.
    """
    text = " ".join(shown(failed_apply()).replace("compute   | ", "").split())
    assert text.count("We currently do not have sufficient") == 1
    assert text.count(CAPACITY.summary) == 2
    assert text.count("aws_instance.this, main.tf:12") == 2


def test_an_error_that_many_steps_have_is_told_once() -> None:
    """
    Expired credentials fail every step alike: each is listed, the diagnostic is told once.
    """
    last = failed_apply()[-1]
    assert isinstance(last, RunFinished)
    failed = last.steps[1]
    steps = tuple(failed.model_copy(update={"step": name}) for name in ("one", "two", "three"))
    text = shown([last.model_copy(update={"steps": steps})])
    assert text.count("We currently do not have sufficient") == 1
    assert text.count("the same error as above") == 2


def test_a_refusal_tells_its_way_out() -> None:
    """
    What the error itself says to do stands below it; the general hint of the phase does not.
    """
    last = failed_apply()[-1]
    assert isinstance(last, RunFinished)
    fault = Fault(code="vanished", phase="destroy", summary="all of it has vanished")
    told = {"error": fault, "hint": "say so with --accept-vanished", "in_doubt": ()}
    refused = last.steps[1].model_copy(update=told)
    text = shown([last.model_copy(update={"steps": (refused,)})])
    assert "next: say so with --accept-vanished" in text
    assert "first: " not in text


def test_verbose_progress_has_the_detail() -> None:
    """
    With ``verbose`` the detail is told when it appears.
    """
    event = EngineDiagnostic(
        at=START, step="s", diagnostic=Diagnostic(severity="warning", summary="old", detail="why")
    )
    assert "why" not in shown([event])
    assert "s | " in shown([event], verbose=True)
    assert "why" in shown([event], verbose=True)


def test_errored_state_heads_the_summary() -> None:
    """
    Field case 8: a note of level error is repeated above everything else that the summary says.
    """
    summary = shown(failed_apply()).partition("exit 11")[2]
    head, _, _ = summary.partition("What went wrong")
    assert "errored.tfstate" in head.partition("network")[0]


def test_heartbeats_come_less_often_the_longer_an_object_takes() -> None:
    """
    Every 10 s in the first minute, every minute after it, however often the engine speaks.
    """
    beats: list[Event] = [
        ObjectEvent(
            at=at(second), step="s", state="going", address="a.b", action="create", elapsed=second
        )
        for second in range(2, 301, 2)
    ]
    first = ObjectEvent(at=at(0), step="s", state="began", address="a.b", action="create")
    lines = [line for line in shown([first, *beats]).splitlines() if "still creating" in line]
    assert len(lines) == 6 + 4


def test_reading_views_load_no_heavy_library() -> None:
    """
    ``status`` in a pipe pays for no terminal library.
    """
    code = (
        "import sys, orchestrator.views.status, orchestrator.views.runs\n"
        "import orchestrator.views.events\n"
        "print(sorted({'rich', 'structlog', 'psutil', 'pygohcl', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_json_lines_hold_every_field() -> None:
    """
    Nothing is left out of a line, defaults included.
    """
    stream = io.StringIO()
    JsonLinesView(stream).emit(Note(at=START, message="m"))
    assert json.loads(stream.getvalue()) == {
        "type": "note",
        "at": "2026-07-15T03:12:00Z",
        "step": "",
        "level": "info",
        "message": "m",
        "hint": "",
    }


def test_nothing_is_shown_beside_a_question() -> None:
    """
    What other steps say while a person is asked comes after the answer.
    """
    stream = io.StringIO()
    view = HumanView(stream, Paper(now=START))
    with view.hold():
        other = Thread(target=view.emit, args=(Note(at=START, step="b", message="later"),))
        other.start()
        other.join()
        while_asked = stream.getvalue()

    assert while_asked == ""
    assert "later" in stream.getvalue()


class AtTerminal(io.StringIO):
    """
    A stream that a person looks at.
    """

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [AtTerminal(), io.StringIO()])
def test_who_waits_for_a_document_at_a_terminal_is_told_what_is_going_on(
    stream: io.StringIO,
) -> None:
    """
    A reading command says at once what it does, unless nobody looks.
    """
    NotesView(stream, Paper(now=START)).emit(PhaseStarted(at=START, step="web", phase="plan"))

    assert ("planning" in stream.getvalue()) is stream.isatty()


def test_hints_in_json_name_the_directory_to_call_a_command_in() -> None:
    """
    As the text does: a program, or a person who reads its log, calls it from where it was called.
    """
    stream = io.StringIO()
    note = Note(at=START, message="orchestrator x", hint="look: `orchestrator recover web`")
    JsonLinesView(stream, called_in="../my shop").emit(note)

    line = json.loads(stream.getvalue())
    assert line["hint"] == "look: `orchestrator -C '../my shop' recover web`"
    assert line["message"] == "orchestrator x", "what is no hint is left alone"


def test_no_line_of_json_holds_a_command_for_a_ci_runner() -> None:
    """
    Those that a runner obeys anywhere in a line are escaped; the values are the same.
    """
    stream, said = io.StringIO(), "x ##vso[task.complete]y ##[add-mask]z"
    JsonLinesView(stream).emit(Note(at=START, message=said))

    assert "##" not in stream.getvalue()
    assert json.loads(stream.getvalue())["message"] == said
