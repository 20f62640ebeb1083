"""
What a destroy heeds beside the engine: owned steps, hooks, protection, missing secrets.
"""
