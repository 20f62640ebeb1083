"""
What holds for every test.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine is no failure: no example has a deadline.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")
