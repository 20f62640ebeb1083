"""
One suite for every engine: the fake, Terraform on PATH, and the embedded Terraform.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from orchestrator.domain.events.events import (
    ApplyComplete,
    ApplyErrored,
    ApplyStart,
    ChangeSummary,
    LogLine,
    Message,
    OutputChange,
    PlannedChange,
)
from orchestrator.domain.provider_state import PulledState, StateOutput
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.states import Liveness
from orchestrator.errors import EngineFailed, Fenced
from orchestrator.ports.engine import (
    Apply,
    Approve,
    CallResult,
    CallSpec,
    Cancel,
    Engine,
    EngineInfo,
    Exec,
    Import,
    Init,
    Plan,
    PlanAndAsk,
    Program,
    Pull,
    Push,
    Request,
    Unlock,
    Untaint,
)
from tests.engine.programs import real_engine
from tests.fakes.engine import FakeEngine, FakeWorld, Fault
from tests.fakes.stops import Stop
from tests.project import ENGINES

T = TypeVar("T")
A, B, C = "terraform_data.a", "terraform_data.b", "terraform_data.c"


class Bench(Protocol):
    """
    Makes engines (each as a new process would) and working directories for them.
    """

    def engine(self) -> Engine: ...

    def describe(
        self,
        directory: Path,
        desired: Mapping[str, Any],
        *,
        outputs: Mapping[str, StateOutput] | None = None,
        faults: Mapping[str, Fault] | None = None,
        broken: bool = False,
    ) -> None:
        """
        Give the directory a module with these objects; ``broken`` ones cannot be planned.
        """


class FakeBench:
    def __init__(self) -> None:
        self._world = FakeWorld()

    def engine(self) -> Engine:
        return FakeEngine(self._world, info=EngineInfo("tofu", "1.12.6", ("fake",), "option", ""))

    def describe(
        self,
        directory: Path,
        desired: Mapping[str, Any],
        *,
        outputs: Mapping[str, StateOutput] | None = None,
        faults: Mapping[str, Fault] | None = None,
        broken: bool = False,
    ) -> None:
        root = self._world.root(directory)
        root.desired = dict(desired)
        root.outputs = dict(outputs or {})
        root.faults = dict(faults or {})
        root.plan_error = "it cannot be planned" if broken else None


class RealBench:
    _COMMANDS: Mapping[Fault, str] = {
        Fault.FAIL: "exit 1",
        Fault.HANG: "exec sleep 120",
        Fault.KILL_ENGINE: "kill -KILL $PPID",
    }

    def __init__(self, kind: str, directory: Path) -> None:
        self._engine = real_engine(kind, directory)

    def engine(self) -> Engine:
        return self._engine

    def describe(
        self,
        directory: Path,
        desired: Mapping[str, Any],
        *,
        outputs: Mapping[str, StateOutput] | None = None,
        faults: Mapping[str, Fault] | None = None,
        broken: bool = False,
    ) -> None:
        resource: dict[str, Any] = {}
        for address, value in desired.items():
            body: dict[str, Any] = {"input": value}
            if address in (faults or {}):
                command = self._COMMANDS[(faults or {})[address]]
                body["provisioner"] = [{"local-exec": {"command": command}}]
            resource[address.partition(".")[2]] = body
        if broken:
            resource["broken"] = {"input": '${file("no-such-file")}'}
        data: dict[str, Any] = {"resource": {"terraform_data": resource}} if resource else {}
        if outputs:
            data["output"] = {
                name: {"value": output.value, "sensitive": output.sensitive}
                for name, output in outputs.items()
            }
        (directory / "main.tf.json").write_text(json.dumps(data))


@pytest.fixture(
    params=[
        "fake",
        *(pytest.param(kind, marks=pytest.mark.engine) for kind in ENGINES),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "fake":
        return FakeBench()
    return RealBench(request.param, tmp_path)


class Stage:
    """
    A working directory with its evidence, and an engine at work in it.
    """

    def __init__(self, bench: Bench, tmp_path: Path) -> None:
        self.bench = bench
        self.engine = bench.engine()
        self.directory = tmp_path / "root"
        self.evidence = tmp_path / "evidence"
        self.directory.mkdir()
        self.plan_file = tmp_path / "saved.tfplan"
        self.calls = 0

    def spec(self, name: str | None = None, **more: Any) -> CallSpec:
        self.calls += 1
        return CallSpec(self.directory, self.evidence, name or f"call{self.calls}", **more)

    def do(
        self,
        request: Request,
        spec: CallSpec | None = None,
        *,
        stop: Stop | None = None,
        observe: Callable[[Message], None] = lambda _: None,
    ) -> CallResult:
        return self.engine.call(request, spec or self.spec(), stop=stop or Stop(), observe=observe)

    def plan(self, **options: Any) -> CallResult:
        return self.do(Plan(self.plan_file, **options))

    def apply(self) -> CallResult:
        return self.do(Apply(self.plan_file))

    def state(self) -> PulledState:
        return self.engine.pulled_state(self.do(Pull()))

    def addresses(self) -> frozenset[str]:
        return self.state().addresses


@pytest.fixture
def stage(bench: Bench, tmp_path: Path) -> Stage:
    return Stage(bench, tmp_path)


def applied(stage: Stage, desired: Mapping[str, Any], **more: Any) -> None:
    stage.bench.describe(stage.directory, desired, **more)
    assert stage.do(Init()).exit_code == 0
    assert stage.plan().exit_code == 0
    assert stage.apply().exit_code == 0


def of(kind: type[T], answer: CallResult) -> list[T]:
    return [message for message in answer.messages if isinstance(message, kind)]


def test_a_plan_names_every_action_by_address(stage: Stage) -> None:
    """
    What a plan holds is known by address before anything is mutated.
    """
    stage.bench.describe(stage.directory, {A: "1", B: "2"})
    stage.do(Init())

    answer = stage.plan()

    assert (answer.exit_code, answer.complete) == (0, True)
    assert sorted((p.address, p.action) for p in of(PlannedChange, answer)) == [
        (A, "create"),
        (B, "create"),
    ]
    assert stage.plan_file.exists()


def test_a_plan_without_changes_holds_no_action(stage: Stage) -> None:
    """
    After an apply a plan holds no action and no output change.
    """
    applied(stage, {A: "1"}, outputs={"o": StateOutput("x", sensitive=False)})

    answer = stage.plan()

    assert answer.exit_code == 0
    assert not of(PlannedChange, answer)
    assert not of(OutputChange, answer)


def test_update_replace_and_delete_are_told_apart(stage: Stage) -> None:
    """
    A plan says update, replace and delete for what they are.
    """
    applied(stage, {A: "1", B: "2", C: "3"})
    stage.bench.describe(stage.directory, {A: "changed", B: "2"})

    answer = stage.plan(replace=(B,))

    assert {p.address: p.action for p in of(PlannedChange, answer)} == {
        A: "update",
        B: "replace",
        C: "delete",
    }


def test_a_failing_plan_says_why_and_leaves_no_plan_file(stage: Stage) -> None:
    """
    A plan that fails has exit code 1, an error diagnostic, and writes no plan.
    """
    stage.bench.describe(stage.directory, {A: "1"}, broken=True)
    stage.do(Init())

    answer = stage.plan()

    assert answer.exit_code == 1
    assert [d.severity for d in of(Diagnostic, answer)] == ["error"]
    assert not stage.plan_file.exists()


def test_an_apply_reports_each_object_when_it_begins_and_ends(stage: Stage) -> None:
    """
    The journal holds began and completed, with the id, for each object; state holds the same ids.
    """
    stage.bench.describe(stage.directory, {A: "1", B: "2"})
    stage.do(Init())
    stage.plan()

    answer = stage.apply()

    assert (answer.exit_code, answer.complete, answer.stopped) == (0, True, False)
    assert {m.address for m in of(ApplyStart, answer)} == {A, B}
    ids = {m.address: m.id for m in of(ApplyComplete, answer)}
    state = stage.engine.pulled_state(stage.do(Pull()))
    assert {item.address: item.id for item in state.objects} == ids
    assert [(s.operation, s.add) for s in of(ChangeSummary, answer)] == [("apply", 2)]


def test_a_failed_apply_keeps_what_was_done(stage: Stage) -> None:
    """
    Where one object fails the others stay done, and only the failed one is tainted.
    """
    stage.bench.describe(stage.directory, {A: "1", B: "2"}, faults={B: Fault.FAIL})
    stage.do(Init())
    stage.plan()

    answer = stage.apply()

    assert (answer.exit_code, answer.complete) == (1, True)
    assert [m.address for m in of(ApplyComplete, answer)] == [A]
    assert [m.address for m in of(ApplyErrored, answer)] == [B]
    assert [d.address for d in of(Diagnostic, answer)] == [B]
    assert not of(ChangeSummary, answer)
    state = stage.engine.pulled_state(stage.do(Pull()))
    assert {item.address: item.tainted for item in state.objects} == {A: False, B: True}


#: For the engines that ask before an apply.
asking = pytest.mark.parametrize(
    "bench", ["fake", pytest.param("tofu", marks=pytest.mark.engine)], indirect=True
)


@pytest.fixture
def waiting(stage: Stage) -> CallSpec:
    """
    The call of an apply that has planned an object and an output, and waits to be approved.
    """
    stage.bench.describe(
        stage.directory, {A: "1"}, outputs={"o": StateOutput("x", sensitive=False)}
    )
    stage.do(Init())
    return ask(stage)


def ask(stage: Stage) -> CallSpec:
    var_file = stage.directory.parent / "v.tfvars.json"
    var_file.write_text("{}")
    spec = stage.spec("asked", delete_after=(var_file,))
    answer = stage.do(PlanAndAsk(var_file), spec)
    assert (answer.waits, answer.exit_code, answer.complete) == (True, None, False)
    assert [(p.address, p.action) for p in of(PlannedChange, answer)] == [(A, "create")]
    assert [(s.operation, s.add) for s in of(ChangeSummary, answer)] == [("plan", 1)]
    assert [(o.name, o.action) for o in of(OutputChange, answer)] == [("o", "create")]
    assert not of(ApplyStart, answer)
    return spec


@asking
def test_an_apply_that_waits_goes_on_once_it_is_approved(stage: Stage, waiting: CallSpec) -> None:
    """
    Until then nothing is changed; then all that was planned is done, and told after the plan.
    """
    assert stage.addresses() == frozenset()
    observed: list[Message] = []

    answer = stage.do(Approve(), waiting, observe=observed.append)

    assert (answer.exit_code, answer.complete, answer.waits) == (0, True, False)
    assert [m.address for m in of(ApplyComplete, answer)] == [A]
    assert not any(isinstance(message, PlannedChange) for message in observed)
    assert stage.addresses() == {A}
    assert stage.do(Approve(), waiting).exit_code is None
    assert stage.engine.recover_call(waiting).result.exit_code == 0


@asking
@pytest.mark.parametrize("stopping", [False, True])
def test_an_apply_that_is_not_approved_changes_nothing(
    stage: Stage, waiting: CallSpec, stopping: bool
) -> None:
    """
    Cancelled, it can be called anew; approved after a stop it ends as well.
    """
    request = Approve() if stopping else Cancel()

    answer = stage.do(request, waiting, stop=Stop(stopping=stopping))

    assert (answer.exit_code, answer.complete) == (1, True)
    assert stage.addresses() == frozenset()
    if not stopping:
        assert stage.do(Approve(), ask(stage)).exit_code == 0


@asking
def test_what_has_nothing_to_ask_does_not_wait(stage: Stage) -> None:
    """
    An apply that plans nothing ends, as one whose plan fails does; its call can be made.
    """
    var_file, spec = stage.directory.parent / "v.tfvars.json", stage.spec("asked")
    var_file.write_text("{}")
    stage.bench.describe(stage.directory, {})
    stage.do(Init())
    assert not stage.do(PlanAndAsk(var_file), spec).waits
    stage.bench.describe(stage.directory, {A: "1"}, broken=True)
    failed = stage.do(PlanAndAsk(var_file), spec)
    assert (failed.waits, failed.exit_code) == (False, 1)
    assert len(of(Diagnostic, failed)) == 1
    stage.bench.describe(stage.directory, {A: "1"})
    assert stage.do(PlanAndAsk(var_file), spec).waits
    stage.do(Cancel(), spec)


def test_a_destroy_plan_empties_the_state(stage: Stage) -> None:
    """
    Applying a destroy plan deletes every object; lineage stays, outputs go.
    """
    applied(stage, {A: "1"}, outputs={"o": StateOutput("x", sensitive=False)})
    before = stage.engine.pulled_state(stage.do(Pull()))
    planned = of(PlannedChange, stage.plan(mode="destroy"))

    answer = stage.apply()

    after = stage.engine.pulled_state(stage.do(Pull()))
    assert [(p.address, p.action) for p in planned] == [(A, "delete")]
    assert [(m.address, m.action) for m in of(ApplyComplete, answer)] == [(A, "delete")]
    assert (after.objects, after.outputs, after.lineage) == ((), {}, before.lineage)
    assert after.serial > before.serial


def test_pulling_a_state_that_was_never_written_finds_nothing(stage: Stage) -> None:
    """
    Never written is no error: no lineage, serial 0, nothing in it.
    """
    stage.bench.describe(stage.directory, {A: "1"})
    stage.do(Init())

    state = stage.engine.pulled_state(stage.do(Pull()))

    assert (state.lineage, state.serial, state.objects, state.outputs) == (None, 0, (), {})


def test_a_pull_tells_outputs_with_their_sensitive_flags(stage: Stage) -> None:
    """
    One pull tells outputs, sensitive flags, lineage, serial and objects.
    """
    outputs = {
        "plain": StateOutput("x", sensitive=False),
        "secret": StateOutput("hunter22", sensitive=True),
    }
    applied(stage, {A: "1"}, outputs=outputs)

    state = stage.engine.pulled_state(stage.do(Pull()))

    assert state.outputs == outputs
    assert state.lineage
    assert state.serial >= 1
    assert state.addresses == {A}


def test_a_stop_ends_the_apply_with_its_state_saved(stage: Stage) -> None:
    """
    A stop sends one SIGINT: exit code 1, a whole journal, and what was half made is tainted.
    """
    stage.bench.describe(stage.directory, {A: "1"}, faults={A: Fault.HANG})
    stage.do(Init())
    stage.plan()
    stop = Stop()

    def stop_at_began(message: Message) -> None:
        if isinstance(message, ApplyStart):
            stop.stopping = True

    answer = stage.do(Apply(stage.plan_file), stop=stop, observe=stop_at_began)

    assert (answer.exit_code, answer.complete, answer.stopped) == (1, True, True)
    state = stage.engine.pulled_state(stage.do(Pull()))
    assert [(item.address, item.tainted) for item in state.objects] == [(A, True)]


def test_a_timeout_stops_like_a_person(stage: Stage) -> None:
    """
    At its timeout the engine gets its one SIGINT, and the answer says so.
    """
    stage.bench.describe(stage.directory, {A: "1"}, faults={A: Fault.HANG})
    stage.do(Init())
    stage.plan()

    answer = stage.do(Apply(stage.plan_file), stage.spec(timeout=2.0))

    assert (answer.exit_code, answer.stopped, answer.timed_out) == (1, True, True)


def test_nothing_starts_after_a_stop(stage: Stage, tmp_path: Path) -> None:
    """
    Where a stop came first the engine never begins: no exit code, nothing said, nothing in doubt;
    and the files to delete are gone.
    """
    stage.bench.describe(stage.directory, {A: "1"})
    stage.do(Init())
    stage.plan()
    secret = tmp_path / "inputs.tfvars.json"
    secret.write_text("{}")

    answer = stage.do(
        Apply(stage.plan_file), stage.spec(delete_after=(secret,)), stop=Stop(stopping=True)
    )

    assert (answer.exit_code, answer.messages, answer.complete, answer.stopped, answer.stdout) == (
        None,
        (),
        True,
        True,
        None,
    )
    assert not secret.exists()
    assert stage.addresses() == frozenset()


def test_what_is_observed_is_what_is_answered(stage: Stage) -> None:
    """
    ``observe`` gets each message of the answer once, in order.
    """
    stage.bench.describe(stage.directory, {A: "1", B: "2"})
    stage.do(Init())
    stage.plan()
    seen: list[Message] = []

    answer = stage.do(Apply(stage.plan_file), observe=seen.append)

    assert tuple(seen) == answer.messages


def test_another_process_recollects_a_finished_call(stage: Stage) -> None:
    """
    Exit code and journal of a call that has ended can be had from disk alone.
    """
    stage.bench.describe(stage.directory, {A: "1", B: "2"}, faults={B: Fault.FAIL})
    stage.do(Init())
    stage.plan()
    spec = stage.spec("apply")
    answer = stage.do(Apply(stage.plan_file), spec)

    recollection = stage.bench.engine().recover_call(spec)

    assert recollection.started
    assert recollection.liveness is Liveness.GONE
    assert recollection.result.messages == answer.messages
    assert (recollection.result.exit_code, recollection.result.complete) == (1, True)


def test_a_killed_engine_leaves_no_exit_code(stage: Stage) -> None:
    """
    After SIGKILL there is no exit code and the journal is not whole, then and for a successor.
    """
    stage.bench.describe(stage.directory, {A: "1"}, faults={A: Fault.KILL_ENGINE})
    stage.do(Init())
    stage.plan()
    spec = stage.spec("apply")

    answer = stage.do(Apply(stage.plan_file), spec)

    assert (answer.exit_code, answer.complete) == (None, False)
    assert [m.address for m in of(ApplyStart, answer)] == [A]
    recollection = stage.bench.engine().recover_call(spec)
    assert (recollection.started, recollection.liveness) == (True, Liveness.GONE)
    assert (recollection.result.exit_code, recollection.result.complete) == (None, False)
    assert recollection.result.messages == answer.messages


def test_a_recollected_call_that_had_not_begun_never_begins(stage: Stage) -> None:
    """
    Looking for a call that did not begin rules it out: a late caller is told, nothing happens.
    """
    stage.bench.describe(stage.directory, {A: "1"})
    stage.do(Init())
    stage.plan()
    spec = stage.spec("apply")
    recollection = stage.bench.engine().recover_call(spec)

    with pytest.raises(Fenced):
        stage.do(Apply(stage.plan_file), spec)

    assert (recollection.started, recollection.liveness) == (False, Liveness.GONE)
    assert stage.bench.engine().recover_call(spec).started is False
    assert stage.addresses() == frozenset()


def test_a_call_under_way_is_recollected_as_alive(stage: Stage) -> None:
    """
    While the engine works a successor sees it alive, with what it said so far.
    """
    stage.bench.describe(stage.directory, {A: "1"}, faults={A: Fault.HANG})
    stage.do(Init())
    stage.plan()
    spec = stage.spec("apply")
    stop, working = Stop(), threading.Event()

    def note(message: Message) -> None:
        if isinstance(message, ApplyStart):
            working.set()

    thread = threading.Thread(
        target=stage.do, args=(Apply(stage.plan_file), spec), kwargs={"stop": stop, "observe": note}
    )
    thread.start()
    working.wait()
    try:
        recollection = stage.bench.engine().recover_call(spec)
    finally:
        stop.stopping = True
        thread.join()

    assert (recollection.started, recollection.liveness) == (True, Liveness.ALIVE)
    assert [m.address for m in of(ApplyStart, recollection.result)] == [A]


def test_a_plan_on_an_older_state_is_refused(stage: Stage) -> None:
    """
    A saved plan applies once: on a state that moved on it fails before anything begins.
    """
    stage.bench.describe(stage.directory, {A: "1"})
    stage.do(Init())
    stage.plan()
    stage.apply()

    answer = stage.apply()

    assert answer.exit_code == 1
    assert not of(ApplyStart, answer)
    assert "stale" in of(Diagnostic, answer)[0].summary


def test_a_saved_plan_tells_the_state_it_was_made_on(stage: Stage) -> None:
    """
    Lineage, serial, objects and outputs from before the plan can be had from the plan file.
    """
    applied(stage, {A: "1"}, outputs={"o": StateOutput("x", sensitive=False)})
    now = stage.engine.pulled_state(stage.do(Pull()))
    stage.bench.describe(stage.directory, {A: "2", B: "2"})
    stage.plan()

    before = stage.engine.state_in_plan(stage.plan_file)

    assert before is not None
    assert (before.lineage, before.serial) == (now.lineage, now.serial)
    assert (before.objects, before.outputs) == (now.objects, now.outputs)


def test_objects_of_a_state_can_be_set_apart(stage: Stage) -> None:
    """
    A state of the wanted objects only, each under an address of its own that stands for it.
    """
    applied(stage, {A: "1", B: "2"})
    now = stage.engine.pulled_state(stage.do(Pull()))
    wanted = next(item for item in now.objects if item.address == B)

    told, names = stage.engine.isolated_state(now.raw, {(B, wanted.id)})

    assert list(names.values()) == [wanted]
    assert B not in names and len(json.loads(told)) > 1
    assert list(stage.engine.isolated_state(told, {(name, wanted.id) for name in names})[1])


def test_what_is_no_state_cannot_be_set_apart(stage: Stage) -> None:
    """
    A damaged file is an error of the readback, never an empty state.
    """
    with pytest.raises(EngineFailed) as caught:
        stage.engine.isolated_state(b"{", set())
    assert caught.value.phase == "readback"


def test_a_file_that_is_no_plan_tells_no_state(stage: Stage) -> None:
    """
    An encrypted or foreign plan file gives None, never an empty state.
    """
    stage.plan_file.write_bytes(b"\x00encrypted")

    assert stage.engine.state_in_plan(stage.plan_file) is None


def test_the_files_to_delete_are_gone_after_the_call(stage: Stage, tmp_path: Path) -> None:
    """
    Files with secrets end with the call, whether it succeeds or not.
    """
    stage.bench.describe(stage.directory, {A: "1"}, broken=True)
    stage.do(Init())
    secret = tmp_path / "inputs.tfvars.json"
    secret.write_text("{}")

    stage.do(Plan(stage.plan_file, var_file=secret), stage.spec(delete_after=(secret,)))

    assert not secret.exists()


def test_diagnostics_are_masked(stage: Stage) -> None:
    """
    Free text passes through the spec's mask before anybody sees it.
    """
    stage.bench.describe(stage.directory, {A: "1"}, broken=True)
    stage.do(Init())

    answer = stage.do(Plan(stage.plan_file), stage.spec(mask=lambda _: "***"))

    assert {d.summary for d in of(Diagnostic, answer)} == {"***"}


# What changes provider state alone


def test_a_command_as_typed_says_what_it_did(stage: Stage) -> None:
    """
    Exec passes the words on; the lines of its output are messages, in order.
    """
    applied(stage, {A: "1", B: "2"})

    answer = stage.do(Exec(("state", "rm", A)))

    assert answer.exit_code == 0
    assert [m.line for m in of(LogLine, answer)][
        -1
    ] == "Successfully removed 1 resource instance(s)."
    assert stage.addresses() == {B}


def test_an_object_that_exists_is_imported_once(stage: Stage) -> None:
    """
    It is in the state, with its id; at an address that is taken nothing is imported, and an error
    says so.
    """
    applied(stage, {A: "1", B: "2"})
    (identifier,) = [item.id for item in stage.state().objects if item.address == A]
    assert identifier is not None
    stage.do(Exec(("state", "rm", A)))

    first = stage.do(Import(A, identifier, lock_timeout="1s"))
    second = stage.do(Import(A, identifier))

    assert first.exit_code == 0
    assert stage.state().ids[A] == identifier
    assert second.exit_code == 1
    (said,) = [m.summary for m in of(Diagnostic, second)]
    assert re.fullmatch("Resource already managed by (Terraform|OpenTofu)", said)


def test_what_is_tainted_is_untainted_once(stage: Stage) -> None:
    """
    Then it is sound, and a second time is an error that says so.
    """
    stage.bench.describe(stage.directory, {A: "1"}, faults={A: Fault.FAIL})
    stage.do(Init())
    stage.plan()
    stage.apply()

    first = stage.do(Untaint(A, lock_timeout="1s"))
    second = stage.do(Untaint(A))

    assert first.exit_code == 0
    assert [(item.address, item.tainted) for item in stage.state().objects] == [(A, False)]
    assert second.exit_code == 1
    (said,) = [m.summary for m in of(Diagnostic, second)]
    assert said == "Resource instance is not tainted"


def test_a_state_is_pushed_but_not_an_older_one(stage: Stage, tmp_path: Path) -> None:
    """
    The state of a file replaces the one that is there, its serial not going back; one with a
    smaller serial leaves it alone.
    """
    applied(stage, {A: "1"})
    older, newer = tmp_path / "older.tfstate", tmp_path / "newer.tfstate"
    older.write_bytes(stage.state().raw)
    stage.bench.describe(stage.directory, {A: "1", B: "2"})
    stage.plan()
    stage.apply()
    held = stage.state()
    newer.write_bytes(
        older.read_bytes().replace(
            f'"serial": {stage.engine.state_in_file(older).serial}'.encode(),
            f'"serial": {held.serial + 1}'.encode(),
        )
    )

    refused = stage.do(Push(older, lock_timeout="1s"))
    between = stage.state()
    pushed = stage.do(Push(newer))

    assert (refused.exit_code, between) == (1, held)
    assert pushed.exit_code == 0
    assert stage.addresses() == {A}
    assert stage.state().serial > held.serial


def test_a_state_that_is_not_locked_cannot_be_unlocked(stage: Stage) -> None:
    """
    An error, and no question is asked.
    """
    applied(stage, {A: "1"})

    assert stage.do(Unlock("11111111-2222-3333-4444-555555555555")).exit_code == 1


def test_the_state_in_a_file_is_read_like_a_pulled_one(stage: Stage, tmp_path: Path) -> None:
    """
    What an engine left in a file is the same state; what is none is an error that names the file.
    """
    applied(stage, {A: "1"})
    file = tmp_path / "errored.tfstate"
    file.write_bytes(stage.state().raw)

    assert stage.engine.state_in_file(file) == stage.state()

    file.write_text("{}")
    with pytest.raises(EngineFailed, match=r"errored\.tfstate"):
        stage.engine.state_in_file(file)


def test_another_process_recollects_surgery(stage: Stage) -> None:
    """
    Its exit code can be had from disk alone, as that of an apply.
    """
    applied(stage, {A: "1"})
    spec = stage.spec("apply")
    stage.do(Exec(("state", "rm", A)), spec)

    recollection = stage.bench.engine().recover_call(spec)

    assert (recollection.started, recollection.liveness) == (True, Liveness.GONE)
    assert (recollection.result.exit_code, recollection.result.complete) == (0, True)


# Other programs


def test_a_program_is_carried_out_as_an_engine_call_is(stage: Stage) -> None:
    """
    A program's words are masked messages, its exit code is the answer, and another process
    recollects both.
    """
    said: list[Message] = []
    spec = stage.spec("apply", mask=lambda text: text.replace("hunter2", "***"))
    answer = stage.do(Program(("echo", "drained", "hunter2")), spec, observe=said.append)
    assert (answer.exit_code, answer.complete) == (0, True)
    assert said == [LogLine("drained ***")]
    found = stage.bench.engine().recover_call(spec)
    assert (found.started, found.liveness, found.result.exit_code) == (True, Liveness.GONE, 0)
    assert stage.do(Program(("false",))).exit_code == 1


def test_a_program_that_a_signal_ended_leaves_no_exit_code(stage: Stage) -> None:
    """
    What was ended in the middle has no exit code: nobody can tell what it did.
    """
    killed = stage.do(Program(("sh", "-c", "kill -KILL $$")))
    assert (killed.exit_code, killed.complete, killed.stopped) == (None, False, False)
    late = stage.do(Program(("sleep", "120")), stage.spec(timeout=0.2))
    assert (late.exit_code, late.timed_out) == (None, True)


def test_a_program_that_is_not_there_is_an_error(stage: Stage) -> None:
    """
    What cannot be started at all says so, and nothing has begun.
    """
    with pytest.raises(EngineFailed, match="cannot start no-such-program"):
        stage.do(Program(("no-such-program",)))
