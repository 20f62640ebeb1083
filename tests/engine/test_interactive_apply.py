"""
A first apply in one engine process: planned, recorded, approved and carried out, where OpenTofu
asks before it applies. Whatever goes otherwise than it should is planned and saved, or recorded.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import CallSpec, Cancel, EngineInfo, PlanAndAsk
from tests.engine.programs import standin_tofu
from tests.fakes.stops import Stop
from tests.project import Ended, Project, eventually, finish

pytestmark = pytest.mark.engine

BLUEPRINT = """
version: 1
name: b
inputs:
  name: {type: string, default: web}
steps:
  s:
    module: ../modules/m
    inputs: {name: "${inputs.name}"}
"""
#: Known to OpenTofu and to the program that stands for it.
BUILT_IN = """
variable "name" {
  type = string
}
resource "terraform_data" "a" {
}
output "name" {
  value = "${var.name}"
}
"""
THINGS = BUILT_IN.replace("terraform_data", "thing_object")


class Applied(Project):
    """
    A project of one step, whose objects are files in ``cloud`` where the module makes things.
    """

    def __init__(self, root: Path, engine: str, module: str) -> None:
        super().__init__(root / "project", engine=engine)
        self.cloud = root / "cloud"
        self.cloud.mkdir()
        self.environ["TOFU_OBJECTS"] = str(self.cloud)
        self.write("orchestrator.yaml", "project: one\n")
        self.write("modules/m/main.tf", module)
        self.write("blueprints/b.yaml", BLUEPRINT)

    def apply(self, *options: str) -> Ended:
        return self.run("apply", "b", "--yes", *options)

    def arm(self, fault: str) -> None:
        """
        From now on the engine does this.
        """
        (self.cloud / fault).touch()

    @property
    def objects(self) -> list[str]:
        """
        The ids of the things that are there.
        """
        return [path.suffix.removeprefix(".") for path in self.cloud.glob("thing_object.*")]

    @property
    def calls(self) -> set[str]:
        """
        The engine calls of the last attempt, by name.
        """
        attempts = self.own.glob("runs/*/steps/s/*")
        newest = max(attempts, key=lambda path: path.stat().st_mtime_ns)
        return {file.name.partition(".")[0] for file in newest.glob("*.identity.json")}

    def check_sound(self) -> None:
        """
        It is recorded with its one object, and nothing is left to do.
        """
        (id_,) = self.objects
        (recorded,) = self.record("s")["resources"]["inventory"]
        assert recorded["id"] == id_
        assert self.apply("--json").row["status"] == "ok"
        assert self.objects == [id_]


@pytest.fixture
def project(tmp_path: Path, tofu: str) -> Applied:
    return Applied(tmp_path, tofu, BUILT_IN)


@pytest.fixture
def things(tmp_path: Path) -> Applied:
    return Applied(tmp_path, str(standin_tofu(tmp_path / "bin")), THINGS)


def test_a_first_apply_is_one_engine_process(project: Applied) -> None:
    """
    Nothing is planned apart, and the record is as after any apply; a later one saves its plan.
    """
    first = project.apply("--json")
    assert first.code == 0, first.said
    assert "apply" in project.calls
    assert not {name for name in project.calls if name.startswith("plan")}
    assert [entry["status"] for entry in project.history("s")] == ["running", "ok"]
    record = project.record("s")
    for list_ in ("inventory", "planned"):
        assert [item["address"] for item in record["resources"][list_]] == ["terraform_data.a"]
    assert record["outputs"] == {"name": "web"}
    phases = [event["phase"] for event in first.events if event["type"] == "phase_started"]
    assert phases[-2:] == ["plan", "apply"]

    project.environ["ORCHESTRATOR_INPUT_name"] = "other"
    assert project.apply().code == 0
    assert {"plan-1", "apply"} <= project.calls
    assert project.record("s")["outputs"] == {"name": "other"}


@pytest.mark.parametrize(
    "why", ["policy", "identity", "approval", "arguments", "target", "refresh", "version"]
)
def test_where_more_must_be_known_a_plan_is_saved(things: Applied, why: str) -> None:
    """
    By a policy, before a create, by an approval; and where the environment may approve for us, or
    the engine is too old to ask.
    """
    options = ["--yes"]
    match why:
        case "policy":
            things.write("blueprints/b.yaml", BLUEPRINT + "policy: {max_destroys: 3}\n")
        case "identity":
            things.write("blueprints/b.yaml", BLUEPRINT + "    identity: {thing_object.a: x}\n")
        case "approval":
            things.run("plan", "b", "--out", "p.json")
            options = ["--plan", "p.json"]
        case "arguments":
            things.write("orchestrator.yaml", "allow_environment: [TF_CLI_ARGS_apply]\n")
            things.environ["TF_CLI_ARGS_apply"] = "-auto-approve"
        case "target":
            options += ["--target", "thing_object.a"]
        case "version":
            things.environ["TOFU_VERSION"] = "1.11.5"
        case "refresh":
            options += ["--refresh=false"]
    done = things.run("apply", "b", *options)
    assert {name for name in things.calls if name.startswith("plan")}, done.said


@pytest.mark.parametrize("fault", ["novel", "miscounted", "mute", "in-other-words"])
def test_what_is_not_understood_is_told_no(things: Applied, fault: str) -> None:
    """
    A record of an unknown type, a plan that is not what it counts, a question that is not to be
    read or in other words: nothing is done but by a saved plan.
    """
    things.arm(fault)
    done = things.apply()
    assert done.code == 0, done.said
    assert {"plan-1", "apply"} <= things.calls
    assert [entry["status"] for entry in things.history("s")] == ["running", "ok"]
    things.check_sound()


def test_an_engine_that_does_not_ask_is_recorded(things: Applied) -> None:
    """
    It is told, and what it does is recorded as soon as it begins: no object is lost.
    """
    things.arm("unasked")
    done = things.apply()
    assert done.code == 0, done.said
    assert "without asking" in done.said
    assert "plan-1" not in things.calls
    things.check_sound()


def test_an_engine_that_begins_unasked_and_hangs_is_recorded_meanwhile(things: Applied) -> None:
    """
    The marker does not wait for its end.
    """
    things.arm("unasked")
    things.arm("hold")
    tool = things.start("apply", "b", "--yes")
    eventually(lambda: things.steps("b")["s"]["status"] == "running", "it is recorded", tool)
    assert things.objects == []
    (things.cloud / "hold").unlink()
    assert finish(tool).code == 0
    things.check_sound()


def test_an_engine_that_dies_at_its_question_has_changed_nothing(things: Applied) -> None:
    """
    Noticed before the marker it is as if it had not asked, and a plan is saved; noticed after it,
    the call has ended with nothing begun.
    """
    things.arm("dead-at-question")
    done = things.apply()
    assert done.code == (0 if "plan-1" in things.calls else 10), done.said
    assert len(things.objects) == (1 if done.code == 0 else 0)
    (things.cloud / "dead-at-question").unlink()
    assert things.apply().code == 0
    things.check_sound()


@pytest.mark.parametrize("fault", ["asks-twice", "refuse", "dead-after-yes"])
def test_what_goes_wrong_at_the_answer_is_concluded_as_ever(things: Applied, fault: str) -> None:
    """
    A death after it is not certain to have changed nothing; a second question gets no answer; a
    refusal is told once. The next apply goes on from there.
    """
    things.arm(fault)
    done = things.apply()
    assert done.code == (11 if fault == "dead-after-yes" else 10), done.said
    assert done.said.count("InstanceLimitExceeded") == (2 if fault == "refuse" else 0)
    assert things.objects == []
    if fault == "asks-twice":
        error = things.record("s")["last_attempt"]["error"]
        assert error["summary"] == "the engine requested approval and got none"
    (things.cloud / fault).unlink()
    if fault == "dead-after-yes":
        assert things.record("s")["resources"]["in_doubt"]
        return
    assert things.apply().code == 0
    things.check_sound()


def test_a_plan_that_fails_says_why_once(things: Applied) -> None:
    """
    As a saved plan does, and nothing is recorded.
    """
    things.arm("unplannable")
    done = things.apply()
    assert done.code == 10
    assert done.said.count("Invalid value for input variable") == 1
    assert things.steps("b")["s"]["status"] == "pending"


def test_what_waited_when_all_was_killed_has_changed_nothing(tmp_path: Path) -> None:
    """
    Nobody has to wonder what an engine made that was told nothing.
    """
    (tmp_path / "main.tf").write_text(THINGS)
    var_file = tmp_path / "v.json"
    var_file.write_text('{"name": "web"}')
    program = str(standin_tofu(tmp_path / "bin"))
    info = EngineInfo("tofu", "1.12.6", (program,), "option", "")
    spec = CallSpec(tmp_path, tmp_path / "evidence", "apply")
    engine = TerraformEngine(info, environment={"TOFU_OBJECTS": str(tmp_path)})
    assert engine.call(PlanAndAsk(var_file), spec, stop=Stop(), observe=print).waits

    identity = json.loads((spec.evidence / "apply.identity.json").read_text())
    os.kill(identity["pid"], signal.SIGKILL)
    eventually((spec.evidence / "apply.answer.json").exists, "its wrapper tells")

    found = TerraformEngine(info, environment={}).recover_call(spec)
    assert (found.started, found.result.exit_code, found.result.complete) == (True, None, True)
    engine.call(Cancel(), spec, stop=Stop(), observe=print)
    assert not list(spec.evidence.glob("*.*.json"))


def test_a_lock_is_waited_for_once(things: Applied) -> None:
    """
    Who holds it is told, and no second plan waits as long again.
    """
    things.arm("locked")
    done = things.apply()
    assert done.code == 20
    assert "she" in done.said
    assert "plan-1" not in things.calls


def test_a_step_timeout_counts_from_the_answer(things: Applied) -> None:
    """
    An apply that hangs after it is stopped.
    """
    things.write("blueprints/b.yaml", BLUEPRINT + "    timeout: 1s\n")
    things.arm("hold")
    done = things.apply()
    assert "timeout passed" in done.said
    assert things.record("s")["status"] == "error"


def test_a_plan_without_changes_is_no_change(project: Applied) -> None:
    """
    The engine carries it out without a question: at most it writes an empty provider state.
    """
    project.write("modules/m/main.tf", 'variable "name" {\n  type = string\n}\n')
    done = project.apply()
    assert done.code == 0, done.said
    assert [entry["status"] for entry in project.history("s")] == ["ok"]
