"""
A provider state is copied to another backend, under the marker, and the record bound to it there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_calls import call_spec, ignore_message, pull, stopped
from orchestrator.app.steps.mutation import Mutation, StepResult, call_engine, mutate
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.app.surgery.state_operation import approve
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.record.entry_facts import EntryFacts
from orchestrator.domain.record.faults import MutationEvidence
from orchestrator.domain.record.record import OperationRecord, ProviderState
from orchestrator.domain.record.surgery import same_content, surgery_ended
from orchestrator.domain.record.transitions import mark
from orchestrator.errors import Refused
from orchestrator.ports.engine import Push


def move_to(
    runner: StepRunner,
    old: PreparedStep,
    new: PreparedStep,
    state: PulledState,
    *,
    deployment: str,
) -> StepResult:
    """
    Write ``state``, which is that of ``old``, where ``new`` keeps its own. The record is bound to
    the new place, and to the ``deployment`` that has it, once that holds the same; until then,
    whatever happens, it stays with the old one.

    Refused where the new place holds another state, or belongs to another target. A local file at
    the old place is kept as evidence; what is in another backend is left there.
    """
    services, known, name = runner.services, old.record, new.step.name
    assert known is not None, "only what is recorded moves"
    target, run_id = str(known.target.target), runner.session.run_id
    held = pull(services, new.work_dir, runner.steps.evidence(name), "pull-new")
    new.bindings.check_lineage(target, held)
    # A move that was killed has left its copy there.
    if held.lineage and not same_content(held, state):
        raise Refused(
            "unrecorded_state",
            f"{target}: there is a provider state at {new.work_dir.location} already, with "
            f"{len(held.objects)} objects and lineage {held.lineage}",
            hint="name another place in the blueprint, or look whose that state is",
        )
    where = f"{new.work_dir.backend_type} {new.work_dir.location}"
    approve(runner, name, f"move its provider state with {len(state.objects)} objects to {where}")
    if services.stop.stopping:
        raise stopped(services.stop)
    attempt = max((number for number, _ in services.files.attempts(run_id, name)), default=0) + 1
    evidence = services.files.attempt(run_id, name, attempt)
    copy = evidence / "moved.tfstate"
    services.files.write(copy, state.raw.decode())
    marker = mark(
        known,
        EntryFacts(run_id=run_id, attempt=attempt, provider_state=known.provider_state),
        state,
        services.stamp(),
        command="push",
        planned=(),
        doubts=known.resources.in_doubt,
    )
    spec = call_spec(services, new.work_dir, evidence, "apply", delete_after=(copy,))
    mutation = Mutation(
        marker,
        partial(
            call_engine,
            runner.session,
            new,
            lambda: Push(copy, runner.options.plan.lock_timeout),
            spec,
            before=held,
            observe=ignore_message,
        ),
        partial(_conclude, runner, old, new, state, deployment),
        spec,
    )
    try:
        outcome, found = mutate(runner.session, mutation)
    finally:
        copy.unlink(missing_ok=True)
    runner.steps.update(name, outcome)
    last = outcome.last_attempt
    fault = last.error if last else None
    if fault is None:
        _keep_old(runner, old)
    return StepResult(record=outcome, state=found.state, mutated=False, fault=fault)


def _conclude(
    runner: StepRunner,
    old: PreparedStep,
    new: PreparedStep,
    state: PulledState,
    deployment: str,
    marker: OperationRecord,
    evidence: MutationEvidence,
) -> OperationRecord:
    known, stamp, found = old.record, runner.services.stamp(), evidence.state
    assert known is not None, "only what is recorded moves"
    if evidence.exit_code != 0 or found is None or not same_content(found, state):
        # The old place is as it was, and the record bound to it.
        return surgery_ended(marker, known, replace(evidence, state=state), stamp)
    bound = ProviderState(
        backend=new.work_dir.backend_type,
        location=new.work_dir.location,
        workspace=runner.services.workspace,
        lineage=found.lineage,
        serial=found.serial,
    )
    there = known.model_copy(update={"provider_state": bound, "deployment": deployment})
    return surgery_ended(marker, there, evidence, stamp)


def _keep_old(runner: StepRunner, old: PreparedStep) -> None:
    services, name = runner.services, old.step.name
    file = services.workdirs.state_file(old.work_dir)
    if file is None:
        services.note(
            f"the state at {old.work_dir.backend_type} {old.work_dir.location} is left as it was; "
            "nothing reads it any more",
            step=name,
        )
        return
    kept = services.workdirs.set_aside(file, runner.steps.evidence(name))
    services.note(f"the former state file is kept as {kept}", step=name)
