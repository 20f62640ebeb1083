"""
What the tool and the engine report while they work.
"""
