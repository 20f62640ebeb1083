"""
Blueprints, modules and input files: YAML and HCL become checked domain values.

`orchestrator.loading.deployment` holds what the rest of the program calls.
"""
