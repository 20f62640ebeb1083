"""
The ports: what the use cases need from outside, as small protocols. Their docstrings state what an
adapter must do.

Adapters do not inherit from these; each passes the contract suite in tests/contract.
"""
