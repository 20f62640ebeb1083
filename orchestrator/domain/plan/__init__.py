"""
The changes of a plan: objects with their attributes, outputs, inputs.
"""
