"""
Law: no record, no mutation.
At its narrowest: the store fails after the plan was made and before the marker is durable.

The engine is Terraform behind a script that does something to the store when a plan is done.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.project import Ended, Project

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="limits another process by prlimit"),
]

BLUEPRINT = """
    version: 1
    name: web
    inputs:
      value: {type: string, default: first}
    steps:
      only:
        module: ../fixtures/shared/object
        inputs: {name: only, value: "${inputs.value}"}
"""
HOOK = """
    import json, os, resource, sqlite3

    store = sqlite3.connect("STORE", isolation_level=None)
    match os.environ["HAPPENS"]:
        case "full disk":
            (lease,) = store.execute("SELECT lease FROM leases").fetchone()
            resource.prlimit(json.loads(lease)["owner"]["pid"], resource.RLIMIT_FSIZE, (4096, 4096))
        case "broken":
            store.execute("ALTER TABLE entries RENAME TO gone")
        case "race lost":
            text = store.execute("SELECT record FROM entries ORDER BY sequence DESC").fetchone()[0]
            record = json.loads(text)
            record |= {"sequence": record["sequence"] + 1, "entry_id": "somebody else's"}
            del record["checksum"], record["previous_checksum"]  # as a version that has none
            store.execute(
                "INSERT INTO entries VALUES ('web', 'default', 'only', ?, ?, ?)",
                (record["sequence"], record["entry_id"], json.dumps(record)),
            )
"""
CODES = {"full disk": 22, "broken": 22, "race lost": 21}


@dataclass(frozen=True, slots=True)
class Act:
    """
    An apply whose marker could not be written.
    """

    ended: Ended
    before: list[str]
    after: list[str]
    state_untouched: bool


class Story:
    """
    A target that is ok, and three applies of a change to it.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root, engine=engine)
        project.copy("fixtures/shared")
        project.write("blueprints/web.yaml", BLUEPRINT)
        project.ok("apply", "web", "--yes")
        self._store = project.own / "operations.db"
        hook = project.write("hook.py", HOOK.replace("STORE", str(self._store)))
        script = project.write(
            "terraform",
            f"""
            #!/bin/sh
            {shutil.which(engine)} "$@"
            code=$?
            if [ "$1" = plan ]; then {sys.executable} {hook}; fi
            exit $code
            """,
        )
        script.chmod(0o700)
        project.environ["ORCHESTRATOR_ENGINE"] = str(script)
        self.acts = {what: self._apply(what) for what in CODES}

    def _apply(self, what: str) -> Act:
        state = self.project.own / "state/web/default/only.tfstate"
        before, held = self.project.entries("only"), state.read_bytes()
        self.project.environ["HAPPENS"] = what
        ended = self.project.run("apply", "web", "--yes", "--json", "-i", f"value={what}")
        if what == "broken":
            with sqlite3.connect(self._store) as store:
                store.execute("ALTER TABLE gone RENAME TO entries")
            store.close()
        return Act(ended, before, self.project.entries("only"), state.read_bytes() == held)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Story:
    return Story(tmp_path_factory.mktemp("intent"), engine)


@pytest.mark.parametrize("what", CODES)
def test_a_marker_that_is_not_durable_starts_no_mutation(story: Story, what: str) -> None:
    """
    Disk full, store broken, race lost between plan and marker: the engine's apply is never called
    and provider state is untouched (law: no record, no mutation).
    """
    act = story.acts[what]
    run = Path(act.ended.events[-1]["directory"])

    assert act.ended.code == CODES[what]
    assert list(run.rglob("plan-1.answer.json"))
    assert not list(run.rglob("apply.*"))
    assert act.state_untouched


@pytest.mark.parametrize("what", ["full disk", "broken"])
def test_the_earlier_entry_is_untouched(story: Story, what: str) -> None:
    """
    What stood in the store before the failed write stands there after it, byte by byte.
    """
    assert story.acts[what].after == story.acts[what].before


def test_the_winner_of_a_race_keeps_its_entry(story: Story) -> None:
    """
    Of two writers of one entry the first wins: the loser adds nothing to it.
    """
    act = story.acts["race lost"]
    (entry,) = act.after[len(act.before) :]

    assert json.loads(entry)["entry_id"] == "somebody else's"
