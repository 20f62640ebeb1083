"""
Lengths of time as people write them.
"""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)")


def seconds(value: object) -> float:
    """
    The seconds that a number or a text such as "30s", "1h30m" or "500ms" stands for.

    ValueError where it is neither, negative, or zero.

    >>> seconds("1h30m")
    5400.0
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        total = float(value)
    elif isinstance(value, str) and re.fullmatch(rf"(?:{_PART.pattern})+", value):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise ValueError('a duration is a number of seconds or a text such as "30s" or "1h30m"')
    if not 0 < total < 1e9:
        raise ValueError("a duration is more than zero and less than thirty years")
    return total
