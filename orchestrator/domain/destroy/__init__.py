"""
In which order a destroy goes.
"""
