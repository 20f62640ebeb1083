"""
A proxy through which a program reaches servers of this machine by the names of a cloud.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler
from threading import Thread

from tests.certificates import Certified
from tests.loopback import served


@contextmanager
def tunnel_to(port: int) -> Iterator[str]:
    """
    The address of a proxy for ``HTTPS_PROXY`` that leads every host to one port of loopback.
    """

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            with socket.create_connection(("127.0.0.1", port)) as server:
                self.connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                Thread(target=_pump, args=(self.connection, server), daemon=True).start()
                _pump(server, self.connection)

    with served(Handler) as proxy:
        yield f"http://127.0.0.1:{proxy}"


@contextmanager
def tls_before(url: str, tls: Certified) -> Iterator[int]:
    """
    The port of a server that speaks TLS, with the certificate, before one that does not.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(self.connection, server_side=True) as inner,
                socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as server,
            ):
                Thread(target=_pump, args=(inner, server), daemon=True).start()
                _pump(server, inner)

    with served(Handler) as port:
        yield port


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
