"""
In which order a destroy goes, and what confirms that objects are absent.
"""
