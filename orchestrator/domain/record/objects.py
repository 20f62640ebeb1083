"""
What a record says of remote objects: planned, held, in doubt, released, gone.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.domain.text import Word

# What every part of a record is made of.


class RecordModel(BaseModel):
    """
    A value that is also a wire format: immutable, unknown fields kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, defer_build=True)


CheckedState = Literal["requested", "terminating", "gone", "remaining", "unknown", "forgotten"]
AbsenceMethod = Literal["state", "provider"]
#: How absence is established where it rests on the word of a person.
PERSON = "person"
Settlement = Literal["forgotten", "accepted", "in_state", "refreshed", "absent", "adopted", "gone"]
#: Whose an object is: ours is proven; found exists, by whom is not known; foreign is disproven.
Ownership = Literal["ours", "found", "foreign"]
#: ``unknown`` is an action of the engine that this version does not know: it counts as a change.
Action = Literal[
    "create", "update", "delete", "replace", "read", "forget", "import", "noop", "unknown"
]


def object_name(address: str, deposed: str | None) -> str:
    """
    Return an object among those at its address.

    >>> object_name("a.b", None), object_name("a.b", "8a1b2c3d")
    ('a.b', 'a.b (deposed 8a1b2c3d)')
    """
    return f"{address} (deposed {deposed})" if deposed else address


class PlannedAction(RecordModel):
    """
    A planned action of the engine; an object that only moves is a ``noop`` with its
    ``previous_address``. ``engine_word`` is the engine's own for an unknown action. ``importing``
    is the import id of an object that is taken into the provider state first; ``deposed`` is the
    key of an object that its successor has displaced at the address. ``absent_before`` are the
    questions, as keyed digests, to which the provider had no such object just before the create.
    """

    address: Word
    action: Action
    previous_address: Word | None = None
    engine_word: Word | None = None
    importing: Word | None = None
    deposed: Word | None = None
    absent_before: tuple[Word, ...] = ()

    @property
    def name(self) -> str:
        """
        The object among those at its address.
        """
        return object_name(self.address, self.deposed)

    @property
    def imports(self) -> bool:
        """
        Whether the action takes an object into the provider state.
        """
        return self.action == "import" or self.importing is not None


class ObjectRef(RecordModel):
    """
    An object of the provider state: never its attributes, only what names it.
    """

    address: Word
    type: Word
    provider: Word
    id: Word | None = None
    deposed: Word | None = None

    @property
    def name(self) -> str:
        """
        The object among those at its address.
        """
        return object_name(self.address, self.deposed)


class ManualSearch(RecordModel):
    """
    Where a person may look for an object that nobody can ask the provider for. ``inputs`` and
    ``provider`` (its configuration as the blueprint gives it) are masked. ``declare`` are lines by
    which the step in the blueprint ``file`` would have the provider asked.
    """

    since: datetime | None = None
    until: datetime
    inputs: dict[Word, str] = {}
    provider: dict[Word, str] = {}
    file: Word = ""
    declare: tuple[str, ...] = ()


class AdoptedObject(RecordModel):
    """
    An object that was taken into the provider state and is not proven ours (law: not ours until
    proven), and what speaks for and against.
    """

    address: str
    type: str
    id: str | None
    ownership: Ownership
    why: str
    run_id: str
    at: datetime


ReadbackMethod = Literal["identity", "id", "search", "none"]


class Readback(RecordModel):
    """
    What the provider answered when it was asked for an object in doubt, and ``why`` that means no
    more. ``method`` is how it was asked: by its import id (``identity``, or the ``id`` that its
    create returned) or by a ``search``; ``ids`` are what was found, or the candidates.
    ``adoptable`` is False if the address of the object in doubt holds another one. ``ownership`` is
    set where one object was found; ``evidence`` is what speaks for and against.
    """

    verdict: Literal["exists", "absent", "unknown"]
    method: ReadbackMethod
    ids: tuple[Word, ...] = ()
    adoptable: bool = True
    why: str
    at: datetime
    look: ManualSearch | None = None
    ownership: Ownership | None = None
    evidence: str | None = None

    @property
    def adopts(self) -> str | None:
        """
        The id under which the object may be adopted because it is proven ours; None if none was
        found, more than one, where nothing proves it, or where its address is taken.
        """
        return self._the_one() if self.ownership == "ours" else None

    @property
    def unproven(self) -> str | None:
        """
        The id of the only object that was found, where nothing proves whose it is.
        """
        return self._the_one() if self.ownership == "found" else None

    def _the_one(self) -> str | None:
        is_one = self.verdict == "exists" and self.adoptable and len(self.ids) == 1
        return self.ids[0] if is_one else None


class SavedState(RecordModel):
    """
    A provider state from before a destroy, kept beside the attempt that made it on that host until
    the provider has confirmed what was destroyed. ``scope`` is where the provider was asked then:
    names and keyed digests.
    """

    run_id: Word
    attempt: int = 1
    host: Word
    scope: tuple[tuple[Word, Word], ...] = ()


class Doubt(RecordModel):
    """
    An object of which evidence does not tell whether the last mutation made, changed or removed it.
    The action ``forget`` means that it left the provider state without being known to be gone: not
    by a delete of this tool, or by one that the provider has not confirmed; ``saved`` knows it.
    ``absent_before`` is that of the planned create.
    """

    address: Word
    action: Action
    started_at: datetime | None = None
    at: datetime | None = None  # when it was found
    id: Word | None = None
    why: str
    readback: Readback | None = None
    saved: SavedState | None = None
    absent_before: tuple[Word, ...] = ()

    @property
    def of_a_delete(self) -> bool:
        """
        Whether the doubt is about a delete that was requested and whose end is not known.
        """
        return self.action == "delete" or (self.action == "forget" and self.saved is not None)

    def is_proven(self, object_id: str | None) -> bool:
        """
        Return whether the object with this id is proven to be the one in doubt: its create returned
        that id, or the provider showed it to be ours.
        """
        if self.id is not None:
            return self.id == object_id
        readback = self.readback
        return (
            readback is not None and readback.ownership == "ours" and readback.ids == (object_id,)
        )


class SettledDoubt(RecordModel):
    """
    A doubt that was settled, and how: by a person, or by evidence.
    """

    doubt: Doubt
    how: Settlement
    reason: str | None = None
    run_id: Word
    at: datetime


ReleaseReason = Literal["forgotten", "vanished"]


class ReleasedObject(RecordModel):
    """
    An object that is no longer managed and not proven gone: a plan forgot it, or its refresh did
    not find it, in the run ``run_id``.
    """

    address: Word
    type: Word
    provider: Word
    id: str | None = None
    how: ReleaseReason
    reason: str | None = None
    run_id: Word
    at: datetime

    @property
    def ref(self) -> ObjectRef:
        """
        The object as it was managed.
        """
        return ObjectRef(address=self.address, type=self.type, provider=self.provider, id=self.id)


class Resources(RecordModel):
    """
    What the last mutation planned, what its journal proves, what the provider state holds, and what
    of it was ``released`` at any time.
    """

    planned: tuple[PlannedAction, ...] = ()
    journal: Literal["complete", "partial", "missing"] | None = None
    imported: tuple[Word, ...] = ()
    created: tuple[Word, ...] = ()
    updated: tuple[Word, ...] = ()
    replaced: tuple[Word, ...] = ()
    deleted: tuple[Word, ...] = ()
    failed: tuple[Word, ...] = ()
    not_attempted: tuple[Word, ...] = ()
    tainted: tuple[Word, ...] = ()
    in_doubt: tuple[Doubt, ...] = ()
    inventory: tuple[ObjectRef, ...] = ()
    released: tuple[ReleasedObject, ...] = ()

    @property
    def still_released(self) -> tuple[ReleasedObject, ...]:
        """
        The released objects that have not been taken back since.
        """
        managed = {(ref.type, ref.id) for ref in self.inventory}
        return tuple(item for item in self.released if (item.type, item.id) not in managed)


class CheckedObject(RecordModel):
    """
    An object whose absence was asked for: its delete was requested and nobody has asked since; the
    provider has it, and may still be deleting it; it is gone; it remains; or nothing can be told.
    A forgotten one is gone by the word of a person: ``why`` is their reason, ``run_id`` the run
    that wrote it down.
    """

    address: Word
    id: Word | None = None
    state: CheckedState
    why: str | None = None
    run_id: Word | None = None


class Absence(RecordModel):
    """
    How absence was established: ``method`` is state, provider, parent, never_applied, or person
    where it rests on anybody's word.
    """

    verdict: Literal["confirmed", "unconfirmed"]
    method: Word
    checked: tuple[CheckedObject, ...] = ()
    at: datetime
