"""
Changes of provider state without changes of remote objects, as reconcile, import and exec ask for.
"""
