"""
What the use cases need from outside, as small protocols whose docstrings state laws.

Adapters do not inherit from these; each passes the contract suite in tests/contract.
"""
