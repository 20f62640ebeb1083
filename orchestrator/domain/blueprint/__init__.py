"""
A blueprint: its inputs, references, steps and graph, as loaded and as stored with a run.
"""
