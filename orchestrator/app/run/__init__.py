"""
One run over the steps of a blueprint: its request, the prepared steps, the step runner, the summary.
"""
