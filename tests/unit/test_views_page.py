"""
Lines, widths and hostile text.
"""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.formats import ago, duration
from orchestrator.views.page import Page, Paper, cells, clean, cut
from tests.golden.streams import START, at

WORDS = st.lists(st.text("abcß漢", min_size=1, max_size=12), min_size=1, max_size=40)


def page(width: int = 60, *, color: bool = False) -> Page:
    return Page(Paper(now=START, width=width, color=color))


@given(words=WORDS, width=st.integers(30, 120), indent=st.integers(0, 8))
def test_wrapping_loses_nothing_and_keeps_to_the_width(
    words: list[str], width: int, indent: int
) -> None:
    """
    Wrapped lines hold the same words in the same order, each line within the width.
    """
    sheet = page(width)
    sheet.line(" ".join(words), indent=indent)
    text = sheet.render()
    assert text.split() == words
    assert max(map(cells, text.splitlines())) <= width


@given(address=st.text("abc._[]\"'", min_size=100, max_size=300))
def test_a_word_is_never_cut(address: str) -> None:
    """
    An address longer than the page stands on a line in one piece.
    """
    sheet = page(60)
    sheet.line("before ", (address, "bold"), " after")
    assert address in sheet.render()


def test_colour_changes_no_character_of_the_text() -> None:
    """
    Without its escape sequences, coloured text is the plain text.
    """
    sheets = [page(40, color=color) for color in (False, True)]
    for sheet in sheets:
        sheet.line(("error", "bad"), ": ", ("a long story " * 9, "dim"), indent=2)
        sheet.table([[("name", "bold"), "text " * 12], ["other", "x"]])
    plain, coloured = (sheet.render() for sheet in sheets)
    assert "\x1b[1;31m" in coloured
    assert clean(coloured) == plain


@given(text=st.text())
def test_no_control_character_of_others_reaches_the_terminal(text: str) -> None:
    """
    Whatever an engine or provider prints cannot move the cursor or set a colour.
    """
    sheet = page()
    sheet.line(text)
    sheet.text(text, indent=2)
    sheet.table([[text, text], ["a", text]])
    shown = sheet.render().replace("\n", "")
    assert not [char for char in shown if ord(char) < 32 or 127 <= ord(char) < 160]


def test_an_escape_sequence_is_removed_whole() -> None:
    """
    No remains of a sequence are left in the text: not of colours, not of a window title.
    """
    assert clean("a\x1b[1;31mb\x1b[0m\x1b]0;title\x07c\x1b[2Kd") == "abcd"


def test_a_command_in_backticks_is_not_broken() -> None:
    """
    A command in a message can be copied in one piece.
    """
    sheet = page(40)
    sheet.line("to go on, run `orchestrator recover web -e prod` and read what it says")
    assert "`orchestrator recover web -e prod`" in sheet.render()


def test_a_command_can_be_called_from_where_the_reader_is() -> None:
    """
    Wherever a text names a command of ours it names the directory to call it in, once.
    """
    sheet = Page(Paper(now=START, called_in="../my shop"))
    sheet.next(
        "`orchestrator runs` lists them: orchestrator -C x recover web; orchestrator has one"
    )
    sheet.next("orchestrator recover web")
    assert sheet.render().splitlines() == [
        "next: `orchestrator -C '../my shop' runs` lists them: orchestrator -C x recover",
        "      web; orchestrator has one",
        "next: orchestrator -C '../my shop' recover web",
    ]


def test_a_value_that_is_cut_says_so_and_fits() -> None:
    """
    A cut value ends with dots and takes no more columns than given.
    """
    assert cut("漢字" * 20, 11, "…") == "漢字漢字漢…"


def test_paper_is_ascii_unless_the_stream_is_utf8() -> None:
    """
    A stream in another encoding gets no line-drawing characters.
    """
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    utf8 = io.TextIOWrapper(io.BytesIO(), encoding="UTF-8")
    paper = Paper(now=START)
    assert (paper.on(latin).unicode, paper.on(utf8).unicode) == (False, True)


def test_times_are_rough_when_relative() -> None:
    """
    The largest unit that fits is told; a time to come is told as what it is.
    """
    past = [ago(at(-seconds), START) for seconds in (0, 59, 60, 7200, 86400, 200_000)]
    assert past == ["just now", "59 s ago", "1 min ago", "2 h ago", "1 day ago", "2 days ago"]
    assert "clocks differ" in ago(at(60), START)


def test_durations_have_two_units_at_most() -> None:
    """
    A duration reads like a person would say it.
    """
    shown = [duration(seconds) for seconds in (0.04, 12, 60, 185, 7620)]
    assert shown == ["0.0 s", "12 s", "1 min", "3 min 5 s", "2 h 7 min"]


def test_no_text_is_a_command_for_a_ci_runner() -> None:
    """
    A runner obeys `::command::` at the start of a line, and `##[command]` anywhere in it.
    """
    said = clean("::error file=x::no\n  ::stop-commands::t\nsee ##[error]x, std::vector")
    assert said == ": :error file=x::no\n  : :stop-commands::t\nsee # #[error]x, std::vector"


@pytest.mark.parametrize("width", range(60, 80))
def test_a_line_that_is_wrapped_begins_no_command(width: int) -> None:
    """
    What stands within a line may come to stand at the start of the next.
    """
    page = Page(Paper(now=START, width=width))
    page.line("word " * 11 + "::stop-commands::token and more", indent=2)

    assert not [line for line in page.render().splitlines() if line.lstrip().startswith("::")]
