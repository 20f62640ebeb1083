"""
References ``${...}`` in blueprint values: parsed once, resolved against a scope.

Interface agreed on; the owner of loading/ fills this in.
"""
