"""
Working directories: snapshots of modules and the configuration generated around them.
"""
