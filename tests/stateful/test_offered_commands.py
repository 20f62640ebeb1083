"""
No offered command is refused as printed.

Histories on the fake engine end in a situation; what the end of the run offers there, and what
`recover` recommends, or lists as available, is typed as printed, on a fresh copy of the same
history, and is accepted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import Any, TypeVar

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from orchestrator.app.commands import apply, destroy, exec_, reconcile, recover, rerun, verify
from orchestrator.app.inspection.earlier_runs import read_prior_run, run_to_retry
from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.app.run.request import (
    ApplyRequest,
    DestroyRequest,
    ExecRequest,
    ReconcileRequest,
    RedeployRequest,
    RetryRequest,
    RunOptions,
    VerifyRequest,
)
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.cli.main import cli
from orchestrator.domain.blueprint.blueprint import Backend, ProtectedResource
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.documents.recovery import RecoveryDocument
from orchestrator.domain.events.events import RunFinished
from orchestrator.domain.record.run_record import ProcessIdentity, StateLock
from orchestrator.domain.record.states import Liveness, StepStatus
from orchestrator.domain.values import replace
from orchestrator.engine.process.identity import SystemProcesses
from orchestrator.errors import Location, OrchestratorError
from orchestrator.views.events import HumanView
from orchestrator.views.page import Paper
from tests.fakes.engine import Fault, Killed, Thing
from tests.fakes.services import Premises

#: Exit codes by which a command says that it was not accepted: refused, not approved, mistyped.
NOT_ACCEPTED = {4, 5, 64}
GRAPH: dict[str, list[str]] = {"network": [], "server": ["network"]}


Value = TypeVar("Value", bound=Struct)


class MortalProcesses:
    """
    Processes of which each run is one of its own; all but the newest are dead.
    """

    def __init__(self) -> None:
        self._born = 0

    def me(self) -> ProcessIdentity:
        return SystemProcesses().identify(10_000_000 + self._born, 1)

    def liveness(self, identity: ProcessIdentity) -> Liveness:
        return Liveness.ALIVE if identity.pid == self.me().pid else Liveness.GONE

    def next_run(self) -> None:
        self._born += 1


class World:
    """
    The premises of the fake engine, with commands typed as a person types them.
    """

    def __init__(self, there: Premises) -> None:
        self.there = there
        self.deployment = there.deployment
        self.processes = MortalProcesses()
        there.services = replace(there.services, processes=self.processes)
        for step in there.deployment.steps:
            there.root(step).desired = {f"fake_object.{step}": 1}

    def type(self, command: str, *, approved: bool = True) -> int:
        """
        Carry out a command line, with a person at the terminal who agrees to all of it, or to
        nothing; the exit code.
        """
        program, verb, *words = shlex.split(command)
        assert program == "orchestrator"
        known = cli.get_command(click.Context(cli), verb)
        assert known is not None, f"there is no command {verb}"
        try:
            context = known.make_context(verb, list(words))
        except click.UsageError:
            return 64
        chosen = context.params
        if verb == "recover":
            return 0
        plan = PlanOptions(**_chosen_of_plan(chosen), approved=approved)
        options = replace(_fill(RunOptions, chosen), plan=plan, interactive=not approved)
        self.processes.next_run()
        services, deployment = self.there.services, self.deployment
        try:
            match verb:
                case "apply":
                    return apply.apply(
                        services, deployment, _fill(ApplyRequest, chosen, options=options)
                    )
                case "destroy":
                    return destroy.destroy(
                        services, deployment, _fill(DestroyRequest, chosen, options=options)
                    )
                case "verify":
                    return verify.verify(services, deployment, VerifyRequest(options=options))
                case "exec":
                    assert words[0].startswith("web/default/"), "a target"
                    options = replace(options, steps=(words[0].rpartition("/")[2],))
                    request = ExecRequest(options=options, words=tuple(words[2:]))
                    return exec_.execute(services, deployment, request)
                case "reconcile":
                    return reconcile.reconcile(
                        services, deployment, _fill(ReconcileRequest, chosen, options=options)
                    )
                case "redeploy":
                    return rerun.redeploy(
                        services, deployment, _fill(RedeployRequest, chosen, options=options)
                    )
                case "retry":
                    retry = _fill(RetryRequest, chosen, options=options)
                    store, steps = self.there.store, options.steps
                    run_id = retry.from_run or run_to_retry(store, "web", "default", steps)
                    place = {"project": "acme", "blueprint": "web", "environment": "default"}
                    earlier = read_prior_run(services.files, store, run_id, **place)
                    stored = self.there.deployment  # as that run had it
                    return rerun.retry(services, stored, retry, earlier=earlier)
                case _:
                    pytest.fail(f"a use case that this test does not know: {command}")
        except OrchestratorError as exc:
            return exc.exit_code

    def recover(self) -> RecoveryDocument:
        services = self.there.services
        self.processes.next_run()
        reader = ReadContext.of(services, "acme")
        outline = self.deployment
        now = services.clock.now()
        return recover.recover(reader, outline, now=now, settle=services.limits.settle)

    def change(self, step: str, **changes: Any) -> None:
        """
        Change a step in the blueprint, for the commands from here on.
        """
        steps = self.deployment.steps
        changed = {**steps, step: replace(steps[step], **changes)}
        self.deployment = replace(self.deployment, steps=changed)

    def last(self) -> RunFinished | None:
        found = [e for e in self.there.told.events if isinstance(e, RunFinished)]
        return found[-1] if found else None


def _fill(kind: type[Value], chosen: dict[str, Any], **known: object) -> Value:
    """
    The part of a request whose fields are named like the options of the command line.
    """
    names = set(kind.__struct_fields__) & chosen.keys() - {"jobs"}
    return kind(**{name: chosen[name] for name in names}, **known)


def _chosen_of_plan(chosen: dict[str, Any]) -> dict[str, Any]:
    names = set(PlanOptions.__struct_fields__) & chosen.keys() - {"approved"}
    return {name: chosen[name] for name in names}


@dataclass(frozen=True, slots=True)
class Act:
    """
    A command, and what goes wrong while it runs; or what happens to a step between commands. With
    ``declined`` the person at the terminal says no.
    """

    command: str = ""
    declined: bool = False
    step: str = "network"
    fault: Fault | None = None
    happens: str = ""

    def play(self, world: World) -> None:
        root = world.there.root(self.step)
        address = f"fake_object.{self.step}"
        match self.happens:
            case "state emptied":
                if root.things:
                    root.things.clear()
                    root.serial += 1
            case "object vanished":
                if root.things:
                    root.vanished.add(address)
            case "plan fails":
                root.plan_error = "the module is wrong"
            case "plan is mended":
                root.plan_error = None
            case "state locked":
                root.locked_by = StateLock(
                    id="7", who="ann@ci", created=f"{datetime(2030, 1, 1, tzinfo=UTC)}"
                )
            case "changed":
                root.desired = {address: 2}
            case "address taken":
                if root.things:
                    root.things[address] = Thing(1, "id-stranger")
                    root.serial += 1
            case "time passes":
                world.there.services.clock.sleep(100.0)
            case "backend moved":
                world.change(
                    self.step, backend=Backend("local", Template({"path": "elsewhere.tfstate"}))
                )
            case "protected":
                held = ProtectedResource(address, Location("main.tf", 1))
                module = world.deployment.steps[self.step].module
                world.change(self.step, module=replace(module, protected=(held,)))
        if not self.command:
            return
        root.faults = {address: self.fault} if self.fault is not None else {}
        with suppress(Killed):
            world.type(self.command, approved=not self.declined)
        root.faults = {}


@contextmanager
def played(acts: Sequence[Act]) -> Iterator[World]:
    there = Premises(GRAPH)
    try:
        world = World(there)
        for act in acts:
            act.play(world)
        yield world
    finally:
        there.close()


def offered(world: World, *, all_available: bool) -> list[str]:
    """
    The commands of the last end of a run, and those that `recover` recommends or, with
    ``all_available``, lists.
    """
    finished = world.last()
    document = world.recover()
    listed = [
        item.command
        for step in document.steps
        for item in step.actions
        if item.command and (all_available or item.action == step.recommended)
    ]
    ended = [item.command for item in finished.next] if finished else []
    return list(dict.fromkeys([*ended, *listed, *(item.command for item in document.next)]))


def check_consistent(finished: RunFinished) -> None:
    """
    Exit code, verdict and body of a run say the same.
    """
    paper = StringIO()
    HumanView(paper, Paper(now=finished.at)).emit(finished)
    text = paper.getvalue()
    statuses = {row.status for row in finished.steps}
    doubts = [d for item in finished.alive for d in item.in_doubt]
    bad = finished.verdict in ("error", "interrupted", "running")
    assert bad or StepStatus.ERROR not in statuses, text
    assert bad or finished.exit_code not in (10, 12, 13), text
    assert doubts or "in doubt" in text.partition("verdict:")[2] or finished.exit_code != 11, text
    assert "objects are in doubt" not in text or "   alive  " not in text, text
    assert "What went wrong" not in text or finished.exit_code, text
    elsewhere = "not in this run: " in text or "as before" in text or "Still open" in text
    assert not bad or finished.exit_code or elsewhere, text


def check_accepted(acts: Sequence[Act], *, all_available: bool = False) -> None:
    with played(acts) as world:
        finished = world.last()
        if finished is not None:
            check_consistent(finished)
        commands = offered(world, all_available=all_available)
    for command in commands:
        if "ID" in shlex.split(command) or "=ID" in command:
            continue  # the id is the reader's to fill in
        with played(acts) as world:
            code = world.type(command)
            finished = world.last()
        said = (finished.error, [row.last_error for row in finished.steps]) if finished else ""
        assert code not in NOT_ACCEPTED, f"{command} after {acts}: {code}, {said}"


commands = st.sampled_from(
    [
        "orchestrator apply web",
        "orchestrator apply web --step network",
        "orchestrator apply web --step server",
        "orchestrator destroy web",
        "orchestrator destroy web --step server",
        "orchestrator reconcile web",
    ]
)
steps = st.sampled_from(list(GRAPH))
runs = st.builds(
    Act,
    command=commands,
    step=steps,
    fault=st.sampled_from(
        [None, None, Fault.FAIL, Fault.REFUSE, Fault.LOSE, Fault.KILL_BOTH, Fault.KILL_US]
    ),
)
events = st.builds(
    Act,
    step=steps,
    happens=st.sampled_from(
        ["state emptied", "object vanished", "plan fails", "changed", "time passes"]
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(runs | events, max_size=3), st.sampled_from(["apply", "destroy", "reconcile"]))
def test_no_offered_command_is_refused_as_printed(acts: list[Act], verb: str) -> None:
    """
    Whatever happened before, what the screens offer is accepted, once a command has seen it.
    """
    check_accepted([*acts, Act(f"orchestrator {verb} web")])


APPLIED = Act("orchestrator apply web")


@pytest.mark.parametrize(
    "acts",
    [
        pytest.param(
            [APPLIED, Act(happens="state emptied"), Act("orchestrator apply web")],
            id="state emptied, apply",
        ),
        pytest.param(
            [APPLIED, Act(happens="address taken"), Act("orchestrator apply web")],
            id="address taken, apply",
        ),
        pytest.param(
            [APPLIED, Act(happens="address taken"), Act("orchestrator reconcile web")],
            id="address taken, reconcile",
        ),
        pytest.param(
            [
                APPLIED,
                Act(happens="address taken"),
                Act("orchestrator reconcile web"),
                Act("orchestrator reconcile web --step network --rebuild-state"),
            ],
            id="address taken, rebuild",
        ),
        pytest.param(
            [APPLIED, Act(happens="address taken"), Act("orchestrator destroy web")],
            id="address taken, destroy",
        ),
        pytest.param(
            [APPLIED, Act(happens="backend moved"), Act("orchestrator apply web")],
            id="backend moved, apply",
        ),
        pytest.param(
            [APPLIED, Act(happens="backend moved"), Act("orchestrator destroy web")],
            id="backend moved, destroy",
        ),
        pytest.param(
            [
                Act("orchestrator apply web", fault=Fault.FAIL),
                Act(happens="backend moved"),
                Act("orchestrator apply web"),
            ],
            id="failed, backend moved, apply",
        ),
        pytest.param(
            [
                Act("orchestrator apply web", fault=Fault.LOSE),
                Act(happens="backend moved"),
                Act("orchestrator reconcile web"),
            ],
            id="answer lost, backend moved, reconcile",
        ),
        pytest.param(
            [Act(happens="protected"), APPLIED, Act("orchestrator destroy web")],
            id="protected, destroy",
        ),
        pytest.param(
            [
                Act(happens="protected"),
                Act("orchestrator apply web", step="server", fault=Fault.FAIL),
            ],
            id="protected, apply failed",
        ),
        pytest.param(
            [APPLIED, Act("orchestrator destroy web --step server", declined=True)],
            id="destroy declined",
        ),
        pytest.param(
            [
                APPLIED,
                Act(happens="object vanished"),
                Act("orchestrator destroy web --step network --step server"),
            ],
            id="upstream vanished, destroy",
        ),
        pytest.param(
            [APPLIED, Act(happens="object vanished"), Act("orchestrator apply web --step network")],
            id="all vanished, apply",
        ),
        pytest.param(
            [
                APPLIED,
                Act(happens="object vanished"),
                Act("orchestrator destroy web --step server"),
                Act("orchestrator destroy web"),
            ],
            id="all vanished, destroy",
        ),
        pytest.param(
            [
                Act("orchestrator apply web", fault=Fault.FAIL),
                Act(happens="object vanished"),
                Act("orchestrator apply web"),
            ],
            id="failed and vanished, apply",
        ),
        pytest.param([Act("orchestrator apply web", fault=Fault.LOSE)], id="answer lost"),
        pytest.param([Act("orchestrator apply web", fault=Fault.KILL_BOTH)], id="killed"),
        pytest.param(
            [APPLIED, Act("orchestrator destroy web", fault=Fault.LOSE)], id="delete lost"
        ),
    ],
)
def test_what_is_offered_in_a_known_situation_is_accepted(acts: list[Act]) -> None:
    """
    The situations in which the screens used to contradict each other.
    """
    check_accepted(acts, all_available=True)


@pytest.mark.parametrize(
    "command",
    [
        "destroy web --step server --reason clean --repeat-before-destroy 'looked'",
        "apply web --step network --replace fake_object.network --parallelism 2",
        "reconcile web --step network --adopt fake_object.network=1 --reason 'found it'",
        "reconcile web --step network --adopt fake_object.network=1 "
        "--forget fake_object.network --reason 'found it'",
    ],
)
def test_a_declined_command_is_offered_with_all_its_options(command: str) -> None:
    """
    Nothing was done: what was asked for is asked again, and not something else.
    """
    lost = Act("orchestrator apply web", fault=Fault.LOSE)
    changed = [APPLIED, Act(happens="changed")]
    past = [lost, Act(happens="time passes")] if command.startswith("reconcile") else changed
    with played([*past, Act(f"orchestrator {command}", declined=True)]) as world:
        finished = world.last()

    assert finished is not None
    assert finished.exit_code == 5, finished
    offered = shlex.split(finished.next[0].command)
    typed = shlex.split(command)
    assert (offered[:3], sorted(offered[3:])) == (["orchestrator", *typed[:2]], sorted(typed[2:]))
