"""
The proxy that loses answers does to chosen calls what it says, and nothing to others.
"""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, RemoteDisconnected
from http.server import BaseHTTPRequestHandler

from tests.aws import proxy as proxy_module
from tests.aws.proxy import Proxy, proxy_before
from tests.loopback import served


@contextmanager
def proxied(handled: list[str]) -> Iterator[Proxy]:
    """
    A proxy before a server that notes what it handles.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            handled.append(self.path)
            self.send_response_only(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"done")

    with served(Handler) as port, proxy_before(port) as found:
        yield found


def put(proxy: Proxy, path: str) -> tuple[int, bytes] | None:
    """
    Status and text of an answer; None where none came.
    """
    connection = HTTPConnection("127.0.0.1", proxy.port)
    try:
        connection.request("PUT", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except RemoteDisconnected:
        return None
    finally:
        connection.close()


def test_calls_are_named_as_documented() -> None:
    """
    The examples in the proxy's docstrings hold.
    """
    assert doctest.testmod(proxy_module).failed == 0


def test_a_dropped_call_was_handled_and_a_refused_one_was_not() -> None:
    """
    ``drop`` loses the answer only, ``refuse`` the call, ``deny`` answers in the server's place; the
    nth call meets it, as often as was said, and the calls around it get their answers.
    """
    handled: list[str] = []
    with proxied(handled) as proxy:
        proxy.arm("PUT bucket", "drop", nth=2)
        answers = [put(proxy, f"/{name}") for name in ("one", "two", "three")]
        proxy.arm("PUT object", "refuse", times=2)
        refused = [put(proxy, f"/one/{name}") for name in ("a", "b", "c")]
        proxy.arm("PUT bucket", "deny")
        denied = put(proxy, "/four")

    assert answers == [(200, b"done"), None, (200, b"done")]
    assert refused == [None, None, (200, b"done")]
    assert denied is not None and denied[0] == 403
    assert handled == ["/one", "/two", "/three", "/one/c"]
    assert proxy.calls == ["PUT bucket"] * 3 + ["PUT object"] * 3 + ["PUT bucket"]
