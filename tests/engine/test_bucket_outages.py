"""
A bucket with the operation records that cannot be reached, throttles, denies or goes away while a
run works: nothing is lost and nothing done twice, which the calls that the cloud counts prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from orchestrator.domain.target import Target
from orchestrator.errors import Fenced, StoreUnavailable
from orchestrator.stores import client_settings
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore
from tests.aws.proxy import Fault, Proxy, proxy_before
from tests.engine.modules import ONE_SERVER
from tests.fakes.entries import NETWORK, claim, entry, lease
from tests.project import Project, finish
from tests.servers import ObjectServer, s3_client, s3_server

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[ObjectServer, Proxy]]:
    """
    An object store behind a proxy that can throttle and deny.
    """
    with s3_server() as server, proxy_before(int(server.endpoint.rpartition(":")[2])) as proxy:
        server.make_bucket("acme")
        yield server, proxy


@pytest.fixture
def bucket(
    s3: tuple[ObjectServer, Proxy], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ObjectsStore, Proxy]]:
    """
    A store behind the proxy, whose client waits for an answer only a moment.
    """
    server, proxy = s3
    monkeypatch.setattr(client_settings, "TIMEOUT", 1)
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
    project.write("blueprints/one.yaml", ONE_SERVER.format(url=url, size="small"))
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
def test_an_outage_of_the_bucket_during_an_apply_loses_nothing(
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


def test_each_refused_write_is_an_outage_and_reads_go_on(
    bucket: tuple[ObjectsStore, Proxy],
) -> None:
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


def test_a_write_without_an_answer_ends_as_an_outage(bucket: tuple[ObjectsStore, Proxy]) -> None:
    """
    Half-open connections, one after the other: each call ends in time, as an outage, so that an
    outcome can be spooled; once there are answers again nothing is lost or doubled.
    """
    store, proxy = bucket
    store.append(entry(sequence=1, entry_id="one"))
    proxy.arm("PUT object", "hang", times=99)
    with pytest.raises(StoreUnavailable):
        store.append(entry(sequence=2, entry_id="two"))
    proxy.disarm()
    store.append(entry(sequence=2, entry_id="two"))

    assert [record.entry_id for record in store.history(NETWORK)] == ["two", "one"]


def test_a_bucket_without_conditional_writes_is_refused_before_the_first_mutation(
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
    project.write("blueprints/one.yaml", ONE_SERVER.format(url="sqlite:o.db", size="small"))
    project.write("orchestrator.yaml", "project: acme\n")
    project.ok("apply", "one", "--yes")
    made = cloud.calls("create")
    proxy.arm("PUT object", "forget", times=100_000)
    copied = project.run("store", "copy", "sqlite:o.db", url)
    checked = project.run("store", "check", "--url", url)
    project.write("blueprints/one.yaml", ONE_SERVER.format(url=url, size="large"))
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


def test_delete_markers_of_a_versioned_bucket_read_as_missing(
    s3: tuple[ObjectServer, Proxy],
) -> None:
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


def test_a_bucket_that_was_removed_is_an_outage(s3: tuple[ObjectServer, Proxy]) -> None:
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


def test_a_bucket_with_a_default_retention_is_refused(s3: tuple[ObjectServer, Proxy]) -> None:
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
