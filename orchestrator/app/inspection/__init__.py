"""
Records read: whose they are, who is alive, what is known of earlier runs.
"""
