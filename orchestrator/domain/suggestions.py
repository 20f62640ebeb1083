"""
Suggestions for a misspelt name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """
    A hint for an unknown ``name``: the closest known one, else the known ones, "" for none. How
    close it must be, ``cutoff``, goes from 0 to 1.

    >>> did_you_mean("netwrok", ["network", "compute"])
    "did you mean 'network'?"
    """
    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:12])
    return f"known: {shown}, ..." if len(names) > 12 else f"known: {shown}"
