"""
The servers behind the stores, one of each for all tests of this folder.
"""

from tests.contract.stores import az, gs, postgres, proxied, s3

__all__ = ["az", "gs", "postgres", "proxied", "s3"]
