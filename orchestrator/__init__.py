"""
Runs the modules of a blueprint in order and keeps a durable operation record of each.
"""

__version__ = "0.1.0"
