"""
What holds for every test.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Tests start the tool hundreds of times; compiling it each time would take most of their time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A slow machine is no failure: no example has a deadline.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")
