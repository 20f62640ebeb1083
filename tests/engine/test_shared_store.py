"""
Operation state beside provider state in one bucket: CI jobs on machines that share nothing else.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fixtures.fakecloud import Cloud, environment, install
from orchestrator.domain.record.run_record import unpack_evidence
from tests.certificates import certified
from tests.engine.state_server import state_server
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Ended, Project, eventually, finish
from tests.servers import (
    ObjectServer,
    azure_server,
    azure_signature,
    gcs_server,
    s3_client,
)
from tests.store_requests import counted_projects
from tests.tunnel import tunnel_to

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: shop
    inputs: {{password: {{type: string, sensitive: true, from: {{env: SHOP_PASSWORD}}}}}}
    {place}
    steps:
      net: {{module: ../modules/server, inputs: {{name: net}}}}
      db:
        module: ../modules/server
        inputs:
          name: db
          password: "${{inputs.password}}"
          tags: {{orchestrator: "${{target.id}}"}}
        needs: [net]
        search:
          fakecloud_server.this:
            data: fakecloud_servers
            arguments: {{tags: {{orchestrator: "${{target.id}}"}}}}
            ids: ids
      web: {{module: ../modules/server, inputs: {{name: web}}, needs: [db]}}
"""
LOCAL = 'operations: {url: "sqlite:.orchestrator/operations.db"}'
FLEET = """
    version: 1
    name: fleet
    backend: {}
    {}
    steps:
      web: {{module: ../modules/server, inputs: {{name: web, names: [a, b, c]}}}}
"""
_numbers = itertools.count()


class Jobs:
    """
    The jobs of a pipeline: each on a machine of its own, with a checkout and nothing else.
    """

    def __init__(self, root: Path, s3: ObjectServer, engine: str) -> None:
        self.root = root
        self.s3 = s3
        self.engine = engine
        self.cloud = Cloud(root / "cloud.db")
        self.bucket = f"states-{next(_numbers)}"
        self.provider: dict[str, str] = {}
        s3.make_bucket(self.bucket)

    def everything(self) -> list[str]:
        """
        What lies in the bucket beside the provider states.
        """
        client = s3_client(self.s3)
        listed = client.list_objects_v2(Bucket=self.bucket, Prefix="orchestrator/")["Contents"]
        found = []
        for item in listed:
            data = client.get_object(Bucket=self.bucket, Key=item["Key"])["Body"].read()
            files = unpack_evidence(data) if item["Key"].endswith(".zip") else {"": data}
            found += [part.decode("utf-8", "replace") for part in files.values()]
        return found

    @property
    def backend(self) -> str:
        """
        The backend block of the bucket, in a line.
        """
        settings = {
            "bucket": self.bucket,
            "key": "shop/${step.name}.tfstate",
            "use_lockfile": True,
            "skip_credentials_validation": True,
            "skip_requesting_account_id": True,
            "skip_metadata_api_check": True,
        }
        return "backend: " + json.dumps({"type": "s3", "config": {**self.s3.config, **settings}})

    def machine(self, name: str, *place: str) -> Project:
        """
        A machine with a fresh checkout, in which ``place`` says where states and records lie: in
        the bucket, if nothing does.
        """
        project = Project(self.root / name, engine=self.engine)
        found = "fixtures/fakecloud/modules/server"
        project.copy(found)
        shutil.copytree(project.root / found, project.root / "modules/server", dirs_exist_ok=True)
        lines = "\n    ".join(place or (self.backend,))
        project.write("blueprints/shop.yaml", BLUEPRINT.format(place=lines))
        project.write("orchestrator.yaml", "project: acme\nsettle_seconds: 0\n")
        project.environ = environment(self.root / "mirror" / "cli", self.cloud, project.environ)
        project.environ |= {**self.s3.environ, **self.provider, "SHOP_PASSWORD": "tr0ub4dor&3"}
        return project


@pytest.fixture
def jobs(tmp_path: Path, s3: ObjectServer, engine: str) -> Iterator[Jobs]:
    """
    A pipeline with an empty bucket and an empty cloud.
    """
    found = Jobs(tmp_path, s3, engine)
    cli_config = install(tmp_path / "mirror")
    with found.cloud.attached() as reattach:
        found.provider = {"TF_CLI_CONFIG_FILE": str(cli_config), "TF_REATTACH_PROVIDERS": reattach}
        yield found


def said(ended: Ended) -> str:
    """
    What it said, whatever the width of the screen.
    """
    return " ".join(re.sub("[│]", " ", ended.said).split())


def offered(project: Project) -> str:
    """
    The first command that `recover` offers for a step, or for all.
    """
    document = project.ok("recover", "shop", "--json").document
    actions = [(row["recommended"], row["actions"]) for row in document["steps"]]
    commands = [
        action["command"]
        for recommended, all_of_them in actions
        for action in all_of_them
        if action["action"] == recommended
    ]
    found: str = [*commands, *(item["command"] for item in document["next"])][0]
    return found


def settle(project: Project) -> tuple[list[str], list[str]]:
    """
    Apply, and do what is offered, until that ends well: what was said, and the commands in between.
    """
    commands: list[str] = []
    texts: list[str] = []
    for _ in range(6):
        ended = project.run("apply", "shop", "--yes")
        texts.append(ended.said)
        if ended.code == 0:
            return texts, commands
        command = offered(project).replace("WHY", "'the runner is lost'")
        commands.append(command)
        settled = project.run(*shlex.split(command)[1:], "--yes")
        texts.append(settled.said)
        assert settled.code in (0, 11, 20), settled.said
    pytest.fail("\n".join(texts))


def test_the_way_of_a_pipeline(jobs: Jobs) -> None:
    """
    Job 1 applies and is killed with its machine. Job 2, on an empty one, sees the run, live and
    dead, with what its ended steps left; it settles it by what is offered, the lock of the dead
    engine included, and goes on; the secret reads unchanged. Job 3 takes everything down.
    """
    one, two, three = (jobs.machine(name) for name in ("one", "two", "three"))
    jobs.cloud.arm("create", "db", "hang_after")
    tool = one.start("apply", "shop", "--yes")
    jobs.cloud.wait_for_call("create", "db")
    live = {
        "status": two.ok("status", "shop", "--json").document["verdict"],
        "busy": two.run("apply", "shop", "--yes").code,
        "run": two.ok("runs", "--json").document["runs"][-1],
    }
    run_id = live["run"]["run_id"]
    kill_with_engine(one, tool, "apply")
    shutil.rmtree(one.root)
    dead = two.ok("status", "shop", "--json").document
    shown = two.ok("runs", "show", run_id, "--json").document
    logs = two.ok("runs", "logs", run_id, "net").out
    texts, commands = settle(two)
    gone = three.ok("destroy", "shop", "--yes", "--json")

    assert (live["status"], live["busy"]) == ("running", 20)
    assert [row["status"] for row in live["run"]["steps"]] == ["ok", "pending", "pending"]
    assert dead["verdict"] == "interrupted"
    assert {item["step"] for item in shown["attempts"]} == {"net"}
    assert "Creation complete" in logs
    assert "--takeover" in commands[0]  # nobody can tell there that the engine is dead
    assert any("--unlock" in command for command in commands), commands
    assert not any("is not the one" in text for text in texts)
    assert len(jobs.cloud.calls("create", "db")) == 1
    assert set(gone.statuses.values()) == {"destroyed"}
    assert jobs.cloud.servers() == ()
    assert "tr0ub4dor" not in "".join(jobs.everything())


def test_no_shared_store_no_mutation(jobs: Jobs) -> None:
    """
    Provider state over http and no operation store named: exit 22 before anything is created, with
    both ways out; `status` says that it knows this machine only, and offers nothing that would be
    refused. Named in words, the file on this machine is used without a warning.
    """
    with state_server() as address:
        backend = {"type": "http", "config": {"address": address + "/${step.name}"}}
        line = "backend: " + json.dumps(backend)
        project = jobs.machine("laptop", line)
        refused = project.run("apply", "shop", "--yes")
        nothing = (jobs.cloud.calls("create"), project.entries("net"))
        seen = project.run("status", "shop")
        offered = project.run("status", "shop", "--json").document["next"]
        jobs.machine("laptop", line, LOCAL)
        applied = project.ok("apply", "shop", "--yes")

    assert (refused.code, nothing) == (22, ((), []))
    assert "no operation store is known for the backend 'http'" in said(refused)
    assert LOCAL in said(refused)
    assert (seen.code, "this machine only" in said(seen)) == (0, True)
    assert [item["command"].split()[1] for item in offered] == ["plan"]
    assert "this machine only" not in said(applied)


def test_records_of_a_laptop_move_into_the_bucket(jobs: Jobs) -> None:
    """
    A blueprint whose records lie in a file on this machine does not start afresh in the bucket:
    exit 22, with the command that moves them. That is all that `status`, `recover` and `plan` offer
    before, and the gate does not pass. After that nothing changes, here and elsewhere.
    """
    laptop = jobs.machine("laptop", jobs.backend, LOCAL)
    laptop.ok("apply", "shop", "--yes")
    jobs.machine("laptop")
    gate = laptop.run("gate", "shop", "--json")
    refused = laptop.run("apply", "shop", "--yes", "--json")
    screens = [
        laptop.run(verb, "shop", "--json").document for verb in ("status", "recover", "plan")
    ]
    offered = [[item["command"] for item in screen["next"]] for screen in screens]
    command = offered[0][0]
    possible = [
        action for step in screens[1]["steps"] for action in step["actions"] if action["available"]
    ]
    moved = laptop.run(*shlex.split(command)[1:])
    again = jobs.machine("ci").ok("apply", "shop", "--yes", "--json")

    assert refused.code == 22
    assert offered == [[command]] * 3 and command.startswith("orchestrator store copy ")
    assert refused.events[-1]["next"][0]["command"] == command
    assert possible == []
    assert (gate.code, command in gate.document["reasons"][0]["remedy"]) == (4, True)
    assert (moved.code, "6 entries of 3 targets" in said(moved)) == (0, True)
    assert again.statuses == {"net": "ok", "db": "ok", "web": "ok"}
    assert len(jobs.cloud.calls("create")) == 3


def test_what_a_lost_machine_began_is_done_elsewhere(jobs: Jobs) -> None:
    """
    A run fails and its machine is gone. From empty machines: `retry` does the rest from the modules
    and inputs of that run, `rollback` goes back to it, and `destroy --orphaned` takes down a step
    that left the blueprint, and a whole blueprint that is gone.
    """
    one, two = jobs.machine("one"), jobs.machine("two")
    jobs.cloud.arm("create", "web", "error_before:QuotaExceeded")
    failed = one.run("apply", "shop", "--yes", "--json")
    shutil.rmtree(one.root)
    shutil.rmtree(two.root / "modules")
    retried = two.run("retry", "shop", "--yes", "--json")
    retry_id = retried.events[-1]["run_id"]
    shutil.rmtree(two.root)
    three = jobs.machine("three")
    back = three.run(
        *("rollback", "shop", "--to", retry_id, "--unverified", "no checks", "--reason", "a test"),
        *("--yes", "--json"),
    )
    text = (three.root / "blueprints/shop.yaml").read_text()
    (three.root / "blueprints/shop.yaml").write_text(text[: text.index("  web:")])
    left = three.run("destroy", "shop", "--orphaned", "--yes", "--json")
    four = jobs.machine("four")
    other = text.replace("name: shop", "name: other").replace("shop/${", "other/${")
    four.write("blueprints/other.yaml", other)
    (four.root / "blueprints/shop.yaml").unlink()
    listed = four.ok("status", "--all", "--json").document["blueprints"]
    gone = four.run("destroy", "shop", "--orphaned", "--yes", "--json")

    assert (failed.code, retried.code) == (10, 0), retried.said
    assert retried.statuses == {"net": "skipped", "db": "skipped", "web": "ok"}
    assert back.code == 0, back.said
    assert (left.code, left.statuses) == (0, {"web": "destroyed"}), left.said
    assert {item["blueprint"]: len(item["orphaned"]) for item in listed} == {"other": 0, "shop": 2}
    assert (gone.code, set(gone.statuses.values())) == (0, {"destroyed"}), gone.said
    assert jobs.cloud.servers() == ()


def test_what_a_heartbeat_told_outlives_its_machine(jobs: Jobs, tmp_path: Path) -> None:
    """
    Provider state is written now and then, and what a step left is stored at its end: until then
    the heartbeat tells. While the run is live another machine shows what is done and what is under
    way. After its machine is gone the creates are doubts with the ids that they returned, proven
    ours, and adopted; only the one that never ended has none.
    """
    with state_server() as address:
        config = {"type": "http", "config": {"address": address + "/${step.name}"}}
        place = f'operations: {{url: "sqlite:{tmp_path}/shared.db"}}'
        one, two = (jobs.machine(name, "backend: " + json.dumps(config), place) for name in "12")
        for machine in (one, two):
            (machine.root / "blueprints/shop.yaml").unlink()
            machine.write("blueprints/fleet.yaml", FLEET.format(json.dumps(config), place))
        jobs.cloud.arm("create", "c", "hang_before")
        tool = one.start("apply", "fleet", "--yes")
        jobs.cloud.wait_for_call("create", "c")

        def row() -> dict[str, Any]:
            found: dict[str, Any] = two.steps("fleet")["web"]
            return found

        eventually(lambda: len(row()["completed"]) == 3, "a heartbeat tells what is done", tool)
        live = row()
        shown = two.ok("runs", "show", live["run_id"], "--json").document
        recover = two.ok("recover", "fleet", "--json").document["steps"][0]["evidence"]
        screens = [
            said(two.ok(*command))
            for command in (
                ("status", "fleet"),
                ("recover", "fleet"),
                ("runs", "show", live["run_id"]),
            )
        ]
        kill_with_engine(one, tool, "apply")
        shutil.rmtree(one.root)
        why = ("--reason", "a test", "--yes")
        settled = two.run("reconcile", "fleet", "--takeover", "the machine is gone", *why)
        doubts = {item["address"]: item for item in row()["in_doubt"]}
        adopted = two.run("reconcile", "fleet", "--adopt-proven", *why)
        left = [item["address"] for item in row()["in_doubt"]]

    made = {server.attributes["name"]: server.id for server in jobs.cloud.servers()}
    ids = {
        "fakecloud_server.this": made["web"],
        'fakecloud_server.more["a"]': made["a"],
        'fakecloud_server.more["b"]': made["b"],
    }
    hung = 'fakecloud_server.more["c"]'
    assert {item["address"]: item["id"] for item in live["completed"]} == ids
    assert [item["address"] for item in live["in_flight"]] == [hung]
    assert [item["status"] for item in shown["run"]["steps"]] == ["running"]
    for told in (recover, shown["heartbeat"]):
        assert (told["completed"], told["in_flight"]) == (live["completed"], live["in_flight"])
    for screen in screens:
        assert all(f"{address} [{id_}], created" in screen for address, id_ in ids.items()), screen
        assert f"{hung}, creating since" in screen
    assert settled.code == 11, settled.said
    assert {name: item["id"] for name, item in doubts.items()} == {**ids, hung: None}
    assert all(item["started_at"] for item in doubts.values())
    assert (adopted.code, left) == (11, [hung]), adopted.said
    assert len(jobs.cloud.calls("create")) == 4


def test_a_run_is_promoted_into_an_environment_with_another_store(jobs: Jobs) -> None:
    """
    Environments in buckets of their own: from an empty machine that lacks the modules, prod is made
    from those of a run of dev, whose records lie elsewhere; what it used lies beside its own
    records then, so that it can be rolled back to when dev is gone.
    """
    dev = jobs.backend
    jobs.bucket = f"{jobs.bucket}-prod"
    jobs.s3.make_bucket(jobs.bucket)
    place = (dev, f"environments: {{dev: {{}}, prod: {{{jobs.backend}}}}}")
    one, two, three = (jobs.machine(name, *place) for name in ("one", "two", "three"))
    applied = one.ok("apply", "shop", "-e", "dev", "--yes", "--json").events[-1]["run_id"]
    shutil.rmtree(one.root)
    shutil.rmtree(two.root / "modules")
    promoted = two.run("apply", "shop", "-e", "prod", "--from-run", applied, "--yes", "--json")
    missing = two.run("rollback", "shop", "-e", "prod", "--to", applied, "--reason", "a test")
    shutil.rmtree(two.root)
    shutil.rmtree(three.root / "modules")
    listed = {run["environment"] for run in three.ok("runs", "--json").document["runs"]}
    gone = three.run("destroy", "shop", "-e", "dev", "--yes", "--confirm", "dev")
    back = three.run(
        *("rollback", "shop", "-e", "prod", "--to", promoted.events[-1]["run_id"]),
        *("--unverified", "no checks", "--reason", "a test", "--yes", "--json"),
    )

    assert promoted.code == 0, promoted.said
    assert len(jobs.cloud.calls("create")) == 6
    assert (missing.code, "there is no run" in missing.said) == (4, True)
    assert "runs --blueprint shop -e prod" in said(missing)
    assert listed == {"dev", "prod"}
    assert gone.code == 0, gone.said
    assert back.code == 0, back.said
    assert len(jobs.cloud.servers()) == 3


def test_an_environment_that_left_with_its_bucket_is_found(jobs: Jobs) -> None:
    """
    What it left is listed and can be destroyed on the machine that has used its bucket, and on any
    other: a run of another environment has noted there where it is. A bucket that cannot be read,
    or is on a server that no blueprint names, is not looked at, and named.
    """
    dev, shared = jobs.backend, jobs.bucket
    jobs.bucket = f"{jobs.bucket}-old"
    jobs.s3.make_bucket(jobs.bucket)
    environments = f"environments: {{dev: {{}}, old: {{{jobs.backend}}}}}"
    one, two = (jobs.machine(name, dev, environments) for name in ("one", "two"))
    one.ok("apply", "shop", "-e", "old", "--yes")
    made = len(jobs.cloud.servers())
    one.ok("apply", "shop", "-e", "dev", "--step", "net", "--yes")
    for machine in (one, two):
        blueprint = machine.root / "blueprints/shop.yaml"
        blueprint.write_text(blueprint.read_text().replace(environments, "environments: {dev: {}}"))
    listed = [machine.ok("status", "--json").document["blueprints"] for machine in (one, two)]
    seen = [memory.read_text() for memory in (one.own / "seen").glob("*.json")]
    (remembered,) = [text for text in seen if jobs.bucket in text]
    removed = remembered.replace(jobs.bucket, f"{jobs.bucket}-removed")
    (one.own / "seen/removed.json").write_text(removed)
    unread = one.ok("status")
    (one.own / "seen/removed.json").unlink()
    strange = "s3://strange/orchestrator?endpoint=http://127.0.0.1:9"
    note = "orchestrator/1/acme/blobs/stores/shop/strange"
    s3_client(jobs.s3).put_object(Bucket=shared, Key=note, Body=strange.encode())
    untrusted = two.ok("status")
    destroyed = two.run("destroy", "shop", "-e", "old", "--orphaned", "--yes")

    for blueprints in listed:
        (old,) = [item for item in blueprints if item["environment"] == "old"]
        assert sorted(old["orphaned"]) == [f"shop/old/{step}" for step in ("db", "net", "web")]
    assert f"not read: s3://{jobs.bucket}-removed/orchestrator" in said(unread)
    assert "Name it by `operations.url`" in said(unread)
    assert f"not read: {strange}: an earlier run noted" in said(untrusted)
    assert destroyed.code == 0, destroyed.said
    assert len(jobs.cloud.servers()) == 1 and made == 3


def test_surgery_is_seen_and_settled_from_another_machine(jobs: Jobs, tmp_path: Path) -> None:
    """
    An adoption is under way on a machine: another one shows what is taken in since when, and is
    busy. Once the first is lost, another settles from what the provider state holds, with the
    error from before, and the adoption can be done again.
    """
    one, two, three = (jobs.machine(name) for name in ("one", "two", "three"))
    jobs.cloud.arm("create", "web", "lost_answer")
    failed = one.run("apply", "shop", "--yes")
    before = two.steps("shop")["web"]
    (made,) = [server.id for server in jobs.cloud.servers() if server.attributes["name"] == "web"]
    address = "fakecloud_server.this"
    known = ("--forget", address, "--reason", "there was no such server before")
    adopt = ("reconcile", "shop", "--yes", "--adopt", f"{address}={made}", *known)
    engine = watched(one, tmp_path / "watched")
    engine.hold("import")
    tool = one.start(*adopt)
    engine.wait_until_held("import", tool)
    eventually(lambda: bool(two.steps("shop")["web"]["in_flight"]), "a heartbeat tells", tool)
    (told,) = two.steps("shop")["web"]["in_flight"]
    screen = said(two.ok("status", "shop"))
    busy = two.run(*adopt)
    kill_with_engine(one, tool, "apply")
    engine.release("import")
    shutil.rmtree(one.root)
    settled = two.run("reconcile", "shop", "--takeover", "lost", "--reason", "a test", "--yes")
    between = two.steps("shop")["web"]
    adopted = three.run(*adopt)

    assert (failed.code, before["in_doubt"][0]["address"]) == (11, address)
    assert (told["address"], told["action"]) == (address, "import")
    assert f"{address}, importing since" in screen
    assert busy.code == 20, busy.said
    assert settled.code == 11, settled.said
    assert [item["address"] for item in between["in_doubt"]] == [address]
    assert adopted.code == 0, adopted.said
    assert three.ok("apply", "shop", "--yes", "--json").statuses["web"] == "ok"
    assert len(jobs.cloud.calls("create", "web")) == 1


def test_eight_machines_that_fight_for_one_blueprint(jobs: Jobs) -> None:
    """
    All apply at once: whoever comes too late is busy (exit 20) or finds nothing to do; each object
    is made once, and the history has no gap.
    """
    machines = [jobs.machine(f"m{number}") for number in range(8)]
    tools = [machine.start("apply", "shop", "--step", "net", "--yes") for machine in machines]
    ended = [finish(tool) for tool in tools]
    entries = machines[0].ok("history", "shop/default/net", "--json").document["entries"]

    codes = [item.code for item in ended]
    assert set(codes) <= {0, 20}, [item.said for item in ended]
    assert 0 in codes
    assert len(jobs.cloud.calls("create", "net")) == 1
    assert [item["sequence"] for item in entries] == [*range(len(entries), 0, -1)]


def test_machines_with_a_blueprint_each(jobs: Jobs) -> None:
    """
    All apply at once against one store, twice: each record has its marker and two outcomes, none
    lost and none of another. (Eight for two minutes, by hand: 88 applies, 176 entries.)
    """
    machines = []
    for number in range(4):
        machine = jobs.machine(f"m{number}")
        blueprint = machine.root / "blueprints/shop.yaml"
        text = blueprint.read_text().replace("name: shop", f"name: shop{number}")
        text = text.replace("shop/${", f"shop{number}/${{").replace("name: net", f"name: n{number}")
        (machine.root / f"blueprints/shop{number}.yaml").write_text(text)
        blueprint.unlink()
        machines.append(machine)
    ended = []
    for _ in range(2):
        tools = [
            machine.start("apply", f"shop{number}", "--step", "net", "--yes")
            for number, machine in enumerate(machines)
        ]
        ended += [finish(tool) for tool in tools]
    histories = [
        machine.ok("history", f"shop{number}/default/net", "--json").document["entries"]
        for number, machine in enumerate(machines)
    ]

    assert {item.code for item in ended} == {0}, [item.said for item in ended]
    assert len(jobs.cloud.calls("create")) == 4
    for entries in histories:
        assert [(item["sequence"], item["status"]) for item in entries] == [
            (3, "ok"),
            (2, "ok"),
            (1, "running"),
        ]


def test_states_in_google_cloud(jobs: Jobs, tmp_path: Path) -> None:
    """
    The `gcs` backend: from an empty machine nothing changes, and everything is taken down.
    """
    directory = tmp_path / "gcs"
    directory.mkdir()
    with gcs_server(directory) as server:
        server.make_bucket("states")
        backend = {
            "bucket": "states",
            "prefix": "${step.name}",
            "storage_custom_endpoint": f"{server.endpoint}/storage/v1/",
        }
        # The stand-in has one of Google's interfaces for Terraform, and another for the store.
        xml_api = server.config["storage_custom_endpoint"]
        place = (
            "backend: " + json.dumps({"type": "gcs", "config": backend}),
            f'operations: {{url: "gs://states/operations?storage_custom_endpoint={xml_api}"}}',
        )
        jobs.provider["GOOGLE_OAUTH_ACCESS_TOKEN"] = "test-only"
        jobs.machine("one", *place).ok("apply", "shop", "--yes")
        again = jobs.machine("two", *place).ok("apply", "shop", "--yes", "--json")
        gone = jobs.machine("three", *place).ok("destroy", "shop", "--yes", "--json")

    assert again.statuses == {"net": "ok", "db": "ok", "web": "ok"}
    assert len(jobs.cloud.calls("create")) == 3
    assert set(gone.statuses.values()) == {"destroyed"}


def test_states_in_azure(jobs: Jobs, tmp_path: Path) -> None:
    """
    The `azurerm` backend: from an empty machine nothing changes; a run that is killed in a create
    is settled on another by what is offered, its lock included; everything is taken down.
    """
    directory = tmp_path / "azure"
    directory.mkdir()
    tls = certified(directory, "devstoreaccount1.blob.core.windows.net", "127.0.0.1")
    with (
        azure_server(directory, tls=tls) as server,
        tunnel_to(int(server.endpoint.split(":")[2].partition("/")[0])) as proxy,
    ):
        server.make_bucket("states")
        settings = {
            "container_name": "states",
            "key": "${step.name}.tfstate",
            "storage_account_name": server.config["storage_account_name"],
            "sas_token": azure_signature(),
        }
        # The stand-in takes a signature from Terraform, and for deleting a key only.
        key = quote(str(server.config["access_key"]))
        place = (
            "backend: " + json.dumps({"type": "azurerm", "config": settings}),
            f'operations: {{url: "az://states/orchestrator?access_key={key}"}}',
        )
        jobs.provider |= {
            "HTTPS_PROXY": proxy,
            "SSL_CERT_FILE": str(tls.authority),
            "CHECKPOINT_DISABLE": "1",
        }
        one, two = jobs.machine("one", *place), jobs.machine("two", *place)
        jobs.cloud.arm("create", "db", "hang_after")
        tool = one.start("apply", "shop", "--yes")
        jobs.cloud.wait_for_call("create", "db")
        kill_with_engine(one, tool, "apply")
        shutil.rmtree(one.root)
        said, commands = settle(two)
        again = jobs.machine("three", *place).ok("apply", "shop", "--yes", "--json")
        gone = jobs.machine("four", *place).ok("destroy", "shop", "--yes", "--json")

    assert any("--unlock" in command for command in commands), said
    assert again.statuses == {"net": "ok", "db": "ok", "web": "ok"}
    assert len(jobs.cloud.calls("create")) == 3
    assert set(gone.statuses.values()) == {"destroyed"}


def test_what_a_step_costs_in_requests(tmp_path: Path, engine: str) -> None:
    """
    An apply without changes makes six requests of a shared store for each step, one with changes
    thirteen, `status` one; what else it makes does not depend on how many steps there are.
    """
    # A single step is planned by itself; several that are as they were applied first as one.
    with counted_projects(tmp_path, 2, 5, engine=engine) as (two, five):
        costs: dict[str, float] = {}
        for what, name, arguments in (
            ("first", "one", ("apply", "shop", "--yes")),
            ("unchanged", "one", ("apply", "shop", "--yes")),
            ("changed", "two", ("apply", "shop", "--yes")),
            ("status", "two", ("status", "shop")),
        ):
            counts = []
            for project in (two, five):
                project.describe(name)
                found = project.requests(*arguments)
                # Heartbeats depend on how long it takes.
                counts.append(found.total() - found["PUT leases"])
            costs[what] = (counts[1] - counts[0]) / 3

    assert costs == {"first": 7, "unchanged": 6, "changed": 13, "status": 1}
