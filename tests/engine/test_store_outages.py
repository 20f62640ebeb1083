"""
A database or disk with the operation records that is away, locked, removed or read-only while a run
works: nothing is lost and nothing done twice, which the calls that the cloud counts prove.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest

from fixtures.fakecloud import Cloud
from orchestrator.stores.postgres import PostgresStore
from tests.engine.modules import ONE_SERVER
from tests.engine.postgres import Postgres
from tests.fakes.entries import NETWORK, entry
from tests.project import Ended, Project, eventually, finish

pytestmark = pytest.mark.engine


@pytest.fixture
def postgres(server: Postgres, project: Project, cloud: Cloud) -> Iterator[Postgres]:
    """
    The server, empty, with the records of the project's blueprint; provider state is local.
    """
    write(project, server)
    yield server
    if not server.runs:
        server.start()
    server.query("drop schema if exists orchestrator cascade")


def write(project: Project, server: Postgres, size: str = "small") -> None:
    project.write("blueprints/one.yaml", ONE_SERVER.format(url=server.url, size=size))
    project.write("orchestrator.yaml", "project: acme\n")


def away_during_create(
    project: Project, cloud: Cloud, postgres: Postgres, *options: str, back: bool
) -> Ended:
    """
    An apply in whose create the server is stopped, and started again if it is to be ``back``.
    """
    cloud.arm("create", "web", "slow")
    tool = project.start("apply", "one", "--yes", *options)
    cloud.wait_for_call("create", "web")
    postgres.stop()
    if back:
        postgres.start()
    cloud.disarm()
    return finish(tool)


def test_a_server_that_restarts_in_the_run_loses_nothing(
    project: Project, cloud: Cloud, postgres: Postgres
) -> None:
    """
    PostgreSQL goes away while the engine works, and comes back: the engine is not disturbed, the
    outcome is recorded, exit 0.
    """
    ended = away_during_create(project, cloud, postgres, back=True)
    seen = project.steps("one")

    assert ended.code == 0, ended.said
    assert seen["web"]["status"] == "ok"
    assert len(cloud.calls("create", "web")) == 1


def test_a_server_that_stays_away_is_waited_for_and_then_spooled(
    project: Project, cloud: Cloud, postgres: Postgres
) -> None:
    """
    Exit 23 once `--store-grace` has passed; the next command records the outcome first, and finds
    nothing to do.
    """
    ended = away_during_create(project, cloud, postgres, "--store-grace", "3s", back=False)
    postgres.start()
    again = project.run("apply", "one", "--yes", "--json")

    assert ended.code == 23, ended.said
    assert "waits for the operation store" in " ".join(ended.said.split())
    assert again.code == 0, again.said
    assert any("recorded the spooled outcome" in event.get("message", "") for event in again.events)
    assert (again.row["created"], len(cloud.calls("create", "web"))) == ([], 1)


#: Notes that it has begun, and ends once it may.
HOOK = """\
#!/bin/sh
echo begun >> begun
while [ ! -e over ]; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    ("hook", "command", "back"),
    [
        ("before_destroy", ("destroy", "one", "--yes"), True),
        ("before_destroy", ("destroy", "one", "--yes"), False),
        ("compensate", ("compensate", "one", "--yes", "--reason", "withdrawn"), False),
    ],
)
def test_an_outage_during_a_hook_is_waited_for_or_spooled(
    project: Project,
    cloud: Cloud,
    postgres: Postgres,
    hook: str,
    command: tuple[str, ...],
    back: bool,
) -> None:
    """
    What is done before a destroy, or to undo a step, goes on without the store. If that comes back
    in time the run goes on, else the outcome is spooled, nothing more is started, and the next
    command records it first: what was undone is not undone again. A destroy that deleted nothing is
    begun anew with what comes before it.
    """
    text = ONE_SERVER.format(url=postgres.url, size="small").replace(
        "size: small}}", f"size: small}}, {hook}: {{command: [bin/hook]}}}}"
    )
    project.write("blueprints/one.yaml", text)
    project.write("bin/hook", HOOK).chmod(0o755)
    project.ok("apply", "one", "--yes")
    begun = project.root / "begun"
    tool = project.start(*command, "--store-grace", "30s" if back else "2s")
    eventually(begun.exists, "the hook begins", tool)
    postgres.stop()
    project.write("over", "")
    if back:
        time.sleep(1)
        postgres.start()
    ended = finish(tool)
    deleted = len(cloud.calls("delete"))
    if not back:
        postgres.start()
    again = project.run(*command)

    assert ended.code == (0 if back else 23), ended.said
    assert deleted == (1 if back and hook == "before_destroy" else 0)
    assert again.code == 0, again.said
    anew = hook == "before_destroy" and not back
    assert begun.read_text().split() == ["begun"] * (2 if anew else 1)
    assert len(cloud.calls("delete")) == (1 if hook == "before_destroy" else 0)


def test_an_outage_during_an_import_spools_the_outcome(
    project: Project, cloud: Cloud, postgres: Postgres
) -> None:
    """
    An object is adopted while the server is away: it is in the provider state once, the outcome is
    spooled, and once that is recorded the next apply has nothing to make.
    """
    cloud.arm("create", "web", "lost_answer")
    project.run("apply", "one", "--yes")
    (made,) = [server.id for server in cloud.servers()]
    project.write("orchestrator.yaml", "project: acme\nsettle_seconds: 0\n")
    address = "fakecloud_server.this"
    known = ("--forget", address, "--reason", "there was none before")
    cloud.arm("import", made, "slow:0")  # in the plan that is shown
    cloud.arm("import", made, "slow")
    tool = project.start(
        *("reconcile", "one", "--yes", "--adopt", f"{address}={made}", *known),
        *("--store-grace", "2s"),
    )
    eventually(lambda: len(cloud.calls("import")) == 2, "the import is under way", tool)
    postgres.stop()
    cloud.disarm()
    ended = finish(tool)
    postgres.start()
    forgot = project.run("reconcile", "one", "--yes", *known)
    applied = project.run("apply", "one", "--yes")

    assert ended.code == 23, ended.said
    assert "recorded the spooled outcome" in forgot.said
    assert applied.code == 0, forgot.said + applied.said
    assert project.steps("one")["web"]["status"] == "ok"
    assert len(cloud.calls("create")) == 1
    assert [server.id for server in cloud.servers()] == [made]


def test_a_server_that_is_away_before_the_marker_stops_the_engine(
    project: Project, cloud: Cloud, postgres: Postgres
) -> None:
    """
    Law: no record, no mutation.
    Exit 22, and nothing is created.
    """
    postgres.stop()
    ended = project.run("apply", "one", "--yes")

    assert (ended.code, cloud.calls("create")) == (22, ())


def test_a_runner_that_comes_back_is_fenced(
    project: Project, cloud: Cloud, postgres: Postgres
) -> None:
    """
    While the engine of a first run works, somebody else writes the next entry of its target: its
    outcome loses, exit 21, overwrites nothing, and is kept as evidence, also in the store.
    """
    cloud.arm("create", "web", "slow")
    tool = project.start("apply", "one", "--yes", "--json")
    cloud.wait_for_call("create", "web")
    store = PostgresStore(postgres.url, project="acme")
    (marker,) = store.records("one", "default")
    rival = marker.model_copy(
        update={
            "sequence": marker.sequence + 1,
            "entry_id": "rival",
            "previous_checksum": marker.own_checksum(),
        }
    )
    store.append(rival)
    cloud.disarm()
    ended = finish(tool)
    entries = store.history(marker.target)
    late = store.blobs(f"runs/{marker.run_id}/late-")
    store.close()

    assert ended.code == 21, ended.said
    assert [item.entry_id for item in entries] == ["rival", marker.entry_id]
    assert late == [f"runs/{marker.run_id}/late-web-2.json"]


def test_a_locked_file_is_waited_for_and_a_removed_one_is_no_empty_store(
    project: Project, cloud: Cloud
) -> None:
    """
    Another process keeps the SQLite file locked while the engine works, and some time longer: the
    outcome is recorded once it lets go, exit 0. Removed meanwhile, with its log, the file takes no
    outcome: it is spooled, exit 23, and no file that is empty is believed after that.
    """
    project.write("blueprints/one.yaml", ONE_SERVER.format(url="sqlite:o.db", size="small"))
    cloud.arm("create", "web", "slow:2")
    tool = project.start("apply", "one", "--yes")
    cloud.wait_for_call("create", "web")
    with closing(sqlite3.connect(project.root / "o.db", timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.sleep(5)
        held = other.execute("SELECT count(*) FROM entries").fetchone()[0]
        other.rollback()
    ended = finish(tool)
    seen = project.steps("one")

    assert ended.code == 0, ended.said
    assert (held, seen["web"]["status"]) == (1, "ok")
    assert len(cloud.calls("create", "web")) == 1

    project.write("blueprints/one.yaml", ONE_SERVER.format(url="sqlite:o.db", size="large"))
    cloud.arm("update", "web", "slow:2")
    tool = project.start("apply", "one", "--yes")
    cloud.wait_for_call("update", "web")
    for file in project.root.glob("o.db*"):
        file.unlink()
    removed = finish(tool)
    screen = project.run("status", "one")
    after = [project.run(verb, "one", "--yes") for verb in ("apply", "destroy")]

    assert removed.code == 23, removed.said
    assert "has gone back" in screen.said
    assert [result.code for result in after] == [22, 22], after[0].said
    assert len(cloud.calls("update", "web")) == 1 and len(cloud.servers()) == 1


#: Lets a program of root's be bound by permissions, as everybody else's is.
_AS_ANYBODY = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_a_disk_that_becomes_read_only_during_an_apply_hides_no_object(
    project: Project, cloud: Cloud
) -> None:
    """
    Nothing can be written beside the open database and provider state any more: the run ends with
    what it knows, without a traceback, and says which file that may be secret is left. Once the
    disk is in order, the apply goes on from what was made, once, and it can be destroyed.
    """
    project.write("blueprints/one.yaml", ONE_SERVER.format(url="sqlite:o/o.db", size="small"))
    project.write("orchestrator.yaml", "project: acme\nsettle_seconds: 0\n")
    cloud.arm("create", "web", "slow:2")
    command = [sys.executable, "-c", _AS_ANYBODY, "apply", "one", "--yes"]
    tool = subprocess.Popen(
        command,
        cwd=project.root,
        env=project.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    cloud.wait_for_call("create", "web")
    directories = [project.own, *(path for path in project.own.rglob("*") if path.is_dir())]
    for directory in directories:
        directory.chmod(0o500)
    ended = finish(tool)
    for directory in directories:
        directory.chmod(0o700)
    again = project.run("apply", "one", "--yes")
    destroyed = project.run("destroy", "one", "--yes")

    assert ended.code == 10, ended.said
    assert "1 created" in ended.said
    assert "Traceback" not in ended.said
    assert "it may hold secrets" in ended.said
    assert again.code == 0, again.said
    assert len(cloud.calls("create", "web")) == 1
    assert (destroyed.code, cloud.servers()) == (0, ()), destroyed.said


def test_a_connection_without_answers_is_replaced(server: Postgres) -> None:
    """
    A connection that is open, and on which what is sent is taken and no answer comes: it is given
    up after some seconds, no call hangs, and the entry is there once.
    """
    store = PostgresStore(server.url, project="acme", timeout=1)
    store.append(entry(sequence=1, entry_id="one"))
    (found,) = server.query(
        "select pid from pg_stat_activity where application_name = 'orchestrator' "
        "order by backend_start desc limit 1"
    )
    os.kill(int(found), signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(store.append, entry(sequence=2, entry_id="two"))
        done, _ = wait([appended], timeout=20)
        os.kill(int(found), signal.SIGCONT)  # before anybody waits for the thread
    entries = store.history(NETWORK)
    store.close()
    server.query("drop schema if exists orchestrator cascade")

    assert appended in done
    assert [record.entry_id for record in entries] == ["two", "one"]
