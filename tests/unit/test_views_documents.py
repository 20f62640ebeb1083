"""
Documents and errors: what their JSON and their text promise.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pydantic import ValidationError

from orchestrator.domain.documents.documents import StoreCheck, StoreCheckDocument
from orchestrator.domain.documents.run import RunsDocument
from orchestrator.domain.documents.schemas import DOCUMENTS
from orchestrator.domain.documents.status import StatusDocument
from orchestrator.domain.record.run_record import NextCommand, StepRun
from orchestrator.domain.record.states import StepStatus, Verdict
from orchestrator.errors import EXIT_CODES, Refused
from orchestrator.views.errors import error_document, error_text
from orchestrator.views.formats import STATUS_STYLE, exit_meaning
from orchestrator.views.listings import check_text
from orchestrator.views.page import Paper
from orchestrator.views.runs import runs_text
from orchestrator.views.status import status_text
from orchestrator.views.summary import outcome_text, unoffered_hint
from tests.golden.samples import ERROR, ERRORS, NOW, OK, RUNNING, TEXTS, runs, status

MAJOR = {"plan": 2}  # those that are no longer at their first


@pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() - {"events"}))  # lines name their `type`
def test_a_document_is_named_in_its_schema(name: str) -> None:
    """
    The ``schema`` of a document holds its name and major version; its JSON Schema says so.
    """
    field = DOCUMENTS[name].model_json_schema(by_alias=True)["properties"]["schema"]
    assert field.get("const", field["default"]) == f"orchestrator.{name}/{MAJOR.get(name, 1)}"


def test_status_has_the_fields_of_the_contract() -> None:
    """
    These names are a contract.
    """
    document = json.loads(ERROR.to_json())
    assert document["schema"] == "orchestrator.status/1"
    assert {"project", "blueprint", "environment", "verdict", "steps", "orphaned"} <= set(document)
    assert {
        "step", "target", "status", "condition", "sequence", "run_id", "last_run_status",
        "module_ref", "active_command", "failed_command", "last_error", "blocked_by", "in_doubt",
        "outputs", "sensitive_outputs", "verification", "updated_at", "directory",
    } <= set(document["steps"][0])  # fmt: skip


def test_a_document_reads_back_as_itself() -> None:
    """
    What is written can be parsed, and nothing is lost.
    """
    assert StatusDocument.model_validate_json(ERROR.to_json()) == ERROR


def test_a_document_has_no_unknown_fields() -> None:
    """
    A misspelt field is an error where it is made, not a silent addition to the contract.
    """
    with pytest.raises(ValidationError):
        StatusDocument.model_validate({**ERROR.model_dump(by_alias=True), "verdicts": "ok"})


def test_outputs_of_an_earlier_run_name_it() -> None:
    """
    Field case 10: after a failed apply, outputs are told as known before, with run and time.
    """
    text = status_text(ERROR, Paper(now=NOW, width=160))
    line = next(line for line in text.splitlines() if "was known" in line)
    assert "url = " in line
    assert "from run 20260714-090000-a1b2 at 2026-07-14 09:12:00 UTC" in text


def test_a_failure_is_not_told_of_an_earlier_run_that_went_well() -> None:
    """
    A destroy without a marker, or a reconcile, may find an error: the run of the record is the
    apply before it.
    """
    (failed,) = [step for step in ERROR.steps if step.status is StepStatus.ERROR]
    later = failed.model_copy(
        update={"last_run_status": StepStatus.OK, "failed_command": "destroy"}
    )
    document = ERROR.model_copy(update={"steps": (later,)})

    said = " ".join(status_text(document, Paper(now=NOW, width=300)).split())

    assert f"; ok in run {failed.run_id}" in said
    both = document.model_copy(update={"steps": (later, later.model_copy(update={"step": "x"}))})
    assert "; ok in that run" in status_text(both, Paper(now=NOW, width=300)), "named on top"
    assert f"UTC), run {failed.run_id}" not in said


def test_a_sensitive_output_is_named_and_not_shown() -> None:
    """
    The reader learns that there is one.
    """
    assert "vpn_key (not shown)" in status_text(OK, Paper(now=NOW, verbose=True))


@pytest.mark.parametrize("word", ("LIVE", "INTERRUPTED", "SILENT", "waits on disk"))
def test_status_tells_what_is_not_settled(word: str) -> None:
    """
    A running record is told by its condition, a spooled outcome as such.
    """
    assert word in status_text(RUNNING, Paper(now=NOW, width=200))


def test_a_store_that_is_away_is_told_once() -> None:
    """
    Why a check failed is not repeated with those after it; times are.
    """
    why = "postgres://h/d: connection refused"
    checks = [StoreCheck(name=name, ok=False, message=why) for name in ("read", "write")]
    checks += [StoreCheck(name=name, ok=True, milliseconds=0.5) for name in ("a", "b")]
    document = StoreCheckDocument(url="postgres://h/d", ok=False, checks=tuple(checks))

    text = check_text(document, Paper(now=NOW))

    assert (text.count("connection refused"), text.count("the same")) == (1, 1)
    assert text.count("0.5 ms") == 2
    assert "docs/stores.md" in text


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_can_be_shown(verdict: Verdict) -> None:
    """
    The verdict stands on the first line.
    """
    text = status_text(status(verdict), Paper(now=NOW, color=True))
    assert verdict.replace("_", " ") in text.splitlines()[0].lower()
    assert verdict in STATUS_STYLE


@pytest.mark.parametrize("width", (60, 80, 100, 160, 200))
@pytest.mark.parametrize("name", TEXTS)
def test_text_keeps_to_the_width(name: str, width: int) -> None:
    """
    At the widths that people have no line is too long, but for a command.
    """
    text = TEXTS[name](Paper(now=NOW, width=width))
    assert [
        line for line in text.splitlines() if len(line) > width and "orchestrator " not in line
    ] == []


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {"recovery-verbose"}))
def test_no_command_is_offered_twice_on_a_screen(name: str) -> None:
    """
    Also where two actions come to the same; -v shows both.
    """
    lines = map(str.strip, TEXTS[name](Paper(now=NOW)).splitlines())
    commands = [line for line in lines if line.startswith("orchestrator ")]

    assert [line for line, times in Counter(commands).items() if times > 1] == []


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_and_what_next(name: str) -> None:
    """
    The text begins with ``error:`` and holds message, place and hint.
    """
    error = ERRORS[name]
    text = error_text(error, Paper(now=NOW, width=200))
    assert text.startswith("error: ")
    for problem in getattr(error, "problems", ()):
        assert problem.message in text
        assert str(problem.at or "") in text
    assert error.hint in text


def test_an_error_document_holds_the_exit_code() -> None:
    """
    A program gets the code, the exit code and the reason apart.
    """
    document = error_document(ERRORS["refused"], Paper(now=NOW))
    assert (document.code, document.exit_code, document.reason) == ("refused", 4, "dependents")


@pytest.mark.parametrize("row", EXIT_CODES, ids=lambda row: str(row.code))
def test_exit_codes_are_told_in_words(row: object) -> None:
    """
    The meaning is that of the documented table, without its markup.
    """
    code, meaning = row.code, row.meaning  # type: ignore[attr-defined]
    assert exit_meaning(code) == meaning.replace("`", "")


def test_no_document_holds_what_acts_on_a_terminal() -> None:
    """
    C1 controls, characters that turn the direction of text, and what a CI runner obeys anywhere in
    a line are escaped; the values are the same.
    """
    said = "a\x9b31mb\u202ec ##[add-mask]x ##vso[task.complete]y ##VSO[z]"
    document = error_document(Refused("upstream", said), Paper(now=NOW))

    assert "\x9b" not in document.to_json() and "\u202e" not in document.to_json()
    assert "##" not in document.to_json()
    assert json.loads(document.to_json())["message"] == said


def test_a_move_is_no_absence_of_changes() -> None:
    """
    What only got another address is counted.
    """
    row = StepRun(step="a", target="b/default/a", status=StepStatus.OK, moved=("x.new",))
    assert outcome_text(row) == "1 moved"


@pytest.mark.parametrize(
    ("hint", "left"),
    [
        ("restore it; if it is lost, `reconcile --rebuild-state` imports each", "restore it"),
        ("orchestrator reconcile shop --step web --rebuild-state", ""),
        ("if it is lost: --rebuild-state --reason WHY", ""),
        ("settle it first: orchestrator reconcile shop", ""),
        ("settle it first: orchestrator reconcile other", None),
        ("wait for it; orchestrator reconcile shop --step db --rebuild-state", None),
        (
            "look at it with `orchestrator reconcile`, then `destroy --skip-before-destroy WHY`",
            None,
        ),
    ],
)
def test_a_hint_does_not_repeat_what_is_offered(hint: str, left: str | None) -> None:
    """
    A part that names an offered command goes; one for another step, or with other options, stays.
    """
    command = "orchestrator reconcile shop --step web --at 2 --rebuild-state --reason WHY"

    assert unoffered_hint(hint, [NextCommand(command=command, why="")]) == (
        hint if left is None else left
    )


def test_who_made_all_the_runs_is_said_once() -> None:
    """
    On a machine of one person every line would end with the same name, and wrap for it.
    """
    document = runs()
    (mine,) = (run for run in document.runs if run.command == "destroy")
    alone = RunsDocument(project="acme", runs=(mine, mine))

    assert runs_text(document, Paper(now=NOW, width=160)).count("by kim@laptop") == 2
    assert runs_text(alone, Paper(now=NOW, width=160)).splitlines()[0] == "all by kim@laptop"
    assert runs_text(alone, Paper(now=NOW, width=160)).count("kim@laptop") == 1


def test_a_run_of_several_steps_is_named_once() -> None:
    """
    Further steps name the step that told it.
    """
    text = status_text(ERROR, Paper(now=NOW, width=160))
    (told,) = {step.run_id for step in ERROR.steps if step.step == "network"}

    assert text.count(f"run {told}") == 1
    assert "run of network" in text
