"""
Real Terraform: what happens to objects and state when processes die.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.domain.events.events import (
    ApplyComplete,
    LogLine,
    Message,
    PlannedChange,
    ProvisionProgress,
)
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.record.states import Liveness
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import Apply, CallResult, CallSpec, Init, Plan, Pull, Request
from tests.engine.programs import clean_environment, real_engine
from tests.fakes.stops import Stop
from tests.project import ENGINES

pytestmark = pytest.mark.engine


class Workshop:
    def __init__(self, engine: TerraformEngine, tmp_path: Path) -> None:
        self.engine = engine
        self.plan_file = tmp_path / "saved.tfplan"
        self._tmp_path = tmp_path
        self._calls = 0
        self.directory = tmp_path / "root"
        self.directory.mkdir()

    def write(self, configuration: str) -> None:
        (self.directory / "main.tf").write_text(configuration)

    def spec(self, name: str) -> CallSpec:
        return CallSpec(self.directory, self._tmp_path / "evidence", name)

    def do(
        self, request: Request, *, observe: Callable[[Message], None] = lambda _: None
    ) -> CallResult:
        self._calls += 1
        return self.engine.call(
            request, self.spec(f"call{self._calls}"), stop=Stop(), observe=observe
        )

    def planned(self, configuration: str) -> CallResult:
        self.write(configuration)
        assert self.do(Init()).exit_code == 0
        return self.do(Plan(self.plan_file))


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Workshop:
    return Workshop(real_engine(request.param, tmp_path), tmp_path)


def test_a_dead_parent_loses_no_object(shop: Workshop, tmp_path: Path) -> None:
    """
    We are SIGKILLed in the middle of an apply: Terraform finishes, state and answer are complete.
    """
    shop.planned(
        """
        resource "terraform_data" "a" {
          provisioner "local-exec" { command = "while ! test -e go; do sleep 0.02; done" }
        }
        resource "terraform_data" "b" { input = terraform_data.a.id }
        """
    )
    spec = shop.spec("apply")
    caller = tmp_path / "caller.py"
    caller.write_text(
        f"""
import os
from pathlib import Path
from orchestrator.domain.events.events import ApplyStart
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import Apply, EngineInfo, CallSpec
from tests.fakes.stops import Stop
info = EngineInfo("terraform", "1", {shop.engine.info.program!r}, "option", "")
spec = CallSpec(Path({str(spec.directory)!r}), Path({str(spec.evidence)!r}), "apply")
TerraformEngine(info, environment=os.environ).call(
    Apply(Path({str(shop.plan_file)!r})), spec, stop=Stop(),
    observe=lambda m: isinstance(m, ApplyStart) and print("began", flush=True),
)
"""
    )
    us = subprocess.Popen(
        [sys.executable, str(caller)],
        env=clean_environment(tmp_path) | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
    )
    assert us.stdout is not None
    assert us.stdout.readline() == b"began\n"
    us.kill()
    us.communicate()
    while_alive = shop.engine.recover_call(spec).liveness
    (shop.directory / "go").touch()
    while shop.engine.recover_call(spec).liveness is not Liveness.GONE:
        time.sleep(0.02)

    recollection = shop.engine.recover_call(spec)

    assert while_alive is Liveness.ALIVE
    assert (recollection.result.exit_code, recollection.result.complete) == (0, True)
    done = [m.address for m in recollection.result.messages if isinstance(m, ApplyComplete)]
    assert done == ["terraform_data.a", "terraform_data.b"]
    assert shop.engine.pulled_state(shop.do(Pull())).addresses == set(done)


def test_addresses_are_those_that_terraform_prints(shop: Workshop) -> None:
    """
    Addresses made from state equal the plan's, whatever the keys hold.
    """
    (shop.directory / "child").mkdir()
    (shop.directory / "child" / "main.tf").write_text('resource "terraform_data" "t" {}')
    answer = shop.planned(
        r"""
        locals {
          keys = toset(["x", "q\"q", "$${d}", "%%{p}", "b\\s", "é", "n\nl", "tab\t", "\u2028"])
        }
        resource "terraform_data" "each" { for_each = local.keys }
        resource "terraform_data" "count" { count = 2 }
        module "m" {
          source   = "./child"
          for_each = local.keys
        }
        """
    )
    shop.do(Apply(shop.plan_file))

    state = shop.engine.pulled_state(shop.do(Pull()))

    planned = {m.address for m in answer.messages if isinstance(m, PlannedChange)}
    assert len(planned) == 20
    assert state.addresses == planned


def test_large_inputs_travel_in_a_file(shop: Workshop, tmp_path: Path) -> None:
    """
    More than two megabytes of input fit no argument list; a variable file takes them
    [terragrunt 2132].
    """
    shop.write('variable "big" { type = string }\noutput "size" { value = length(var.big) }')
    shop.do(Init())
    inputs = tmp_path / "inputs.tfvars.json"
    inputs.write_text(json.dumps({"big": "x" * 2_500_000}))

    answer = shop.do(Plan(shop.plan_file, var_file=inputs))

    assert answer.exit_code == 0


def test_a_held_lock_is_told_with_its_holder(shop: Workshop) -> None:
    """
    A state locked by another call is told in one line: id, who, operation, since when.
    """
    shop.planned(
        """
        resource "terraform_data" "a" {
          provisioner "local-exec" { command = "while ! test -e go; do sleep 0.02; done" }
        }
        """
    )
    other: list[CallResult] = []

    def plan_meanwhile(message: Message) -> None:
        if isinstance(message, ProvisionProgress) and not other:
            other.append(shop.do(Plan(shop.plan_file.with_name("other"))))
            (shop.directory / "go").touch()

    shop.do(Apply(shop.plan_file), observe=plan_meanwhile)

    lock = other[0].lock
    assert other[0].exit_code == 1
    assert lock is not None
    assert lock.id
    assert "@" in (lock.who or "")
    assert lock.operation == "OperationTypeApply"
    assert lock.since is not None


def test_a_failing_init_says_why_and_where(shop: Workshop) -> None:
    """
    What is wrong with a configuration is a diagnostic with its place.
    """
    shop.write('terraform {\n  required_version = ">= 99"\n}')

    answer = shop.do(Init())

    (said,) = [m for m in answer.messages if isinstance(m, Diagnostic)]
    assert answer.exit_code == 1
    assert said.summary == "Unsupported Terraform Core version"
    assert said.at == "main.tf:2"


def test_moves_forgets_and_imports_are_planned_actions(shop: Workshop) -> None:
    """
    What changes only state is in the plan, too: nobody takes it for "no changes".
    """
    shop.planned('resource "terraform_data" "a" {}\nresource "terraform_data" "b" {}')
    shop.do(Apply(shop.plan_file))

    answer = shop.planned(
        """
        moved {
          from = terraform_data.a
          to   = terraform_data.renamed
        }
        removed {
          from = terraform_data.b
          lifecycle { destroy = false }
        }
        import {
          to = terraform_data.imported
          id = "x"
        }
        resource "terraform_data" "renamed" {}
        resource "terraform_data" "imported" {}
        """
    )

    assert {(m.address, m.action) for m in answer.messages if isinstance(m, PlannedChange)} == {
        ("terraform_data.renamed", "noop"),
        ("terraform_data.b", "forget"),
        ("terraform_data.imported", "import"),
    }


def test_the_plugin_cache_and_logs_of_the_user_do_no_harm(tmp_path: Path, engine: str) -> None:
    """
    TF_LOG fills stderr: it is neither failure nor a flood of messages.
    """
    shop = Workshop(real_engine(engine, tmp_path), tmp_path)
    shop.write('output "o" { value = 1 }')
    environment = clean_environment(tmp_path) | {"TF_LOG": "TRACE", "PATH": os.environ["PATH"]}
    shop.engine = TerraformEngine(shop.engine.info, environment=environment)

    answer = shop.do(Pull())

    assert answer.exit_code == 0
    assert len(answer.stderr_text.splitlines()) > 20
    assert len([m for m in answer.messages if isinstance(m, LogLine)]) <= 20
