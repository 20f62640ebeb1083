"""
The laws of ``ports.Checks``, against real sockets and programs.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from orchestrator.checks import SystemChecks
from orchestrator.domain.blueprint.check_settings import validate_check
from orchestrator.domain.blueprint.references import Resolved
from orchestrator.domain.masking import Masker
from orchestrator.domain.record.record import Check
from orchestrator.domain.text import Json, ValuePath
from orchestrator.engine.process.environment import child_environment
from tests.fakes.clock import SetClock, SetStop
from tests.loopback import served
from tests.project import eventually, is_running

FIXTURES = Path(__file__).parents[2] / "fixtures" / "fakecloud"


#: As the tool makes it from its own.
ENVIRONMENT, _ = child_environment({**os.environ, "ORCHESTRATOR_INPUT_x": "secret"})


class Web:
    """
    An HTTP server whose answers a test sets: status, body and headers; the last one is repeated.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, str, dict[str, str]]] = [(200, "fine", {})]
        self.requests: list[tuple[str, str, str | None]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.requests.append((self.command, self.path, self.headers.get("X-Token")))
                status, body, headers = web.answers[0]
                if len(web.answers) > 1:
                    del web.answers[0]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.handler = Handler
        self.url = ""


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    with served(made.handler) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run(
    kind: str,
    settings: dict[str, Json],
    directory: Path = Path(),
    *,
    clock: SetClock | None = None,
    stop: SetStop | None = None,
    secrets: Collection[ValuePath] = (),
    known: Sequence[str] = (),
) -> Check:
    """
    The result of a check; ``secrets`` are leaves of its settings, ``known`` what the masker knows.
    """
    masker = Masker()
    for text in known:
        masker.add(text)
    return SystemChecks(clock or SetClock(), ENVIRONMENT).run(
        kind,
        Resolved(settings, dict.fromkeys(secrets, "inputs.secret")),
        mask=masker.mask,
        directory=directory,
        stop=stop or SetStop(),
    )


def test_an_http_check_holds_when_the_answer_is_as_expected(web: Web) -> None:
    """
    Status, text and request are those of the settings.
    """
    web.answers = [(204, "", {})]

    url = f"{web.url}/healthz?x=1"

    check = run("http", {"url": url, "status": 204, "method": "head", "headers": {"X-Token": 7}})

    assert check == Check(name=f"http {url}", passed=True, detail="answered 204")
    assert web.requests == [("HEAD", "/healthz?x=1", "7")]


@pytest.mark.parametrize(
    ("answer", "settings", "detail"),
    [
        ((503, "", {}), {}, "answered 503, expected 200"),
        ((200, "", {}), {"status": [301, 404]}, "answered 200, expected 301 or 404"),
        ((200, "sick", {}), {"contains": "fine"}, "answered 200 without the text of `contains`"),
        (
            (302, "", {"Location": "http://other/"}),
            {},
            "answered 302 to http://other/ (redirects are not followed), expected 200",
        ),
    ],
)
def test_a_wrong_answer_is_told(
    web: Web, answer: tuple[int, str, dict[str, str]], settings: dict[str, Json], detail: str
) -> None:
    """
    Without ``within`` there is one try; the detail says what came and what was expected.
    """
    web.answers = [answer]

    check = run("http", {"url": web.url, **settings})

    assert (check.passed, check.detail) == (False, detail)
    assert len(web.requests) == 1


def test_a_check_is_tried_until_it_holds(web: Web) -> None:
    """
    Within the time it is tried again, with growing pauses.
    """
    web.answers = [(503, "", {}), (500, "", {}), (200, "fine", {})]
    clock = SetClock()

    check = run("http", {"url": web.url, "within": "60s", "contains": "fine"}, clock=clock)

    assert (check.passed, check.detail) == (True, "answered 200 (3 tries)")
    assert clock.monotonic() == pytest.approx(0.2 + 0.4)


def test_a_check_fails_when_its_time_is_over(closed_port: int) -> None:
    """
    The last try comes when ``within`` is over; the last reason is told.
    """
    clock = SetClock()

    check = run(
        "tcp",
        {"host": "127.0.0.1", "port": closed_port, "within": 3, "interval": "1s"},
        clock=clock,
    )

    assert (check.passed, check.detail) == (False, "connection refused (4 tries)")
    assert clock.monotonic() == pytest.approx(3)


def test_proxies_are_not_asked_for_loopback_addresses(
    web: Web, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    """
    A proxy in the environment does not stand between us and this machine.
    """
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port}")

    assert run("http", {"url": web.url}).passed


def test_a_certificate_that_is_not_accepted_is_told(tmp_path: Path) -> None:
    """
    TLS errors are readable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FIXTURES / "test_only_cert.pem", FIXTURES / "test_only_key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, pytest.raises(OSError):
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        check = run("http", {"url": f"https://127.0.0.1:{listener.getsockname()[1]}/"})
        thread.join()

    assert not check.passed
    assert check.detail.startswith("the TLS certificate was not accepted: ")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_hangs_up_is_told(scheme: str) -> None:
    """
    A connection that is closed without an answer fails with words, not with numbers.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        check = run("http", {"url": f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"})
        thread.join()

    assert not check.passed
    assert check.detail in (
        "the connection was closed without an answer",
        "connection reset by peer",
    )


@pytest.mark.parametrize(
    ("timeout", "after", "detail"),
    [("1h", 4, "stopped"), ("100ms", None, "no answer within 0.1 s")],
)
def test_a_server_that_is_silent_does_not_hold_us(
    timeout: str, after: int | None, detail: str
) -> None:
    """
    A stop ends a try that is under way, and so does its timeout.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check = run(
            "http",
            {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/", "timeout": timeout},
            stop=SetStop(after=after),
        )

    assert (check.passed, check.detail) == (False, detail)


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "127.0.0.1", "port": "{port}"},
        {"address": "127.0.0.1:{port}"},
    ],
)
def test_a_tcp_check_connects(settings: dict[str, str]) -> None:
    """
    Host and port, also as text, or both as an address.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        check = run("tcp", {key: value.replace("{port}", port) for key, value in settings.items()})

    assert check == Check(name=f"tcp 127.0.0.1:{port}", passed=True, detail="connected")


def test_a_command_is_run_without_a_shell(tmp_path: Path) -> None:
    """
    Arguments arrive as they are, the working directory is within the project.
    """
    (tmp_path / "sub").mkdir()
    script = (
        "import os, sys; sys.exit((os.path.basename(os.getcwd()), sys.argv[1]) != ('sub', '$X;'))"
    )

    check = run("command", {"argv": [sys.executable, "-c", script, "$X;"], "cwd": "sub"}, tmp_path)

    assert (check.passed, check.detail) == (True, "exit code 0")


def test_a_command_that_ends_otherwise_says_its_last_line(tmp_path: Path) -> None:
    """
    The detail holds exit code and last line, in one line; a long one is cut.
    """
    said = "print('first', flush=True); print('not', 'ready' * 100, file=sys.stderr)"
    script = f"import sys; {said}; sys.exit(3)"

    check = run("command", {"argv": [sys.executable, "-c", script], "exit_code": 2}, tmp_path)

    assert not check.passed
    assert check.detail.startswith("exit code 3, expected 2: not readyready")
    assert len(check.detail) == 200


@pytest.mark.parametrize("ends", ["timeout", "stop"])
def test_a_command_is_killed_with_its_children(tmp_path: Path, ends: str) -> None:
    """
    At its timeout, or when we are asked to stop, nothing of the command is left.
    """
    pids = tmp_path / "pids"
    script = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen(['sleep', '600']);"
        f"open({str(pids) + '.tmp'!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}');"
        f"os.rename({str(pids) + '.tmp'!r}, {str(pids)!r}); time.sleep(600)"
    )

    class WhenWritten(SetStop):
        @property
        def stopping(self) -> bool:
            return ends == "stop" and pids.exists()

    class LateWhenWritten(SetClock):
        def monotonic(self) -> float:
            return 1e6 if ends == "timeout" and pids.exists() else 0.0

    check = run(
        "command",
        {"argv": [sys.executable, "-c", script], "timeout": "5s"},
        tmp_path,
        clock=LateWhenWritten(),
        stop=WhenWritten(),
    )

    assert (check.passed, check.detail) == (
        False,
        "killed after 5 s" if ends == "timeout" else "stopped",
    )
    left = [int(pid) for pid in pids.read_text().split()]
    eventually(lambda: not any(map(is_running, left)), "the command ends with its children")


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    """
    A command that cannot be started fails the check, it does not raise.
    """
    check = run("command", {"argv": ["no-such-program"]}, tmp_path)

    assert (check.passed, check.detail) == (
        False,
        "the program cannot be started: no such file or directory",
    )


@pytest.mark.parametrize("cwd", ["link", "link/etc"])
def test_a_command_stays_within_the_project(tmp_path: Path, cwd: str) -> None:
    """
    A working directory that leads out of the project by way of a link is refused.
    """
    (tmp_path / "link").symlink_to(os.sep)

    check = run("command", {"argv": ["true"], "cwd": cwd}, tmp_path)

    assert (check.passed, check.detail) == (False, "cwd leaves the project")


def test_nothing_is_tried_after_a_stop(tmp_path: Path) -> None:
    """
    Who is stopped before the first try does not try.
    """
    check = run("command", {"argv": ["touch", "x"]}, tmp_path, stop=SetStop(after=1))

    assert check.detail == "stopped"
    assert list(tmp_path.iterdir()) == []


BAD = [
    ("http", {}, "url must be an http"),
    ("http", {"url": "file:///etc/passwd"}, "url must be an http"),
    ("http", {"url": "http://h:99999/"}, "url must be an http"),
    ("http", {"url": "http://h/", "status": "ok"}, "status must be"),
    ("http", {"url": "http://h/", "status": []}, "status must be"),
    ("http", {"url": "http://h/", "within": "soon"}, "within is wrong"),
    ("http", {"url": "http://h/", "headers": ["a"]}, "headers must be"),
    ("http", {"url": "http://h/", "expect": 1}, "unknown setting 'expect'"),
    ("tcp", {"host": "h"}, "port must be"),
    ("tcp", {"port": 1}, "host must be given"),
    ("tcp", {"address": "h"}, "address must be"),
    ("tcp", {"address": "h:99999"}, "address must be"),
    ("tcp", {"address": "h:1", "port": 1}, "address must be"),
    ("tcp", {"host": "h", "port": float("inf")}, "port must be"),
    ("command", {"argv": "echo hi"}, "argv must be a list"),
    ("command", {"argv": [], "exit_code": 256}, "exit_code must be"),
    ("command", {"argv": ["true"], "cwd": "../.."}, "cwd must be a directory within"),
    ("command", {"argv": ["true"], "cwd": "a/../../b"}, "cwd must be a directory within"),
    ("command", {"argv": ["true"], "cwd": "/etc"}, "cwd must be a directory within"),
    ("command", {"argv": ["true", "\x00"]}, "argv must be a list"),
    ("command", {"argv": ["true"], "environment": {"A=B": "c"}}, "environment must be"),
    ("command", {"argv": ["true"], "environment": {"A": "\x00"}}, "environment must be"),
    ("ping", {}, "there is no check 'ping'"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), BAD)
def test_bad_settings_are_told_at_load_time_and_fail_the_check(
    kind: str, settings: dict[str, Json], message: str
) -> None:
    """
    The same words from `validate_check` and from the check that is run all the same.
    """
    problems = validate_check(kind, settings)
    check = run(kind, settings)

    assert any(problem.startswith(message) for problem in problems)
    assert not check.passed
    assert message in check.detail


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("http", {"url": "${outputs.url}/healthz", "status": 200, "within": "60s"}),
        ("http", {"url": "https://[::1]:80", "status": ["${inputs.x}", 200]}),
        ("tcp", {"host": "${outputs.host}", "port": "${outputs.port}"}),
        ("command", {"argv": "${inputs.argv}", "exit_code": "${inputs.code}"}),
    ],
)
def test_what_holds_a_reference_is_taken_to_be_right(kind: str, settings: dict[str, Json]) -> None:
    """
    Before references are resolved only literal settings can be wrong.
    """
    assert validate_check(kind, settings) == []


BAD_HOSTS = [
    ("http", {"url": "http://[::::]/"}),
    ("http", {"url": "http://a\u2100b/"}),
    ("http", {"url": "http://" + "a" * 64 + "/"}),
    ("http", {"url": "http://a..b/"}),
    ("tcp", {"address": "[::::]:80"}),
    ("tcp", {"host": "a\u2100b", "port": 80}),
    ("tcp", {"host": ":::", "port": 80}),
]


@pytest.mark.parametrize(("kind", "settings"), BAD_HOSTS, ids=repr)
def test_a_host_that_cannot_be_written_is_told_at_load_time_and_fails_the_check(
    kind: str, settings: dict[str, Json]
) -> None:
    """
    What the standard library raises on is refused by name; from an output it is a failed check.
    """
    assert validate_check(kind, settings)
    assert not run(kind, settings).passed


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("http", {"url": "http://127.0.0.1/\x00"}),
        ("http", {"url": "http://127.0.0.1/\udc80"}),
        ("http", {"url": "http://127.0.0.1/", "method": "G\nT"}),
        ("http", {"url": "http://127.0.0.1/", "headers": {"a\nb": "c"}}),
        ("http", {"url": "http://127.0.0.1/", "headers": {"a": "\u2100"}}),
        ("tcp", {"host": "a\x00b", "port": 80}),
        ("command", {"argv": ["true", "\x00"]}),
        ("command", {"argv": ["true"], "environment": {"A=B": "c"}}),
        ("command", {"argv": ["true"], "environment": {"A": "\x00"}}),
        ("command", {"argv": ["true"], "cwd": "\x00"}),
    ],
    ids=repr,
)
def test_a_check_never_raises(kind: str, settings: dict[str, Json], tmp_path: Path) -> None:
    """
    A check runs between a mutation and its record: whatever its settings are, it fails at most.
    """
    assert not run(kind, settings, tmp_path).passed


LONG = "t0ken-" + "0123456789abcdef" * 30
SPACED = "pass  word"
QUOTED = 'it\'s "quoted" \\ thrice'


@pytest.mark.parametrize("secret", [LONG, SPACED, QUOTED], ids=["long", "spaced", "quoted"])
@pytest.mark.parametrize("known_as", ["leaf", "text"])
def test_a_secret_in_the_settings_is_in_no_name_and_no_detail(
    secret: str, known_as: str, tmp_path: Path
) -> None:
    """
    Law: secrets travel with values.
    It is masked before anything is cut, collapsed or quoted: no part of it shows.
    """
    settings: list[tuple[str, dict[str, Json], ValuePath]] = [
        ("command", {"argv": ["false", secret]}, ("argv", 1)),
        ("command", {"argv": [secret]}, ("argv", 0)),
        ("command", {"argv": ["true"], "cwd": f"../{secret}"}, ("cwd",)),
        ("command", {"argv": ["sh", "-c", 'echo "$1"; exit 1', "x", secret]}, ("argv", 4)),
        ("http", {"url": f"http://127.0.0.1:1/{secret}"}, ("url",)),
        ("http", {"url": f"ftp://{secret}"}, ("url",)),
        ("tcp", {"host": secret, "port": 1}, ("host",)),
        ("tcp", {"address": secret}, ("address",)),
    ]
    for kind, given, leaf in settings:
        secrets = [leaf] if known_as == "leaf" else []
        check = run(kind, given, tmp_path, secrets=secrets, known=[secret])

        said = f"{check.name} {check.detail}"
        pieces = [secret[n : n + 6] for n in range(len(secret) - 5)]
        assert [piece for piece in pieces if piece in said] == []


def test_an_answer_without_the_text_does_not_repeat_it(web: Web) -> None:
    """
    What `contains` asks for may be a secret: the detail names the setting.
    """
    check = run("http", {"url": web.url, "contains": QUOTED}, known=[QUOTED])

    assert check.detail == "answered 200 without the text of `contains`"


def test_a_command_is_given_its_environment_and_no_inputs(tmp_path: Path) -> None:
    """
    A secret can be given to a command without standing in its arguments; the variables in which the
    tool itself is given inputs are not passed on.
    """
    script = 'test $ASKED = yes && test -z "$ORCHESTRATOR_INPUT_x" && test -n "$PATH"'

    check = run(
        "command", {"argv": ["sh", "-c", script], "environment": {"ASKED": "yes"}}, tmp_path
    )

    assert check.passed
