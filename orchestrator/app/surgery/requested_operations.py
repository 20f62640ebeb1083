"""
The surgery that ``reconcile`` was asked for, per step, before it gathers evidence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from orchestrator.app.run.request import ImportSpec, ReconcileRequest
from orchestrator.app.run.step_runner import CommandRunner, StepRunner
from orchestrator.app.steps.engine_calls import pull
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.steps.provider_query import read_state_file
from orchestrator.app.surgery.imports import import_object, import_together, rebuild_state
from orchestrator.app.surgery.state_locks import check_breakable, state_lock_error
from orchestrator.app.surgery.state_operation import (
    approve,
    operate,
)
from orchestrator.domain.provider_state import PulledState, is_encrypted
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.text import count
from orchestrator.domain.transitions.doubts import settling_seconds_left
from orchestrator.domain.transitions.surgery import same_content
from orchestrator.errors import ApprovalMissing, Invalid, Problem, Refused
from orchestrator.ports.engine import Push, Unlock, Untaint


def check_requested_operations(
    runner: CommandRunner[ReconcileRequest], steps: Sequence[str]
) -> None:
    """
    Raise Invalid or Refused if ``reconcile`` cannot do the requested operations on these steps, or
    if a reason is missing. Their records are settled.
    """
    request = runner.request
    records = {s: r for s in steps if (r := runner.steps.records.get(s)) is not None}
    for value, option, done in (
        (request.forget, "--forget", "forgotten"),
        (request.unlock, "--unlock", "released"),
    ):
        if value and not request.options.reason:
            raise Refused(
                "reason_missing",
                f"{option} needs a reason",
                hint=f"add --reason 'why it may be {done}'",
            )
    doubts = {step: record.resources.in_doubt for step, record in records.items()}
    missing = {  # what an import could fill
        step: [doubt.address for doubt in found if doubt.action in ("create", "forget")]
        for step, found in doubts.items()
    }
    problems = [
        *_misplaced_problems(
            {step: [doubt.address for doubt in found] for step, found in doubts.items()},
            request.forget,
            "in doubt",
        ),
        *_misplaced_problems(missing, [item.address for item in request.adopt], "in doubt"),
        *_misplaced_problems(
            {step: record.resources.tainted for step, record in records.items()},
            request.untaint,
            "tainted",
        ),
    ]
    if problems:
        raise Invalid(problems)
    services = runner.services
    check_settled(
        records.values(),
        _forgotten_addresses(request),
        at=services.clock.now(),
        settle=services.limits.settle,
    )
    if request.unlock and len(steps) != 1:
        named = ", ".join(steps) or "none"
        raise Invalid(
            [Problem(f"--unlock is for one step, not {named}", hint="name it with --step")]
        )
    errored = request.push_errored_state or request.dismiss_errored_state
    if request.push_errored_state and request.dismiss_errored_state:
        raise Invalid([Problem("errored.tfstate is either pushed or dismissed, not both")])
    if errored and not any(_errored_state_file(runner, step) for step in steps):
        raise Refused(
            "no_errored_state",
            "no provider state waits to be saved: there is no errored.tfstate",
        )


def _forgotten_addresses(request: ReconcileRequest) -> tuple[str, ...]:
    """
    Return the addresses whose object the user forgets without adopting another in the same command.
    """
    adopted = {item.address for item in request.adopt}
    return tuple(address for address in request.forget if address not in adopted)


def check_settled(
    records: Iterable[OperationRecord], forgotten: Collection[str], *, at: datetime, settle: float
) -> None:
    """
    Raise Refused if the user forgets an object (law: evidence before a person's word) while a
    request of the call that left it in doubt may still be under way.
    """
    waiting = {
        doubt.address: seconds
        for record in records
        for doubt in record.resources.in_doubt
        if doubt.address in forgotten and doubt.action != "forget"
        for seconds in [settling_seconds_left(doubt, record, at, settle)]
        if seconds > 0
    }
    if waiting:
        raise Refused(
            "settling",
            f"a request for {', '.join(waiting)} may still be under way: its absence cannot "
            "be confirmed yet",
            hint=f"ask again in {math.ceil(max(waiting.values()))} s",
        )


def run_requested_operations(
    runner: CommandRunner[ReconcileRequest], name: str
) -> StepResult | None:
    """
    Run the requested operations on a step. Returns the result of the last one, which is the first
    that failed, if any; None if there was nothing to do.
    """
    result: StepResult | None = None
    for result in _requested_operations(runner, name):
        if result is not None and result.fault is not None:
            break
    return result


def _requested_operations(
    runner: CommandRunner[ReconcileRequest], name: str
) -> Iterator[StepResult | None]:
    """
    Run the operations in the order in which one enables the next: the lock, the unsaved state, the
    objects. Yields the result of each; after a failed one, the next must not run.
    """
    request, record = runner.request, runner.steps.records.get(name)
    doubts = record.resources.in_doubt if record else ()
    doubted = {doubt.address for doubt in doubts}
    forgotten = [address for address in request.forget if address in doubted]
    if not request.unlock and any(address in doubted for address in _forgotten_addresses(request)):
        # An engine that holds the lock may still create the object.
        locked = state_lock_error(runner, name)
        if locked is not None:
            raise locked
    if forgotten and not request.adopt:  # else what is adopted with it is asked for
        _approve_word(runner, name, f"forget {', '.join(forgotten)}")
    if request.unlock:
        yield _unlock(runner, name, request.unlock)
    if _errored_state_file(runner, name) is not None:
        if request.push_errored_state:
            yield _push(runner, name)
        elif request.dismiss_errored_state:
            _approve_word(runner, name, "set errored.tfstate aside, unsaved")
            _set_aside(runner, name, f"dismissed: {request.dismiss_errored_state}")
    addresses = {doubt.address for doubt in doubts if doubt.action in ("create", "forget")}
    addresses |= {*(record.resources.tainted if record else ())}
    adopted = [item for item in request.adopt if item.address in addresses]
    untainted = [address for address in request.untaint if address in addresses]
    proven = proven_objects(record) if request.adopt_proven and record else {}
    if adopted or untainted or proven or request.rebuild_state:
        runner.check_saved(name)  # on a state that lacks what is unsaved they would leave it behind
    for item in adopted:
        yield _adopt(runner, name, item, forget=item.address in forgotten)
    for address in untainted:
        yield _untaint(runner, name, address)
    if proven:
        yield import_together(runner, name, proven)
    if request.rebuild_state:
        yield rebuild_state(runner, name)


def _adopt(runner: StepRunner, name: str, item: ImportSpec, *, forget: bool) -> StepResult | None:
    """
    Import an object at an address in doubt; None if the provider state already has it there, as
    after an import that was recorded late. The user's word closes the doubt.
    """
    work_dir, evidence = runner.steps.prepared[name].work_dir, runner.steps.evidence(name)
    state = pull(runner.services, work_dir, evidence, "pull-adopted")
    if state.ids.get(item.address) != item.object_id:
        return import_object(runner, name, item.address, item.object_id)
    note = f"{item.object_id} is in the provider state already, as {item.address}"
    runner.services.note(note, step=name)
    if forget:
        _approve_word(runner, name, f"forget {item.address}")
    return None


def _approve_word(runner: StepRunner, name: str, text: str) -> None:
    """
    Raise ApprovalMissing if a change of records on the user's word is not approved.
    """
    options = runner.options
    if not options.plan.approved and not options.interactive:
        raise ApprovalMissing(f"{name}: not approved: {text}", hint="add --yes")
    approve(runner, name, text)


def proven_objects(record: OperationRecord) -> dict[str, str]:
    """
    Return the ids, by address, of objects in doubt that are proven ours: the provider showed it, or
    their create returned the id and their existence was not checked yet.
    """
    ids: dict[str, str] = {}
    for doubt in record.resources.in_doubt:
        readback = doubt.readback
        unasked = doubt.id if doubt.action == "create" else None
        object_id = readback.adopts if readback else unasked
        if doubt.action in ("create", "forget") and object_id is not None:
            ids[doubt.address] = object_id
    return ids


def _untaint(runner: StepRunner, name: str, address: str) -> StepResult:
    return operate(
        runner,
        name,
        command="untaint",
        shown=f"untaint {address}: it is not replaced",
        request=lambda _: Untaint(address, runner.options.plan.lock_timeout),
        planned=(PlannedAction(address=address, action="noop"),),
    )


def _unlock(runner: StepRunner, name: str, lock_id: str) -> StepResult:
    lock = check_breakable(runner, name, lock_id)
    step = runner.deployment.steps[name]
    exists = runner.steps.status(name) not in (None, *NOTHING_THERE)
    return operate(
        runner,
        name,
        command="unlock",
        shown=f"release the lock of its provider state ({lock})",
        request=lambda _: Unlock(lock_id),
        inputs=None if exists else runner.steps.values.inputs(step),
    )


def _push(runner: StepRunner, name: str) -> StepResult | None:
    """
    Push the provider state that the engine could not save, and set its file aside.
    """
    services, prepared = runner.services, runner.steps.prepared[name]
    file = _errored_state_file(runner, name)
    assert file is not None, "there is one to push"
    errored = read_state_file(services, prepared, file, runner.steps.evidence(name))
    current = pull(services, prepared.work_dir, runner.steps.evidence(name), "pull-errored")
    result: StepResult | None = None
    if not same_content(errored, current):  # it is the same where a push was killed on its last way
        _check_pushable(prepared, file, errored, current)
        result = operate(
            runner,
            name,
            command="push",
            shown=f"save the provider state of errored.tfstate, serial {errored.serial} with "
            f"{count(len(errored.objects), 'object')}, over serial {current.serial} with "
            f"{len(current.objects)}",
            request=partial(_push_request, runner, file, errored),
        )
        if result.fault is not None:
            return result
    _set_aside(
        runner,
        name,
        f"saved as serial {errored.serial} with {count(len(errored.objects), 'object')}",
    )
    return result


def _push_request(runner: StepRunner, file: Path, errored: PulledState, private: Path) -> Push:
    """
    Return the push of a saved state; of a decrypted copy, which only the call sees, if it is
    encrypted.
    """
    services = runner.services
    if is_encrypted(file.read_bytes()):
        services.files.write(private, errored.raw.decode())
        file = private
    return Push(file, runner.options.plan.lock_timeout)


def _check_pushable(
    prepared: PreparedStep, file: Path, errored: PulledState, current: PulledState
) -> None:
    """
    Raise Refused if the state in the file is no later one of the same lineage. If none was ever
    written, the record may know the lineage.
    """
    bound = prepared.record.provider_state if prepared.record else None
    lineage = current.lineage or (bound.lineage if bound else None)
    if lineage is not None and errored.lineage != lineage:
        raise Refused(
            "lineage",
            f"{file} has lineage {errored.lineage}, the provider state {lineage}: "
            "it is another state",
            hint="look where it comes from; --dismiss-errored-state REASON sets it aside",
        )
    if current.lineage is not None and errored.serial < current.serial:
        raise Refused(
            "serial_back",
            f"{file} has serial {errored.serial}, the provider state is at "
            f"{current.serial} already: what has been saved since would be lost",
            hint="compare the two; --dismiss-errored-state REASON sets it aside",
        )


def _set_aside(runner: StepRunner, name: str, why: str) -> None:
    services, file = runner.services, _errored_state_file(runner, name)
    assert file is not None, "there is one to set aside"
    saved = services.workdirs.set_aside(file, runner.steps.evidence(name))
    services.note(f"errored.tfstate is {why}; the file is kept as {saved}", step=name)


def _errored_state_file(runner: StepRunner, step: str) -> Path | None:
    prepared = runner.steps.prepared.get(step)
    return runner.services.workdirs.errored_state(prepared.work_dir) if prepared else None


def _misplaced_problems(
    addresses_by_step: Mapping[str, Sequence[str]], addresses: Sequence[str], what: str
) -> list[Problem]:
    """
    Return a problem for each of the addresses that is one of no step, or of several.
    """
    steps_by_address: dict[str, list[str]] = {}
    for step, known in addresses_by_step.items():
        for address in dict.fromkeys(known):
            steps_by_address.setdefault(address, []).append(step)
    problems = []
    for address in addresses:
        steps = steps_by_address.get(address, [])
        if not steps:
            listed = ", ".join(sorted(steps_by_address)) or "nothing"
            problems.append(Problem(f"{address} is not {what}", hint=f"{what}: {listed}"))
        elif len(steps) > 1:
            hint = "name the one with --step"
            problems.append(Problem(f"{address} is {what} in {', '.join(steps)}", hint=hint))
    return problems
