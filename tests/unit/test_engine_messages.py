"""
Lines of engine output as messages.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyProgress,
    ApplyStart,
    ChangeSummary,
    LogLine,
    Message,
    OutputChange,
    PlannedChange,
    ProvisionProgress,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.run_record import StateLock
from orchestrator.engine.messages import lock_holder, parse_line, parse_text

AT = datetime(2026, 11, 29, 10, 0, 0, 250000, tzinfo=UTC)
RESOURCE = {"addr": 'm_thing.a["hunter22"]', "resource_type": "m_thing"}
ADDRESS = RESOURCE["addr"]


def line(kind: str, **more: Any) -> str:
    head = {"@message": "text", "@timestamp": "2026-11-29T12:00:00.250000+02:00", "type": kind}
    return json.dumps(head | more)


def hook(kind: str, action: str, **more: Any) -> str:
    return line(kind, hook={"resource": RESOURCE, "action": action, **more})


def change(kind: str, action: str, **more: Any) -> str:
    return line(kind, change={"resource": RESOURCE, "action": action, **more})


CASES: list[tuple[str, tuple[Message, ...]]] = [
    (change("planned_change", "create"), (PlannedChange(ADDRESS, "create", "m_thing"),)),
    (
        change("planned_change", "replace", reason="tainted"),
        (PlannedChange(ADDRESS, "replace", "m_thing", "tainted"),),
    ),
    (
        change("planned_change", "update", importing={"id": "i-1"}),
        (PlannedChange(ADDRESS, "update", "m_thing", importing="i-1"),),
    ),
    (change("planned_change", "remove"), (PlannedChange(ADDRESS, "forget", "m_thing"),)),
    (change("planned_change", "move"), (PlannedChange(ADDRESS, "noop", "m_thing", "move"),)),
    (change("planned_change", "read"), ()),
    (change("planned_change", "noop"), ()),
    (change("resource_drift", "delete"), (ResourceDrift(ADDRESS, "delete", "m_thing"),)),
    (change("resource_drift", "move"), ()),
    (
        line("outputs", outputs={"a": {"action": "create"}, "b": {"action": "noop"}}),
        (OutputChange("a", "create"),),
    ),
    (line("outputs", outputs={"a": {"sensitive": False, "type": "string", "value": "x"}}), ()),
    (hook("apply_start", "create"), (ApplyStart(ADDRESS, "create", AT),)),
    (hook("apply_start", "update", id_value="i-1"), (ApplyStart(ADDRESS, "update", AT, "i-1"),)),
    (hook("apply_start", "read"), ()),
    (
        hook("apply_progress", "delete", elapsed_seconds=10),
        (ApplyProgress(ADDRESS, "delete", AT, 10.0),),
    ),
    (
        hook("apply_complete", "create", id_value="i-1"),
        (ApplyComplete(ADDRESS, "create", AT, "i-1"),),
    ),
    (hook("apply_complete", "read"), ()),
    (hook("apply_start", "frobnicate"), (ApplyStart(ADDRESS, "unknown", AT),)),
    (hook("apply_errored", "create"), (ApplyErrored(ADDRESS, "create", AT),)),
    (
        line(
            "change_summary",
            changes={"add": 1, "change": 2, "remove": 3, "operation": "apply", "import": 9},
        ),
        (ChangeSummary("apply", 1, 2, 3, imports=9),),
    ),
    (line("version", ui="1.3", terraform="1.15.5"), ()),
    (line("refresh_start"), ()),
    (hook("refresh_complete", "", id_value="i-1"), (RefreshComplete(ADDRESS, "i-1"),)),
    (hook("refresh_complete", ""), ()),
    (line("log"), (LogLine("text"),)),
    (line("a_type_of_tomorrow"), (LogLine("text"),)),
    (line("apply_start", hook={"of": "another shape"}), (LogLine("text"),)),
    ("Interrupt received.", (LogLine("Interrupt received."),)),
    ('["a", "list"]', (LogLine('["a", "list"]'),)),
    ("", ()),
]


@pytest.mark.parametrize(("text", "messages"), CASES)
def test_a_line_is_its_messages(text: str, messages: tuple[Message, ...]) -> None:
    """
    Only create, update and delete are counted; reads are not; what is not known is passed on.
    """
    assert parse_line(text).messages == messages


def test_a_diagnostic_keeps_address_and_place() -> None:
    """
    Of a diagnostic stay severity, summary, detail, address and file:line; never its snippet.
    """
    said = {
        "severity": "error",
        "summary": "creating",
        "detail": "refused",
        "address": ADDRESS,
        "range": {"filename": "main.tf", "start": {"line": 3, "column": 1}},
        "snippet": {"code": "hunter22"},
    }

    spoken = parse_line(line("diagnostic", diagnostic=said))

    assert spoken.messages == (
        Diagnostic(summary="creating", detail="refused", address=ADDRESS, at="main.tf:3"),
    )


def test_free_text_is_masked_and_addresses_are_not() -> None:
    """
    Diagnostics and provisioner lines are masked; the address that records are compared by is not.
    """
    said = {"severity": "warning", "summary": "hunter22", "detail": "hunter22", "address": ADDRESS}
    lines = [
        line("diagnostic", diagnostic=said),
        line("provision_progress", hook={"resource": RESOURCE, "output": "hunter22"}),
    ]

    spoken = [parse_line(item, lambda text: text.replace("hunter22", "***")) for item in lines]

    assert [item.messages[0] for item in spoken] == [
        Diagnostic(severity="warning", summary="***", detail="***", address=ADDRESS),
        ProvisionProgress(ADDRESS, "***"),
    ]


def test_a_newer_output_format_is_said() -> None:
    """
    Another major version of the output format is a warning: what follows may be misread.
    """
    (message,) = parse_line(line("version", ui="2.0")).messages

    assert isinstance(message, Diagnostic)
    assert message.severity == "warning"


def test_what_is_wrong_with_a_given_value_names_the_variable() -> None:
    """
    The file that a call is given its values in is gone with the call: no place in it is named.
    """
    said = {
        "severity": "error",
        "summary": "Invalid value for variable",
        "detail": "a must be less than 10",
        "range": {"filename": "/x/.scratch-1/m/inputs.tfvars.json", "start": {"line": 3}},
        "snippet": {"code": '"cfg": {', "start_line": 3},
    }
    (message,) = parse_line(line("diagnostic", diagnostic=said)).messages

    named = "Invalid value for variable: cfg"
    assert message == Diagnostic(summary=named, detail="a must be less than 10")


def test_plain_diagnostics_are_read_without_their_frames() -> None:
    """
    Several diagnostics, framed or not, wrapped summaries and code lines: only the words remain.
    """
    text = """
Error: Terraform encountered problems during initialisation, including problems
with the configuration, described below.

Nothing new here.

Error: A summary so long that it is wrapped
after some words

  with module.m.thing.a,
  on child/main.tf line 7, in resource "thing" "a":
   7:   size = "big"

The first line
and the second.

╷
│ Warning: Deprecated
│
│ Error: not a heading, part of a detail
╵
"""

    found = parse_text(text)

    assert found == (
        Diagnostic(
            summary="A summary so long that it is wrapped after some words",
            detail="The first line\nand the second.",
            address="module.m.thing.a",
            at="child/main.tf:7",
        ),
        Diagnostic(severity="warning", summary="Deprecated"),
        Diagnostic(summary="not a heading, part of a detail"),
    )


def test_text_without_diagnostics_has_none() -> None:
    """
    Chatter is no diagnostic.
    """
    assert parse_text("Initializing...\nError: in the middle of a paragraph\n") == ()


HELD = """Error message: {why}
Lock Info:
  ID:        b1141f07-067e
  Path:      {path}
  Operation: OperationTypeApply
  Who:       ann@host
  Version:   1.11.4
  Created:   2026-11-29 12:48:01.3 +0000 UTC
  Info:      

Terraform acquires a state lock"""


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            HELD.format(why="resource temporarily unavailable", path="terraform.tfstate"),
            "id b1141f07-067e, who ann@host, operation OperationTypeApply, "
            "created 2026-11-29 12:48:01.3 +0000 UTC",
        ),
        (
            HELD.format(why="StatusCode: 412, PreconditionFailed", path="bucket/key"),
            "id b1141f07-067e, who ann@host, operation OperationTypeApply, "
            "created 2026-11-29 12:48:01.3 +0000 UTC",
        ),
        (
            HELD.format(why="Workspace is already locked: default", path=""),
            "PostgreSQL advisory lock: it ends with the session that holds it",
        ),
        (
            HELD.format(why="HTTP remote state already locked: ID=holders-own", path=""),
            "id holders-own",
        ),
        (
            HELD.format(why="HTTP remote state already locked: ID=b1141f07-067e", path=""),
            "id b1141f07-067e, who ann@host, operation OperationTypeApply, "
            "created 2026-11-29 12:48:01.3 +0000 UTC",
        ),
        ("StatusCode: 412, no more is known", "StatusCode: 412, no more is known"),
    ],
)
def test_a_lock_diagnostic_names_the_holder(detail: str, said: str) -> None:
    """
    Id, who, operation and time in one line. PostgreSQL and the http backend of Terraform 1.11 tell
    the asker's own, which mislead: of these only what is the holder's is told.
    """
    locked = Diagnostic(summary="Error acquiring the state lock", detail=detail)

    assert str(lock_holder([Diagnostic(summary="other"), locked])) == said


@pytest.mark.parametrize(
    ("created", "since"),
    [
        ("2026-11-29 12:48:01.3 +0000 UTC", datetime(2026, 11, 29, 12, 48, 1, 300000, UTC)),
        ("2026-11-29T12:48:01.123456789Z", datetime(2026, 11, 29, 12, 48, 1, 123456, UTC)),
        ("2026-11-29T12:48:01Z", datetime(2026, 11, 29, 12, 48, 1, 0, UTC)),
        ("yesterday", None),
        (None, None),
    ],
)
def test_the_time_of_a_lock_is_known_only_where_it_is_one(
    created: str | None, since: datetime | None
) -> None:
    """
    The engine's own text of a time, in UTC to the microsecond; None for anything else.
    """
    assert StateLock(created=created).since == since


def test_no_lock_diagnostic_is_no_lock() -> None:
    """
    Other errors say nothing of a lock.
    """
    assert lock_holder([Diagnostic(summary="Saved plan is stale")]) is None


@pytest.mark.parametrize(
    "why",
    [
        "operation error S3: PutObject, StatusCode: 403, api error AccessDenied: Access Denied",
        "2 problems:\n\n- Unsupported state file format: The state file could not be parsed",
        "open /srv/state/.terraform.tfstate.lock.info: permission denied",
    ],
)
def test_a_lock_that_could_not_be_had_for_another_reason_is_held_by_nobody(why: str) -> None:
    """
    Without permission, or over a damaged state, waiting for a holder would be for ever.
    """
    detail = f"Error message: {why}\n\nTerraform acquires a state lock to protect the state"
    locked = Diagnostic(summary="Error acquiring the state lock", detail=detail)
    assert lock_holder([locked]) is None


def test_what_opentofu_says_of_an_import_of_what_it_has_is_understood() -> None:
    """
    In plain text on stderr, as it was recorded.
    """
    place = Path(__file__).parents[1] / "recordings/opentofu" / "import-twice.json"
    call = json.loads(place.read_text())["calls"][-1]
    (found,) = parse_text(call["stderr"])

    assert call["exit"] == 1
    assert found.summary == "Resource already managed by OpenTofu"
    assert found.detail.startswith("OpenTofu is already managing a remote object")
