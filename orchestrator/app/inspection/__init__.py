"""
Reads records: their owner, liveness, and earlier runs.
"""
