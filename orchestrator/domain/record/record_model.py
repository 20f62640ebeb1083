"""
What every part of a record is made of.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RecordModel(BaseModel):
    """
    A value that is also a wire format: immutable, unknown fields kept.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, defer_build=True)
