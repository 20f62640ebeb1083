"""
Provider state in PostgreSQL: a whole life, its locks, and the server going away in the middle.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.postgres import Postgres
from tests.engine.watched_engine import kill_with_engine
from tests.project import Project, every_engine, finish

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: one
    operations: {{url: "sqlite:.orchestrator/operations.db"}}
    backend:
      type: pg
      config: {{conn_str: "{url}", schema_name: "state_${{step.name}}"}}
    steps:
      web:
        module: ../modules/server
        inputs: {{name: web, size: {size}}}
"""
ADDRESS = "fakecloud_server.this"


@pytest.fixture
def postgres(server: Postgres, project: Project, cloud: Cloud) -> Iterator[Postgres]:
    """
    The server, with the project's blueprint on it.
    """
    write(project, server)
    yield server
    if not server.runs:
        server.start()
    server.query("drop schema if exists state_web cascade")


def write(project: Project, server: Postgres, *, size: str = "small") -> None:
    project.write("blueprints/one.yaml", BLUEPRINT.format(url=server.url, size=size))


@contextmanager
def locked(postgres: Postgres) -> Iterator[None]:
    """
    Another session holds the lock of the state, as another Terraform would.
    """
    command = [str(postgres.bin / "psql"), "-XAtq", "-d", postgres.url]
    session = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert session.stdin is not None and session.stdout is not None
    session.stdin.write("select 'held', pg_advisory_lock(id) from state_web.states;\n")
    session.stdin.flush()
    assert session.stdout.readline().startswith("held")
    try:
        yield
    finally:
        session.communicate()


@every_engine
def test_a_life_in_postgresql(project: Project, postgres: Postgres) -> None:
    """
    Apply, nothing to do, destroy: state is in the database, the record is bound to it by an address
    without credentials.
    """
    project.ok("apply", "one", "--yes")
    bound = project.record("web")["provider_state"]
    held = postgres.query("select count(*) from state_web.states where data like '%srv-%'")
    again = project.ok("apply", "one", "--yes", "--json")
    project.ok("destroy", "one", "--yes")

    assert bound["location"] == f"postgres://127.0.0.1:{postgres.port}/postgres?schema=state_web"
    assert (bound["lineage"] is not None, held) == (True, ["1"])
    assert again.events[-1]["steps"][0]["created"] == []
    assert project.status("one", "--expect", "destroyed")["verdict"] == "destroyed"
    assert postgres.query("select data like '%srv-%' from state_web.states") == ["f"]


def test_records_lie_in_the_same_database(project: Project, postgres: Postgres) -> None:
    """
    Where the blueprint names no store: schema `orchestrator` beside the states, by the connection
    string of the backend, and no file on this machine. Another machine sees all of it.
    """
    text = (project.root / "blueprints/one.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("operations:")]
    project.write("blueprints/one.yaml", "\n".join(lines) + "\n")
    project.ok("apply", "one", "--yes")
    files = list(project.own.glob("*.db"))
    entries = postgres.query("select step, sequence from orchestrator.entries order by 2")
    shutil.rmtree(project.own)
    seen = project.status("one", "--expect", "ok")
    again = project.ok("apply", "one", "--yes", "--json")
    project.ok("destroy", "one", "--yes")
    postgres.query("drop schema orchestrator cascade")

    assert (files, entries) == ([], ["web|1", "web|2"])
    assert (seen["verdict"], again.row["created"]) == ("ok", [])


def test_a_lock_of_postgresql_names_no_holder(project: Project, postgres: Postgres) -> None:
    """
    The engine's text shows the asker's own id and name; they are not taken for the
    holder's: exit 20, the lock ends with its session, and the record stays as it is. There is
    nothing to unlock.
    """
    project.ok("apply", "one", "--yes")
    entries = project.entries("web")
    write(project, postgres, size="large")
    with locked(postgres):
        busy = project.run("apply", "one", "--yes", "--json")
        unlock = ("--unlock", "1", "--reason", "it hangs", "--yes", "--json")
        unlocked = project.run("reconcile", "one", *unlock)
    after = project.entries("web")
    free = project.run("apply", "one", "--yes")

    said = busy.events[-1]["steps"][0]["last_error"]
    assert (busy.code, free.code) == (20, 0)
    assert "ends with the session that holds it" in said
    assert "Who" not in said and "id " not in said
    assert after == entries
    assert unlocked.code == 4
    row = unlocked.events[-1]["steps"][0]
    assert row["error"]["code"] == "no_lock_to_break"
    assert "ends with the session" in row["last_error"]


def test_a_killed_engine_leaves_no_lock_in_postgresql(
    project: Project, postgres: Postgres, cloud: Cloud
) -> None:
    """
    The lock ends with the session of the engine that was killed: what comes next is stopped by the
    doubt, not by a lock.
    """
    project.ok("apply", "one", "--yes")
    write(project, postgres, size="large")
    cloud.arm("update", "web", "hang_after")
    tool = project.start("apply", "one", "--yes")
    cloud.wait_for_call("update", "web")
    kill_with_engine(project, tool, "apply")
    project.write("orchestrator.yaml", "settle_seconds: 0\n")

    ended = project.run("reconcile", "one")

    assert ended.code == 0, ended.said
    assert [item["how"] for item in project.record("web")["settled"]] == ["refreshed"]
    assert project.status("one")["verdict"] == "ok"


def test_there_is_no_lock_of_postgresql_to_break(project: Project, postgres: Postgres) -> None:
    """
    What holds a lock there is a living session: `--unlock` is refused and says so, held or not.
    """
    project.ok("apply", "one", "--yes")
    entries = project.entries("web")
    with locked(postgres):
        ended = project.run(
            "reconcile", "one", "--unlock", "1234", "--reason", "why", "--yes", "--json"
        )

    error = ended.events[-1]["steps"][0]["error"]
    assert (ended.code, error["code"]) == (4, "no_lock_to_break")
    assert "the session" in error["summary"]
    assert project.entries("web") == entries


@every_engine
def test_a_backend_that_goes_away_loses_no_state(
    project: Project, postgres: Postgres, cloud: Cloud
) -> None:
    """
    The server stops in the middle of an apply. The headline is where the state lies; it is
    kept and blocks a new apply, also once the server is back, until it is pushed; then the next
    apply finds everything in state.
    """
    cloud.arm("create", "web", "slow")
    tool = project.start("apply", "one", "--yes", "--json")
    cloud.wait_for_call("create", "web")
    postgres.stop()
    tool.send_signal(signal.SIGINT)  # the provider answers a stop with what it has made
    failed = finish(tool)
    file = Path(failed.events[-1]["steps"][0]["directory"], "errored.tfstate")
    kept = file.read_bytes()
    postgres.start()
    blocked = project.run("apply", "one", "--yes", "--json")
    still = file.read_bytes()

    pushed = project.run("reconcile", "one", "--push-errored-state", "--yes")
    last = project.run("apply", "one", "--yes", "--json")

    assert failed.events[-1]["steps"][0]["error"]["code"] == "errored_state"
    assert str(file) in failed.events[-1]["steps"][0]["last_error"]
    assert (blocked.code, still) == (11, kept)
    assert pushed.code == 0, pushed.said
    assert not file.exists()
    assert last.code == 0, last.said
    assert last.events[-1]["steps"][0]["created"] == []
    assert len(cloud.servers()) == 1
