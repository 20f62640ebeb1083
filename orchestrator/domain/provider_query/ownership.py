"""
Whose an object is that the provider has (law: not ours until proven).

That it exists proves that something is there, not that this target made it.
"""

from __future__ import annotations

from orchestrator.domain.provider_query.doubt_query import DoubtQuery
from orchestrator.domain.record.objects import Doubt, Ownership
from orchestrator.domain.record.provider_refusals import says_already_exists
from orchestrator.domain.record.record import OperationRecord


def ownership_of(
    query: DoubtQuery, object_id: str, *, by_search: bool, existed: bool, was_absent: bool
) -> tuple[Ownership, str]:
    """
    Whose the only object is that was found for a doubt, and what says so. ``existed``: the provider
    refused the create because of an object that existed; ``was_absent``: just before the create it
    did not have it, asked in the same way.

    A tag of the target's own outweighs that answer: the engine's provider may have sent the create
    twice.
    """
    if query.doubt.id is not None and object_id == query.doubt.id:
        return "ours", "its create returned this id"
    if by_search and query.by_own_tag:
        return "ours", "it carries the tag of this target"
    if existed and was_absent:
        return "found", (
            "the provider did not have it just before the create, and then said that it existed"
        )
    if existed:
        return "foreign", (
            "not this target's: when it was to be created, the provider said that it existed"
        )
    if query.doubt.id is not None:
        return "foreign", f"not this target's: its create returned {query.doubt.id}"
    if was_absent:
        return "ours", "the provider did not have it just before its create"
    return "found", (
        "nothing proves that this target made it: its create returned no id, and it was not found "
        "by a `search` for the target's own tag"
    )


def existed_before(record: OperationRecord, doubt: Doubt) -> bool:
    """
    Whether the provider said of the object in doubt, in this run or as it was asked before, that it
    existed when it was to be created.
    """
    faults = [record.error, record.last_attempt.error if record.last_attempt else None]
    diagnostics = [item for fault in faults if fault for item in fault.diagnostics]
    if says_already_exists(diagnostics, doubt.address):
        return True
    earlier = doubt.readback
    return doubt.id is None and earlier is not None and earlier.ownership == "foreign"
