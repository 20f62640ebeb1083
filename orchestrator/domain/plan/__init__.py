"""
What a plan would change: objects with their attributes, outputs, inputs.
"""
