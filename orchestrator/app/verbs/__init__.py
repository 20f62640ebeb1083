"""
The verbs: one use case a file.
"""
