"""
Plans one step: a plan file and its content, made the same way by ``plan``, ``apply`` and
``destroy``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_plan import Direction, EnginePlan, PlanOptions, make_plan
from orchestrator.app.steps.guards import check_missing_objects, check_state, check_vanished
from orchestrator.app.steps.preparation import (
    PreparedStep,
    recorded_inputs_text,
    refusal_rules,
    state_encryption,
)
from orchestrator.domain.addresses import instance_keys, parse_address
from orchestrator.domain.blueprint.inputs import (
    RecordedInputs,
    StepInputs,
    digest,
    read_recorded_inputs,
)
from orchestrator.domain.events.events import PlanReady
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.masking import Masker
from orchestrator.domain.plan.changes import (
    UNKNOWN,
    InputChange,
    PlanChanges,
    PlanContent,
    PlanDiagnostic,
)
from orchestrator.domain.provider_query.query import RefreshResult, refresh_result
from orchestrator.domain.provider_query.scope import differing, fingerprint, scope
from orchestrator.domain.provider_state import PulledState, StateObject
from orchestrator.domain.record.objects import (
    Doubt,
    ObjectKey,
    PlannedAction,
    SettledDoubt,
)
from orchestrator.domain.record.record import SENSITIVE, OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.redaction import redacted
from orchestrator.domain.secrets import value_at, without_leaves
from orchestrator.domain.text import did_you_mean
from orchestrator.domain.transitions.doubts import (
    StateObservation,
    missing_from_state,
    settle_doubts,
    unanswered_deletes,
    with_vanished,
)
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid, OrchestratorError, Problem, StoreUnavailable

#: Why an apply without any change is carried out all the same.
STATE_REWRITTEN = "its provider state is to be encrypted in another way: it is rewritten"

#: What becomes of a plan where recorded objects have left the provider state: it is refused, or
#: made all the same by a command that records them as in doubt.
MissingObjects = Literal["refused", "doubted"]

#: Holds a provider state against a record: Refused, or a note, or None.
StateCheck = Callable[[str, OperationRecord | None, PulledState, str], str | None]


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
        if "data." not in address
        and not any(
            it == address or it.startswith((f"{address}[", f"{address}.")) for it in addresses
        )
    ]
    if problems:
        raise Invalid(problems)


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
    make = partial(
        make_plan, services, prepared, inputs, options, direction=direction, evidence=evidence
    )
    try:
        plan = make("plan")
        # A provider may answer "not found" once about what is there: before anything is made again
        # or left out of a destroy, it is read a second time. If all is lost nothing goes on anyway.
        dropped = _dropped(services, plan)
        if dropped and len(dropped) < len(plan.before.objects) and options.accept_vanished is None:
            labels, step = ", ".join(item.label for item in dropped), prepared.step.name
            services.note(f"not found, read a second time: {labels}", level="warning", step=step)
            plan = make("plan-again")
        return check_plan(services, prepared, inputs, options, plan, check, missing_objects)
    except OrchestratorError:
        (evidence / "plan.tfplan").unlink(missing_ok=True)
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
    prepared.bindings.check(target, lineage=before.lineage)
    if options.replace or options.targets:
        _check_addresses_known(target, options, journal, before)
    moved = check(target, record, before, prepared.reconcile)
    if moved is not None:
        services.note(moved, level="warning", step=step)
    _warn_of_secret_keys(services, step, journal)
    imports = {item.address: item.importing for item in journal.planned if item.importing}
    if imports:
        warn_of_shared_objects(services, step, target, imports)
    refresh = refresh_result(journal, before, destroying=destroying, targeted=bool(options.targets))
    deleted = _deleted_earlier(services, prepared, refresh) if refresh.missing else ()
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
        refreshed=options.refresh and not options.targets,
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
    # The engine rewrites a state with any apply, and plans no change for that.
    rewrites = (
        not destroying
        and record is not None
        and record.status not in NOTHING_THERE
        and before.lineage is not None
        and record.state_encryption != state_encryption(services, prepared)
    )
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


def warn_of_shared_objects(
    services: Services, step: str, target: str, taken_over: Mapping[str, str]
) -> None:
    """
    Warn about objects to import (ids by address) that another target has. They may still be
    different objects: a name is unique only within a region or account.
    """
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


# The changes in a plan for display: values, inputs, warnings.


_NOT_SET = "not set: the default of the module"


def changed_inputs(applied: RecordedInputs, now: StepInputs, key: bytes) -> tuple[InputChange, ...]:
    """
    Return the inputs that differ. Secrets are compared by their keyed digests.
    """
    changes = []
    for name in dict.fromkeys([*now.values, *applied.values]):
        secrets = {path for path in (*applied.digests, *now.secrets) if path[0] == name}
        hidden = {path[1:] for path in secrets}
        before = without_leaves(applied.values.get(name), hidden)
        after = without_leaves(now.values.get(name), hidden)
        other_secret = False
        for path in secrets:
            new = value_at(dict(now.values), path)
            old = applied.digests.get(path) or digest(value_at(dict(applied.values), path), key)
            other_secret = other_secret or old != digest(new, key)
        if before == after and not other_secret:
            continue
        whole, known = () in hidden, after != UNKNOWN
        changes.append(
            InputChange(
                name=name,
                before=None if whole else before,
                after=None if whole or not known else after,
                known=known,
                sensitive=whole or other_secret,
                source=now.sources.get(name, _NOT_SET),
            )
        )
    return tuple(changes)


def plan_changes(
    services: Services,
    prepared: PreparedStep,
    inputs: StepInputs | None,
    content: PlanContent,
    journal: Journal,
) -> PlanChanges:
    """
    Return the changes in a plan, masked; ``inputs`` are compared with those of the last apply.
    """
    record, snapshot = prepared.record, prepared.snapshot
    changes = content.changes.model_copy(
        update={
            "inputs_changed": () if inputs is None else _inputs_changed(services, record, inputs),
            "module_changed": inputs is not None
            and record is not None
            and record.module_digest not in (None, snapshot.digest),
            "diagnostics": tuple(
                PlanDiagnostic.of_diagnostic(item) for item in dict.fromkeys(journal.diagnostics)
            ),
        }
    )
    # What the plan calls sensitive is hidden here, and no secret of the run: only who looks at a
    # plan has read it, and a record must not depend on whether somebody did.
    return redacted(redacted(changes, services.masker), Masker(content.secrets))


def _inputs_changed(
    services: Services, record: OperationRecord | None, inputs: StepInputs
) -> tuple[InputChange, ...]:
    if record is None or record.inputs_digest == inputs.digest(services.key):
        return ()
    try:
        text = recorded_inputs_text(services, record)
    except StoreUnavailable as exc:
        services.note(exc.message, level="warning")
        return ()
    if text is None:
        return ()
    applied = read_recorded_inputs(text, lambda _path, _origin: SENSITIVE)
    return changed_inputs(applied, inputs, services.key)
