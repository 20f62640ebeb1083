"""
Engine calls as processes, with scripts in the engine's place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.domain.events.events import LogLine, Message
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.states import Liveness
from orchestrator.domain.values import replace
from orchestrator.engine.process.call_files import CallFiles, FencedCall
from orchestrator.engine.process.child import Child
from orchestrator.engine.process.identity import SystemProcesses
from orchestrator.engine.process.wrapper import (
    create_exclusively,
    is_zombie,
    session_members,
    start_ticks,
)
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.errors import EngineFailed, Fenced
from orchestrator.ports.engine import Apply, CallSpec, EngineInfo, Init, Plan, Pull
from tests.engine.programs import clean_environment, scripted_engine
from tests.fakes.stops import Stop

APPLY = Apply(Path("saved.tfplan"))
PLAN = Plan(Path("new.tfplan"))
#: A call that mutates has a wrapper, one that reads has none: what both promise.
with_and_without_wrapper = pytest.mark.parametrize(
    "request_made", [APPLY, PLAN], ids=[APPLY.verb, PLAN.verb]
)
SAY = """
import json, os, signal, subprocess, sys, time
def say(text):
    print(json.dumps({"@message": text, "type": "custom"}), flush=True)
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.005)
"""


def nobody(_: Message) -> None:
    """
    Observes nothing.
    """


def eventually(holds: Callable[[], bool]) -> None:
    """
    Wait until it holds; the suite's timeout ends a wait in vain.
    """
    while not holds():
        time.sleep(0.005)


@pytest.fixture
def spec(tmp_path: Path) -> CallSpec:
    directory = tmp_path / "root"
    directory.mkdir()
    return CallSpec(directory, tmp_path / "evidence", "call")


def raw(spec: CallSpec, stream: str = "stdout") -> str:
    return (spec.evidence / "raw" / f"{spec.name}.{stream}").read_text()


def test_warnings_on_stderr_are_no_failure(tmp_path: Path, spec: CallSpec) -> None:
    """
    The exit code decides; what is on stderr is kept beside it.
    """
    engine = scripted_engine(tmp_path, "import sys; sys.stderr.write('deprecated\\n')")

    answer = engine.call(APPLY, spec, stop=Stop(), observe=nobody)

    assert (answer.exit_code, answer.complete, answer.stderr_text) == (0, True, "deprecated\n")


def test_warnings_after_the_json_do_not_break_it(tmp_path: Path, spec: CallSpec) -> None:
    """
    Lines that are no JSON are passed on as text [terragrunt 6001].
    """
    engine = scripted_engine(tmp_path, SAY + "say('fine')\nprint('Warning: old')")

    answer = engine.call(APPLY, spec, stop=Stop(), observe=nobody)

    assert answer.messages == (LogLine("fine"), LogLine("Warning: old"))


def test_warnings_around_a_pulled_state_do_not_break_it(tmp_path: Path, spec: CallSpec) -> None:
    """
    Of what ``state pull`` prints the first JSON document counts [terragrunt 6001].
    """
    state = json.dumps({"version": 4, "lineage": "l", "serial": 3, "resources": []})
    engine = scripted_engine(tmp_path, f"print('Warning: a\\n'); print('{state}'); print('and b')")

    answer = engine.call(Pull(), spec, stop=Stop(), observe=nobody)

    assert engine.pulled_state(answer).serial == 3


def test_what_is_no_state_is_refused(tmp_path: Path, spec: CallSpec) -> None:
    """
    Output that is no state is an error, never an empty state.
    """
    engine = scripted_engine(tmp_path, "print('<html>login</html>')")
    answer = engine.call(Pull(), spec, stop=Stop(), observe=nobody)

    with pytest.raises(EngineFailed, match="no provider state"):
        engine.pulled_state(answer)


def test_a_pulled_state_is_in_no_message_and_no_log(tmp_path: Path, spec: CallSpec) -> None:
    """
    Provider state holds secrets: it stays in the raw file.
    """
    engine = scripted_engine(tmp_path, 'print(\'{"secret": "hunter22"}\')')

    answer = engine.call(Pull(), spec, stop=Stop(), observe=nobody)

    assert answer.messages == ()
    assert "hunter22" not in (spec.evidence / "call.log").read_text()


@with_and_without_wrapper
def test_the_log_is_masked_and_the_raw_files_are_private(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    The log holds masked text; all evidence is 0600 in 0700 directories.
    """
    masked = CallSpec(
        spec.directory, spec.evidence, "call", mask=lambda s: s.replace("hunter22", "*")
    )
    engine = scripted_engine(tmp_path, SAY + "say('password hunter22')")

    engine.call(request_made, masked, stop=Stop(), observe=nobody)

    assert (spec.evidence / "call.log").read_text() == "password *\n"
    assert "hunter22" in raw(spec)
    modes = {path: path.stat().st_mode & 0o777 for path in spec.evidence.rglob("*")}
    assert set(modes.values()) == {0o600, 0o700}
    assert modes[spec.evidence / "raw"] == 0o700


@pytest.mark.parametrize(("request_made", "mode"), [(Init(), 0o600), (APPLY, 0o644)])
def test_what_an_apply_makes_is_as_private_as_the_caller_has_it(
    request_made: Init | Apply, mode: int, tmp_path: Path, spec: CallSpec
) -> None:
    """
    Files that an engine makes are private, except those of an apply: its providers and provisioners
    make files that are not ours, and get the caller's umask.
    """
    engine = scripted_engine(tmp_path, "open('made', 'w')")
    before = os.umask(0o022)
    try:
        engine.call(request_made, spec, stop=Stop(), observe=nobody)
    finally:
        os.umask(before)

    assert (spec.directory / "made").stat().st_mode & 0o777 == mode


@with_and_without_wrapper
def test_one_sigint_however_long_we_are_stopping(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    The engine gets exactly one SIGINT; a second would make it drop everything.
    """
    script = """
count = 0
def on(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, on)
signal.signal(signal.SIGTERM, on)
say('ready')
while not count:
    time.sleep(0.005)
time.sleep(0.3)
sys.exit(10 + count)
"""
    engine = scripted_engine(tmp_path, SAY + script)
    stop = Stop()

    def observe(_: Message) -> None:
        stop.stopping = True

    answer = engine.call(APPLY, spec, stop=stop, observe=observe)

    assert (answer.exit_code, answer.stopped) == (11, True)


@with_and_without_wrapper
def test_a_finished_engine_is_not_called_stopped(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    ``stopped`` means that the engine got a SIGINT, not that somebody wished it.
    """
    engine = scripted_engine(tmp_path, SAY + "say('done')")
    stop = Stop()

    def observe(_: Message) -> None:
        identity = json.loads((spec.evidence / "call.identity.json").read_text())
        eventually(lambda: start_ticks(identity["pid"]) == 0 or is_zombie(identity["pid"]))
        if request_made == APPLY:
            eventually((spec.evidence / "call.answer.json").exists)
        stop.stopping = True

    answer = engine.call(request_made, spec, stop=stop, observe=observe)

    assert (answer.exit_code, answer.stopped) == (0, False)


def test_no_process_is_started_after_a_stop(tmp_path: Path, spec: CallSpec) -> None:
    """
    Where a stop was asked for before the call nothing is started and nothing is left.
    """
    engine = scripted_engine(tmp_path, "")

    engine.call(APPLY, spec, stop=Stop(stopping=True), observe=nobody)

    assert not spec.evidence.exists()


def test_a_stop_before_the_engine_has_begun_rules_the_call_out(spec: CallSpec) -> None:
    """
    A stop that comes while the wrapper starts fences the call instead of waiting for a process to
    signal.
    """
    files = CallFiles(spec)
    lifeline, end = os.pipe()
    child = Child(files, SystemProcesses(), subprocess.Popen(["true"]), lifeline)

    signalled = child.interrupt()

    os.close(end)
    child.finish()
    assert (signalled, child.fenced) == (False, True)
    assert isinstance(files.read_identity(), FencedCall)


@with_and_without_wrapper
def test_killing_takes_the_whole_session(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    An engine that ignores SIGINT and all that it started get SIGKILL on the last rung.
    """
    script = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
helper = subprocess.Popen(['sleep', '120'])
say('helper')
time.sleep(120)
"""
    engine = scripted_engine(tmp_path, SAY + script)
    stop = Stop()

    def observe(_: Message) -> None:
        stop.stopping = stop.killing = True

    answer = engine.call(request_made, spec, stop=stop, observe=observe)

    assert (answer.exit_code, answer.complete, answer.stopped) == (None, False, True)
    session = json.loads((spec.evidence / "call.identity.json").read_text())["wrapper"]["pid"]
    eventually(lambda: not session_members(session))


@with_and_without_wrapper
def test_after_the_timeout_and_the_grace_the_engine_is_killed(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    A configured grace ends an engine that does not honour its SIGINT.
    """
    script = "signal.signal(signal.SIGINT, signal.SIG_IGN); say('ready'); time.sleep(120)"
    engine = scripted_engine(tmp_path, SAY + script)
    limited = CallSpec(spec.directory, spec.evidence, "call", timeout=0.5, grace=0.1)

    answer = engine.call(request_made, limited, stop=Stop(), observe=nobody)

    assert (answer.exit_code, answer.complete, answer.timed_out) == (None, False, True)


def test_a_keyboard_interrupt_leaves_the_engine_alone(tmp_path: Path, spec: CallSpec) -> None:
    """
    An exception in us, KeyboardInterrupt included, does not touch the engine: it finishes.
    """
    engine = scripted_engine(tmp_path, SAY + "say('one'); wait_for('go'); say('two')")

    def observe(_: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.call(APPLY, spec, stop=Stop(), observe=observe)

    (spec.directory / "go").touch()
    eventually((spec.evidence / "call.answer.json").exists)
    recollection = engine.recover_call(spec)
    assert recollection.result.messages == (LogLine("one"), LogLine("two"))
    assert (recollection.result.exit_code, recollection.result.complete) == (0, True)


def test_a_reading_call_has_no_wrapper_and_outlives_us_as_well(
    tmp_path: Path, spec: CallSpec
) -> None:
    """
    A call that mutates nothing is a child of ours, in a session of its own. Left alone it goes on
    to its end with its output in files, so that it gives back the state lock.
    """
    script = SAY + "say(f'{os.getppid()} {os.getsid(0)}'); wait_for('go'); open('end', 'w')"
    engine = scripted_engine(tmp_path, script)
    said: list[Message] = []

    def observe(message: Message) -> None:
        said.append(message)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.call(PLAN, spec, stop=Stop(), observe=observe)

    (identity,) = spec.evidence.glob("*.identity.json")
    pid = json.loads(identity.read_text())["pid"]
    assert said == [LogLine(f"{os.getpid()} {pid}")]
    (spec.directory / "go").touch()
    eventually((spec.directory / "end").exists)
    eventually(lambda: start_ticks(pid) == 0)


def test_a_reading_call_with_a_secret_file_has_a_wrapper(tmp_path: Path, spec: CallSpec) -> None:
    """
    Somebody has to remove the file when the engine ends, whoever is alive then.
    """
    engine = scripted_engine(tmp_path, SAY + "say(str(os.getppid()))")
    secret = replace(spec, delete_after=(tmp_path / "secret",))

    answer = engine.call(PLAN, secret, stop=Stop(), observe=nobody)

    assert answer.messages != (LogLine(str(os.getpid())),)


def test_where_no_process_can_be_watched_every_call_has_a_wrapper(
    tmp_path: Path, spec: CallSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Old kernels and some containers do not let us wait for a process without reaping it.
    """
    monkeypatch.delattr(os, "pidfd_open")
    engine = scripted_engine(tmp_path, SAY + "say(str(os.getppid()))")

    answer = engine.call(PLAN, spec, stop=Stop(), observe=nobody)

    assert (answer.exit_code, answer.complete) == (0, True)
    assert answer.messages != (LogLine(str(os.getpid())),)


def test_the_engine_outlives_its_wrapper(tmp_path: Path, spec: CallSpec) -> None:
    """
    If only the wrapper is killed the call goes on to the engine's end; its exit code is lost.
    """
    secret = tmp_path / "secret"
    secret.touch()
    script = SAY + "say('one'); wait_for('go'); say('two')"
    engine = scripted_engine(tmp_path, script)
    there = CallSpec(spec.directory, spec.evidence, "call", delete_after=(secret,))
    found: list[Liveness] = []

    def observe(message: Message) -> None:
        if message == LogLine("one"):
            identity = json.loads((spec.evidence / "call.identity.json").read_text())
            os.kill(identity["wrapper"]["pid"], signal.SIGKILL)
            found.append(engine.recover_call(there).liveness)
            threading.Timer(0.2, (spec.directory / "go").touch).start()

    answer = engine.call(APPLY, there, stop=Stop(), observe=observe)

    assert found == [Liveness.ALIVE]
    assert answer.messages == (LogLine("one"), LogLine("two"))
    assert (answer.exit_code, answer.complete) == (None, False)
    assert not secret.exists()


@with_and_without_wrapper
def test_providers_left_over_are_reaped_and_daemons_are_not(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    Provider processes that outlive a killed engine end with the call; what a provisioner left on
    purpose stays, as with plain Terraform [terragrunt 5255].
    """
    script = """
cookie = {**os.environ, 'TF_PLUGIN_MAGIC_COOKIE': 'x'}
provider = subprocess.Popen(['sleep', '120'], env=cookie)
daemon = subprocess.Popen(['sleep', '120'])
print(provider.pid, daemon.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    engine = scripted_engine(tmp_path, SAY + script)

    engine.call(request_made, spec, stop=Stop(), observe=nobody)

    provider, daemon = map(int, raw(spec).split())
    try:
        eventually(lambda: start_ticks(provider) == 0 or is_zombie(provider))
        assert start_ticks(daemon) and not is_zombie(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


@with_and_without_wrapper
def test_ci_runners_cannot_hunt_the_engine_down(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    The variables by which CI runners find and kill children of a cancelled job are cleared.
    """
    environment = clean_environment(tmp_path) | {"RUNNER_TRACKING_ID": "github_1"}
    script = "import os; print(os.environ.get('RUNNER_TRACKING_ID'), os.getsid(0))"
    engine = scripted_engine(tmp_path, script, environment)

    engine.call(request_made, spec, stop=Stop(), observe=nobody)

    tracked, session = raw(spec).split()
    assert tracked == "None"
    assert int(session) != os.getsid(0)


def test_ignored_signals_are_not_inherited(tmp_path: Path, spec: CallSpec) -> None:
    """
    Also where we were started with SIGINT ignored (``nohup``, ``&``) the engine can be stopped.
    """
    program = ("/bin/sh", "-c", "grep SigIgn /proc/self/status")
    info = EngineInfo("terraform", "1", program, "option", "")
    engine = TerraformEngine(info, environment=clean_environment(tmp_path))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine.call(APPLY, spec, stop=Stop(), observe=nobody)
    finally:
        signal.signal(signal.SIGINT, before)

    libcs_own = 0b11 << 31  # signals 32 and 33: make leaves them ignored
    assert int(raw(spec).split()[1], 16) & ~libcs_own == 0


@with_and_without_wrapper
def test_a_signal_before_the_engine_listens_ends_it_and_leaves_no_doubt(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    An engine ended by our SIGINT before its first word has done nothing: the journal is whole.
    """
    script = "signal.signal(signal.SIGINT, signal.SIG_DFL); open('up', 'w'); signal.pause()"
    engine = scripted_engine(tmp_path, SAY + script)
    stop = Stop()

    def stop_once_up() -> None:
        eventually((spec.directory / "up").exists)
        stop.stopping = True

    stopper = threading.Thread(target=stop_once_up)
    stopper.start()

    answer = engine.call(request_made, spec, stop=stop, observe=nobody)
    stopper.join()

    assert (answer.exit_code, answer.complete, answer.stopped) == (None, True, True)


def test_a_program_that_cannot_start_is_said_so(tmp_path: Path, spec: CallSpec) -> None:
    """
    A missing program is EngineFailed in phase engine, and known never to have begun.
    """
    info = EngineInfo("terraform", "1", (str(tmp_path / "missing"),), "option", "")
    engine = TerraformEngine(info, environment={})

    with pytest.raises(EngineFailed, match=r"missing: No such file") as caught:
        engine.call(APPLY, spec, stop=Stop(), observe=nobody)

    assert caught.value.phase == "engine"
    assert engine.recover_call(spec).started is False


@with_and_without_wrapper
def test_evidence_that_cannot_be_written_stops_the_start(
    request_made: Apply | Plan, tmp_path: Path, spec: CallSpec
) -> None:
    """
    Without a place for evidence nothing starts.
    """
    spec.evidence.write_text("a file in the way")
    engine = scripted_engine(tmp_path, "open('began', 'w')")

    with pytest.raises(EngineFailed, match="evidence"):
        engine.call(request_made, spec, stop=Stop(), observe=nobody)

    assert not (spec.directory / "began").exists()


def test_one_name_is_one_call(tmp_path: Path, spec: CallSpec) -> None:
    """
    A second call under the same name never starts, and harms nothing of the first.
    """
    engine = scripted_engine(tmp_path, SAY + "say('once'); open('began', 'a').write('x')")
    engine.call(APPLY, spec, stop=Stop(), observe=nobody)

    with pytest.raises(Fenced):
        engine.call(APPLY, spec, stop=Stop(), observe=nobody)

    assert (spec.directory / "began").read_text() == "x"
    assert engine.recover_call(spec).result.messages == (LogLine("once"),)


def test_of_two_creations_one_wins(tmp_path: Path) -> None:
    """
    Exclusive creation leaves the first text alone and no draft behind.
    """
    path = tmp_path / "identity.json"

    outcomes = [create_exclusively(str(path), text) for text in ("first", "second")]

    assert outcomes == [True, False]
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_half_written_line_is_told_apart(tmp_path: Path, spec: CallSpec) -> None:
    """
    A journal that ends in the middle of a line is not whole.
    """
    engine = scripted_engine(tmp_path, SAY + "say('one'); sys.stdout.write('{\"@mess')")

    answer = engine.call(APPLY, spec, stop=Stop(), observe=nobody)

    assert answer.messages == (LogLine("one"), LogLine('{"@mess'))
    assert (answer.exit_code, answer.complete) == (0, False)


def test_a_damaged_identity_is_never_taken_for_not_begun(tmp_path: Path, spec: CallSpec) -> None:
    """
    What cannot be read may have begun.
    """
    spec.evidence.mkdir()
    (spec.evidence / "call.identity.json").write_text("{")
    engine = scripted_engine(tmp_path, "")

    recollection = engine.recover_call(spec)

    assert (recollection.started, recollection.liveness) == (True, Liveness.UNKNOWN)
    assert not recollection.result.complete


def test_a_plain_text_error_becomes_a_diagnostic(tmp_path: Path, spec: CallSpec) -> None:
    """
    ``init`` speaks plain text: its error is a diagnostic all the same, without the frame.
    """
    text = "╷\\n│ Error: No such backend\\n│ \\n│   on main.tf line 3:\\n│ \\n│ Really not.\\n╵\\n"
    engine = scripted_engine(tmp_path, f"import sys; sys.stderr.write('{text}'); sys.exit(1)")

    answer = engine.call(Init(), spec, stop=Stop(), observe=nobody)

    (message,) = answer.messages
    assert isinstance(message, Diagnostic)
    said = message
    assert (said.summary, said.detail, said.at) == ("No such backend", "Really not.", "main.tf:3")


def test_an_error_in_no_known_form_is_passed_on(tmp_path: Path, spec: CallSpec) -> None:
    """
    A crash on stderr is not lost: its first line is the diagnostic.
    """
    engine = scripted_engine(tmp_path, "import sys; sys.stderr.write('panic: nil\\n'); sys.exit(2)")

    answer = engine.call(Plan(tmp_path / "p"), spec, stop=Stop(), observe=nobody)

    (message,) = answer.messages
    assert isinstance(message, Diagnostic)
    assert message.summary == "the engine crashed: panic: nil"


def test_the_engine_outlives_us(tmp_path: Path, spec: CallSpec) -> None:
    """
    SIGKILL of this program leaves the engine at work; it leaves its answer for a successor.
    """
    engine = scripted_engine(tmp_path, SAY + "say('one'); wait_for('go'); say('two')")
    caller = tmp_path / "caller.py"
    caller.write_text(
        f"""
from pathlib import Path
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import Apply, EngineInfo, CallSpec
from tests.fakes.stops import Stop
info = EngineInfo("terraform", "1", {engine.info.program!r}, "option", "")
spec = CallSpec(Path({str(spec.directory)!r}), Path({str(spec.evidence)!r}), "call")
TerraformEngine(info, environment={{}}).call(
    Apply(Path("p")), spec, stop=Stop(), observe=lambda m: print("seen", flush=True)
)
"""
    )
    repository = Path(__file__).parents[2]
    us = subprocess.Popen(
        [sys.executable, str(caller)],
        env=os.environ | {"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
    )
    assert us.stdout is not None
    assert us.stdout.readline() == b"seen\n"
    us.kill()
    us.communicate()
    while_alive = engine.recover_call(spec)
    (spec.directory / "go").touch()

    eventually((spec.evidence / "call.answer.json").exists)

    recollection = engine.recover_call(spec)
    assert while_alive.liveness is Liveness.ALIVE
    assert while_alive.result.messages == (LogLine("one"),)
    assert (recollection.result.exit_code, recollection.result.complete) == (0, True)
    assert recollection.result.messages == (LogLine("one"), LogLine("two"))


def test_a_wrapper_about_to_answer_is_waited_for(tmp_path: Path, spec: CallSpec) -> None:
    """
    Between the engine's end and the answer a successor waits a moment instead of calling it gone.
    """
    ours = SystemProcesses()
    me = ours.me()
    spec.evidence.mkdir()
    identity = me.model_dump() | {"pid": me.pid, "started": me.started - 1, "verb": "apply"}
    identity["wrapper"] = {"pid": me.pid, "started": me.started}
    (spec.evidence / "call.identity.json").write_text(json.dumps(identity))
    answer = '{"exit_code": 0, "signal": null, "began": true}'
    draft = spec.evidence / "draft"
    draft.write_text(answer)
    threading.Timer(0.2, draft.rename, (spec.evidence / "call.answer.json",)).start()

    recollection = scripted_engine(tmp_path, "").recover_call(spec)

    assert (recollection.liveness, recollection.result.exit_code) == (Liveness.GONE, 0)
