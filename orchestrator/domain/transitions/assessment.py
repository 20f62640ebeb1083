"""
Computes what a mutation did and left in doubt, from plan, journal and provider state.

The same function judges a call that was observed and one that is found on disk later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from orchestrator.domain.events.journal import ENGINE_ACTIONS, Journal, ObjectAction
from orchestrator.domain.provider_state import PulledState, last_writer
from orchestrator.domain.record.entry_changes import EntryChanges, EntryStamp
from orchestrator.domain.record.objects import (
    Action,
    Doubt,
    ObjectKey,
    ObjectRef,
    PlannedAction,
    Resources,
)
from orchestrator.domain.record.record import (
    Diagnostic,
    OperationRecord,
    OutputOrigin,
    ProviderState,
)

# Errors by which a provider says that it made nothing: a create that began and is not in provider
# state is in doubt unless its error is such a refusal.


#: Never a refusal, whatever else the text says: the object may exist, or the answer was lost.
_UNCLEAR = re.compile(
    r"already\s*exists|AlreadyExist|EntityExists|BucketAlreadyOwned|Duplicate|in use"
    r"|time[d]?[ -]?out|deadline exceeded|connection (reset|refused|closed)|broken pipe|\bEOF\b"
    r"|RequestError|request send failed|no such host|i/o timeout|unreachable"
    r"|did not respond|Request cancelled|operation canceled|inconsistent result|interrupted"
    # It was made, and what came after the create was refused.
    r"|\b(waiting|reading|describing|polling|refreshing)\b|\bafter creat",
    re.IGNORECASE,
)

#: The server did not say what became of the request, unless it says so elsewhere.
_SERVER_ERROR = re.compile(
    r"\b5\d\d\b|Internal ?(Server ?)?Error|InternalFailure|Service ?Unavailable|Bad Gateway",
    re.IGNORECASE,
)

#: A request that was throttled was not carried out. Some providers answer so with status 503: then
#: it counts as that where the step's retries name the error.
_THROTTLED = re.compile(
    r"\bRequestLimitExceeded\b|\bThrottling(Exception)?\b|\bThrottledException\b"
    r"|\bTooManyRequests(Exception)?\b"
)

#: Validation, permission and quota errors of the common providers and of HTTP APIs.
_REFUSALS = (
    r"\bInvalid(Parameter|ParameterValue|ParameterCombination|Request|Input|Argument)\w*",
    r"\bInvalid[A-Z]\w*\.(NotFound|Malformed)\b",
    r"\bValidation(Error|Exception|Failed)\b",
    r"\bMalformed(PolicyDocument|QueryString|Input)\b",
    r"\bMissingParameter\b",
    r"\bAccess ?Denied(Exception)?\b",
    r"\bUnauthorizedOperation\b|\bUnauthorized\b|\bNotAuthorized\b",
    r"\bAuthorization(Failed|Error|_RequestDenied)\b|\bAuthFailure\b",
    r"\bPermission ?Denied\b|\bForbidden\b|\bPERMISSION_DENIED\b|\bINVALID_ARGUMENT\b",
    r"\bExpiredToken(Exception)?\b|\bInvalidClientTokenId\b|\bUnrecognizedClientException\b",
    r"\b\w*(Limit|Quota)Exceeded(Exception)?\b",
    r"\bQuota\w* exceeded\b|\bRESOURCE_EXHAUSTED\b.*quota",
    r"\bStatusCode: ?(400|401|403|422|429)\b|\bError (40[013]|429)\b",
)


class RefusalRules(Struct, frozen=True):
    """
    A step's own rules for which errors prove that the provider made nothing. Its author's
    ``refused_on`` overrides the shipped exceptions; ``retried_on`` does not: a create that may have
    made something is not retried.
    """

    refused_on: tuple[str, ...] = ()
    retried_on: tuple[str, ...] = ()


NO_RULES = RefusalRules()


def is_refusal(diagnostics: Iterable[Diagnostic], rules: RefusalRules = NO_RULES) -> bool:
    """
    Return whether the diagnostics of one object prove that the provider made nothing.

    >>> is_refusal([Diagnostic(summary="creating: InvalidParameterValue: no such zone")])
    True
    >>> is_refusal([Diagnostic(summary="bucket already exists")])
    False
    """
    texts = [f"{d.summary}\n{d.detail}" for d in diagnostics if d.severity == "error"]
    return bool(texts) and all(_is_refused(text, rules) for text in texts)


def _is_refused(text: str, rules: RefusalRules) -> bool:
    if any(re.search(pattern, text) for pattern in rules.refused_on):
        return True
    if _UNCLEAR.search(text):
        return False
    retried = any(re.search(pattern, text) for pattern in rules.retried_on)
    if _SERVER_ERROR.search(text):
        return retried and _THROTTLED.search(text) is not None
    patterns = (_THROTTLED.pattern, *_REFUSALS)
    return retried or any(re.search(pattern, text) for pattern in patterns)


def not_deleted(
    inventory: Sequence[ObjectRef], journal: Journal, *, ended_well: bool
) -> tuple[ObjectRef, ...]:
    """
    Return the objects of ``inventory`` that a destroy did not delete by its journal, for a provider
    state that cannot be read. The journal does not distinguish two objects at one address: both
    stay unless all were deleted.
    """
    addresses = [ref.address for ref in inventory]
    return tuple(
        ref
        for ref in inventory
        if (ref.address, "delete") not in journal.completed
        or (addresses.count(ref.address) > 1 and not ended_well)
    )


#: What the engine says where it did not wait for what was under way.
_CANCELED = "operation canceled"
#: What becomes of an object by each part; an unknown one has changed it, as far as one knows.
_FATES: Mapping[Action, str] = {
    "create": "created",
    "update": "updated",
    "delete": "deleted",
    "unknown": "updated",
}
_RESULTS = ("created", "updated", "replaced", "deleted", "failed", "not_attempted")


class Assessment:
    """
    The planned objects by what happened to them.

    ``ended_well``: the engine reported success. Then a result missing in the journal is no doubt:
    of a deposed and a new object at one address it may report only one. ``before`` is the inventory
    that the plan was made from; ``state`` the provider state afterwards, None if it is not
    available: then only the journal counts, and the inventory stays as it was.
    """

    def __init__(
        self,
        planned: Sequence[PlannedAction],
        journal: Journal,
        before: Sequence[ObjectRef],
        state: PulledState | None,
        refusals: RefusalRules = NO_RULES,
        *,
        ended_well: bool = False,
    ) -> None:
        self.planned = tuple(planned)
        self.changes = [item for item in planned if item.action in ENGINE_ACTIONS]
        self.journal = journal
        self.before = tuple(before)
        self.state = state
        self.refusals = refusals
        self.ended_well = ended_well
        live = state.objects if state is not None else ()
        self.present = {item.address for item in live if item.deposed is None}
        self.tainted = state.tainted if state is not None else ()
        self.ids_before = {item.address: item.id for item in before if item.deposed is None}
        self.ids_after = {item.address: item.id for item in live if item.deposed is None}
        self.in_state = {item.key for item in live}
        self.deposed = {item.key for item in live if item.deposed is not None}
        self.doubts: dict[tuple[str, Action], Doubt] = {}
        cut = any(_CANCELED in error.summary for error in journal.errors)
        self.orderly = journal.extent == "complete" and not cut

    def resources(self) -> Resources:
        fates: dict[str, dict[str, None]] = {name: {} for name in _RESULTS}
        # The delete of a deposed object ends in an error without an event: an engine that ended in
        # order has waited for it.
        silent = self.journal.unfinished if self.orderly and not self.ended_well else frozenset()
        for item in self.changes:
            address, name, parts = item.address, item.name, ENGINE_ACTIONS[item.action]
            keys = [(address, part) for part in parts]
            done = {part for part in parts if self._done(item, part)}
            has_error = any(
                key in self.journal.errored or (key in silent and key[1] not in done)
                for key in keys
            )
            if has_error and not (done and self._is_one_of_several(item)):
                fates["failed"][name] = None
            if item.action == "replace" and done == {"create", "delete"}:
                fates["replaced"][name] = None
            else:
                for part in done:
                    fates[_FATES[part]][name] = None
            began = any(key in self.journal.began for key in keys)
            if not began and not done and self.journal.extent == "complete":
                fates["not_attempted"][name] = None
            for part in parts:
                self._doubt(item, part)
            # It may still exist.
            was_changed = item.action in ("update", "unknown") and self.state is not None
            if was_changed and address in self.ids_before and address not in self.present:
                self.doubts[address, "forget"] = Doubt(
                    address=address,
                    action="forget",
                    id=self.ids_before[address],
                    why="it was to be changed, and the provider state does not hold it any more",
                )
        arrived = self.present - self.ids_before.keys()
        return Resources(
            planned=self.planned,
            journal=self.journal.extent,
            imported=tuple(p.address for p in self.planned if p.imports and p.address in arrived),
            tainted=self.tainted,
            in_doubt=tuple(self.doubts.values()),
            inventory=self.state.inventory if self.state is not None else self.before,
            **{name: tuple(addresses) for name, addresses in fates.items()},
        )

    def _done(self, item: PlannedAction, part: Action) -> bool:
        """
        Return whether the action is known to have happened; provider state outranks the journal.
        """
        address = item.address
        reported = (address, part) in self.journal.completed
        if self.state is None or part in ("update", "unknown"):
            return reported
        if part == "delete":
            return self._deleted(item, reported=reported)
        existed, now = address in self.ids_before, self.ids_after.get(address)
        created_id = self.journal.completed.get((address, part))
        # A state from before the replacement still holds the old object.
        arrived = reported and (created_id == now or None in (created_id, now))
        other = arrived or now != self.ids_before.get(address)
        return address in self.present and (not existed or other)

    def _deleted(self, item: PlannedAction, *, reported: bool) -> bool:
        objects = self._deleted_by(item)
        if item.action == "replace":
            if objects & self.deposed:
                return False
            return bool(objects) and (reported or not objects & self.in_state)
        if not objects & self.in_state:
            return bool(objects)
        ended = reported and (item.address, "delete") not in self.journal.unfinished
        return ended and not self._is_one_of_several(item)

    def _is_one_of_several(self, item: PlannedAction) -> bool:
        """
        Return whether the plan has deposed objects at the same address: then the journal may refer
        to any of them.
        """
        return any(other.deposed for other in self.changes if other.address == item.address)

    def _deleted_by(self, item: PlannedAction) -> set[ObjectKey]:
        """
        Return the objects that a planned delete may refer to. Event streams do not name deposed
        objects: next to another action at its address, a delete refers to those; alone, it may
        refer to all.
        """
        at = [ref for ref in self.before if ref.address == item.address]
        if self._is_one_of_several(item):
            at = [ref for ref in at if ref.deposed == item.deposed]
        elif item.action == "delete" and any(
            other.address == item.address and other.action != "delete" for other in self.changes
        ):
            at = [ref for ref in at if ref.deposed is not None]
        elif item.action == "replace":
            at = [ref for ref in at if ref.deposed is None]
        return {ref.key for ref in at}

    def _doubt(self, item: PlannedAction, part: Action) -> None:
        address, key = item.address, (item.address, part)
        if self.state is not None and self._done(item, part):
            return
        why = self._doubtful_create(address) if part == "create" else self._doubtful(address, part)
        if why is None:
            return
        known_id = self.journal.completed.get(key) if part == "create" else None
        if part != "create":
            objects = self._deleted_by(item)
            ids = sorted(id_ for _, id_ in objects & self.in_state or objects if id_ is not None)
            known_id = ids[0] if ids else self.ids_before.get(address)
        self.doubts.setdefault(
            (item.name, part),
            Doubt(
                address=address,
                action=part,
                started_at=self.journal.began.get(key),
                id=known_id,
                why=why,
                absent_before=item.absent_before if part == "create" else (),
            ),
        )

    def _doubtful_create(self, address: str) -> str | None:
        key: ObjectAction = (address, "create")
        unseen = (
            "the provider state could not be read"
            if self.state is None
            else "the provider state does not hold it"
        )
        if key in self.journal.completed:
            return f"it was created, and {unseen}"
        if key in self.journal.errored:
            own = [d for d in self.journal.errors if d.address == address]
            if is_refusal(own, self.refusals):
                return None
            error = own[0].summary if own else "no error names it"
            return f"its create ended in an error and {unseen}: {error}"
        if key in self.journal.began:
            return f"its create began and never ended, and {unseen}"
        if self.journal.extent != "complete":
            return "its create was planned, and what is left of the journal does not show its end"
        return None

    def _doubtful(self, address: str, part: Action) -> str | None:
        name = "unknown action" if part == "unknown" else part
        if self.state is None and (address, part) in self.journal.completed:
            return f"its {name} was reported, and the provider state could not be read"
        if self.ended_well or self.orderly:
            return None
        if (address, part) in self.journal.unfinished:
            return f"its {name} began and never ended"
        if self.journal.extent == "missing" and (address, part) not in self.journal.began:
            return f"its {name} was planned, and nothing is left that shows whether it began"
        return None


def with_serial_of(bound: ProviderState | None, state: PulledState | None) -> ProviderState | None:
    """
    Return the bound provider state with the lineage and serial that were read.
    """
    if bound is None or state is None or not state.lineage:
        return bound
    return bound.model_copy(update={"lineage": state.lineage, "serial": state.serial})


def bound_to(record: OperationRecord, state: PulledState | None) -> EntryChanges:
    """
    Return the provider state that the record is bound to, and its last writer, as they were read.
    """
    return {
        "provider_state": with_serial_of(record.provider_state, state),
        "engine": last_writer(state, record.engine),
    }


def outputs_of_state(
    before: OperationRecord | None,
    run_id: str,
    state: PulledState,
    stamp: EntryStamp,
    *,
    secrets_known: bool = False,
) -> EntryChanges:
    """
    Return all outputs of a sound provider state; the origin changes only with the value.

    Unless ``secrets_known`` (after an apply all secrets of the step are known), outputs that
    contained a secret still do.
    """
    if before is not None and not secrets_known:
        state = state.with_secrets(lambda _: False, {**before.outputs, **before.masked_outputs})
    plain = {name: item.value for name, item in state.outputs.items() if not item.withheld}
    fresh = OutputOrigin(run_id=run_id, at=stamp.at)
    old, origins_before = (before.outputs, before.outputs_from) if before else ({}, {})
    origins = {
        name: origins_before.get(name, fresh) if old.get(name) == value else fresh
        for name, value in plain.items()
    }
    return {
        "outputs": plain,
        "outputs_from": origins,
        "sensitive_outputs": tuple(
            sorted(name for name, item in state.outputs.items() if item.withheld)
        ),
        "masked_outputs": {
            name: item.shape for name, item in state.outputs.items() if item.secret_leaves
        },
    }
