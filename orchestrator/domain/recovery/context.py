"""
A step that may need recovery: its situation, its record, and what can be observed of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from orchestrator.domain.addresses import without_keys
from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import Condition, Status
from orchestrator.domain.recovery.command_line import BlueprintAddress, adoption_options
from orchestrator.domain.recovery.rerun_rules import Blocker
from orchestrator.domain.target import HookKind, hook_of


class Remedy(StrEnum):
    """
    A thing that can be done about a step, in the order in which it is listed.
    """

    WAIT = "wait"
    RECONCILE = "reconcile"
    VERIFY = "verify"
    RETRY = "retry"
    REDEPLOY = "redeploy"
    ROLLBACK = "rollback"
    COMPENSATE = "compensate"
    DESTROY = "destroy"
    MANUAL = "manual"


class Situation(StrEnum):
    """
    Where a step stands, by what is recorded and what can be seen from here.
    """

    LIVE = "live"
    CLAIMED = "claimed"
    SILENT = "silent"
    INTERRUPTED = "interrupted"
    SPOOLED = "spooled"
    LOCKED = "locked"
    UNSAVED = "unsaved"
    SEALED = "sealed"
    FOUND = "found"
    LOST = "lost"
    UNPROVEN = "unproven"
    FOREIGN = "foreign"
    LEFT = "left"
    UNANSWERABLE = "unanswerable"
    IN_DOUBT = "in_doubt"
    STATE_EMPTIED = "state_emptied"
    OCCUPIED = "occupied"
    STATE_REPLACED = "state_replaced"
    STATE_BACK = "state_back"
    VANISHED = "vanished"
    UNADOPTED = "unadopted"
    UNRECORDED = "unrecorded"
    NEVER = "never"
    UNMADE = "unmade"
    GONE = "gone"
    RETAINED = "retained"
    OK = "ok"
    CHECKS = "checks"
    CUT_SHORT = "cut_short"
    COMPENSATING = "compensating"
    DESTROYING = "destroying"
    TARGETED = "targeted"
    SURGERY = "surgery"
    FAILED = "failed"


class Neighbours(Struct, frozen=True):
    """
    Upstream steps that are not ready and dependents that are alive, each with its status as text;
    ``children`` are the steps that it owns.
    """

    unready: Mapping[str, str] = field(default_factory=dict)
    dependents: Mapping[str, str] = field(default_factory=dict)
    children: tuple[str, ...] = ()


class StepFacts(Struct, frozen=True):
    """
    Observations of a step besides its record.

    ``claimed_by`` names the live run that works on other steps of the blueprint;
    ``unproven_process`` the process that holds the claim or runs the step and cannot be proven dead
    from here. ``settling`` are the seconds for which a request of a dead engine may still be under
    way. ``unanswerable`` are the addresses in doubt that the provider was asked about after that
    time and could not tell. ``errored_state`` is the file with provider state that the engine could
    not save, ``errored_readable`` whether it is in clear. ``lock`` describes the state lock that
    the newest attempt met, ``left_lock`` is its id where a dead run of ours left it. ``vanished``
    tells that the newest attempt was refused because the provider had no recorded object any more,
    ``state_emptied`` that recorded objects had left the provider state (``occupied`` are those of
    their addresses at which it holds another object), ``state_replaced`` that there is another
    provider state than the recorded one, ``state_back`` that there is an older version of
    it, ``destroying`` that the newest run that had the step was a destroy, ``unadopted`` that the
    newest attempt found objects of which nothing is recorded, ``taken`` that it met an object that
    is not its own where it would have made one, or a provider state that is not its own,
    ``unrecorded`` that neither a record nor a run of the blueprint is known here.

    ``failed_run`` is the run that can be retried, ``changed_secrets`` its secrets that are others
    now, ``earlier_run`` the one to roll back to; ``blockers`` forbid these. ``rerun_inputs`` is the
    file with the inputs that the command line of the record's run named, ``hook_doubts`` what is
    uncertain in the modules of its hooks, ``retained_because`` the reason for which no destroy
    touches the step, ``scope`` the provider configuration that the blueprint gives the step, with
    its references as they are written.
    """

    condition: Condition | None = None
    claimed_by: str | None = None
    unproven_process: str | None = None
    spooled: bool = False
    settling: float = 0.0
    unanswerable: frozenset[str] = frozenset()
    errored_state: str | None = None
    errored_readable: bool = True
    lock: str | None = None
    left_lock: str | None = None
    vanished: bool = False
    destroying: bool = False
    state_emptied: bool = False
    occupied: tuple[str, ...] = ()
    state_replaced: bool = False
    state_back: bool = False
    unadopted: bool = False
    taken: bool = False
    misplaced: str | None = None
    protected: bool = False
    unrecorded: bool = False
    failed_run: str | None = None
    changed_secrets: tuple[str, ...] = ()
    earlier_run: str | None = None
    blockers: Mapping[Remedy, Blocker] = field(default_factory=dict)
    rerun_inputs: str | None = None
    compensates: bool = False
    hook_doubts: Mapping[HookKind, str] = field(default_factory=dict)
    retained_because: str | None = None
    scope: str = ""


class RecoveryContext(Struct, frozen=True):
    """
    A step with its newest record, its neighbours and its facts: all that advice depends on. An
    orphan is no longer in the blueprint.
    """

    blueprint: BlueprintAddress
    step: str
    record: OperationRecord | None
    neighbours: Neighbours = field(default_factory=Neighbours)
    facts: StepFacts = field(default_factory=StepFacts)
    is_orphan: bool = False

    @property
    def step_options(self) -> tuple[str, ...]:
        """
        The options of a command that name the step.
        """
        return (*(("--orphaned",) if self.is_orphan else ()), "--step", self.step)

    @property
    def is_hook_target(self) -> bool:
        """
        Whether the step is the module of a hook: only `reconcile` and `destroy` take it as a step.
        """
        return hook_of(self.step) is not None

    @property
    def status(self) -> Status | None:
        return self.record.status if self.record else None

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return self.record.resources.in_doubt if self.record else ()

    @property
    def protected(self) -> bool:
        """
        Whether ``prevent_destroy`` protects a recorded object, as it was applied, or a plan failed
        over that.
        """
        record = self.record
        return self.facts.protected or (
            record is not None
            and any(without_keys(r.address) in record.protected for r in record.resources.inventory)
        )

    @property
    def adopted(self) -> tuple[str, ...]:
        """
        The addresses of the objects that were adopted without proof that they were made here.
        """
        record = self.record
        present = {(r.address, r.id) for r in record.resources.inventory} if record else set()
        return tuple(
            item.address
            for item in (record.adopted if record else ())
            if (item.address, item.id) in present
        )

    @property
    def rivals(self) -> Mapping[str, str]:
        """
        The objects, by address, that hold the address of another one in doubt: no import can bring
        that back before they are taken out of the provider state.
        """
        doubted = {(doubt.address, doubt.id) for doubt in self.doubts}
        lost = {doubt.address for doubt in self.doubts if doubt.action in ("create", "forget")}
        objects = self.record.resources.inventory if self.record else ()
        return {
            ref.address: ref.id or "another object"
            for ref in objects
            if ref.address in lost and not ref.deposed and (ref.address, ref.id) not in doubted
        }

    @property
    def takeable(self) -> tuple[Doubt, ...]:
        """
        The doubts whose object could be imported at its address: nothing else holds that.
        """
        return tuple(doubt for doubt in self.doubts if doubt.address not in self.rivals)

    @property
    def is_adoptable(self) -> bool:
        """
        Whether the provider has an object that is in doubt: it can be adopted.
        """
        return bool(adoption_options(self.takeable))

    @property
    def can_rebuild(self) -> bool:
        """
        Whether objects have left the provider state of which no import has been tried yet, and
        could be.
        """
        return any(
            doubt.action == "forget"
            and doubt.saved is None
            and doubt.id is not None
            and doubt.readback is None
            for doubt in self.takeable
        )

    @property
    def has_more_to_destroy(self) -> bool:
        """
        Whether a destroy has anything to do beside objects that only left the provider state.
        """
        if self.record is None or self.facts.condition is not None:
            return True
        vanished = {
            (d.address, d.id) for d in self.doubts if d.action == "forget" and d.saved is None
        }
        objects = self.record.resources.inventory
        return not vanished or any((ref.address, ref.id) not in vanished for ref in objects)

    @property
    def is_unproven(self) -> bool:
        """
        Whether the provider has an object in doubt that nothing proves to be ours: no further
        evidence is to be had.
        """
        return any(doubt.readback and doubt.readback.unproven for doubt in self.doubts)

    @property
    def is_foreign(self) -> bool:
        """
        Whether evidence speaks against what the provider has for an object in doubt.
        """
        return any(
            doubt.readback and doubt.readback.ownership == "foreign" for doubt in self.doubts
        )

    @property
    def can_be_adopted_by_hand(self) -> bool:
        """
        Whether all that is in doubt are creates that evidence cannot settle any more: who has found
        one can have it taken over.
        """
        return not self.is_answerable and all(
            doubt.action == "create" and doubt.readback is not None and doubt.readback.adoptable
            for doubt in self.doubts
        )

    @property
    def can_be_asked_otherwise(self) -> bool:
        """
        Whether an ``identity`` or a ``search`` that the step has not yet might settle a doubt.
        """
        return any(
            doubt.readback is not None
            and doubt.readback.look is not None
            and bool(doubt.readback.look.declare)
            for doubt in self.doubts
        )

    @property
    def is_answerable(self) -> bool:
        """
        Whether evidence can still settle one of its doubts: not what left the provider state (but
        for what was kept to be confirmed), and not what the provider was asked for in vain.
        """
        return any(
            (doubt.action != "forget" or doubt.saved is not None)
            and doubt.address not in self.facts.unanswerable
            for doubt in self.doubts
        )
