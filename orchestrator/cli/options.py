"""
The options that commands share, and the values they make.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.domain.target import Target
    from orchestrator.project import ProjectContext


Function = TypeVar("Function", bound=Callable[..., Any])


def _stack(*decorators: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def apply(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


class _NonEmptyText(click.ParamType[str]):
    """
    A required text, such as a reason; it cannot be empty.
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail("it must not be empty", param, ctx)
        return str(value)


NON_EMPTY = _NonEmptyText()


def because(name: str, text: str, *, to: str | None = None) -> Callable[[Function], Function]:
    """
    Return an option that allows something and takes the reason for it; ``to`` is its parameter.
    """
    names = (name,) if to is None else (name, to)
    return click.option(
        *names, metavar="REASON", type=NON_EMPTY, allow_from_autoenv=False, help=text
    )


def parse_target(text: str) -> Target:
    """
    Return the target that an argument names. Raises Usage if it names none.
    """
    from orchestrator.domain.target import Target
    from orchestrator.errors import Usage

    try:
        return Target.parse(text)
    except ValueError as exc:
        raise Usage(str(exc), hint="`orchestrator status --all` lists the targets") from exc


blueprint = click.argument("blueprint", metavar="BLUEPRINT")

environment = click.option(
    "-e",
    "--env",
    "--environment",
    "environment",
    metavar="NAME",
    envvar="ORCHESTRATOR_ENVIRONMENT",
    help="The environment; required if the blueprint declares some and no `default`.",
)

inputs = _stack(
    click.option(
        "-i",
        "--var",
        "variables",
        metavar="NAME=VALUE",
        multiple=True,
        help="The value of an input; may be repeated.",
    ),
    click.option(
        "--input-file",
        "--var-file",
        "input_files",
        type=click.Path(path_type=Path, dir_okay=False),
        multiple=True,
        help="Values of inputs: YAML, JSON, .tfvars or .tfvars.json.",
    ),
)

selection = _stack(
    click.option(
        "-s",
        "--step",
        "steps",
        metavar="STEP",
        multiple=True,
        help="Only these steps; STEP+ with dependents, +STEP with upstreams, globs.",
    ),
    click.option("--exclude", metavar="STEP", multiple=True, help="All except these steps."),
)

steps_named = click.option(
    "-s",
    "--step",
    "steps",
    metavar="STEP",
    multiple=True,
    required=True,
    help="These steps; may be repeated.",
)

engine = click.option(
    "--engine",
    type=NON_EMPTY,
    metavar="PATH|terraform|tofu|embedded",
    envvar="ORCHESTRATOR_ENGINE",
    help="The engine; `orchestrator engine info` shows which is used and why.",
)

allow_engine_change = click.option(
    "--allow-engine-change",
    is_flag=True,
    allow_from_autoenv=False,
    help="Allow another kind of engine to take over provider state.",
)

json_lines = click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text.")
json_document = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
verbose = click.option("-v", "--verbose", is_flag=True, help="More details.")
reason = click.option(
    "--reason", metavar="TEXT", type=NON_EMPTY, help="The reason; kept in the run record."
)
request_token = click.option(
    "--request-token",
    metavar="TOKEN",
    type=NON_EMPTY,
    envvar="ORCHESTRATOR_REQUEST_TOKEN",
    help="An id of this request, such as that of a CI pipeline. A repeated request returns the run "
    "that it made before; runs with the same token and other steps may run concurrently.",
)
at = click.option(
    "--at",
    type=click.IntRange(0),
    metavar="SEQUENCE",
    allow_from_autoenv=False,
    help="Only if this is still the newest entry of the step, as `recover` printed it.",
)


class _Seconds(click.ParamType[float]):
    """
    A duration such as 30s or 1h30m, as in settings, in seconds.
    """

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from orchestrator.domain.text import seconds

        try:
            return seconds(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


wait_for_run = click.option("--wait", is_flag=True, help="Wait for a live run instead of failing.")
wait = _stack(
    wait_for_run,
    click.option(
        "--store-grace",
        type=_Seconds(),
        metavar="DURATION",
        envvar="ORCHESTRATOR_STORE_GRACE",
        help="How long an outcome waits for an unavailable operation store, such as 5m; then it "
        "is spooled on this machine.",
    ),
)
takeover = because(
    "--takeover",
    "Take over from a run without a recent heartbeat that cannot be proven dead from here.",
)

jobs = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    envvar="ORCHESTRATOR_JOBS",
    help="Maximum number of concurrent steps.",
)

confirm = click.option(
    "--confirm",
    metavar="NAME",
    allow_from_autoenv=False,
    help="The name of a protected environment.",
)

approval = _stack(
    click.option(
        "-y",
        "--yes",
        "--auto-approve",
        "approved",
        is_flag=True,
        allow_from_autoenv=False,
        help="Approve the plan; required without a terminal.",
    ),
    confirm,
)


approved_plan = _stack(
    click.option(
        "--plan",
        "plan_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        allow_from_autoenv=False,
        help="An approved plan written by `plan --out`: apply that and nothing else.",
    ),
    click.option(
        "--approve-only",
        metavar="STEP",
        multiple=True,
        allow_from_autoenv=False,
        help="With --plan: only these steps of it; may be repeated.",
    ),
    click.option(
        "--max-age",
        metavar="DURATION",
        type=_Seconds(),
        help="With --plan: refuse an older approval, such as 2h.",
    ),
)

_ENGINE_DURATION = r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+|0"


class _EngineDuration(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(_ENGINE_DURATION, str(value)):
            self.fail(f"{value!r} is no duration such as 5m or 1m30s", param, ctx)
        return str(value)


lock_timeout = click.option(
    "--lock-timeout",
    type=_EngineDuration(),
    metavar="DURATION",
    help="How long the engine waits for a state lock, such as 5m.",
)

engine_passthrough = _stack(
    click.option("--parallelism", type=click.IntRange(1), help="The engine's own parallelism."),
    lock_timeout,
    click.option(
        "--refresh",
        type=bool,
        default=True,
        metavar="BOOL",
        help="Whether the engine refreshes, as with Terraform: --refresh=false.",
    ),
)


def on_failure(otherwise: str) -> Callable[[Function], Function]:
    """
    Return the option for what to do after a failure; ``otherwise`` says what continues.
    """
    return click.option(
        "--on-failure",
        type=click.Choice(["stop", "continue"]),
        default="stop",
        help=f"After a failure, start nothing more or {otherwise}.",
    )


accept_changed_secret = click.option(
    "--accept-changed-secret",
    metavar="NAME",
    multiple=True,
    allow_from_autoenv=False,
    help="Accept that this secret has changed since that run.",
)

orphaned = click.option(
    "--orphaned",
    is_flag=True,
    allow_from_autoenv=False,
    help="Live steps that were removed from the blueprint, as they were applied.",
)

accept_vanished = because(
    "--accept-vanished", "Continue although every recorded object has vanished."
)

accept_adopted = because(
    "--accept-adopted",
    "Also destroy or replace adopted objects that are not proven ours.",
)


accept_replaced = because(
    "--accept-replaced",
    "Let a hook's module replace or delete what it made before the last apply.",
)

override_policy = because(
    "--override-policy",
    "Override the blueprint's `policy`; the reason is recorded.",
)

#: The blueprint, environment, inputs and steps of a command.
of_blueprint = _stack(blueprint, environment, inputs, selection)

#: The engine and its options.
by_engine = _stack(engine, allow_engine_change, engine_passthrough)

#: The options of every command that makes a run.
run = _stack(at, wait, takeover, reason, verbose, json_lines)

#: How an earlier run is done again, whichever way.
rerun = _stack(
    on_failure("continue where nothing upstream failed"),
    approval,
    jobs,
    by_engine,
    accept_vanished,
    accept_adopted,
    override_policy,
    request_token,
    run,
)

# The steps that a change touches, as options say which change.


affected_options = _stack(
    click.option(
        "--changed-since",
        metavar="REF",
        type=NON_EMPTY,
        help="Only steps whose files or part of the blueprint changed since this git revision, "
        "including uncommitted changes, and their dependents.",
    ),
    click.option(
        "--affected-by",
        metavar="FILE",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Only steps that this file affects, and their dependents; may be repeated.",
    ),
)


def affected(
    project: ProjectContext,
    deployment: Deployment,
    changed_since: str | None,
    affected_by: tuple[Path, ...],
) -> Mapping[str, tuple[str, ...]] | None:
    """
    Return the steps that a change affects, with the reasons; None if no change was named.
    """
    from orchestrator.errors import Usage
    from orchestrator.loading import affected_steps

    if changed_since is None and not affected_by:
        return None
    if changed_since is not None and affected_by:
        raise Usage("--changed-since and --affected-by both say what changed: give one of them")
    if changed_since is not None:
        return affected_steps.affected_since(changed_since, deployment)
    files = [project.directory / file for file in affected_by]
    return affected_steps.affected_by(files, deployment)
