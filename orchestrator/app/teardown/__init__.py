"""
What a destroy heeds beside the steps themselves.
"""
