"""
Events of the tool, and messages of the engine.
"""
