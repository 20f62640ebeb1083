"""
The settings of the ``verify`` checks, read into values.

All kinds take ``within`` (how long to keep trying; default: one try), ``interval`` (between tries;
default: growing from 0.2 s to 2 s) and ``timeout`` (of one try; 10 s, for a command 60 s).
Durations are those of `orchestrator.domain.text`.

- ``http``: ``url``, ``method`` (GET), ``status`` (200; a number or a list), ``contains``,
  ``headers``. Redirects are not followed: they are answers like any other.
- ``tcp``: ``host`` and ``port``, or ``address`` as ``host:port``; holds when it can be connected.
- ``command``: ``argv`` (a list; there is no shell), ``cwd`` (within the project), ``exit_code``,
  ``environment`` (variables for it: a secret in ``argv`` could be read by every user).
"""

from __future__ import annotations

import ipaddress
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from orchestrator.domain.text import Json, seconds

T = TypeVar("T")

_URL = re.compile(
    r"https?://(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s/:?#\[\]@]+))"
    r"(?::(?P<port>\d{1,5}))?(?:[/?#]\S*)?"
)
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>\d{1,5})")


class Pacing(Struct, frozen=True):
    """
    The pacing of a check's tries, in seconds; with ``interval`` 0 the pauses grow.
    """

    within: float
    interval: float
    timeout: float


class HttpCheck(Struct, frozen=True):
    pacing: Pacing
    url: str
    method: str
    statuses: tuple[int, ...]
    contains: str
    headers: Mapping[str, str]


class TcpCheck(Struct, frozen=True):
    pacing: Pacing
    host: str
    port: int


class CommandCheck(Struct, frozen=True):
    pacing: Pacing
    argv: tuple[str, ...]
    cwd: str
    exit_code: int
    environment: Mapping[str, str]


AnyCheck = HttpCheck | TcpCheck | CommandCheck


class BadSettings(ValueError):
    """
    Invalid check settings; ``problems`` holds all of them as pairs of key and message.
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(message for _, message in problems))


def read_check(kind: str, settings: Mapping[str, Json]) -> AnyCheck:
    """
    Return the check for settings whose references are resolved. Raises BadSettings if they are
    invalid.
    """
    reader = _Reader(settings)
    check: AnyCheck
    if kind == "http":
        check = HttpCheck(
            pacing=reader.pacing(timeout=10.0),
            url=reader.url("url"),
            method=reader.text("method", default="GET").upper(),
            statuses=reader.statuses("status"),
            contains=reader.text("contains", default=""),
            headers=reader.texts("headers"),
        )
    elif kind == "tcp":
        host, port = reader.address()
        check = TcpCheck(pacing=reader.pacing(timeout=10.0), host=host, port=port)
    elif kind == "command":
        check = CommandCheck(
            pacing=reader.pacing(timeout=60.0),
            argv=reader.argv("argv"),
            cwd=reader.directory("cwd"),
            exit_code=reader.number("exit_code", default=0, highest=255),
            environment=reader.texts("environment"),
        )
    else:
        raise BadSettings([("", f"there is no check {kind!r}; there are http, tcp and command")])
    reader.finish()
    return check


def check_name(kind: str, settings: Mapping[str, Json]) -> str:
    """
    Return the display name of a check: its kind and what it looks at. Secrets in ``settings`` must
    have been replaced.
    """
    match kind:
        case "http":
            subject = str(settings.get("url", ""))
        case "tcp":
            host = str(settings.get("host", ""))
            host = f"[{host}]" if ":" in host else host
            subject = str(settings.get("address") or f"{host}:{settings.get('port')}")
        case "command":
            argv = settings.get("argv")
            subject = " ".join(map(str, argv)) if isinstance(argv, list) else str(argv or "")
        case _:
            subject = ""
    return f"{kind} {subject}".strip()


def validate_check(kind: str, settings: Mapping[str, Json]) -> list[str]:
    """
    Return the problems of settings as written. A value with a reference counts as valid.
    """
    try:
        read_check(kind, settings)
    except BadSettings as exc:
        return [message for key, message in exc.problems if not _refers(settings.get(key))]
    return []


def _is_text(value: Json) -> bool:
    """
    Return whether a program can be given the value; no argument holds a NUL character.
    """
    return isinstance(value, str | int) and "\0" not in str(value)


def _is_name(name: str) -> bool:
    """
    Return whether a variable or an HTTP header can have the name.
    """
    return bool(name) and _is_text(name) and "=" not in name


def _refers(value: Json) -> bool:
    return "${" in json.dumps(value, default=str)


class _Reader:
    """
    Reads the settings one by one and collects the problems.
    """

    def __init__(self, settings: Mapping[str, Json]) -> None:
        self._settings = settings
        self._known: set[str] = set()
        self._problems: list[tuple[str, str]] = []

    def finish(self) -> None:
        for key in self._settings:
            if key not in self._known:
                names = ", ".join(sorted(self._known))
                self._problems.append((key, f"unknown setting {key!r}; known are {names}"))
        if self._problems:
            raise BadSettings(self._problems)

    def pacing(self, *, timeout: float) -> Pacing:
        return Pacing(
            within=self._seconds("within", default=0.0),
            interval=self._seconds("interval", default=0.0),
            timeout=self._seconds("timeout", default=timeout),
        )

    def text(self, key: str, *, default: str) -> str:
        value = self._take(key, default)
        if isinstance(value, str):
            return value
        return self._wrong(key, "must be a text", default)

    def directory(self, key: str) -> str:
        """
        Return a relative path that does not lead out of its base (by its text; links are not
        followed).
        """
        path, depth = self.text(key, default="."), 0
        for part in path.split("/"):
            depth += -1 if part == ".." else part not in ("", ".")
            if depth < 0 or path.startswith("/"):
                return self._wrong(key, "must be a directory within the project", ".")
        return path

    def url(self, key: str) -> str:
        value = self._take(key, "")
        match = _URL.fullmatch(value) if isinstance(value, str) else None
        if (
            match is not None
            and _is_port(match["port"] or 80)
            and _is_host(match["v6"], match["host"])
        ):
            return match[0]
        return self._wrong(key, "must be an http:// or https:// address with a valid host", "")

    def number(self, key: str, *, default: int, highest: int) -> int:
        value = _whole(self._take(key, default))
        if value is not None and 0 <= value <= highest:
            return value
        return self._wrong(key, f"must be a whole number from 0 to {highest}", default)

    def statuses(self, key: str) -> tuple[int, ...]:
        value = self._take(key, 200)
        numbers = [_whole(item) for item in (value if isinstance(value, list) else [value])]
        statuses = tuple(item for item in numbers if item is not None and 100 <= item <= 599)
        if statuses and len(statuses) == len(numbers):
            return statuses
        return self._wrong(key, "must be an HTTP status such as 200, or a list of them", ())

    def texts(self, key: str) -> Mapping[str, str]:
        value = self._take(key, {})
        if isinstance(value, dict) and all(
            _is_name(name) and _is_text(item) for name, item in value.items()
        ):
            return {name: str(item) for name, item in value.items()}
        return self._wrong(key, "must be a mapping of names to texts", {})

    def argv(self, key: str) -> tuple[str, ...]:
        value = self._take(key, [])
        if isinstance(value, list) and value and all(map(_is_text, value)):
            return tuple(str(item) for item in value)
        return self._wrong(key, "must be a list: the program and its arguments, no shell", ())

    def address(self) -> tuple[str, int]:
        self._known |= {"host", "port", "address"}
        if "address" in self._settings:
            value = self._settings["address"]
            match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
            alone = self._settings.keys().isdisjoint({"host", "port"})
            if (
                match is not None
                and alone
                and _is_port(match["port"])
                and _is_host(match["v6"], match["host"])
            ):
                return match["v6"] or match["host"], int(match["port"])
            return self._wrong("address", "must be host:port, without host and port", ("", 0))
        host = self._settings.get("host")
        if not isinstance(host, str) or not host:
            self._wrong("host", "must be given, with port, or address as host:port", "")
        elif not _is_host(host if ":" in host else None, host):
            self._wrong("host", "must be the name or address of a host", "")
        port = _whole(self._settings.get("port"))
        if not _is_port(port):
            self._wrong("port", "must be a number from 1 to 65535", 0)
        return str(host), port or 0

    def _seconds(self, key: str, *, default: float) -> float:
        self._known.add(key)
        if key not in self._settings:
            return default
        try:
            return seconds(self._settings[key])
        except ValueError as exc:
            return self._wrong(key, f"is wrong: {exc}", default)

    def _take(self, key: str, default: Json) -> Json:
        self._known.add(key)
        return self._settings.get(key, default)

    def _wrong(self, key: str, message: str, instead: T) -> T:
        self._problems.append((key, f"{key} {message}"))
        return instead


def _whole(value: Json) -> int | None:
    """
    Return an integer, also from text that a reference within a text produced.
    """
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_host(v6: str | None, host: str | None) -> bool:
    """
    Return whether this can be a host: an IPv6 address, or a name that is valid in DNS and URLs.
    """
    try:
        if v6 is not None:
            ipaddress.IPv6Address(v6)
            return True
        # Normalised, as a resolver does it, a single sign may become one that ends the host.
        name = unicodedata.normalize("NFKC", host or "").encode("idna").decode("ascii")
        return re.search(r"[/?#@:\\\s]", name) is None and bool(name)
    except ValueError:  # UnicodeError is one
        return False


def _is_port(value: Json) -> bool:
    number = _whole(value)
    return number is not None and 0 < number < 65536
