"""
The use cases of the commands: one module each, or one for commands of a kind.
"""
