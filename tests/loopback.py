"""
Handlers of a test's own, served on the loopback.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from socketserver import BaseRequestHandler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """
        Whoever called has gone away, as killed programs do.
        """


@contextmanager
def served(
    handler: type[BaseRequestHandler], context: ssl.SSLContext | None = None
) -> Iterator[int]:
    """
    The port on which a handler answers, over TLS with ``context``.
    """
    with _Server(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
