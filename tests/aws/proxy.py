"""
A proxy between a provider and its cloud that can lose the answer of one chosen call, or not let the
call through.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from tests.loopback import served

#: ``drop``: handled, and the answer is lost. ``refuse``: the connection ends before the call is
#: handled. ``hang``: the call is not handled and no answer ever comes, as on a connection that is
#: open on one side only; ``mute``: the same after it was handled. ``deny``: an answer in its
#: place, that the caller may not do this; ``throttle``: that there are too many calls. ``forget``:
#: handled without its conditions.
Fault = Literal["drop", "refuse", "hang", "mute", "deny", "throttle", "expire", "forget"]

_DENIED = (
    b"<Response><Errors><Error><Code>UnauthorizedOperation</Code>"
    b"<Message>not allowed by a test</Message></Error></Errors></Response>"
)
_THROTTLED = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_EXPIRED = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)
#: Headers that concern one connection only.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade"})
_CONDITIONS = frozenset({"if-match", "if-none-match"})


def name_of(method: str, path: str, body: bytes) -> str:
    """
    What a call is called: its action where the protocol names one, else method and kind of place.

    >>> name_of("POST", "/", b"Action=RunInstances&Version=2016-11-15")
    'RunInstances'
    >>> name_of("PUT", "/assets", b""), name_of("GET", "/assets?versioning", b"")
    ('PUT bucket', 'GET bucket?versioning')
    >>> name_of("PUT", "/assets/a/b.txt?x-id=PutObject", b"")
    'PUT object'
    """
    action = re.match(rb"(?:.*&)?Action=(\w+)", body) if method == "POST" else None
    if action is not None:
        return action[1].decode()
    parts = urlsplit(path)
    _, _, key = parts.path.strip("/").partition("/")
    asked = [name for name in parse_qs(parts.query, keep_blank_values=True) if name != "x-id"]
    query = f"?{asked[0]}" if asked else ""
    return f"{method} {'object' if key else 'bucket'}{query}"


@dataclass(slots=True)
class _Rule:
    fault: Fault
    after: int
    remaining: int


@dataclass(slots=True)
class Proxy:
    """
    What the proxy does and has seen. ``calls`` are the names of all calls that came, in order,
    ``paths`` what each was about; ``handled`` the names of those that the cloud has answered.
    """

    port: int = 0
    calls: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _rules: dict[str, _Rule] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """
        Where the provider finds its cloud.
        """
        return f"http://127.0.0.1:{self.port}"

    def arm(self, call: str, fault: Fault, *, nth: int = 1, times: int = 1) -> None:
        """
        Let the nth call of this name from now on, and the ``times - 1`` after it, meet the fault.
        """
        with self._lock:
            self._rules[call] = _Rule(fault, nth - 1, times)

    def disarm(self) -> None:
        """
        Let everything through again.
        """
        with self._lock:
            self._rules.clear()

    def count(self, call: str) -> int:
        """
        How many calls of this name came.
        """
        return self.calls.count(call)

    def meet(self, call: str, path: str) -> Fault | None:
        """
        Note a call: the fault that it meets.
        """
        with self._lock:
            self.calls.append(call)
            self.paths.append(path)
            rule = self._rules.get(call)
            if rule is None or rule.remaining == 0:
                return None
            if rule.after:
                rule.after -= 1
                return None
            rule.remaining -= 1
            return rule.fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together: the body would wait 40 ms for an ACK of the head
    proxy: Proxy
    behind: int

    def handle_one_call(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = name_of(self.command, self.path, body)
        fault = self.proxy.meet(name, self.path)
        if fault == "hang":
            self.proxy.over.wait()
        if fault in ("refuse", "hang"):
            self._hang_up()
            return
        if fault == "deny":
            self._answer(403, [("Content-Type", "text/xml")], _DENIED)
            return
        if fault == "expire":
            self._answer(400, [("Content-Type", "application/xml")], _EXPIRED)
            return
        if fault == "throttle":
            self._answer(503, [("Content-Type", "application/xml")], _THROTTLED)
            return
        connection = HTTPConnection("127.0.0.1", self.behind)
        try:
            left_out = _HOP | _CONDITIONS if fault == "forget" else _HOP
            headers = {k: v for k, v in self.headers.items() if k.lower() not in left_out}
            connection.request(self.command, self.path, body, headers)
            answer: HTTPResponse = connection.getresponse()
            text = answer.read()
        except OSError:
            self._hang_up()
            return
        finally:
            connection.close()
        self.proxy.handled.append(name)
        if fault == "mute":
            self.proxy.over.wait()
        if fault in ("drop", "mute"):
            self._hang_up()
        else:
            self._answer(answer.status, answer.getheaders(), text)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one_call  # noqa: N815

    def _answer(self, status: int, headers: list[tuple[str, str]], text: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP and (name.lower() != "content-length" or not text):
                self.send_header(name, value)
        if text or "content-length" not in {name.lower() for name, _ in headers}:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _hang_up(self) -> None:
        self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """
        Nothing: tests read ``calls``.
        """


@contextmanager
def proxy_before(port: int) -> Iterator[Proxy]:
    """
    A proxy on the loopback, in front of what listens on ``port`` there.
    """
    found = Proxy()
    handler = type("Handler", (_Handler,), {"proxy": found, "behind": port})
    with served(handler) as found.port:
        try:
            yield found
        finally:
            found.over.set()
