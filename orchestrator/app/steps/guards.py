"""
Guards: what forbids a mutation although the input is valid, such as provider state that moved
without us, doubts, or unsaved states.

Guards judge values; they read and write nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.destroy import applied_graph, owners, retention
from orchestrator.domain.events.journal import Journal
from orchestrator.domain.provider_query.query import RefreshResult
from orchestrator.domain.provider_state import PulledState
from orchestrator.domain.record.objects import Doubt, ObjectRef
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.command_line import (
    BlueprintAddress,
    RecordedBlueprint,
    command_line,
    step_options,
)
from orchestrator.domain.target import Target
from orchestrator.domain.text import count
from orchestrator.domain.transitions.doubts import (
    StateObservation,
    missing_from_state,
    settle_doubts,
)
from orchestrator.errors import InDoubt, Refused


def check_state(
    target: str,
    record: OperationRecord | None,
    state: PulledState,
    reconcile: str,
    *,
    serial_may_fall: bool = False,
    may_be_missing: bool = False,
) -> str | None:
    """
    Raise Refused if provider state is not the one in the record; return a note if it has moved.
    ``reconcile`` is the command that reconciles the target.

    Raises InDoubt if there is no state and the record has objects: that is no evidence about them.
    ``may_be_missing`` allows that, for a command that handles it.
    """
    if record is None or record.status in NOTHING_THERE:
        if state.objects:
            recorded = "no record here" if record is None else f"recorded `{record.status}`"
            hint = (
                "somebody else made them, or their record is elsewhere: adopt them with "
                f"`{_adopt(target)}`, or remove them with the tool that made them"
            )
            bound = record.provider_state if record else None
            if bound is not None and bound.lineage == state.lineage:
                recorded += (
                    f" at serial {bound.serial} of the same state, which is at {state.serial}"
                )
                hint = f"was the operation store put back? Restore its newest copy; else {hint}"
            raise Refused(
                "unrecorded_state",
                f"{target}: the provider state holds {count(len(state.objects), 'object')} "
                f"({_some(o.address for o in state.objects)}), but there is {recorded}",
                hint=hint,
            )
        return None
    bound = record.provider_state
    if bound is None or bound.lineage is None:
        return None
    # Of another lineage and empty it was started afresh: what was there is lost all the same.
    afresh = may_be_missing and state.lineage != bound.lineage and not state.objects
    if not state.lineage or afresh:
        if not record.resources.inventory:
            return None
        missing = (
            f"the provider state is missing, but the record knows lineage {bound.lineage}, serial "
            f"{bound.serial}, with {count(len(record.resources.inventory), 'object')}: "
            f"{_named(record.resources.inventory)}"
        )
        if may_be_missing:
            return missing
        raise InDoubt(
            f"{target}: {missing}",
            hint="is this the right backend, workspace and account? The objects may be alive: "
            f"restore the state; if it is lost, `{reconcile} --rebuild-state` "
            "imports each by its id",
            phase="surgery",
        )
    if state.lineage != bound.lineage:
        raise Refused(
            "lineage",
            f"{target}: the provider state has lineage {state.lineage}, not {bound.lineage}",
            hint="it is another state than the one that was applied: restore that one; if it is "
            f"lost, set this one aside, then `{reconcile} --rebuild-state`",
        )
    if bound.serial is None or state.serial == bound.serial:
        return None
    if state.serial < bound.serial and not serial_may_fall:
        raise Refused(
            "serial_back",
            f"{target}: the provider state has gone back from serial {bound.serial} to "
            f"{state.serial}",
            hint=f"was an older state restored? If that is meant, `{reconcile}` records it",
        )
    gone = _some(ref.address for ref in missing_from_state(record, state))
    return (
        f"the provider state has moved from serial {bound.serial} to {state.serial} "
        f"without this tool{'; it no longer holds ' + gone if gone else ''}"
    )


class StateBindings(Struct, frozen=True):
    """
    The provider states of other targets, by their records: by lineage, and by backend, location and
    workspace.
    """

    lineages: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[OperationRecord], own: Target, host: str) -> StateBindings:
        """
        Return the bindings of all records in the store, of any blueprint, except those of the
        target ``own``; a local file on another host than ``host`` is another file.

        Law: not ours until proven.
        """
        lineages, places = {}, {}
        for record in records:
            bound, name = record.provider_state, str(record.target)
            if bound is None or record.status in NOTHING_THERE or record.target == own:
                continue
            if bound.lineage:
                lineages[bound.lineage] = name
            if bound.backend != "local" or record.actor.host == host:
                places[bound.backend, bound.location, bound.workspace] = name
        return cls(lineages, places)

    def check(
        self, target: str, *, lineage: str | None = None, place: tuple[str, str, str] | None = None
    ) -> None:
        """
        Raise Refused if the provider state of this lineage, or at this backend, location and
        workspace, belongs to another target: destroying either would destroy the other's objects.
        """
        owner, what = self.lineages.get(lineage or ""), f"lineage {lineage}"
        if place is not None:
            owner, what = self.places.get(place), f"{place[0]} {place[1]}"
        if owner is not None:
            raise Refused(
                "state_of_another",
                f"{target}: its provider state belongs to {owner} ({what})",
                hint="one provider state belongs to one target: make them differ in the backend's "
                "config, by ${environment} and ${step.name}",
            )


def check_vanished(
    target: str, state: PulledState, refresh: RefreshResult, *, accepted: str | None
) -> None:
    """
    Raise Refused if the refresh found none of the objects in the state, or a provider configuration
    none of its own, unless a reason accepts it.
    """
    if accepted is not None:
        return
    hint = (
        "wrong region, account or credentials? Set them right and run the same command again; if "
        "the objects are really gone, apply and destroy take it: --accept-vanished REASON"
    )
    if refresh.missing and len(refresh.missing) == len(state.objects):
        vanished = _some({item.address for item in state.objects})
        what = f"every recorded object has vanished: {vanished}"
    elif refresh.unexplained:
        blind = ", ".join(sorted({item.configuration for item in refresh.unexplained}))
        unexplained = _some(item.address for item in refresh.unexplained)
        what = f"{blind} finds these no more, nor any other of their types: {unexplained}"
    else:
        return
    raise Refused("vanished", f"{target}: {what}", hint=hint, phase="readback")


def check_missing_objects(
    target: str,
    record: OperationRecord | None,
    state: PulledState,
    reconcile: str,
    *,
    destroying: bool,
) -> None:
    """
    Raise InDoubt if recorded objects, by type and id, have left the provider state: an apply could
    create them twice. A destroy goes on and leaves them in doubt, unless another object has taken
    the address of one: that one would be deleted instead.
    """
    if record is None:
        return
    doubted = {
        d.key
        for d in record.resources.in_doubt
        if d.action not in ("update", "delete")  # these a refresh of what the state holds answers
    }
    missing = [ref for ref in missing_from_state(record, state) if ref.key not in doubted]
    if destroying:
        missing = [ref for ref in missing if ref.address in state.addresses and not ref.deposed]
    if not missing:
        return
    occupied = [
        ref.address for ref in missing if not ref.deposed and ref.address in state.addresses
    ]
    others = [f"{address} is {state.ids[address]} now" for address in occupied]
    make_way = f"`exec {target} -- state rm {shlex.join(occupied)}`, then " if occupied else ""
    raise InDoubt(
        f"{target}: the provider state does not hold what the record knows: {_named(missing)}"
        + (f"; {', '.join(others)}" if others else ""),
        hint="they may be alive: restore the state, or import them into it with "
        f"{make_way}`{reconcile} --rebuild-state`",
        phase="surgery",
        occupied=occupied,
    )


def check_adopted(
    record: OperationRecord | None,
    destroyed: Iterable[ObjectRef],
    *,
    accepted: str | None,
) -> None:
    """
    Raise Refused if one of the objects to be destroyed was adopted without proof that it is ours
    (law: not ours until proven), unless a reason accepts it.
    """
    adopted = record.unproven(destroyed) if record is not None else ()
    if record is None or not adopted or accepted is not None:
        return
    target = str(record.target)
    out = shlex.join(["exec", target, "--", "state", "rm", *(item.address for item in adopted)])
    listed = "; ".join(
        f"{item.address} ({item.id}): {item.why}" if item.id else f"{item.address}: {item.why}"
        for item in adopted
    )
    raise Refused(
        "adopted",
        f"{target}: it would destroy what was adopted and is not proven to be made here: {listed}",
        hint="if it may be destroyed, say so with --accept-adopted REASON; to keep it, remove it "
        f"from the provider state first: `orchestrator {out}`",
        accepted_by=("--accept-adopted", "WHY"),
    )


def check_retained(
    deployment: Deployment, step: Step, record: OperationRecord | None, journal: Journal
) -> str | None:
    """
    Raise Refused if the plan of an apply would destroy objects of a retained step; return a note if
    only the blueprint declares it as retained.
    """
    retained = retention(step.retain, record)
    if retained is None or not journal.removed:
        return None
    message = (
        f"it would destroy {_some(journal.removed)} of what is retained: {retained.reason} "
        f"({retained.owner}, review by {retained.review_by})"
    )
    if record is not None and record.status is Status.RETAINED:
        options = (*step_options(deployment, step.name), "--reason", "WHY")
        release = command_line(deployment, "release", *options)
        raise Refused("retained", f"{step.name}: {message}", hint=f"release it first: `{release}`")
    return message


def check_adopted_records(
    records: Mapping[str, OperationRecord | None], steps: Iterable[str], *, accepted: str | None
) -> None:
    """
    Raise Refused if a step to destroy has objects that were adopted without proof, unless a reason
    accepts it. Checked for all steps, from their records, before the first destroy.
    """
    for record in map(records.get, steps):
        if record is not None:
            check_adopted(record, record.resources.inventory, accepted=accepted)


def check_not_moved(
    blueprint: BlueprintAddress, step: str, record: OperationRecord | None, at: int
) -> None:
    """
    Raise Refused if the newest entry of a step is not the one on which the command was offered
    (law: offers are re-checked); 0 is a step without a record.
    """
    sequence = record.sequence if record else 0
    if sequence == at:
        return
    offered_on = f"entry {at}" if at else "a step without a record"
    now = "there is no record of it"
    if record is not None:
        what = record.active_command or record.failed_command
        now = (
            f"entry {sequence}, `{record.status}`{f' ({what})' if what else ''}, written "
            f"{record.updated_at:%Y-%m-%d %H:%M:%S} UTC by {record.actor.user} on "
            f"{record.actor.host} in run {record.run_id}"
        )
    raise Refused(
        "moved_on",
        f"{step} has moved on: this was offered on {offered_on}; now: {now}",
        hint=command_line(blueprint, "recover", "--step", step),
    )


def check_doubts(
    record: OperationRecord | None, observation: StateObservation, reconcile: str
) -> None:
    """
    Raise InDoubt if the last mutation left objects that an apply could create twice.

    The observation promises a refresh: a doubt that a refresh can answer does not forbid the plan
    that refreshes.
    """
    doubts, _ = settle_doubts(record, observation)
    if record is None or not doubts:
        return
    wait = ""
    if observation.refreshed and all(
        doubt.action in ("update", "delete", "unknown") for doubt in doubts
    ):
        ages = [(observation.at - (d.at or record.updated_at)).total_seconds() for d in doubts]
        wait = f"; in {max(observation.settling_time - min(ages), 0):.0f} s a refresh can tell"
    raise InDoubt(
        f"{record.target}: in doubt: {describe_doubts(doubts)}{wait}",
        hint=f"settle it first: {reconcile}",
    )


def describe_doubts(doubts: Iterable[Doubt]) -> str:
    """
    Describe the doubts in one line.
    """
    return "; ".join(f"{doubt.address} ({doubt.why})" for doubt in doubts)


def check_dependents(
    graph: Graph, selected: Sequence[str], records: Mapping[str, OperationRecord | None]
) -> None:
    """
    Raise Refused if destroying the selection would remove what a live step outside it needs, by the
    blueprint's graph or as it was applied.
    """
    graph, needed = applied_graph(graph, records), dict[str, list[str]]()
    alive = {name for name, item in records.items() if item and item.status not in NOTHING_THERE}
    for step in (name for name in selected if name in graph and name in alive):
        for dependent in sorted(graph.dependents(step) & alive - {*selected}):
            needed.setdefault(dependent, []).append(step)
    if needed:
        needs = "; ".join(f"{name} needs {', '.join(on)}" for name, on in sorted(needed.items()))
        raise Refused(
            "dependents",
            f"outside the selection, still alive: {needs}",
            hint="destroy them too: "
            + " ".join(f"--step {name}" for name in (*selected, *sorted(needed))),
        )


def check_children(
    deployment: Deployment,
    records: Mapping[str, OperationRecord | None],
    applied: Collection[str],
) -> None:
    """
    Raise Refused if a parent that is gone would be created again while a child is still recorded
    with objects that went with it: the child's provider state could then neither be planned nor
    destroyed.
    """
    gone = {name for name, record in records.items() if record and record.status in NOTHING_THERE}
    children = [
        child
        for child, parent in owners(deployment, records).items()
        if parent in gone and parent in applied and child not in gone
    ]
    if children:
        steps = [word for child in children for word in ("--step", child)]
        raise Refused(
            "child_left",
            f"went with their parents, which are gone, and are still recorded as alive: "
            f"{', '.join(children)}",
            hint=f"finish the destroy first: {command_line(deployment, 'destroy', *steps)}",
        )


def _adopt(target: str) -> str:
    parsed = Target.parse(target)
    blueprint = RecordedBlueprint(parsed.blueprint, parsed.environment)
    return command_line(blueprint, "adopt", "--step", parsed.step)


def _named(objects: Iterable[ObjectRef]) -> str:
    return ", ".join(f"{ref.name} ({ref.id})" if ref.id else ref.name for ref in objects)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    rest = len(ordered) - 3
    return ", ".join(ordered[:3]) + (f" and {rest} more" if rest > 0 else "")
