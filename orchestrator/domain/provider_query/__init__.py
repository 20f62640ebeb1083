"""
What is asked of a provider about objects, and what its answers prove.
"""
