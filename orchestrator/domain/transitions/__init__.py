"""
How a record moves: from marker and evidence to the entry that ends a mutation.
"""
