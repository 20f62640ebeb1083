"""
Queries to a provider about objects, and what its answers prove.
"""
