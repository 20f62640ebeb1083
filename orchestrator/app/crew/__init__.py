"""
The steps of one run: what was ordered, who does it, how it ends.
"""
