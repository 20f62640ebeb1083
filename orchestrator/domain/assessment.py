"""
What a mutation did and left in doubt, computed from plan, journal and provider state.

The same function judges a call that we lived through and one that is found on disk later.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.domain.journal import PARTS, Journal, Part
from orchestrator.domain.messages import PulledState
from orchestrator.domain.record import Action, Doubt, ObjectRef, PlannedAction, Resources
from orchestrator.domain.refusals import is_refusal


def inventory(state: PulledState) -> tuple[ObjectRef, ...]:
    """
    The objects of a provider state, without their attributes.
    """
    return tuple(
        ObjectRef(
            address=item.address,
            type=item.type,
            provider=item.provider,
            id=item.id,
            deposed=item.deposed,
        )
        for item in state.objects
    )


def assess(
    planned: Sequence[PlannedAction],
    journal: Journal,
    before: Sequence[ObjectRef],
    state: PulledState | None,
    refused_on: Sequence[str] = (),
    *,
    ended_well: bool = False,
) -> Resources:
    """
    Sort every planned object by its fate (DESIGN 10).

    ``ended_well``: the engine said that it did everything. Then an end that its journal does not
    tell is no doubt: of a deposed and a new object at one address it may report only one.
    ``before`` is the inventory the plan was made on; ``state`` the provider state afterwards, None
    where it cannot be had: then the journal alone speaks, and the inventory is the one from before.
    """
    fates = _Fates(planned, journal, before, state, refused_on, ended_well=ended_well)
    return fates.sort()


class _Fates:
    def __init__(
        self,
        planned: Sequence[PlannedAction],
        journal: Journal,
        before: Sequence[ObjectRef],
        state: PulledState | None,
        refused_on: Sequence[str],
        *,
        ended_well: bool,
    ) -> None:
        self.planned = planned
        self.journal = journal
        self.before = tuple(before)
        self.state = state
        self.refused_on = refused_on
        self.ended_well = ended_well
        live = state.objects if state is not None else ()
        self.present = {item.address for item in live if item.deposed is None}
        self.tainted = tuple(item.address for item in live if item.tainted)
        self.ids_before = {item.address: item.id for item in before if item.deposed is None}
        self.ids_after = {item.address: item.id for item in live if item.deposed is None}
        self.doubts: list[Doubt] = []

    def sort(self) -> Resources:
        created: list[str] = []
        updated: list[str] = []
        replaced: list[str] = []
        deleted: list[str] = []
        failed: list[str] = []
        untouched: list[str] = []
        for item in self.planned:
            parts = PARTS.get(item.action)
            if parts is None:
                continue
            began = [part for part in parts if self._began(item.address, part)]
            if any((item.address, part) in self.journal.errored for part in parts):
                failed.append(item.address)
            done = {part for part in parts if self._done(item.address, part)}
            if item.action == "replace" and done == {"create", "delete"}:
                replaced.append(item.address)
            else:
                if "create" in done:
                    created.append(item.address)
                if "delete" in done:
                    deleted.append(item.address)
                if "update" in done:
                    updated.append(item.address)
            if not began and not done and self.journal.extent == "complete":
                untouched.append(item.address)
            for part in parts:
                self._doubt(item.address, part)
        return Resources(
            planned=tuple(self.planned),
            journal=self.journal.extent,
            created=tuple(created),
            updated=tuple(updated),
            replaced=tuple(replaced),
            deleted=tuple(deleted),
            failed=tuple(failed),
            not_attempted=tuple(untouched),
            tainted=self.tainted,
            in_doubt=tuple(self.doubts),
            inventory=inventory(self.state) if self.state is not None else self.before,
        )

    def _began(self, address: str, part: Action) -> bool:
        return (address, part) in self.journal.began

    def _done(self, address: str, part: Action) -> bool:
        """
        Whether it is known to have happened: the provider state outranks the journal.
        """
        reported = (address, part) in self.journal.completed
        if self.state is None or part == "update":
            return reported
        known = address in self.ids_before
        other = reported or self.ids_after.get(address) != self.ids_before.get(address)
        if part == "create":
            return address in self.present and (not known or other)
        return known and (address not in self.present or other)

    def _doubt(self, address: str, part: Action) -> None:
        if self._done(address, part):
            return
        why = self._doubtful_create(address) if part == "create" else self._doubtful(address, part)
        if why is None:
            return
        key = (address, part)
        known_id = self.journal.completed.get(key) if part == "create" else None
        self.doubts.append(
            Doubt(
                address=address,
                action=part,
                started_at=self.journal.began.get(key),
                id=known_id or (self.ids_before.get(address) if part != "create" else None),
                why=why,
            )
        )

    def _doubtful_create(self, address: str) -> str | None:
        key: Part = (address, "create")
        unseen = (
            "the provider state could not be read"
            if self.state is None
            else "the provider state does not hold it"
        )
        if key in self.journal.completed:
            return f"it was created, and {unseen}"
        if key in self.journal.errored:
            own = [d for d in self.journal.errors if d.address == address]
            if is_refusal(own, self.refused_on):
                return None
            said = own[0].summary if own else "no error names it"
            return f"its create ended in an error and {unseen}: {said}"
        if key in self.journal.began:
            return f"its create began and never ended, and {unseen}"
        if self.journal.extent != "complete":
            return "its create was planned, and what is left of the journal does not tell its end"
        return None

    def _doubtful(self, address: str, part: Action) -> str | None:
        if self.ended_well or (address, part) not in self.journal.unended:
            return None
        return f"its {part} began and never ended"
