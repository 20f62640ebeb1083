"""
The operation record of a target: its statuses, its entries, the runs that wrote them.
"""
