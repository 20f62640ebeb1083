"""
The servers behind the stores, one of each for all tests of this folder.
"""

from tests.contract.stores import az, gs, postgres, s3

__all__ = ["az", "gs", "postgres", "s3"]
