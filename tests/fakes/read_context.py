"""
What reading commands read with, over stores that a test fills.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.app.inspection.read_context import ReadContext
from orchestrator.domain.blueprint.blueprint import BlueprintSummary, StepSummary
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.target import Target
from orchestrator.domain.text import Json
from orchestrator.engine.process.identity import SystemProcesses
from orchestrator.run_files import RunFiles, Spool
from orchestrator.stores.sqlite import MemoryStore
from tests.fakes.clock import START
from tests.fakes.entries import entry

NEEDS: dict[str, list[str]] = {"network": [], "server": ["network"], "dns": ["server"]}


def outline(**changes: Json) -> BlueprintSummary:
    """
    The blueprint ``web`` in ``prod``: network, server, dns, each needing the one before.
    """
    fields: dict[str, Json] = {
        "project": "acme",
        "blueprint": "web",
        "environment": "prod",
        "project_dir": "/project",
        "path": "blueprints/web.yaml",
        "steps": {
            name: StepSummary(name=name, module_ref=f"modules/{name}", needs=frozenset(needs))
            for name, needs in NEEDS.items()
        },
        "graph": Graph(NEEDS),
    }
    return BlueprintSummary(**(fields | changes))


class Desk:
    """
    A reader over stores of its own. ``seconds`` is the clock of the operation store.
    """

    def __init__(self, place: Path) -> None:
        self.seconds = 0.0
        self.store = MemoryStore(lambda: self.seconds)
        self.spool = Spool(place / "spool")
        self.reader = ReadContext(
            project="acme",
            store=self.store,
            spool=self.spool,
            files=RunFiles(place / "runs"),
            processes=SystemProcesses(),
            silence=60.0,
            work=place / "work",
            today=START.date(),
        )

    def has(self, step: str, **fields: Json) -> OperationRecord:
        target = Target("web", "prod", step)
        newest = self.store.newest(target)
        record = entry(target, (newest.sequence if newest else 0) + 1, **fields)
        self.store.append(record)
        return record
