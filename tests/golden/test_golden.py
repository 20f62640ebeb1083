"""
What people and programs read, against recorded text.

``ORCHESTRATOR_GOLDEN=write pytest tests/golden`` records anew; look at the difference before you
commit it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from orchestrator.domain.documents.schemas import DOCUMENTS
from orchestrator.views.events import HumanView, JsonLinesView
from orchestrator.views.page import Paper
from orchestrator.views.status import status_text
from tests.golden import hook_streams, streams
from tests.golden.samples import NOW, PLAIN
from tests.golden.samples import TEXTS as SAMPLES
from tests.golden.streams import START

STREAMS = {**streams.STREAMS, **hook_streams.STREAMS}
TEXTS: Mapping[str, Callable[[Paper], str]] = {
    **SAMPLES,
    "status-undone": partial(status_text, hook_streams.undone()),
}
HERE = Path(__file__).parent
WIDTHS = (60, 100, 160)


def human(stream: str, width: int) -> str:
    """
    What the human view makes of a stream, in UTF-8 without colour.
    """
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", newline="")
    view = HumanView(out, Paper(now=START, width=width))
    for event in STREAMS[stream]():
        view.emit(event)
    return raw.getvalue().decode()


def json_lines(stream: str) -> str:
    out = io.StringIO()
    view = JsonLinesView(out)
    for event in STREAMS[stream]():
        view.emit(event)
    return out.getvalue()


def compare(name: str, text: str) -> None:
    """
    The text equals the recorded one; recorded anew only if asked for.
    """
    path = HERE / f"{name}.txt"
    if os.environ.get("ORCHESTRATOR_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8", newline="")
    assert path.is_file(), f"{path.name} is not recorded: ORCHESTRATOR_GOLDEN=write pytest {HERE}"
    assert text == path.read_bytes().decode()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stream", STREAMS)
def test_human_view_of_a_stream_is_as_recorded(stream: str, width: int) -> None:
    """
    The same events give the same lines at a width.
    """
    compare(f"human-{stream}-{width}", human(stream, width))


@pytest.mark.parametrize("stream", STREAMS)
def test_json_lines_of_a_stream_are_as_recorded(stream: str) -> None:
    """
    The JSON lines of a run are a contract.
    """
    compare(f"jsonl-{stream}", json_lines(stream))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_document_is_as_recorded(name: str, width: int) -> None:
    """
    The same document gives the same text at a width.
    """
    compare(f"{name}-{width}", TEXTS[name](Paper(now=NOW, width=width)))


@pytest.mark.parametrize("name", PLAIN)
def test_machine_format_is_as_recorded(name: str) -> None:
    """
    Graph formats and JSON documents are contracts.
    """
    compare(name, PLAIN[name]())


def test_every_recorded_file_is_compared() -> None:
    """
    No recorded text is left over from a view or stream that is gone.
    """
    wanted = {f"human-{stream}-{width}" for stream in STREAMS for width in WIDTHS}
    wanted |= {f"jsonl-{stream}" for stream in STREAMS}
    wanted |= {f"{name}-{width}" for name in TEXTS for width in WIDTHS}
    wanted |= set(PLAIN)
    assert {path.name.removesuffix(".txt") for path in HERE.glob("*.txt")} == wanted


@pytest.mark.parametrize("width", (60, 72, 100, 160, 200))
@pytest.mark.parametrize("stream", STREAMS)
def test_a_line_is_longer_than_the_width_only_for_what_is_copied(stream: str, width: int) -> None:
    """
    Lines end within the width; only a word without a space, or a command, may run over.
    """
    long = [line for line in human(stream, width).splitlines() if len(line) > width]
    assert [
        line for line in long if "orchestrator " not in line and max(map(len, line.split())) < 40
    ] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stream", STREAMS)
def test_a_step_that_did_not_run_is_never_called_failed(stream: str, width: int) -> None:
    """
    Law: pending, not failed.
    Pending is said as pending, whatever failed before it.
    """
    lines = human(stream, width).splitlines()
    pending = [line for line in lines if "pending" in line and "verdict" not in line]
    assert [line for line in pending if "fail" in line or "error" in line.split(":")[0][:10]] == []


@pytest.mark.parametrize("stream", STREAMS)
def test_the_last_json_line_is_run_finished(stream: str) -> None:
    """
    A program that reads JSON lines finds the whole story in the last one.
    """
    assert json.loads(json_lines(stream).splitlines()[-1])["type"] == "run_finished"


@pytest.mark.parametrize("stream", STREAMS)
def test_every_line_is_one_of_the_documented_events(stream: str) -> None:
    """
    `schema events` describes what a running command prints with `--json`, line by line.
    """
    for line in json_lines(stream).splitlines():
        assert DOCUMENTS["events"].model_validate_json(line).model_dump(mode="json") == json.loads(
            line
        )
