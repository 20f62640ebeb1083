"""
A shared store that is away, slow, throttled or read-only while a run goes on: nothing is lost and
nothing done twice, which the calls that the cloud counts prove.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from orchestrator.domain.target import Target
from orchestrator.errors import Fenced, StoreUnavailable
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore
from orchestrator.stores.postgres import PostgresStore
from tests.aws.proxy import Fault, Proxy, proxy_before
from tests.engine.postgres import Postgres
from tests.fakes.entries import NETWORK, claim, entry, lease
from tests.project import Ended, Project, eventually, finish
from tests.servers import ObjectServer, s3_client, s3_server

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: one
    operations: {{url: "{url}"}}
    steps:
      web: {{module: ../modules/server, inputs: {{name: web, size: {size}}}}}
"""


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
    project.write("blueprints/one.yaml", BLUEPRINT.format(url=server.url, size=size))
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
def test_a_server_that_goes_away_under_a_hook(
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
    text = BLUEPRINT.format(url=postgres.url, size="small").replace(
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


def test_a_server_that_goes_away_under_surgery(
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
    entries = store.history(marker.target.target)
    late = store.blobs(f"runs/{marker.run_id}/late-")
    store.close()

    assert ended.code == 21, ended.said
    assert [item.entry_id for item in entries] == ["rival", marker.entry_id]
    assert late == [f"runs/{marker.run_id}/late-web-2.json"]


def test_a_file_that_is_locked_is_waited_for_and_one_that_is_removed_is_missed(
    project: Project, cloud: Cloud
) -> None:
    """
    Another process keeps the SQLite file locked while the engine works, and some time longer: the
    outcome is recorded once it lets go, exit 0. Removed meanwhile, with its log, the file takes no
    outcome: it is spooled, exit 23, and no file that is empty is believed after that.
    """
    project.write("blueprints/one.yaml", BLUEPRINT.format(url="sqlite:o.db", size="small"))
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

    project.write("blueprints/one.yaml", BLUEPRINT.format(url="sqlite:o.db", size="large"))
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
def test_a_disk_that_becomes_read_only_in_the_run(project: Project, cloud: Cloud) -> None:
    """
    Nothing can be written beside the open database and provider state any more: the run ends with
    what it knows, without a traceback, and says which file that may be secret is left. Once the
    disk is in order, the apply goes on from what was made, once, and it can be destroyed.
    """
    project.write("blueprints/one.yaml", BLUEPRINT.format(url="sqlite:o/o.db", size="small"))
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


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[ObjectServer, Proxy]]:
    """
    An object store behind a proxy that can throttle and deny.
    """
    with s3_server() as server, proxy_before(int(server.endpoint.rpartition(":")[2])) as proxy:
        server.make_bucket("acme")
        yield server, proxy


@pytest.fixture
def bucket(s3: tuple[ObjectServer, Proxy]) -> Iterator[tuple[ObjectsStore, Proxy]]:
    server, proxy = s3
    config = {**server.config, "endpoints": {"s3": proxy.url}}
    opened = open_bucket(f"s3://acme/of-{len(proxy.calls)}", config, server.environ)
    yield ObjectsStore(opened, project="acme"), proxy
    proxy.disarm()


@pytest.fixture
def shared(
    s3: tuple[ObjectServer, Proxy], project: Project, cloud: Cloud, tmp_path: Path
) -> Iterator[tuple[ObjectsStore, Proxy]]:
    """
    The project's blueprint with its records in a versioned bucket behind the proxy; provider state
    is local. The store, read past the proxy.
    """
    server, proxy = s3
    bucket = f"of-{len(proxy.calls)}"
    server.make_bucket(bucket)
    s3_client(server).put_bucket_versioning(
        Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    project.environ |= {**server.environ, "AWS_REGION": "eu-west-1"}
    project.environ["AWS_ENDPOINT_URL_S3"] = proxy.url
    url = f"s3://{bucket}/operations?use_path_style=true"
    project.write("blueprints/one.yaml", BLUEPRINT.format(url=url, size="small"))
    project.write("orchestrator.yaml", "project: acme\n")
    opened = open_bucket(url, server.config, server.environ)
    yield ObjectsStore(opened, project="acme"), proxy
    proxy.disarm()


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        *(("throttle", 6), ("drop", 3), ("hang", 1)),
        *(("throttle", 10_000), ("deny", 10_000), ("expire", 10_000)),
    ],
)
def test_a_bucket_that_fails_in_the_run(
    project: Project, cloud: Cloud, shared: tuple[ObjectsStore, Proxy], fault: Fault, times: int
) -> None:
    """
    While the engine works, writes to the bucket are throttled, lost, refused, by credentials that
    have expired too, or find nobody. What passes is waited for, exit 0; else the outcome is
    spooled, exit 23, and the next run records it first. Nothing is made twice, no entry is lost or
    doubled, and the objects can be destroyed.
    """
    store, proxy = shared
    cloud.arm("create", "web", "slow:2")
    tool = project.start("apply", "one", "--yes", "--store-grace", "3s")
    cloud.wait_for_call("create", "web")
    proxy.arm("PUT object", fault, times=times)
    ended = finish(tool)
    proxy.disarm()
    again = project.run("apply", "one", "--yes", "--json")
    made = len(cloud.calls("create", "web"))
    destroyed = project.run("destroy", "one", "--yes")
    entries = [record.status.value for record in store.history(Target("one", "default", "web"))]

    assert ended.code == (0 if times < 100 else 23), ended.said
    assert again.code == 0, again.said
    assert (again.row["created"], made) == ([], 1)
    assert destroyed.code == 0, destroyed.said
    assert (cloud.servers(), len(cloud.calls("delete", "web"))) == ((), 1)
    assert entries == ["destroyed", "running", "ok", "ok", "running"]


@pytest.mark.parametrize("fault", ["throttle", "drop", "hang"])
def test_a_throttled_or_lost_write_is_made_once(
    bucket: tuple[ObjectsStore, Proxy], fault: Fault
) -> None:
    """
    503 SlowDown, an answer that is lost after the write, or none on a connection that is open on
    one side only: it is tried again, and the entry is there once.
    """
    store, proxy = bucket
    store.append(entry(sequence=1, entry_id="one"))
    proxy.arm("PUT object", fault, nth=2)

    store.append(entry(sequence=2, entry_id="two"))

    assert [record.entry_id for record in store.history(NETWORK)] == ["two", "one"]


def test_a_bucket_that_cannot_be_written_is_told(bucket: tuple[ObjectsStore, Proxy]) -> None:
    """
    Each write is refused by what it was about, and what is there is still read.
    """
    store, proxy = bucket
    store.append(entry(sequence=1, entry_id="one"))
    proxy.arm("PUT object", "deny", times=99)

    writes: list[Callable[[], object]] = [
        lambda: store.append(entry(sequence=2, entry_id="two")),
        lambda: store.take_claim(claim("r")),
        lambda: store.put_blob("runs/r/run.json", b"{}"),
        store.probe,
    ]
    for write in writes:
        with pytest.raises(StoreUnavailable, match="not allowed"):
            write()

    assert [record.entry_id for record in store.history(NETWORK)] == ["one"]


def test_a_store_that_does_not_answer_is_given_up(bucket: tuple[ObjectsStore, Proxy]) -> None:
    """
    Half-open connections, one after the other: each call ends in time, as an outage, so that an
    outcome can be spooled; once there are answers again nothing is lost or doubled.
    """
    store, proxy = bucket
    store.append(entry(sequence=1, entry_id="one"))
    proxy.arm("PUT object", "hang", times=99)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.append(entry(sequence=2, entry_id="two"))
    taken = time.monotonic() - began
    proxy.disarm()
    store.append(entry(sequence=2, entry_id="two"))

    assert taken < 60
    assert [record.entry_id for record in store.history(NETWORK)] == ["two", "one"]


def test_a_bucket_without_conditions_is_refused_before_anything_is_made(
    s3: tuple[ObjectServer, Proxy], project: Project, cloud: Cloud
) -> None:
    """
    A server that does not heed conditions, or only in a row: the first command that would mutate
    ends 22 and says why, `store check` says it, and a copy is refused; nothing is made or written.
    """
    server, proxy = s3
    server.make_bucket("careless")
    project.environ |= {**server.environ, "AWS_REGION": "eu-west-1"}
    project.environ["AWS_ENDPOINT_URL_S3"] = proxy.url
    url = "s3://careless/operations?use_path_style=true"
    project.write("blueprints/one.yaml", BLUEPRINT.format(url="sqlite:o.db", size="small"))
    project.write("orchestrator.yaml", "project: acme\n")
    project.ok("apply", "one", "--yes")
    made = cloud.calls("create")
    proxy.arm("PUT object", "forget", times=100_000)
    copied = project.run("store", "copy", "sqlite:o.db", url)
    checked = project.run("store", "check", "--url", url)
    project.write("blueprints/one.yaml", BLUEPRINT.format(url=url, size="large"))
    applied = project.run("apply", "one", "--yes")
    proxy.disarm()
    listed = s3_client(server).list_objects_v2(Bucket="careless").get("Contents", [])

    for ended in (copied, checked, applied):
        assert ended.code == 22, ended.said
    for ended in (copied, applied):
        assert "conditional writes do not hold there" in " ".join(ended.said.split())
    assert "16 writers" in checked.said
    assert (cloud.calls("create"), cloud.calls("update")) == (made, ())
    assert not [item["Key"] for item in listed if "/heads/" in item["Key"]]


def test_a_versioned_bucket_with_delete_markers(s3: tuple[ObjectServer, Proxy]) -> None:
    """
    A probe and a lease that were removed leave markers: they read as missing, what is written after
    them counts, and no condition holds on a version that is old.
    """
    server, _ = s3
    client = s3_client(server)
    server.make_bucket("versioned")
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    opened = open_bucket("s3://versioned/operations", server.config, server.environ)
    store = ObjectsStore(opened, project="acme")
    store.probe()
    store.put_lease(lease("run-1"))
    store.drop_lease("run-1")
    gone = store.lease("run-1")
    store.put_lease(lease("run-1"))
    store.create_blob("key", b"old")
    store.drop_blob("key")
    for sequence in (1, 2, 3):
        store.append(entry(sequence=sequence))

    assert gone is None
    assert store.lease("run-1") is not None
    assert store.create_blob("key", b"new") == b"new"
    assert [record.sequence for record in store.history(NETWORK)] == [3, 2, 1]
    with pytest.raises(Fenced):
        store.append(entry(sequence=3, entry_id="late"))


def test_a_bucket_that_goes_away(s3: tuple[ObjectServer, Proxy]) -> None:
    """
    Law: unreadable is not empty.
    An entry whose bucket was removed meanwhile is an outage, to be spooled, and not fenced.
    """
    server, _ = s3
    server.make_bucket("goes")
    opened = open_bucket("s3://goes/operations", server.config, server.environ)
    store = ObjectsStore(opened, project="acme")
    store.append(entry(sequence=1))
    client = s3_client(server)
    for item in client.list_objects_v2(Bucket="goes")["Contents"]:
        client.delete_object(Bucket="goes", Key=item["Key"])
    client.delete_bucket(Bucket="goes")

    with pytest.raises(StoreUnavailable, match="goes"):
        store.append(entry(sequence=2))
    with pytest.raises(StoreUnavailable, match="goes"):
        store.newest(NETWORK)


def test_a_bucket_with_a_retention_is_refused(s3: tuple[ObjectServer, Proxy]) -> None:
    """
    Object lock with a default retention wants a header that no entry is written with: that is told
    by the first probe, before anything is mutated, in the server's words.
    """
    server, _ = s3
    client = s3_client(server)
    client.create_bucket(
        Bucket="locked",
        ObjectLockEnabledForBucket=True,
        CreateBucketConfiguration={"LocationConstraint": "eu-west-1"},
    )
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket="locked",
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
    )
    opened = open_bucket("s3://locked/operations", server.config, server.environ)
    store = ObjectsStore(opened, project="acme")

    with pytest.raises(StoreUnavailable, match="retention period configured using Object Lock"):
        store.probe()
