"""
The operation record of a target: its statuses, its entries, and how one follows from the other.
"""
