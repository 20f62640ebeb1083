"""
Working directories: module snapshots and the configuration generated around them.
"""
