"""
Text from outside the program that may hold bytes which are not UTF-8: Python keeps them as lone
surrogates, which no record and no JSON document can hold.
"""

from __future__ import annotations


def is_text(text: str) -> bool:
    """
    Whether the text can be written as UTF-8.

    >>> is_text("caf\u00e9"), is_text("caf\udce9")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_text(text: str) -> str:
    """
    The text with a replacement character for each byte that is not UTF-8.

    >>> shown_text("caf\udce9") == "caf\ufffd"
    True
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
