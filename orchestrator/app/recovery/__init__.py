"""
What a person has reconcile do: ask the provider, operate on provider state, release locks.
"""
