"""
Recovery: what can be done about a step, and the exact command for it.
"""
