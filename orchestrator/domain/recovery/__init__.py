"""
What can be done about a step, and the exact command for it.
"""
