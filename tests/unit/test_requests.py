"""
What a command was asked to do, from the command line to the run record.
"""

from __future__ import annotations

import inspect
from typing import Any

import click
import pytest

from orchestrator.app.run.request import (
    ApplyRequest,
    DestroyRequest,
    ImportSpec,
    ReconcileRequest,
    RunOptions,
)
from orchestrator.app.schedule import OnFailure
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.cli.main import COMMANDS, command_named
from orchestrator.cli.running import RunCall
from orchestrator.project import BlueprintSelection


def _run_commands() -> dict[str, tuple[click.Command, list[str]]]:
    """
    The commands that make a run, and the names of the options that are theirs alone.
    """
    found = {}
    for name in COMMANDS:
        command = command_named(name)
        assert command.callback is not None
        signature = inspect.signature(inspect.unwrap(command.callback), eval_str=False)
        if any(item.annotation == "RunCall" for item in signature.parameters.values()):
            own = [n for n, item in signature.parameters.items() if item.annotation != "RunCall"]
            found[name] = (command, own)
    return found


RUN_COMMANDS = _run_commands()


def test_the_commands_that_make_a_run_are_found() -> None:
    """
    The next test is about all of them.
    """
    assert {"apply", "destroy", "exec", "plan", "retry", "release"} <= RUN_COMMANDS.keys()


@pytest.mark.parametrize("name", RUN_COMMANDS)
def test_every_option_of_a_run_command_reaches_its_request(name: str) -> None:
    """
    Each option is a field of what the commands share, or a parameter of the command: none is parsed
    and dropped, and none is asked for that nobody can give.
    """
    command, own = RUN_COMMANDS[name]
    shared = {
        name
        for kind in (BlueprintSelection, RunOptions, PlanOptions, RunCall)
        for name in kind.__struct_fields__
    }
    given = {item.name for item in command.params}
    reports = {"markdown", "junit", "sarif", "json_file"} if "files" in own else set()
    assert given - shared - {"target"} == set(own) - {"files"} | reports


@pytest.mark.parametrize(
    ("request_", "arguments"),
    [
        (ApplyRequest(), {}),
        (ApplyRequest(options=RunOptions(at=0)), {"at": 0}),
        (
            ApplyRequest(
                options=RunOptions(
                    steps=("a+",),
                    on_failure=OnFailure.CONTINUE,
                    reason="kept beside the arguments",
                    jobs=9,
                    plan=PlanOptions(approved=True, refresh=False, targets=("x.y",)),
                ),
                unfinished=True,
            ),
            {
                "steps": ["a+"],
                "on_failure": "continue",
                "approved": True,
                "refresh": False,
                "targets": ["x.y"],
                "unfinished": True,
            },
        ),
        (
            ReconcileRequest(adopt=(ImportSpec("x.y", "i-1"),), push_errored_state=True),
            {"adopt": ["x.y=i-1"], "push_errored_state": True},
        ),
        (
            DestroyRequest(options=RunOptions(unavailable_secrets=("pw",)), repeat="again"),
            {"unavailable_secrets": ["pw"], "repeat": "again"},
        ),
    ],
)
def test_a_run_record_keeps_what_is_not_a_default(request_: Any, arguments: object) -> None:
    """
    The arguments of a run record are the fields of the request that somebody set, as JSON.
    """
    assert request_.arguments() == arguments
