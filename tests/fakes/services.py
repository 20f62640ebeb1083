"""
Everything a use case works with, without processes: the fake engine, a store in memory, and real
directories, in memory too where the machine has such.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.checks import SystemChecks
from orchestrator.cli.approval import NoApprover
from orchestrator.domain.blueprint.blueprint import (
    Backend,
    Deployment,
    EngineRequirement,
    Module,
    Step,
)
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.events.events import Event
from orchestrator.domain.masking import Masker
from orchestrator.domain.record.objects import ObjectRef, Resources
from orchestrator.domain.record.record import OperationRecord, ProviderState
from orchestrator.domain.record.states import NOTHING_THERE
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.domain.values import replace
from orchestrator.engine.process.identity import SystemProcesses
from orchestrator.engine.workdir.layout import work_path
from orchestrator.engine.workdir.workdir import DirectoryWorkDirs
from orchestrator.ports.system import Sink, StopToken
from orchestrator.rego import rego_violations
from orchestrator.run_files import RunFiles, Spool
from orchestrator.stores.sqlite import MemoryStore
from tests.fakes.clock import CountedIds, SetClock, SetStop
from tests.fakes.engine import PROVIDER, FakeEngine, FakeRoot, FakeWorld, Thing
from tests.fakes.entries import ACTOR, entry

MEMORY = Path("/dev/shm")


class Told:
    """
    A sink that keeps what it is told.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class Premises:
    """
    The blueprint ``web`` of project ``acme``, with one object in each step that was applied.

    ``needs`` maps steps to those they need; ``owned`` steps to their parents.
    """

    def __init__(
        self, needs: Mapping[str, list[str]], owned: Mapping[str, str] | None = None
    ) -> None:
        owned = owned or {}
        memory = MEMORY if MEMORY.is_dir() else None
        self.place = Path(tempfile.mkdtemp(prefix="premises-", dir=memory))
        module = self.place / "module"
        module.mkdir()
        self.store = MemoryStore()
        self.world = FakeWorld()
        self.told = Told()
        self.work = self.place / "work"
        self.deployment = Deployment(
            project="acme",
            blueprint="web",
            environment="default",
            project_dir=str(self.place),
            path="blueprints/web.yaml",
            inputs={},
            steps={
                name: Step(
                    name=name,
                    module_ref="module",
                    module=Module(directory=str(module), variables={}, outputs={}),
                    inputs={},
                    needs=frozenset(ups),
                    backend=Backend("local", Template({"path": f"state/{name}.tfstate"})),
                    providers={},
                    owned_by=owned.get(name),
                )
                for name, ups in needs.items()
            },
            graph=Graph(needs),
            engine=EngineRequirement(),
        )
        self.services = Services(
            store=self.store,
            spool=Spool(self.place / "spool"),
            files=RunFiles(self.place / "runs"),
            processes=SystemProcesses(),
            clock=SetClock(),
            ids=CountedIds(),
            sink=self.told,
            engine=FakeEngine(self.world),
            work=self.work,
            workdirs=DirectoryWorkDirs(self.work, self.place),
            checks=SystemChecks(SetClock()),
            policy_rules=partial(rego_violations, {}),
            approver=NoApprover(),
            stop=SetStop(),
            masker=Masker(),
            actor=ACTOR,
            source=lambda: entry().source,
            key=b"key",
            root=self.place,
        )

    def close(self) -> None:
        shutil.rmtree(self.place)

    def heard_by(self, sink: Sink, stop: StopToken) -> Services:
        """
        The same services with another sink and another stop.
        """
        return replace(self.services, sink=sink, stop=stop)

    def root(self, step: str) -> FakeRoot:
        """
        The engine's side of a step.
        """
        return self.world.root(self.work / work_path(Target("web", "default", step)))

    def record(self, step: str) -> OperationRecord | None:
        return self.store.newest(Target("web", "default", step))

    def history(self, step: str) -> list[OperationRecord]:
        """
        The entries of a step, oldest first.
        """
        return self.store.history(Target("web", "default", step))[::-1]

    def has(self, step: str, **fields: Json) -> None:
        """
        Record the step as ``ok`` unless ``fields`` say otherwise, with the object that it has then.
        """
        address, root = f"fake_object.{step}", self.root(step)
        parent = self.deployment.steps[step].owned_by
        known: dict[str, Json] = {
            "parent": str(self.deployment.target(parent)) if parent else None,
            "needs": tuple(sorted(self.deployment.graph.needs(step))),
        }
        if fields.get("status") not in NOTHING_THERE:
            root.lineage, root.serial = f"lineage-{step}", 1
            root.things[address] = Thing(1, f"id-{step}")
            known["provider_state"] = ProviderState(
                backend="local",
                location=f"state/{step}.tfstate",
                lineage=root.lineage,
                serial=root.serial,
            )
            known["resources"] = Resources(
                inventory=(
                    ObjectRef(
                        address=address, type="fake_object", provider=PROVIDER, id=f"id-{step}"
                    ),
                )
            )
        target = Target("web", "default", step)
        self.store.append(entry(target, **(known | fields)))
