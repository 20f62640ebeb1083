"""
One run over the steps of a blueprint: request, prepared steps, step runner, summary.
"""
