"""
Plans one step: a plan file and its content, made the same way by ``plan``, ``apply`` and
``destroy``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import (
    call,
    call_spec,
    failure,
    ignore_message,
    patiently,
    pull,
)
from orchestrator.app.steps.guards import check_missing_objects, check_state, check_vanished
from orchestrator.app.steps.plan_changes import plan_changes
from orchestrator.app.steps.preparation import PreparedStep, refusal_rules, state_encryption
from orchestrator.domain.addresses import instance_keys, parse_address
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.events.journal import Journal, adds_up
from orchestrator.domain.plan.approval import Approval
from orchestrator.domain.plan.changes import PlanContent
from orchestrator.domain.provider_query.query import RefreshResult, refresh_result
from orchestrator.domain.provider_query.scope import differing, fingerprint, scope
from orchestrator.domain.provider_state import PulledState, StateObject
from orchestrator.domain.record.objects import (
    AbsenceMethod,
    Doubt,
    ObjectKey,
    ObjectRef,
    PlannedAction,
    SettledDoubt,
    moves,
)
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.text import Json, did_you_mean
from orchestrator.domain.transitions.doubts import (
    StateObservation,
    missing_from_state,
    settle_doubts,
    unanswered_deletes,
    with_vanished,
)
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, OrchestratorError, Problem
from orchestrator.ports.engine import CallResult, Plan, PlanMode, ShowPlan
from orchestrator.ports.workdir import WorkDir

Direction = Literal["apply", "destroy"]

#: Exit codes of a detailed plan.
NO_CHANGES, CHANGES = 0, 2

#: Why an apply without any change is carried out all the same.
STATE_REWRITTEN = "its provider state is to be encrypted in another way: it is rewritten"

#: What becomes of a plan where recorded objects have left the provider state: it is refused, or
#: made all the same by a command that records them as in doubt.
MissingObjects = Literal["refused", "doubted"]

#: Holds a provider state against a record: Refused, or a note, or None.
StateCheck = Callable[[str, OperationRecord | None, PulledState, str], str | None]


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

    @property
    def refreshes_all(self) -> bool:
        """
        Whether the plan refreshes every object; a targeted one does not.
        """
        return self.refresh and not self.targets

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


class CheckedPlan(EnginePlan, frozen=True, kw_only=True):
    """
    A plan that was checked against the record. ``doubts`` stay open when it is executed,
    ``settled`` were answered by its refresh; ``dropped`` are objects that its refresh did not find,
    ``deleted`` those of them that an earlier delete removed; ``rewrites_state``: the state will be
    encrypted in another way than it is.
    """

    shown: PlanReady
    doubts: tuple[Doubt, ...]
    settled: tuple[SettledDoubt, ...]
    deleted: Collection[ObjectKey]
    dropped: tuple[StateObject, ...]
    rewrites_state: bool

    @property
    def empty(self) -> bool:
        """
        Whether executing it would change nothing, provider state included: a destroy of vanished
        objects still has to empty the state, dropped objects are in it until an apply, and a former
        encryption key stays in use until then.
        """
        forgets = self.direction == "destroy" and self.before.objects
        in_state = self.dropped or self.rewrites_state or forgets
        return not (self.changed or self.journal.changes or self.journal.outputs or in_state)


def _check_addresses_known(
    target: str, options: PlanOptions, journal: Journal, before: PulledState
) -> None:
    """
    Raise Invalid if an address to replace or target is neither in the provider state nor planned:
    the engine would silently ignore it.
    """
    addresses = {*(item.address for item in before.objects), *(c.address for c in journal.changes)}
    problems = [
        Problem(f"{target}: there is no object {address}", hint=did_you_mean(address, addresses))
        for address in (*options.replace, *options.targets)
        if "data." not in address and not any(_within(item, address) for item in addresses)
    ]
    if problems:
        raise Invalid(problems)


def _within(address: str, selected: str) -> bool:
    return address == selected or address.startswith((f"{selected}[", f"{selected}."))


def write_variables(
    services: Services, file: Path, inputs: StepInputs, extra: Mapping[str, Json]
) -> None:
    """
    Write the variable file of a call: 0600, removed when the call ends. One value per line, because
    the engine quotes the line of a value that it rejects.
    """
    services.files.write_input(file, json.dumps({**inputs.values, **extra}, indent=0))


def plan_step(
    services: Services,
    prepared: PreparedStep,
    inputs: StepInputs,
    options: PlanOptions,
    *,
    direction: Direction,
    evidence: Path,
    check: StateCheck = check_state,
    missing_objects: MissingObjects = "refused",
) -> CheckedPlan:
    """
    Plan a step to ``evidence``/plan.tfplan, and check the plan against the record.

    Law: state moved without us.

    Raises EngineFailed(phase="plan") or Busy if it cannot be planned, Refused if the provider state
    is not the recorded one (``check`` decides) or all objects have vanished, InDoubt if recorded
    objects have left the state and ``missing_objects`` are refused.
    """
    file, var_file = evidence / "plan.tfplan", evidence / "inputs.tfvars.json"
    request, step = options.request(direction, file, var_file), prepared.step.name

    def make(name: str) -> EnginePlan:
        def attempt(number: int) -> CallResult:
            write_variables(services, var_file, inputs, prepared.work_dir.variables)
            # Secrets must not stay behind if we are killed; for others no wrapper is worth it.
            secret = (var_file,) if inputs.secrets or prepared.work_dir.variables else ()
            spec = call_spec(
                services, prepared.work_dir, evidence, f"{name}-{number}", delete_after=secret
            )
            try:
                return call(services, request, spec, stop=services.stop)
            finally:
                var_file.unlink(missing_ok=True)

        result = patiently(services, step, "plan", attempt)
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

    try:
        plan = make("plan")
        # A provider may answer "not found" once about what is there: before anything is made again
        # or left out of a destroy, it is read a second time. If all is lost nothing goes on anyway.
        dropped = _dropped(services, plan)
        if dropped and len(dropped) < len(plan.before.objects) and options.accept_vanished is None:
            labels = ", ".join(item.label for item in dropped)
            services.note(f"not found, read a second time: {labels}", level="warning", step=step)
            plan = make("plan-again")
        return check_plan(services, prepared, inputs, options, plan, check, missing_objects)
    except OrchestratorError:
        file.unlink(missing_ok=True)
        raise


def check_plan(
    services: Services,
    prepared: PreparedStep,
    inputs: StepInputs,
    options: PlanOptions,
    plan: EnginePlan,
    check: StateCheck = check_state,
    missing_objects: MissingObjects = "refused",
) -> CheckedPlan:
    """
    Check the plan against the record and show it. Returns it with the doubts that stay open; raises
    an error if it must not be executed.
    """
    record, step, target = prepared.record, prepared.step.name, str(prepared.target)
    journal, before = plan.journal, plan.before
    accepted = options.accept_vanished
    destroying = plan.direction == "destroy"
    prepared.bindings.check_lineage(target, before)
    _check_addresses_known(target, options, journal, before)
    moved = check(target, record, before, prepared.reconcile)
    if moved is not None:
        services.note(moved, level="warning", step=step)
    _warn_of_secret_keys(services, step, journal)
    imports = {item.address: item.importing for item in journal.planned if item.importing}
    warn_of_shared_objects(services, step, target, imports)
    refresh = refresh_result(journal, before, destroying=destroying, targeted=bool(options.targets))
    deleted = _deleted_earlier(services, prepared, refresh)
    if deleted:
        labels = ", ".join(item.label for item in deleted)
        services.note(f"gone by an earlier delete: {labels}", step=step)
    if destroying:
        journal = journal.with_deletes(item.address for item in deleted)
    others = replace(before, objects=tuple(o for o in before.objects if o not in deleted))
    check_vanished(target, others, refresh.without(deleted), accepted=accepted)
    if missing_objects == "refused":
        check_missing_objects(target, record, before, prepared.reconcile, destroying=destroying)
    observation = StateObservation(
        at=services.clock.now(),
        run_id=prepared.run_id,
        settling_time=services.limits.settle,
        ids=before.ids,
        refreshed=options.refreshes_all,
        accepted=accepted is not None,
        reason=accepted,
        deleted=tuple(item.key for item in deleted),
    )
    doubts, settled = settle_doubts(record, observation)
    if destroying:
        doubts = with_vanished(doubts, missing_from_state(record, before))
    changes = None
    if options.values and plan.content is not None:
        now = None if destroying else inputs
        changes = plan_changes(services, prepared, now, plan.content, journal)
    shown = PlanReady(
        at=services.clock.now(),
        step=step,
        actions=journal.changes,
        outputs=journal.outputs,
        drifted=_drifted(plan),
        inputs=inputs.masked(),
        changes=changes,
    )
    if not options.reviewed:  # else as much is shown as was not shown before
        services.sink.emit(shown)
    rewrites = not destroying and _encryption_changed(services, prepared, before)
    if rewrites:
        services.note(STATE_REWRITTEN, step=step)
    return CheckedPlan(
        direction=plan.direction,
        file=plan.file,
        journal=journal,
        before=before,
        shown=shown,
        doubts=doubts,
        settled=settled,
        deleted=observation.deleted,
        changed=plan.changed,
        dropped=_dropped(services, plan),
        rewrites_state=rewrites,
        content=plan.content,
        waits=plan.waits,
    )


def _encryption_changed(services: Services, prepared: PreparedStep, before: PulledState) -> bool:
    """
    Return whether the state would be encrypted in another way than by its last apply. The engine
    rewrites it with any apply, and plans no change for it.
    """
    record = prepared.record
    if record is None or record.status in NOTHING_THERE or before.lineage is None:
        return False
    return record.state_encryption != state_encryption(services, prepared)


def warn_of_shared_objects(
    services: Services, step: str, target: str, taken_over: Mapping[str, str]
) -> None:
    """
    Warn about objects to import (ids by address) that another target has. They may still be
    different objects: a name is unique only within a region or account.
    """
    if not taken_over:
        return
    address_of = {(parse_address(at).type, id_): at for at, id_ in taken_over.items()}
    for record in services.store.records():
        other = str(record.target)
        for ref in record.resources.inventory:
            address = address_of.get((ref.type, ref.id or ""))
            if other != target and address is not None:
                services.note(
                    f"{address}: {ref.id} is {ref.name} of {other} already: if it is the same "
                    "object, whichever target destroys it takes it from the other",
                    level="warning",
                    step=step,
                )


def _warn_of_secret_keys(services: Services, step: str, journal: Journal) -> None:
    """
    Warn about secrets in addresses: a masked address would identify nothing.
    """
    mask = services.masker.mask
    exposed = {
        parse_address(item.address).type
        for item in journal.planned
        if any(mask(key) != key for key in instance_keys(item.address))
    }
    if exposed:
        services.note(
            f"a key in the addresses of {', '.join(sorted(exposed))} is, or holds, a secret: "
            "addresses are recorded and shown as they are",
            hint="key the instances by something that is no secret",
            level="warning",
            step=step,
        )


def _drifted(plan: EnginePlan) -> tuple[PlannedAction, ...]:
    """
    Return what changed outside the engine, without mere differences in notation.
    """
    drift = plan.content.changes.drift if plan.content is not None else ()
    same = {item.address for item in drift if item.action != "delete" and item.equivalent}
    return tuple(item for item in plan.journal.drifted if item.address not in same)


def _deleted_earlier(
    services: Services, prepared: PreparedStep, refresh: RefreshResult
) -> tuple[StateObject, ...]:
    """
    Return the objects that the refresh did not find because an earlier mutation deleted them and
    provider state still has them.

    Only if the provider is queried in the scope in which it made them: in another scope it finds
    none of its objects.
    """
    record = prepared.record
    unanswered = unanswered_deletes(record, refusal_rules(prepared.step))
    deleted = tuple(item for item in refresh.missing if item.key in unanswered)
    if not deleted or record is None or record.scope is None:
        return ()
    providers = {item.provider for item in deleted}
    now = scope(providers, services.environ, prepared.configured, fingerprint)
    return () if differing(record.scope, now, providers) else deleted


def plan_content(
    services: Services, work_dir: WorkDir, evidence: Path, file: Path, name: str
) -> PlanContent:
    spec = call_spec(services, work_dir, evidence, f"show-{name}")
    try:
        result = services.engine.call(
            ShowPlan(file), spec, stop=services.stop, observe=ignore_message
        )
        return services.engine.plan_content(result)
    finally:
        services.engine.discard(spec)


def _dropped(services: Services, plan: EnginePlan) -> tuple[StateObject, ...]:
    """
    Return the objects that the plan's refresh removed from the provider state, including deposed
    ones.
    """
    refreshed = services.engine.state_in_plan(plan.file, refreshed=True)
    if refreshed is None:
        vanished = plan.journal.vanished
        return tuple(o for o in plan.before.objects if o.address in vanished and o.deposed is None)
    remaining = {(item.address, item.id, item.deposed) for item in refreshed.objects}
    return tuple(
        item
        for item in plan.before.objects
        if (item.address, item.id, item.deposed) not in remaining
    )
