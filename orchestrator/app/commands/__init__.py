"""
One use case a file: what each command of the tool does.
"""
