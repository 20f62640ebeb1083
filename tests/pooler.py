"""
A stand-in for a pooler before PostgreSQL that gives each transaction any session: between two of
them it forgets everything that a session holds, which is what a client sees of PgBouncer in the
mode `transaction`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler
from threading import Thread

from tests.loopback import served

_READY, _IDLE = b"Z", b"I"
_FORGET = b"DISCARD ALL\0"


@contextmanager
def pooler_before(port: int) -> Iterator[int]:
    """
    The port of a pooler before the server at a port of loopback.
    """

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                for side in (server, self.request):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sender = Thread(target=_copy, args=(self.request, server), daemon=True)
                sender.start()
                with suppress(OSError, EOFError):
                    _relay(server, self.request)

    with served(Handler) as pooled:
        yield pooled


def _copy(client: socket.socket, server: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(65536):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _relay(server: socket.socket, client: socket.socket) -> None:
    """
    Pass on what the server says. Before the end of a transaction is told it forgets the session:
    the client sends nothing until then.
    """
    while True:
        kind, body = _message(server)
        if (kind, body) == (_READY, _IDLE):
            server.sendall(b"Q" + struct.pack("!I", 4 + len(_FORGET)) + _FORGET)
            while _message(server)[0] != _READY:
                pass
        client.sendall(kind + struct.pack("!I", 4 + len(body)) + body)


def _message(server: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(server, 5)
    return head[:1], _exactly(server, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(server: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = server.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
