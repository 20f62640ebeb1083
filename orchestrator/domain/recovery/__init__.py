"""
What may be done about a step now, and the exact command that does it.
"""
