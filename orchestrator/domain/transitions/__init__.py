"""
Transitions of a record: from marker and evidence to the entry that ends a mutation.
"""
