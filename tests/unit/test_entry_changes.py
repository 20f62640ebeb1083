"""
What an entry may set is what a record has.
"""

from __future__ import annotations

from typing import get_type_hints

from orchestrator.domain.record.entry_changes import EntryChanges
from orchestrator.domain.record.record import OperationRecord


def test_the_changes_of_an_entry_name_every_field_of_a_record_and_nothing_else() -> None:
    """
    A field that is added to the record can be set by a transition, and is checked there by its
    name. Only the schema follows from the version of the program.
    """
    assert set(get_type_hints(EntryChanges)) == set(OperationRecord.model_fields) - {"schema_"}
