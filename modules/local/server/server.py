"""
Serve a small store of items on loopback, as a process of its own.

    server.py start JSON    starts the server; returns when it answers
    server.py stop JSON     stops it and removes its files; returns when it is gone
    server.py serve JSON    is the server

JSON has id, name, host, port, directory, and for start start_within (seconds).

The server answers GET /healthz and GET /items; GET, PUT and DELETE /items/KEY; PUT and DELETE
/admin, and GET /admin with the user and password put there. It keeps only a hash of the password.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import hmac
import json
import os
import secrets
import signal
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

STOP_WITHIN = 10.0
LARGEST_BODY = 1 << 20


class Spec:
    """What the module knows about one server."""

    def __init__(self, text: str) -> None:
        given = json.loads(text)
        self.text = text
        self.id: str = given["id"]
        self.name: str = given["name"]
        self.host: str = given["host"]
        self.port: int = given["port"]
        self.start_within: float = given.get("start_within", 20)
        self.directory = Path(given["directory"])
        self.pid_file = self.directory / f"server-{self.name}.pid"
        self.log_file = self.directory / f"server-{self.name}.log"
        self.data_file = self.directory / f"server-{self.name}.data.json"


def say(message: str) -> None:
    sys.stdout.write(f"server: {message}\n")


def fail(message: str) -> NoReturn:
    raise SystemExit(f"server: {message}")


def write(file: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only."""
    half = file.with_name(file.name + ".tmp")
    half.touch(mode=0o600)
    half.write_text(text)
    half.replace(file)


# --- which process is it -------------------------------------------------------------------------


def command_line(pid: int) -> str:
    """The arguments of a living process, or an empty text."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return ""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout


def is_ours(pid: int, spec: Spec) -> bool:
    """Whether this process is our server: a process id alone may be another's by now."""
    arguments = command_line(pid)
    return spec.id in arguments and "serve" in arguments


def answer(spec: Spec) -> dict[str, Any]:
    """What our server says of itself, or nothing if it does not answer or another one does."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{spec.host}:{spec.port}/healthz", timeout=2) as response:
            said = json.load(response)
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) and said.get("id") == spec.id else {}


def find(spec: Spec) -> int | None:
    """The process id of our server: from its file, or from itself where the file is lost."""
    try:
        pid = int(spec.pid_file.read_text())
        if is_ours(pid, spec):
            return pid
    except (OSError, ValueError):
        pass
    pid = answer(spec).get("pid", 0)
    return pid if pid and is_ours(pid, spec) else None


# --- start and stop ------------------------------------------------------------------------------


def start(spec: Spec) -> None:
    if answer(spec):
        say(f"{spec.name} already answers")
        return
    stop_process(spec)  # ours, but mute
    spec.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    spec.log_file.touch(mode=0o600)
    with spec.log_file.open("a+b") as log:
        said_before = log.seek(0, os.SEEK_END)
        # Its own session and no descriptor of ours: Terraform waits for whoever holds its pipe.
        # Its own environment: what this run knows is not the server's to keep.
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "serve", spec.text],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
        deadline = time.monotonic() + spec.start_within
        while not answer(spec):
            if process.poll() is not None:
                log.seek(said_before)
                last_words = log.read().decode(errors="replace").strip()
                raise SystemExit(last_words or "server: ended at once, without a word")
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                fail(f"did not answer within {spec.start_within:g} s; see {spec.log_file}")
            time.sleep(0.05)
    say(f"{spec.name} answers on http://{spec.host}:{spec.port}, process {process.pid}")


def stop_process(spec: Spec) -> bool:
    """Stop our server and wait until it is gone; False if there was none."""
    pid = find(spec)
    if pid is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return True
        deadline = time.monotonic() + STOP_WITHIN
        while time.monotonic() < deadline:
            if not is_ours(pid, spec):
                return True
            time.sleep(0.05)
    fail(f"process {pid} cannot be stopped")


def stop(spec: Spec) -> None:
    stopped = stop_process(spec)
    say(f"{spec.name} {'stopped' if stopped else 'was not running'}")
    for file in (spec.pid_file, spec.data_file, spec.log_file):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it, or it is gone
        spec.directory.rmdir()


# --- the server ----------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """The store and its lock; the handler below is its voice."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.lock = threading.Lock()
        self.data: dict[str, Any] = {"items": {}, "admin": None}
        super().__init__((spec.host, spec.port), Handler)
        if spec.data_file.exists():
            self.data = json.loads(spec.data_file.read_text())

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for the name of the host.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.spec.host, self.spec.port

    def save(self) -> None:
        self.spec.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(self.spec.data_file, json.dumps(self.data))


def hashed(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=2**14, r=8, p=1).hex()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        with self.server.lock:
            spec, items = self.server.spec, self.server.data["items"]
            kind, key = self.route()
            if kind == "healthz":
                whole = {"status": "ok", "id": spec.id, "name": spec.name, "pid": os.getpid()}
                self.say(200, {**whole, "items": len(items)})
            elif kind == "items" and not key:
                self.say(200, sorted(items))
            elif kind == "items" and key in items:
                self.say(200, items[key])
            elif kind == "admin" and self.is_admin():
                self.say(200, {"user": self.server.data["admin"]["user"]})
            else:
                self.say(401 if kind == "admin" else 404, {"status": "refused"})

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > LARGEST_BODY:
            self.say(413, {"status": "too large"})
            return
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError:
            self.say(400, {"status": "not JSON"})
            return
        with self.server.lock:
            kind, key = self.route()
            if kind == "items" and key:
                self.server.data["items"][key] = body
            elif kind == "admin" and isinstance(body, dict) and {"user", "password"} <= set(body):
                salt = secrets.token_hex(16)
                digest = hashed(str(body["password"]), salt)
                self.server.data["admin"] = {"user": body["user"], "salt": salt, "hash": digest}
            else:
                self.say(400, {"status": "refused"})
                return
            self.server.save()
        self.say(204, None)

    def do_DELETE(self) -> None:
        with self.server.lock:
            kind, key = self.route()
            if kind == "items" and key:
                self.server.data["items"].pop(key, None)
            elif kind == "admin":
                self.server.data["admin"] = None
            else:
                self.say(404, {"status": "refused"})
                return
            self.server.save()
        self.say(204, None)

    def route(self) -> tuple[str, str]:
        kind, _, key = self.path.lstrip("/").partition("/")
        return kind, unquote(key)

    def is_admin(self) -> bool:
        admin = self.server.data["admin"]
        try:
            scheme, _, coded = self.headers.get("Authorization", "").partition(" ")
            user, _, password = base64.b64decode(coded).decode().partition(":")
        except ValueError:
            return False
        return (
            admin is not None
            and scheme == "Basic"
            and user == admin["user"]
            and hmac.compare_digest(hashed(password, admin["salt"]), admin["hash"])
        )

    def say(self, status: int, body: object) -> None:
        text = b"" if status == 204 else json.dumps(body).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def serve(spec: Spec) -> None:
    try:
        server = Server(spec)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(f"{spec.host}:{spec.port} is taken by another process; give another `port`")
        fail(f"cannot listen on {spec.host}:{spec.port}: {error.strerror}")
    write(spec.pid_file, f"{os.getpid()}\n")
    # shutdown() waits for the loop, so it cannot be called from within it.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    {"start": start, "stop": stop, "serve": serve}[sys.argv[1]](Spec(sys.argv[2]))
