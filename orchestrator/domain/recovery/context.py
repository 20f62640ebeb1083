"""
A step that may need recovery: its situation, record and observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from orchestrator.domain.addresses import without_keys
from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import Command, OperationRecord
from orchestrator.domain.record.states import Condition, Status
from orchestrator.domain.recovery.command_line import BlueprintAddress, adoption_options
from orchestrator.domain.target import HookKind
from orchestrator.errors import Refused, StoreReason


class Remedy(StrEnum):
    """
    Something that can be done about a step, in the order of listing.
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
    The state of a step, by its record and by observation.
    """

    LIVE = "live"
    CLAIMED = "claimed"
    SILENT = "silent"
    INTERRUPTED = "interrupted"
    SPOOLED = "spooled"
    LOCKED = "locked"
    UNSAVED = "unsaved"
    SEALED = "sealed"
    NOT_IMPORTED = "not_imported"
    FOUND = "found"
    LOST = "lost"
    UNPROVEN = "unproven"
    FOREIGN = "foreign"
    DISPLACED = "displaced"
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


class StepFacts(Struct, frozen=True):
    """
    Observations of a step besides its record.

    - Processes: ``claimed_by`` is the live run that works on other steps of the blueprint;
    ``unproven_process`` the process that holds the claim or runs the step and cannot be proven dead
    from here. ``settling`` is for how many seconds a request of a dead engine may be under way.
    - Provider: ``unanswerable`` are addresses in doubt that the provider could not tell after that
    time. ``vanished``: the newest attempt was refused because the provider had none of the recorded
    objects.
    - Provider state: ``errored_state`` is the file with a state that the engine could not save,
    ``errored_readable`` whether it is unencrypted. ``lock`` describes the state lock that the
    newest attempt met; ``left_lock`` is its id if a dead run of ours left it. ``state_emptied``:
    recorded objects have left the state; ``occupied`` are those of their addresses that hold
    another object. ``state_replaced``: there is another state than the recorded one;
    ``state_back``: an older version of it. ``moving``: a move of it was cut short.
    - Attempts: ``destroying``: the newest run with the step was a destroy. ``unadopted``: the
    newest attempt found objects without a record, or failed to adopt them. ``taken``: it found an
    object that is not its own instead of creating one, or a state that is not its own.
    ``unrecorded``: neither a record nor a run of the blueprint is known here.
    - Operation store: ``store_reason`` is why no mutating command may rely on it.
    - Runs: ``failed_run`` can be retried, ``changed_secrets`` are its secrets that have changed;
    ``earlier_run`` can be rolled back to; ``blockers`` forbid these. ``rerun_inputs`` is the file
    with the command-line inputs of the record's run.
    - ``hook_doubts`` are doubts in the modules of its hooks; ``retained_because`` is why no destroy
    touches the step; ``scope`` is its provider configuration in the blueprint, unresolved.
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
    moving: bool = False
    protected: bool = False
    unrecorded: bool = False
    store_reason: StoreReason | None = None
    failed_run: str | None = None
    changed_secrets: tuple[str, ...] = ()
    earlier_run: str | None = None
    blockers: Mapping[Remedy, Refused] = field(default_factory=dict)
    rerun_inputs: str | None = None
    compensates: bool = False
    hook_doubts: Mapping[HookKind, str] = field(default_factory=dict)
    retained_because: str | None = None
    scope: str = ""


class RecoveryContext(Struct, frozen=True):
    """
    A step with its newest record and facts: everything that advice depends on. An orphan is no
    longer in the blueprint. ``unready`` are upstream steps that are not ready and ``dependents``
    those that are alive, each with its status as text; ``children`` are the steps that it owns.
    """

    blueprint: BlueprintAddress
    step: str
    record: OperationRecord | None
    facts: StepFacts = field(default_factory=StepFacts)
    is_orphan: bool = False
    unready: Mapping[str, str] = field(default_factory=dict)
    dependents: Mapping[str, str] = field(default_factory=dict)
    children: tuple[str, ...] = ()

    @property
    def step_options(self) -> tuple[str, ...]:
        return (*(("--orphaned",) if self.is_orphan else ()), "--step", self.step)

    @property
    def status(self) -> Status | None:
        return self.record.status if self.record else None

    @property
    def failed_command(self) -> Command | None:
        return self.record.failed_command if self.record else None

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return self.record.resources.in_doubt if self.record else ()

    @property
    def protected(self) -> bool:
        """
        Whether ``prevent_destroy`` protects a recorded object as it was applied, or made a plan
        fail.
        """
        record = self.record
        return self.facts.protected or (
            record is not None
            and any(without_keys(r.address) in record.protected for r in record.resources.inventory)
        )

    @property
    def adopted(self) -> tuple[str, ...]:
        """
        The addresses of adopted objects that are not proven ours.
        """
        record = self.record
        unproven = record.unproven(record.resources.inventory) if record else ()
        return tuple(item.address for item in unproven)

    @property
    def rivals(self) -> Mapping[str, str]:
        """
        The objects that hold the address of another one in doubt, by address. They must be removed
        from provider state before that can be imported.
        """
        doubted = {doubt.key for doubt in self.doubts}
        addresses = {doubt.address for doubt in self.doubts if doubt.action in ("create", "forget")}
        objects = self.record.resources.inventory if self.record else ()
        return {
            ref.address: ref.id or "another object"
            for ref in objects
            if ref.address in addresses and not ref.deposed and ref.key not in doubted
        }

    @property
    def displaced(self) -> tuple[str, ...]:
        """
        The ids of what a mutation was to delete, the provider still has, and another object has the
        address of: the provider is asked again once somebody has deleted it.
        """
        return tuple(
            str(doubt.id)
            for doubt in self.doubts
            if doubt.saved is not None
            and doubt.address in self.rivals
            and doubt.readback is not None
            and doubt.readback.verdict == "exists"
        )

    @property
    def takeable(self) -> tuple[Doubt, ...]:
        """
        The doubts whose object could be imported, because its address is free.
        """
        return tuple(doubt for doubt in self.doubts if doubt.address not in self.rivals)

    @property
    def is_adoptable(self) -> bool:
        """
        Whether the provider has an object in doubt that can be adopted.
        """
        return bool(adoption_options(self.takeable))

    @property
    def has_more_to_destroy(self) -> bool:
        """
        Whether a destroy has work beside objects that only left the provider state.
        """
        if self.record is None or self.facts.condition is not None:
            return True
        vanished = {doubt.key for doubt in self.doubts if doubt.has_left_state}
        objects = self.record.resources.inventory
        return not vanished or any(ref.key not in vanished for ref in objects)

    @property
    def is_unproven(self) -> bool:
        """
        Whether the provider has an object in doubt that nothing proves to be ours; there is no
        further evidence.
        """
        return any(doubt.readback and doubt.readback.unproven for doubt in self.doubts)

    @property
    def can_be_adopted_by_hand(self) -> bool:
        """
        Whether all doubts are creates that evidence cannot settle any more, so that a person who
        finds the object can adopt it.
        """
        return not self.is_answerable and all(
            doubt.action == "create" and doubt.readback is not None and doubt.readback.adoptable
            for doubt in self.doubts
        )

    @property
    def can_be_asked_otherwise(self) -> bool:
        """
        Whether declaring an ``identity`` or a ``search`` might settle a doubt.
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
        Whether evidence can still settle a doubt: not for objects that left the provider state
        (unless a saved state holds them), nor if the provider could not tell.
        """
        return any(
            (doubt.action != "forget" or doubt.saved is not None)
            and doubt.address not in self.facts.unanswerable
            for doubt in self.doubts
        )
