"""
Runs of the tool whose ports are wrapped: calls are listed, fail, or end in SIGKILL of the run's own
process. A call is named ``port.method``, of an engine call ``engine.call:verb``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import composition
from orchestrator.app.commands.apply import apply
from orchestrator.app.commands.compensate import compensate
from orchestrator.app.commands.destroy import destroy
from orchestrator.app.commands.exec_ import execute
from orchestrator.app.commands.imports import import_one
from orchestrator.app.commands.reconcile import reconcile
from orchestrator.app.run.request import (
    ApplyRequest,
    CompensateRequest,
    DestroyRequest,
    ExecRequest,
    ImportRequest,
    ImportSpec,
    ReconcileRequest,
    RunOptions,
    RunRequest,
    Verb,
)
from orchestrator.app.schedule import OnFailure
from orchestrator.app.services import Services
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.cli.approval import TerminalApprover
from orchestrator.cli.running import StopSignals
from orchestrator.domain.values import replace
from orchestrator.errors import StoreUnavailable
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import InputPolicy
from orchestrator.project import BlueprintSelection, project_context
from orchestrator.views.events import JsonLinesView

PORTS = ("store", "engine", "files", "spool", "workdirs")
USE_CASES: Mapping[str, Callable[..., int]] = {
    "apply": apply,
    "compensate": compensate,
    "destroy": destroy,
    "exec": execute,
    "import": import_one,
    "reconcile": reconcile,
}
REQUESTS: Mapping[str, type[RunRequest]] = {
    "apply": ApplyRequest,
    "compensate": CompensateRequest,
    "destroy": DestroyRequest,
}


@dataclass(frozen=True, slots=True)
class Meddling:
    """
    What happens at which call.

    ``kill`` is (call, which one from 1, "before" or "after"). ``fail`` maps calls to the numbers of
    the first and the last of them that raise StoreUnavailable. ``calls`` is the file in which each
    call is listed before it is made. ``lifetime``, in seconds, ends in SIGKILL whatever is called.
    """

    calls: Path
    lifetime: float | None = None
    kill: tuple[str, int, str] | None = None
    fail: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Meddler:
    """
    Counts the calls of all ports of a run.
    """

    def __init__(self, meddling: Meddling) -> None:
        self._meddling = meddling
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def before(self, call: str) -> int:
        """
        The number of this call among those of its name.
        """
        with self._lock:
            self._counts[call] += 1
            number = self._counts[call]
            with self._meddling.calls.open("a") as file:
                file.write(f"{call}\n")
        self._strike(call, number, "before")
        first, last = self._meddling.fail.get(call, (0, 0))
        if first <= number <= last:
            raise StoreUnavailable(f"{call} fails in this test")
        return number

    def after(self, call: str, number: int) -> None:
        self._strike(call, number, "after")

    def _strike(self, call: str, number: int, when: str) -> None:
        if self._meddling.kill == (call, number, when):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Port:
    """
    A port whose calls go by the meddler.
    """

    def __init__(self, name: str, port: object, meddler: Meddler) -> None:
        self._name = name
        self._port = port
        self._meddler = meddler

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            label = f"{self._name}.{name}"
            if label == "engine.call":
                label = f"{label}:{arguments[0].verb}"
            number = self._meddler.before(label)
            result = found(*arguments, **options)
            self._meddler.after(label, number)
            return result

        return call


def meddled(services: Services, meddling: Meddling) -> Services:
    """
    The services with all ports wrapped.
    """
    meddler = Meddler(meddling)
    if meddling.lifetime is not None:
        timer = threading.Timer(meddling.lifetime, die)
        timer.daemon = True
        timer.start()
    ports: dict[str, Any] = {name: Port(name, getattr(services, name), meddler) for name in PORTS}
    return replace(services, **ports)


def run_meddled(
    verb: Verb, blueprint: str, meddle: Mapping[str, Any], wanted: Mapping[str, Any]
) -> int:
    """
    As ``orchestrator VERB BLUEPRINT --yes --jobs 1 --on-failure continue --json``, with ports
    wrapped as the fields of a Meddling in ``meddle`` say; ``wanted`` are further fields of the
    request, what is adopted as text.
    """
    kill = meddle["kill"]
    meddling = Meddling(
        calls=Path(meddle["calls"]),
        lifetime=meddle["lifetime"],
        kill=(kill[0], kill[1], kill[2]) if kill else None,
        fail=meddle["fail"],
    )
    project = project_context(Path.cwd())
    need = InputPolicy.REQUIRED if verb in ("apply", "import") else InputPolicy.AVAILABLE
    deployment = load_deployment(project, BlueprintSelection(blueprint), need)
    options = RunOptions(
        jobs=1,
        on_failure=OnFailure.CONTINUE,
        reason="a test",
        steps=tuple(wanted.get("steps", ())),
        plan=PlanOptions(approved=True),
    )
    request = _request(verb, options, wanted)
    with (
        StopSignals().installed() as stop,
        composition.open_services(
            project,
            deployment,
            engine=os.environ["ORCHESTRATOR_ENGINE"],
            sink=JsonLinesView(sys.stdout),
            stop=stop,
            approver=TerminalApprover(stop, "", hold=nullcontext),
        ) as services,
    ):
        return USE_CASES[verb](meddled(services, meddling), deployment, request)


def _request(verb: Verb, options: RunOptions, wanted: Mapping[str, Any]) -> RunRequest:
    adopt = tuple(ImportSpec.parse(text) for text in wanted.get("adopt", ()))
    match verb:
        case "exec":
            return ExecRequest(options=options, words=tuple(wanted["words"]))
        case "import":
            return ImportRequest(options=options, adopt=adopt)
        case "reconcile":
            push = bool(wanted.get("push_errored_state"))
            return ReconcileRequest(options=options, adopt=adopt, push_errored_state=push)
        case _:
            return REQUESTS[verb](options=options)
