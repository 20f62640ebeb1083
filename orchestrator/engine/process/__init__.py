"""
Engine processes: spawned, watched, stopped and identified, with their evidence in files.
"""
