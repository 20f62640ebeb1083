"""
Parses addresses of resource instances such as ``module.a["x"].aws_instance.this[0]``.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase

from msgspec import Struct

_KEY = r'\[(?:\d+|"(?:[^"\\]|\\.)*")\]'
_NAME = r"[^\W\d][\w-]*"
_ADDRESS = (
    rf"(?P<resource>(?:module\.{_NAME}(?:{_KEY})?\.)*(?P<type>{_NAME})\.{_NAME})(?P<key>{_KEY})?"
)

_DATA_SOURCE = rf"(?:module\.{_NAME}(?:{_KEY})?\.)*data\."


class Address(Struct, frozen=True):
    """
    An address. ``resource`` is the address without the instance's own key; ``key`` is its
    ``each.key`` or ``count.index`` as text, None if the resource has a single instance.
    """

    text: str
    resource: str
    type: str
    key: str | None = None

    @property
    def provider_name(self) -> str:
        """
        The local name of the type's default provider.
        """
        return self.type.partition("_")[0]


def parse_address(text: str) -> Address:
    """
    Return the address in ``text``. A text in no known form is its own resource.

    >>> parse_address('module.a["x.y"].aws_instance.this["k[1]"]')
    Address(text=..., resource='module.a["x.y"].aws_instance.this', type='aws_instance', key='k[1]')
    >>> parse_address("aws_instance.this[2]").key
    '2'
    """
    match = re.fullmatch(_ADDRESS, text)
    if match is None:
        return Address(text, text, text.partition(".")[0])
    return Address(
        text, match["resource"], match["type"], _key(match["key"]) if match["key"] else None
    )


def is_resource_address(text: str) -> bool:
    """
    Return whether the text is the address of a resource or of an instance of one.

    >>> is_resource_address("aws_instance.this"), is_resource_address("aws_instance.")
    (True, False)
    """
    return re.fullmatch(_ADDRESS, text) is not None


def without_keys(address: str) -> str:
    """
    Return the address without instance keys, as in the module's configuration.

    >>> without_keys('module.a["x.y"].aws_instance.this[0]')
    'module.a.aws_instance.this'
    """
    return re.sub(_KEY, "", address)


def meant_by(pattern: str, address: str) -> bool:
    """
    Return whether a pattern matches an object's type, resource or address. Only ``*`` and ``?`` are
    special: brackets are parts of addresses.

    >>> meant_by("aws_s3_*", 'module.a["x"].aws_s3_bucket.logs[0]'), meant_by("logs", "a.logs")
    (True, False)
    """
    parsed = parse_address(address)
    return any(is_like(pattern, name) for name in (address, parsed.resource, parsed.type))


def is_like(pattern: str, text: str) -> bool:
    """
    Return whether a text matches a pattern in which only ``*`` and ``?`` are special.
    """
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def is_data_source(address: str) -> bool:
    """
    Return whether the address names a data source.

    >>> is_data_source('module.net["a"].data.aws_vpc.this'), is_data_source("aws_vpc.data")
    (True, False)
    """
    return re.match(_DATA_SOURCE, address) is not None


def instance_keys(address: str) -> list[str]:
    """
    Return the keys in an address, those of its modules first.

    >>> instance_keys('module.a["x.y"].aws_instance.this[2]')
    ['x.y', '2']
    """
    return [_key(text) for text in re.findall(_KEY, address)]


def _key(bracketed: str) -> str:
    inner = bracketed[1:-1]
    if not inner.startswith('"'):
        return inner
    try:
        text: str = json.loads(inner)
    except ValueError:  # an escape that JSON does not have
        return inner[1:-1]
    return text.replace("$${", "${").replace("%%{", "%{")
