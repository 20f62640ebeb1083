"""
The AWS provider as it is, against a cloud on this machine whose answers can be lost on the way.
"""
