"""
Plans of a step by the engine: how they are made, and what they hold before they are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.app.session import Session
from orchestrator.app.steps.engine_calls import (
    call_spec,
    failure,
    patiently,
    pull,
    write_variables,
)
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.addresses import parse_address
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.events import (
    ChangeSummary,
    Message,
    OutputChange,
    PlannedChange,
)
from orchestrator.domain.events.journal import Journal, adds_up
from orchestrator.domain.plan.approval import Approval
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import AbsenceMethod, ObjectRef, moves
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.ports.engine import (
    CallSpec,
    Cancel,
    Plan,
    PlanAndAsk,
    PlanMode,
    ShowPlan,
)
from orchestrator.ports.workdir import WorkDir

Direction = Literal["apply", "destroy"]

#: Exit codes of a detailed plan.
NO_CHANGES, CHANGES = 0, 2


class PlanOptions(Struct, frozen=True):
    """
    The user's options for plan and mutation of a step.

    ``approved`` is ``--yes``; ``accept_vanished`` its reason. Durations are in the engine's
    notation. With ``values`` the plan is read with all values, for display: one more engine call.
    With an ``approval`` a step is changed only within that; if it was ``reviewed`` at a terminal,
    changes beyond it are asked for. ``override_policy`` is the reason to override the policy;
    without ``locking`` a plan does not lock the provider state. ``only_refresh`` plans only the
    changes of a refresh.
    """

    approved: bool = False
    refresh: bool = True
    replace: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    parallelism: int | None = None
    lock_timeout: str | None = None
    accept_vanished: str | None = None
    accept_adopted: str | None = None
    accept_replaced: str | None = None
    verify_absence: AbsenceMethod | None = None
    values: bool = False
    override_policy: str | None = None
    locking: bool = True
    only_refresh: bool = False
    approval: Approval | None = None
    reviewed: bool = False

    def mode(self, direction: Direction) -> PlanMode:
        """
        Return the engine's planning mode.
        """
        if direction == "destroy":
            return "destroy"
        return "refresh-only" if self.only_refresh else "normal"

    def request(self, direction: Direction, file: Path, var_file: Path) -> Plan:
        """
        Return the engine call that makes the plan.
        """
        return Plan(
            out=file,
            mode=self.mode(direction),
            var_file=var_file,
            refresh=self.refresh,
            replace=self.replace,
            targets=self.targets,
            parallelism=self.parallelism,
            lock_timeout=self.lock_timeout,
            detailed=True,
            lock=self.locking,
        )


class EnginePlan(Struct, frozen=True):
    """
    A plan of the engine, before it is checked. ``before`` is the provider state it was made from;
    ``changed``: the engine reports changes; ``content`` is its content, if it was read. With
    ``waits`` there is no file: the engine waits for approval.
    """

    direction: Direction
    file: Path
    journal: Journal
    before: PulledState
    changed: bool
    content: PlanContent | None = None
    waits: bool = False

    @property
    def destroyed(self) -> tuple[ObjectRef, ...]:
        """
        The objects that it deletes or replaces, by the types that they had before it.
        """
        # A plan may move and remove an object at once, as one of another type.
        earlier = {
            item.address: item.previous_address or item.address
            for item in self.journal.planned
            if item.action in ("delete", "replace")
        }
        return tuple(
            ref.model_copy(update={"type": parse_address(earlier[ref.address]).type})
            for ref in self.before.inventory
            if ref.address in earlier
        )


def make_plan(
    services: Services,
    prepared: PreparedStep,
    inputs: StepInputs,
    options: PlanOptions,
    name: str,
    *,
    direction: Direction,
    evidence: Path,
) -> EnginePlan:
    """
    Return the plan of a step, saved to ``evidence``/plan.tfplan; ``name`` is that of its calls.
    """
    file, var_file = evidence / "plan.tfplan", evidence / "inputs.tfvars.json"
    request = options.request(direction, file, var_file)

    # Secrets must not stay behind if we are killed; for others no wrapper is worth it.
    variables = prepared.work_dir.variables
    result = patiently(
        services,
        prepared.step.name,
        "plan",
        request,
        prepared.work_dir,
        evidence,
        name,
        variables=(var_file, {**inputs.values, **variables}),
        delete_after=(var_file,) if inputs.secrets or variables else (),
    )
    if result.exit_code not in (NO_CHANGES, CHANGES) or services.stop.stopping:
        raise failure(result, "plan", services.stop)
    journal = Journal.of(result.messages, whole=result.complete)
    in_plan = services.engine.state_in_plan(file)
    # The event stream is a summary. Where it does not add up to what the engine says of the
    # plan, or does not tell a deposed object from its successor, or what changed outside from
    # another notation of it, the plan itself is asked; what is not understood even then counts
    # as a change.
    changed = result.exit_code == CHANGES
    before = in_plan or pull(services, prepared.work_dir, evidence, f"pull-before-{name}")
    displaced = any(item.deposed for item in before.objects)
    explained = not displaced and adds_up(result.messages, changed=changed)
    news = journal.changes or journal.outputs or journal.drifted or journal.diagnostics
    content = None
    drifted = any(item.action != "delete" for item in journal.drifted)
    if not explained or drifted or (options.values and (changed or news)):
        content = plan_content(services, prepared.work_dir, evidence, file, name)
    if content is not None and not explained:
        journal = journal.with_content(content)
        changed = changed and not content.only_reads_for_checks
    # The plan's own copy of the state has its moves, and what it imports, which nobody has yet.
    if in_plan is None:
        before = before.moved(moves(journal.planned))
    before = before.without({item.address for item in journal.planned if item.imports})
    return EnginePlan(direction, file, journal, before, changed, content)


def plan_content(
    services: Services, work_dir: WorkDir, evidence: Path, file: Path, name: str
) -> PlanContent:
    spec = call_spec(services, work_dir, evidence, f"show-{name}")
    try:
        result = services.engine.call(ShowPlan(file), spec, stop=services.stop)
        return services.engine.plan_content(result)
    finally:
        services.engine.discard(spec)


# An apply that plans, waits for approval, and continues, in one engine process (ADR 31).
#
# It is used if nothing in the plan matters except which objects it creates: then a saved plan and a
# second process have no benefit. The engine's question separates plan from mutation; the marker is
# recorded before it is answered.


def can_ask(session: Session, prepared: PreparedStep, options: PlanOptions) -> bool:
    """
    Return whether a step may be applied this way: its first apply, approved beforehand, with
    nothing that needs to read the plan or query the provider before, and no auto-approval by
    environment.
    """
    record, step, environ = prepared.record, prepared.step, session.services.environ
    plain = PlanOptions(
        approved=True, parallelism=options.parallelism, lock_timeout=options.lock_timeout
    )
    return (
        prepared.engine.asks_for_approval
        and (record is None or record.status in NOTHING_THERE)
        and options == plain
        and session.deployment.policy.empty
        and not (step.identity or step.search)
        and not any(environ[name] for name in environ if name.startswith("TF_CLI_ARGS"))
    )


def plan_and_ask(
    session: Session,
    prepared: PreparedStep,
    inputs: StepInputs,
    options: PlanOptions,
    spec: CallSpec,
    *,
    var_file: Path,
) -> EnginePlan | None:
    """
    Return the plan of a waiting apply, for `Approve` and `Cancel` with this ``spec``. None if none
    waits, because its plan failed, was empty, or holds more than is understood, or because the
    provider state is not empty: then a saved plan is made instead. Raises StateLocked if somebody
    else holds the lock of the provider state.

    An engine that has begun without asking is not cancelled: what it does has to be recorded.
    """
    services, step = session.services, prepared.step.name
    before = pull(services, prepared.work_dir, spec.evidence, "pull-before-plan")
    if before.objects or before.outputs:
        return None
    write_variables(services, var_file, {**inputs.values, **prepared.work_dir.variables})
    request = PlanAndAsk(var_file, options.parallelism, options.lock_timeout)
    result = services.engine.call(request, spec, stop=services.stop)
    var_file.unlink(missing_ok=True)  # it is read by now
    if result.lock is not None:  # waited for long enough
        raise failure(result, "plan", services.stop)
    if not result.waits:
        return None
    journal = Journal.of(result.messages, whole=True)
    if journal.began:
        services.note(
            "the engine applies without asking for approval, before that was recorded",
            hint="use another version of it, and report this one",
            level="error",
            step=step,
        )
    elif not _only_creates(result.messages):
        services.engine.call(Cancel(), spec, stop=services.stop)
        return None
    return EnginePlan(
        "apply",
        spec.evidence / "plan.tfplan",
        journal,
        before,
        changed=True,
        waits=True,
    )


def _only_creates(messages: Sequence[Message]) -> bool:
    """
    Return whether a plan only creates objects and outputs, as many as the engine counts, without a
    warning, refresh or line of unknown type.
    """

    def is_known(message: Message) -> bool:
        match message:
            case PlannedChange(_, action, importing=importing, previous_address=previous):
                return (action, importing, previous) == ("create", None, None)
            case OutputChange(_, action):
                return action == "create"
            case ChangeSummary(operation):
                return operation == "plan"
            case _:
                return False

    return all(map(is_known, messages)) and adds_up(messages, changed=True)
