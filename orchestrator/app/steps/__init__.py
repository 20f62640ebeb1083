"""
One step: prepared, planned, carried out, recorded, settled, confirmed absent.
"""
