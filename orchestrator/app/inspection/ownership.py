"""
Whose a record is: a record of another project or blueprint file is refused, never taken for ours.
"""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.domain.record.record import OperationRecord
from orchestrator.errors import Refused


def check_owner(record: OperationRecord, project: str, paths: Collection[str]) -> None:
    """
    Refused where the record is another project's, or another blueprint file's than one of
    ``paths``: the file as it is called now, and as it was called before.
    """
    target = record.target.target
    if record.project != project:
        raise Refused(
            "foreign_record",
            f"{target} is recorded for project {record.project!r}, this is {project!r}",
            hint="give the blueprint another name, or another operation store",
        )
    path = record.source.blueprint_path
    if path not in paths:
        raise Refused(
            "foreign_record",
            f"{target} is recorded for the blueprint file {path}, this is {next(iter(paths))}",
            hint=f"if the file was moved, add `moved_from: [{path}]` to the blueprint; "
            "if it is another blueprint, give it another name",
        )
