"""
Runs the ``verify`` checks: does what was applied respond?

Proxies of the environment are used for http, but never for loopback addresses.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, assert_never
from urllib.parse import urlsplit

from msgspec import Struct

from orchestrator.domain.blueprint.check_settings import (
    AnyCheck,
    BadSettings,
    CommandCheck,
    HttpCheck,
    TcpCheck,
    check_name,
    read_check,
)
from orchestrator.domain.blueprint.references import Resolved
from orchestrator.domain.record.record import Check
from orchestrator.domain.secrets import without_leaves
from orchestrator.ports.system import Clock, StopToken

_SHORTEST_TRY = 1.0  # seconds, so that the last try before the end is a fair one
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0
_TICK = 0.05  # seconds between two looks at the stop token
_BODY = 1024 * 1024  # bytes of an answer that are searched
_DETAIL = 200  # characters
_TAIL = 64 * 1024  # bytes of a command's output that are looked at

_STOPPED = "stopped"


class _Try(Struct, frozen=True):
    passed: bool
    detail: str


class SystemChecks:
    """
    Checks against the network and programs of this machine.

    ``environment`` is that of check commands; it contains no input values.
    """

    def __init__(self, clock: Clock, environment: Mapping[str, str] | None = None) -> None:
        self._clock = clock
        self._environment = environment

    def run(
        self,
        kind: str,
        settings: Resolved,
        *,
        mask: Callable[[str], str],
        directory: Path,
        stop: StopToken,
    ) -> Check:
        """
        Try until the check holds, its `within` has passed, or a stop is requested. The last try may
        take a second longer; invalid settings are a failed check.

        Name and detail are masked before they are cut to one line: of a truncated or quoted secret
        the mask would not be found.
        """
        shown = without_leaves(dict(settings.value), settings.leaves().keys())
        name = _line(mask(check_name(kind, shown)))
        try:
            check = read_check(kind, settings.value)
        except BadSettings as exc:
            return Check(name=name, passed=False, detail=_line(mask(f"settings: {exc}")))
        result = self._until_it_holds(check, directory, stop)
        return Check(name=name, passed=result.passed, detail=_line(mask(result.detail)))

    def _until_it_holds(self, check: AnyCheck, directory: Path, stop: StopToken) -> _Try:
        pacing = check.pacing
        end = self._clock.monotonic() + pacing.within
        pause = pacing.interval or _FIRST_PAUSE
        limit, tries = pacing.timeout, 0
        while not stop.stopping:
            tries += 1
            if pacing.within:
                limit = min(pacing.timeout, max(end - self._clock.monotonic(), _SHORTEST_TRY))
            result = self._attempt(check, limit, directory, stop)
            remaining = end - self._clock.monotonic()
            if result.passed or (remaining <= 0 and not stop.stopping):
                suffix = "" if tries == 1 else f" ({tries} tries)"
                return _Try(passed=result.passed, detail=f"{result.detail}{suffix}")
            self._rest(min(pause, remaining), stop)
            pause = pacing.interval or min(pause * 2, _LONGEST_PAUSE)
        return _Try(passed=False, detail=_STOPPED)

    def _rest(self, seconds: float, stop: StopToken) -> None:
        end = self._clock.monotonic() + seconds
        while not stop.stopping and (remaining := end - self._clock.monotonic()) > 0:
            self._clock.sleep(min(_TICK, remaining))

    def _attempt(self, check: AnyCheck, limit: float, directory: Path, stop: StopToken) -> _Try:
        try:
            match check:
                case HttpCheck():
                    return self._beside(lambda: _http(check, limit), limit, stop)
                case TcpCheck():
                    return self._beside(lambda: _tcp(check, limit), limit, stop)
                case CommandCheck():
                    return self._command(check, limit, directory, stop)
                case _:
                    assert_never(check)
        except (ArithmeticError, OSError, RuntimeError, ValueError) as exc:
            return _Try(passed=False, detail=_why(exc))

    def _beside(self, work: Callable[[], _Try], limit: float, stop: StopToken) -> _Try:
        """
        Do ``work`` in a thread that is abandoned on a stop: neither a name lookup nor a slow
        response can be interrupted.
        """
        results: list[_Try] = []

        def attempt() -> None:
            # Whatever a library makes of an odd address or answer is a check that failed: raised,
            # it would end a run between a mutation and its record.
            try:
                results.append(work())
            except Exception as exc:
                results.append(_Try(passed=False, detail=_why(exc)))

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        end = self._clock.monotonic() + limit + _SHORTEST_TRY
        while thread.is_alive():
            if stop.stopping:
                return _Try(passed=False, detail=_STOPPED)
            if self._clock.monotonic() > end:
                return _Try(passed=False, detail=_silent(limit))
            thread.join(_TICK)
        return results[0]

    def _command(self, check: CommandCheck, limit: float, directory: Path, stop: StopToken) -> _Try:
        try:
            where = (directory / check.cwd).resolve()
        except (OSError, ValueError) as exc:
            return _Try(passed=False, detail=f"cwd: {_why(exc)}")
        if not where.is_relative_to(directory.resolve()):
            return _Try(passed=False, detail="cwd leaves the project")
        environment = os.environ if self._environment is None else self._environment
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    check.argv,
                    cwd=where,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**environment, **check.environment},
                )
            except (OSError, ValueError) as exc:
                return _Try(passed=False, detail=f"the program cannot be started: {_why(exc)}")
            end = self._clock.monotonic() + limit
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_TICK)
                    break
                if stop.stopping or self._clock.monotonic() > end:
                    _kill(process)
                    detail = _STOPPED if stop.stopping else f"killed after {limit:g} s"
                    return _Try(passed=False, detail=detail)
            if code == check.exit_code:
                return _Try(passed=True, detail=f"exit code {code}")
            last_line = _last_line(output)
            detail = f"exit code {code}, expected {check.exit_code}"
            return _Try(passed=False, detail=f"{detail}: {last_line}" if last_line else detail)


def _http(check: HttpCheck, limit: float) -> _Try:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    class AnswersOnly(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    proxies = ProxyHandler({}) if _is_loopback(urlsplit(check.url).hostname) else ProxyHandler()
    request = Request(check.url, method=check.method, headers=dict(check.headers))
    try:
        try:
            response = build_opener(proxies, AnswersOnly).open(request, timeout=limit)
        except HTTPError as exc:
            response = exc  # an answer like any other
        with response:
            status = response.status
            body = response.read(_BODY).decode(errors="replace")
            location = response.headers.get("Location", "")
    except TimeoutError:
        return _Try(passed=False, detail=_silent(limit))
    except (OSError, HTTPException, ValueError) as exc:
        return _Try(passed=False, detail=_why(exc))
    if status not in check.statuses:
        expected = " or ".join(map(str, check.statuses))
        to = f" to {location} (redirects are not followed)" if location else ""
        return _Try(passed=False, detail=f"answered {status}{to}, expected {expected}")
    if check.contains not in body:
        return _Try(passed=False, detail=f"answered {status} without the text of `contains`")
    return _Try(passed=True, detail=f"answered {status}")


def _tcp(check: TcpCheck, limit: float) -> _Try:
    try:
        with socket.create_connection((check.host, check.port), timeout=limit):
            return _Try(passed=True, detail="connected")
    except TimeoutError:
        return _Try(passed=False, detail=_silent(limit))
    except (OSError, ValueError) as exc:
        return _Try(passed=False, detail=_why(exc))


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The process is not reaped yet, so its id, and that of its session, is still its own.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _silent(limit: float) -> str:
    return f"no answer within {limit:.3g} s"


def _why(exc: BaseException) -> str:
    """
    Return what went wrong, for people: the innermost reason, without errno.
    """
    import ssl
    from http.client import RemoteDisconnected
    from urllib.error import URLError

    if isinstance(exc, URLError) and isinstance(exc.reason, BaseException):
        return _why(exc.reason)
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, RemoteDisconnected | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the connection was closed without an answer"
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the TLS certificate was not accepted: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed: {(exc.reason or 'unknown reason').lower().replace('_', ' ')}"
    if isinstance(exc, socket.gaierror):
        return f"the host name cannot be resolved: {exc.strerror}"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror.lower()
    return str(exc) or type(exc).__name__


def _last_line(output: IO[bytes]) -> str:
    """
    Return the last line that is not empty, complete: in a part of a line a secret might not be
    recognised.
    """
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL))
    lines = output.read().decode(errors="replace").split("\n")
    if size > _TAIL:
        lines[0] = "" if len(lines) > 1 else "(its last line is too long to be shown)"
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _DETAIL else f"{text[: _DETAIL - 1]}…"
