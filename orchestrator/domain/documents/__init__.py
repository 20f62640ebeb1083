"""
The JSON documents of reading commands.
"""
