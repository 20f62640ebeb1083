"""
Surgery: changes of provider state and of no remote object, for reconcile, import and exec.
"""
