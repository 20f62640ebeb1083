"""
Shared code of the commands that make a run.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar

import click
from click.core import ParameterSource
from msgspec import Struct

from orchestrator.cli.invocation import MAKES_RUN, GroupedView, Invocation, folds, is_interactive
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid

if TYPE_CHECKING:
    from orchestrator.app.run.request import RunOptions, RunRequest
    from orchestrator.app.services import Services
    from orchestrator.domain.blueprint.blueprint import BlueprintSummary, Deployment
    from orchestrator.domain.plan.approval import Approval
    from orchestrator.loading.inputs import InputPolicy
    from orchestrator.project import BlueprintSelection, ProjectContext


Request = TypeVar("Request", bound="RunRequest")
UseCase = Callable[["Services", "Deployment", Request], int]
Value = TypeVar("Value", bound=Struct)


class RunCall(Struct, frozen=True, kw_only=True):
    """
    One call of a command that makes a run: project, blueprint, options, engine and output.
    """

    invocation: Invocation
    project: ProjectContext
    selection: BlueprintSelection
    options: RunOptions
    engine: str | None
    verbose: bool
    as_json: bool
    store_grace: float | None


def run_command(function: Callable[Concatenate[RunCall, ...], int]) -> Callable[..., int]:
    """
    Make a Click callback of a function that takes the shared options as a `RunCall` and its own
    options by name.
    """

    @functools.wraps(function)
    def callback(invocation: Invocation, /, **values: Any) -> int:
        call = _take_call(invocation, values)
        try:
            return function(call, **values)
        except Invalid as exc:
            from orchestrator.cli.reports import annotate_problems

            annotate_problems(exc.problems, call.project.project_dir, call.project.environ)
            raise

    return click.pass_obj(callback)


def _take_call(invocation: Invocation, values: dict[str, Any]) -> RunCall:
    """
    Remove the shared options from the values that Click parsed, and return them.
    """
    from orchestrator.app.run.request import RunOptions
    from orchestrator.app.schedule import OnFailure
    from orchestrator.app.steps.engine_plan import PlanOptions
    from orchestrator.project import BlueprintSelection

    project = invocation.project()
    if "target" in values:
        values |= _target_options(project, values.pop("target"))
    if "on_failure" in values:
        values["on_failure"] = OnFailure(values["on_failure"])
    selection = _take(BlueprintSelection, values)
    options = replace(
        _take(RunOptions, values),
        plan=_take(PlanOptions, values),
        jobs=values.pop("jobs", None) or project.settings.jobs,
        inputs_given=bool(selection.variables or selection.input_files),
    )
    selection = replace(selection, engine_option=options.engine)
    engine = options.engine
    source = click.get_current_context().get_parameter_source("engine")
    if source is not ParameterSource.COMMANDLINE:
        options = replace(options, engine=None)  # the environment says it again next time
    return RunCall(
        invocation=invocation,
        project=project,
        selection=selection,
        options=options,
        engine=engine,
        verbose=values.pop("verbose"),
        as_json=values.pop("as_json", False),
        store_grace=values.pop("store_grace", None),
    )


def _take(kind: type[Value], values: dict[str, Any]) -> Value:
    names = set(kind.__struct_fields__) & values.keys() - {"jobs"}
    return kind(**{name: values.pop(name) for name in names})


def _target_options(project: ProjectContext, text: str) -> dict[str, Any]:
    """
    Return the options for the blueprint, environment and step of a target. Raises Usage if ``text``
    is no target. A blueprint that is not under ``blueprints/`` is found by the path in its record.
    """
    from orchestrator import composition
    from orchestrator.cli.options import parse_target
    from orchestrator.loading.summary import blueprint_reference

    target = parse_target(text)
    open_store = functools.partial(composition.open_store, project)
    blueprint = blueprint_reference(project, target, open_store)
    return {
        "blueprint": blueprint,
        "environment": target.environment,
        "steps": (target.step,),
    }


@contextmanager
def reading_services(
    invocation: Invocation,
    project: ProjectContext,
    deployment: Deployment,
    *,
    engine: str | None,
    current_modules: bool = False,
    records: bool = False,
) -> Iterator[Services]:
    """
    Yield the services of a command that runs an engine but makes no run: it never asks, and shows
    only notes. ``current_modules`` is true if the modules are those of the project, not recorded
    ones, ``records`` if the command writes records.
    """
    from orchestrator import composition
    from orchestrator.cli.approval import NoApprover

    with (
        StopSignals().installed() as stop,
        composition.open_services(
            project,
            deployment,
            engine=engine,
            sink=invocation.quiet_sink(),
            stop=stop,
            approver=NoApprover(),
            current_modules=current_modules,
            records=records,
        ) as services,
    ):
        _end_startup()
        yield services


def _end_startup() -> None:
    """
    Enable garbage collection, excluding the objects that start-up has created.
    """
    gc.freeze()
    gc.enable()


def recorded_summary(
    project: ProjectContext, blueprint: str, environment: str | None
) -> BlueprintSummary:
    """
    Return the blueprint in an environment for commands that only read records; it need not exist
    any more.
    """
    from orchestrator.loading.summary import load_summary
    from orchestrator.project import BlueprintSelection

    selection = BlueprintSelection(blueprint, environment)
    try:
        return load_summary(project, selection)
    except Invalid:
        from orchestrator import composition
        from orchestrator.loading.orphans import gone_deployment  # only where something is wrong

        open_store = functools.partial(composition.open_store, project)
        gone = gone_deployment(project, selection, open_store)
        if gone is None:
            raise
        return gone


def load(call: RunCall, need: InputPolicy, *, whole: bool = False) -> Deployment:
    """
    Return the blueprint, or with ``--orphaned`` its orphans, ``whole`` or only what a destroy
    needs.
    """
    from orchestrator import composition
    from orchestrator.loading.deployment import load_deployment

    if not call.options.orphaned:
        return load_deployment(call.project, call.selection, need)
    from orchestrator.loading.orphans import deployment_with_orphans

    open_store = functools.partial(composition.open_store, call.project)
    return deployment_with_orphans(call.project, call.selection, open_store, whole=whole)


def load_and_run(call: RunCall, request: Request, use_case: UseCase[Request]) -> int:
    """
    Load the blueprint, run the request and return the exit code.
    """
    from orchestrator.loading.inputs import InputPolicy

    need = InputPolicy.REQUIRED if request.uses_current else InputPolicy.AVAILABLE
    deployment = load(call, need, whole=request.verb in ("exec", "reconcile"))
    return run_use_case(call, request, use_case, deployment, current_modules=request.uses_current)


def run_use_case(
    call: RunCall,
    request: Request,
    use_case: UseCase[Request],
    deployment: Deployment,
    *,
    current_modules: bool = True,
    warning: str = "",
) -> int:
    """
    Run the request on a loaded deployment and return the exit code. ``warning`` is about how it was
    loaded.
    """
    from orchestrator import composition
    from orchestrator.cli.approval import TerminalApprover
    from orchestrator.views.events import JsonLinesView

    click.get_current_context().meta[MAKES_RUN] = True
    options = request.options
    asks = request.needs_approval and not options.plan.approved and not call.as_json
    interactive = asks and is_interactive()
    confirm = options.confirm
    names = request.needs_confirmation and not (request.mutates or call.as_json)
    may_ask = interactive or (names and is_interactive())
    if may_ask and deployment.protected and confirm is None:
        question = f"{deployment.environment} is protected. Type its name to {request.verb}"
        confirm = click.prompt(question, err=True)
    request = replace(
        request,
        options=replace(
            options,
            interactive=interactive,
            confirm=confirm,
            plan=replace(
                options.plan,
                values=options.plan.values
                or interactive
                or call.verbose
                or not deployment.policy.empty,
            ),
        ),
    )
    view = call.invocation.view(json=call.as_json, verbose=call.verbose)
    human = None if isinstance(view, JsonLinesView) else view
    hold = nullcontext if human is None else human.hold
    sink = GroupedView(human) if human is not None and folds() else view
    where = f"{deployment.blueprint}/{deployment.environment}"
    with (
        StopSignals().installed() as stop,
        composition.open_services(
            call.project,
            deployment,
            engine=call.engine,
            sink=call.invocation.logged(sink),
            stop=stop,
            approver=TerminalApprover(stop, where, hold=hold, verbose=call.verbose),
            current_modules=current_modules,
            store_grace=call.store_grace,
        ) as services,
    ):
        _end_startup()
        if warning:
            services.note(warning, level="warning")
        return use_case(services, deployment, request)


# SIGINT, SIGTERM and SIGHUP while a run goes on: counted here, acted on by those who look.


class StopSignals:
    """
    Implements `orchestrator.ports.system.StopToken`.

    CI systems send SIGINT and then SIGTERM: a second signal of the other kind is only noted. A
    person who wants to kill the engine presses Ctrl-C three times.
    """

    def __init__(self) -> None:
        self._first = 0
        self._interrupts = 0

    @property
    def stopping(self) -> bool:
        return self._first != 0

    @property
    def killing(self) -> bool:
        return self._interrupts >= 3

    @property
    def exit_code(self) -> int:
        return 128 + self._first if self._first else 0

    def note(self, number: int, _: FrameType | None) -> None:
        """
        Handle a signal: only count it, because the handler may interrupt anything.
        """
        self._first = self._first or number
        if number == signal.SIGINT:
            self._interrupts += 1

    @contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """
        Handle signals while the body runs. SIGHUP is ignored: a closed terminal is no reason to
        stop a mutation. After a signal has stopped the run, signals are ignored until the process
        ends, so that its exit code tells how.
        """
        before = {
            number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.stopping else handler)


# Approvals as files: what ``plan --out`` writes, and ``apply --plan`` and ``destroy --plan``
# read.


def with_approval(call: RunCall, file: Path | None, approve_only: tuple[str, ...]) -> RunCall:
    """
    Return the call with the approval in a file, which names blueprint and environment. Raises Usage
    if options contradict it, Invalid if the file is no approval.
    """
    from orchestrator.errors import Usage

    options = call.options
    if file is None:
        if approve_only or options.max_age is not None:
            raise Usage("--approve-only and --max-age go with --plan")
        return call
    if options.steps or options.exclude:
        raise Usage("--plan selects the steps; --approve-only selects some of them")
    approval = _read(call.project.directory / file)
    names = [item.step for item in approval.steps]
    unknown = [name for name in approve_only if name not in names]
    if unknown:
        from orchestrator.domain.text import did_you_mean

        hint = did_you_mean(unknown[0], names)
        raise Usage(f"the approval has no step {unknown[0]!r}", hint=hint)
    plan = replace(
        options.plan,
        approval=approval,
        approved=True,
        values=True,
        replace=options.plan.replace or approval.replace,
        targets=options.plan.targets or approval.targets,
    )
    return replace(call, options=replace(options, steps=approve_only or tuple(names), plan=plan))


def approval_place(directory: Path, file: Path | None) -> Path | None:
    """
    Return where an approval is to be written. Raises Usage, before anybody waits for a plan, if
    that cannot be.
    """
    from orchestrator.errors import Usage

    if file is None:
        return None
    path = directory / file
    try:
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:  # its name is too long
        writable = False
    if not writable:
        raise Usage(f"{path} cannot be written", hint="name a file in a directory that exists")
    return path


def write_approval(path: Path, approval: Approval) -> None:
    """
    Write an approval. Raises Usage if that fails.
    """
    from orchestrator.errors import Usage
    from orchestrator.local_files import write_file

    try:
        write_file(path, approval.to_json() + "\n")
    except OSError as exc:
        raise Usage(f"{path} cannot be written: {exc.strerror}") from exc


def _read(path: Path) -> Approval:
    from pydantic import ValidationError

    from orchestrator.domain.plan.approval import Approval
    from orchestrator.errors import Invalid, Problem
    from orchestrator.local_files import read_regular

    hint = "give the file that `orchestrator plan --out FILE` wrote"
    try:
        return Approval.model_validate_json(read_regular(path))
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no approval"
        if isinstance(exc, ValidationError) and exc.errors()[0]["loc"] == ("schema",):
            why = "it is no orchestrator.approval/1"
        raise Invalid([Problem(f"{path}: {why}", hint=hint)]) from exc
