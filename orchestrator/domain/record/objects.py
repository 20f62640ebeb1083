"""
Remote objects in a record: planned, held in provider state, in doubt, released, gone.
"""

# Annotations are no texts here: pydantic would have to evaluate each of them, in every command.

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.domain.text import Word

# What every part of a record is made of.


class RecordModel(BaseModel):
    """
    A value that is also a wire format: immutable, unknown fields are kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, defer_build=True)


class RecordPart(RecordModel, defer_build=False):
    """
    A part of several documents: built once, where it is defined, and not anew in each of them.
    """


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


#: An object: its address and its id. A deposed one and its successor share the address.
ObjectKey = tuple[str, str | None]


def object_name(address: str, deposed: str | None) -> str:
    """
    Return the name of an object: its address, and the deposed key if it has one.

    >>> object_name("a.b", None), object_name("a.b", "8a1b2c3d")
    ('a.b', 'a.b (deposed 8a1b2c3d)')
    """
    return f"{address} (deposed {deposed})" if deposed else address


class PlannedAction(RecordModel):
    """
    A planned action of the engine, with the ``previous_address`` of an object that moves; one that
    only moves is a ``noop``. ``engine_word`` is the engine's word for an unknown action.
    ``importing`` is the id of an object that is imported first; ``deposed`` is the key of a deposed
    object. ``absent_before`` are keyed digests of the provider queries that found no such object
    just before the create.
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
        The address, with the deposed key if there is one.
        """
        return object_name(self.address, self.deposed)

    @property
    def imports(self) -> bool:
        """
        Whether the action imports an object into the provider state.
        """
        return self.action == "import" or self.importing is not None


def moves(planned: Iterable[PlannedAction]) -> dict[str, str]:
    """
    Return the addresses of objects that a plan moves, by their previous ones.
    """
    return {item.previous_address: item.address for item in planned if item.previous_address}


class ObjectRef(RecordPart):
    """
    An object of the provider state: its identity, never its attributes.
    """

    address: Word
    type: Word
    provider: Word
    id: Word | None = None
    deposed: Word | None = None

    @property
    def key(self) -> ObjectKey:
        return self.address, self.id

    @property
    def name(self) -> str:
        """
        The address, with the deposed key if there is one.
        """
        return object_name(self.address, self.deposed)


class ManualSearch(RecordModel):
    """
    A hint where to look for an object that the provider cannot be queried for. ``inputs`` and
    ``provider`` (its configuration in the blueprint) are masked. ``declare`` are lines for the step
    in the blueprint ``file`` that would make a query possible.
    """

    since: datetime | None = None
    until: datetime
    inputs: dict[Word, str] = {}
    provider: dict[Word, str] = {}
    file: Word = ""
    declare: tuple[str, ...] = ()


class AdoptedObject(RecordModel):
    """
    An object that was imported and is not proven ours (law: not ours until proven), and the
    evidence for and against.
    """

    address: str
    type: str
    id: str | None
    ownership: Ownership
    why: str
    run_id: str
    at: datetime

    @property
    def key(self) -> ObjectKey:
        return self.address, self.id


#: Why an object that was found cannot be adopted.
OCCUPIED = "its address holds another object, so it cannot be adopted there"

ReadbackMethod = Literal["identity", "id", "search", "none"]


class Readback(RecordPart):
    """
    The provider's answer about an object in doubt, and ``why`` it proves no more. ``method`` is the
    query: by import id (``identity``, or the ``id`` that its create returned) or by a ``search``;
    ``ids`` are those found, or the candidates. ``adoptable`` is False if another object holds the
    address of the one in doubt. ``ownership`` is set if one object was found; ``evidence`` speaks
    for and against it.
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
        The id by which the object can be adopted because it is proven ours; None if none or several
        were found, if nothing proves it, or if its address is taken.
        """
        return self._the_one() if self.ownership == "ours" else None

    @property
    def unproven(self) -> str | None:
        """
        The id of the only object found, if nothing proves whose it is.
        """
        return self._the_one() if self.ownership == "found" else None

    def _the_one(self) -> str | None:
        is_one = self.verdict == "exists" and self.adoptable and len(self.ids) == 1
        return self.ids[0] if is_one else None


class SavedState(RecordModel):
    """
    A provider state from before a destroy, kept beside the attempt on the host that made it until
    the provider has confirmed what was destroyed. ``scope`` is where the provider was queried then:
    names and keyed digests.
    """

    run_id: Word
    attempt: int = 1
    host: Word
    scope: tuple[tuple[Word, Word], ...] = ()


class Doubt(RecordPart):
    """
    An object of which evidence does not tell whether the last mutation made, changed or removed it.
    The action ``forget`` means that it left the provider state and is not known to be gone: not by
    a delete of this tool, or by one that the provider has not confirmed; ``saved`` is a state that
    contains it. ``absent_before`` is that of the planned create.
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
    def key(self) -> ObjectKey:
        return self.address, self.id

    @property
    def has_left_state(self) -> bool:
        """
        Whether the object left the provider state, and not by a delete of this tool.
        """
        return self.action == "forget" and self.saved is None

    @property
    def of_a_delete(self) -> bool:
        """
        Whether the doubt is about a delete that was requested and whose result is unknown.
        """
        return self.action == "delete" or (self.action == "forget" and self.saved is not None)

    def is_proven(self, object_id: str | None) -> bool:
        """
        Return whether the object with this id is proven to be the one in doubt: its create returned
        the id, or the provider showed it to be ours.
        """
        if self.id is not None:
            return self.id == object_id
        readback = self.readback
        return (
            readback is not None and readback.ownership == "ours" and readback.ids == (object_id,)
        )


class SettledDoubt(RecordModel):
    """
    A settled doubt, and how it was settled: by a person, or by evidence.
    """

    doubt: Doubt
    how: Settlement
    reason: str | None = None
    run_id: Word
    at: datetime


ReleaseReason = Literal["forgotten", "vanished"]


class ReleasedObject(RecordPart):
    """
    An object that is no longer managed and not proven gone: in the run ``run_id`` a plan forgot it,
    or its refresh did not find it.
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
        return ObjectRef(address=self.address, type=self.type, provider=self.provider, id=self.id)


class Resources(RecordModel):
    """
    The objects of a target: those that the last mutation planned, with what its journal proves,
    those in provider state, and those ``released`` at any time.
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
        The released objects that have not been imported again since.
        """
        managed = {(ref.type, ref.id) for ref in self.inventory}
        return tuple(item for item in self.released if (item.type, item.id) not in managed)


class CheckedObject(RecordPart):
    """
    An object whose absence was checked: its delete was requested and not checked since; the
    provider still has it and may be deleting it; it is gone; it remains; or it is unknown. A
    forgotten one is gone by a person's word: ``why`` is their reason, ``run_id`` the run that
    recorded it.
    """

    address: Word
    id: Word | None = None
    state: CheckedState
    why: str | None = None
    run_id: Word | None = None

    @property
    def key(self) -> ObjectKey:
        return self.address, self.id


class Absence(RecordPart):
    """
    The confirmation of absence: ``method`` is state, provider, parent, never_applied, or person if
    it rests on anybody's word.
    """

    verdict: Literal["confirmed", "unconfirmed"]
    method: Word
    checked: tuple[CheckedObject, ...] = ()
    at: datetime
