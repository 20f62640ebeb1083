"""
What a destroy takes into account beside the engine: owned steps, hooks, protection, missing secrets.
"""
