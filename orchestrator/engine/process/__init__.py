"""
Engine processes: started, watched, stopped and identified, with their evidence in files.
"""
