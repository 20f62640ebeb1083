"""
One step: prepared, planned, mutated, recorded, settled, confirmed absent.
"""
