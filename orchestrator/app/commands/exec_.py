"""
``exec``: an engine command in a target's directory, with its inputs and environment.

A read-only command leaves no trace; one that may change provider state is surgery, with a marker.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from orchestrator.app.run.prepared_steps import PreparedSteps, recorded_module, steps_to_read
from orchestrator.app.run.request import ExecRequest
from orchestrator.app.run.run import run
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.schedule import Outcome
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import (
    call_spec,
    learn_secrets,
    mask_by_digest,
    pull,
    write_variables,
)
from orchestrator.app.steps.preparation import PreparedStep, recorded_inputs_text
from orchestrator.app.surgery.state_operation import (
    nothing_there,
    operate,
    report_operation,
)
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.inputs import read_recorded_inputs
from orchestrator.domain.engine_commands import EngineCommand
from orchestrator.domain.events.events import EngineLine, LogLine, Message
from orchestrator.domain.masking import MARK
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.errors import Busy, EngineFailed, Refused
from orchestrator.ports.engine import CallResult, Exec


def execute(services: Services, deployment: Deployment, request: ExecRequest) -> int:
    """
    Run an engine command that may change provider state, in a run, and return the exit code.
    """
    return run(services, deployment, request, _work)


def look(
    services: Services,
    deployment: Deployment,
    step: str,
    command: EngineCommand,
    *,
    say: Callable[[str], None],
    say_error: Callable[[str], None],
) -> int:
    """
    Run a read-only command, pass its masked output on line by line, and return the exit code: 0, 2
    if a plan with -detailed-exitcode has changes, 20 for a locked state, else 10.
    """

    def observe(message: Message) -> None:
        if isinstance(message, LogLine):
            say(message.line)

    with steps_to_read(services, deployment, jobs=1, allow_engine_change=False) as steps:
        prepared, evidence = steps.prepare(step, recorded_module), steps.evidence(step)
        state = _state(services, prepared, evidence)
        if command.prints_values and state is not None:
            check_maskable(steps, prepared, state)
        options, var_file = ["-no-color"], evidence / "inputs.tfvars.json"
        if command.takes_variables:
            inputs = steps.values.recorded_inputs(prepared)
            values = {**inputs.values, **prepared.work_dir.variables}
            write_variables(services, var_file, values)
            options.append(f"-var-file={var_file}")
        spec = call_spec(services, prepared.work_dir, evidence, "exec", delete_after=(var_file,))
        result = services.engine.call(
            Exec(command.words(*options)), spec, stop=services.stop, observe=observe
        )
    if result.stderr_text.strip():
        say_error(result.stderr_text.rstrip("\n"))
    return _code(services, command, result)


def _state(services: Services, prepared: PreparedStep, evidence: Path) -> PulledState | None:
    """
    Return the provider state, None if it cannot be read; its secrets are masked from here on.
    """
    with suppress(EngineFailed, Busy):
        state = pull(services, prepared.work_dir, evidence, "pull")
        for value in state.secrets:
            services.masker.add(value)
        return state
    return None


def _code(services: Services, command: EngineCommand, result: CallResult) -> int:
    if services.stop.stopping:
        return services.stop.exit_code
    if result.exit_code == 0:
        return 0
    if result.exit_code == 2 and "-detailed-exitcode" in command.rest:
        return 2
    return Busy.exit_code if result.lock is not None else EngineFailed.exit_code


def _work(runner: CommandRunner[ExecRequest], selected: Sequence[str]) -> None:
    runner.run(selected, partial(_execute_in, runner))


def _execute_in(runner: CommandRunner[ExecRequest], name: str) -> Outcome:
    command = EngineCommand.parse(runner.request.words)
    runner.check_saved(name)
    prepared = runner.steps.prepared[name]
    record, target = prepared.record, prepared.target
    if record is None or record.status in NOTHING_THERE:
        hint = f"`orchestrator import {shlex.quote(str(target))} ADDRESS ID`"
        hint = f"take an existing object in with {hint}"
        raise nothing_there(f"{target}: there is nothing to work on", record, hint)
    inputs = runner.steps.values.recorded_inputs(prepared) if command.takes_variables else None

    def request(file: Path) -> Exec:
        variables = (f"-var-file={file}",) if inputs is not None else ()
        return Exec(command.words("-no-color", *variables))

    result = operate(
        runner,
        name,
        command="exec",
        shown=f"{prepared.engine.kind} {' '.join(command.words())} (it may change provider state)",
        request=request,
        inputs=inputs,
        check=partial(_check, command, runner, prepared),
        observe=partial(_emit_line, runner, name),
    )
    return report_operation(runner, name, result, f"{command.name} done")


def _check(
    command: EngineCommand, runner: StepRunner, prepared: PreparedStep, state: PulledState
) -> None:
    """
    Raise Refused if the output could not be masked, or if a masked state that we printed is pushed:
    it has lost its secrets.
    """
    if command.prints_values:
        check_maskable(runner.steps, prepared, state)
    if command.name != "state push" or not command.rest:
        return
    with suppress(OSError):
        if MARK.encode() in Path(command.rest[-1]).read_bytes():
            raise Refused(
                "not_by_exec",
                f"{command.rest[-1]} holds masked values ({MARK}): pushed, the real ones were lost",
                hint="pull the state with the engine itself, in the directory that `orchestrator "
                "status -v` shows",
            )


def _emit_line(runner: StepRunner, name: str, message: Message) -> None:
    if isinstance(message, LogLine):
        at = runner.services.clock.now()
        runner.services.sink.emit(EngineLine(at=at, step=name, line=message.line))


def check_maskable(steps: PreparedSteps, prepared: PreparedStep, state: PulledState) -> None:
    """
    Mask the secrets in what the target was applied with and in its provider state from here on.

    Raises Refused if a secret of the last apply is neither available nor found by its digest.
    """
    if not state.objects and not state.outputs:
        return
    services = steps.services
    history = services.store.history(prepared.target)
    texts = (recorded_inputs_text(services, entry) for entry in _since_complete(history))
    documents = list(dict.fromkeys(filter(None, texts)))
    unknown = [_not_at_hand(steps, prepared, text) for text in documents]
    masked = mask_by_digest(services, state, {name for names in unknown for name in names})
    learn_secrets(steps.services.masker, state, prepared.record)
    missing = (
        {origin for name, origin in unknown[0].items() if name not in masked} if unknown else ()
    )
    if missing:
        raise Refused(
            "secret_not_at_hand",
            f"{prepared.target}: withheld, for it could show what was given as "
            f"{', '.join(sorted(missing))}: the value is not available and its digest finds it "
            "nowhere in the provider state, so nothing can mask it",
            hint="give the secret as for the apply, or use the engine itself in the directory that "
            "`orchestrator status -v` shows",
        )


def _since_complete(history: list[OperationRecord]) -> Iterator[OperationRecord]:
    """
    Yield the entries, newest first, that values in the provider state may come from: back to the
    last complete apply.
    """
    for entry in history:
        yield entry
        if entry.status is Status.OK:
            return


def _not_at_hand(steps: PreparedSteps, prepared: PreparedStep, text: bytes) -> Mapping[str, str]:
    """
    Return the names of the secrets, by digest, in a document of recorded inputs that have changed
    or are unknown now. Unchanged ones are masked from here on.
    """
    recorded = read_recorded_inputs(text, partial(steps.values.secret_at_hand, prepared.step))
    return recorded.other_secrets(recorded.values, steps.services.key)
