"""
Provider state in S3 with a lock file: a killed run leaves its lock there, and it is released by its
id, where it is ours and nothing of ours is alive.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud, environment, install
from tests.aws.cloud import Aws
from tests.engine.watched_engine import kill, kill_with_engine, wait_for_answers, watched
from tests.project import ENGINES, Ended, Project, Running, finish, require_engine

pytestmark = pytest.mark.engine

BUCKET, STATE, LOCK = "states", "one/web.tfstate", "one/web.tfstate.tflock"
BLUEPRINT = """
    version: 1
    name: one
    operations: {{url: "sqlite:.orchestrator/operations.db"}}
    backend:
      type: s3
      config:
        bucket: states
        key: "one/${{step.name}}.tfstate"
        region: eu-west-1
        use_lockfile: true
        use_path_style: true
    steps:
      web:
        module: ../modules/server
        inputs: {{name: web, size: {size}, tags: {{orchestrator: "${{target.id}}"}}}}
        {search}
"""
SEARCH = (
    "search: {fakecloud_server.this: {data: fakecloud_servers, "
    'arguments: {tags: {orchestrator: "${target.id}"}}, ids: ids}}'
)


class Story:
    """
    A server in a cloud, its state in S3: an update is killed, and what comes after it.
    """

    def __init__(self, root: Path, aws: Aws, cloud: Cloud, engine: str) -> None:
        self.project = project = Project(root / "project", engine=engine)
        self.cloud = cloud
        self._s3 = aws.client("s3")
        region = {"LocationConstraint": "eu-west-1"}
        self._s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=region)
        project.copy("fixtures/fakecloud/modules/server")
        found = project.root / "fixtures/fakecloud/modules/server"
        shutil.move(found, project.root / "modules/server")
        project.write("orchestrator.yaml", "settle_seconds: 0\n")
        project.environ = environment(install(root / "mirror"), cloud, project.environ)
        project.environ = aws.environment(project.environ)

    def tell(self) -> None:
        """
        Let it happen.
        """
        project = self.project
        self.write("small")
        self.first = project.run("apply", "one", "--yes")
        tool = self._updating()
        kill_with_engine(project, tool, "apply")
        self.left = self.lock
        self.blocked = project.run("apply", "one", "--yes", "--json")
        self.told = project.run("reconcile", "one", "--json")
        self.kept_of_it = project.record("web")
        self.wrong = self.unlock("11111111-2222-3333-4444-555555555555")
        self.strangers = self.left | {"Who": "ann@laptop"}
        self._put(self.strangers)
        self.refused = self.unlock(self.left["ID"])
        self.kept = self.lock
        self._put(self.left)
        self.entries = project.entries("web")
        self.released = self.unlock(self.left["ID"])
        self.last = project.run("apply", "one", "--yes", "--json")

    def _updating(self) -> Running:
        self.write("large")
        self.cloud.arm("update", "web", "hang_after")
        tool = self.project.start("apply", "one", "--yes")
        self.cloud.wait_for_call("update", "web")
        return tool

    def write(self, size: str, search: str = "") -> None:
        """
        Want the server in this size.
        """
        text = BLUEPRINT.format(size=size, search=search)
        self.project.write("blueprints/one.yaml", text)

    def kill_in_create(self) -> None:
        """
        Kill the tool and its engine while the server is made; the provider makes it all the same.
        """
        self.cloud.arm("create", "web", "hang_after")
        tool = self.project.start("apply", "one", "--yes")
        self.cloud.wait_for_call("create", "web")
        kill_with_engine(self.project, tool, "apply")

    def follow(self, screen: Ended) -> Ended:
        """
        Run the command that a screen recommends first: `recover` marks it, others list it first.
        """
        marked = re.search(r"^  > .*?(orchestrator [^\n]+)", screen.out, re.MULTILINE | re.DOTALL)
        listed = re.search(r"^Next\n  (orchestrator [^\n]+)", screen.out, re.MULTILINE)
        found = marked or listed
        assert found, screen.said
        words = shlex.split(found[1].replace("WHY", "'its runner was killed'"))[1:]
        yes = ["--yes"] if "reconcile" in words else []
        return self.project.run(*words, *yes)

    def unlock(self, lock_id: str) -> Ended:
        """
        Ask for the release of a lock.
        """
        why = ("--reason", "its runner is gone", "--yes", "--json")
        return self.project.run("reconcile", "one", "--unlock", lock_id, *why)

    def _put(self, lock: dict[str, Any]) -> None:
        self._s3.put_object(Bucket=BUCKET, Key=LOCK, Body=json.dumps(lock).encode())

    def move_state(self) -> None:
        """
        Let the state move on without us, as another Terraform's apply does.
        """
        state = json.loads(self._s3.get_object(Bucket=BUCKET, Key=STATE)["Body"].read())
        state["serial"] += 1
        self._s3.put_object(Bucket=BUCKET, Key=STATE, Body=json.dumps(state).encode())

    @property
    def lock(self) -> dict[str, Any]:
        """
        The lock object in the bucket; empty where there is none.
        """
        listed = self._s3.list_objects_v2(Bucket=BUCKET, Prefix=LOCK).get("Contents", [])
        if not listed:
            return {}
        found = self._s3.get_object(Bucket=BUCKET, Key=LOCK)["Body"].read()
        parsed: dict[str, Any] = json.loads(found)
        return parsed


@pytest.fixture(scope="module", params=ENGINES)
def story(
    request: pytest.FixtureRequest, whole_cloud: Aws, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    whole_cloud.empty()
    root = tmp_path_factory.mktemp("story")
    cloud = Cloud(root / "cloud.db")
    found = Story(root, whole_cloud, cloud, require_engine(request.param))
    with cloud.attached() as reattach:
        found.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        found.tell()
        yield found


def failed(ended: Ended) -> dict[str, Any]:
    """
    What a run says of its one step.
    """
    row: dict[str, Any] = ended.events[-1]["steps"][0]
    return row


def test_the_record_is_bound_to_the_bucket(story: Story) -> None:
    """
    State is in the bucket, and the record says where; records stay on this machine, as the
    blueprint says in words.
    """
    assert story.first.code == 0
    assert "this machine" not in story.first.said
    bound = story.project.record("web")["provider_state"]
    assert bound["location"] == f"s3://{BUCKET}/{STATE}"


def test_a_lock_left_behind_is_told_in_full(story: Story) -> None:
    """
    The next apply is busy and says the lock's id, its owner and since when; nothing is
    unlocked by itself.
    """
    said = failed(story.blocked)["last_error"]

    assert story.blocked.code == 20
    assert story.left["ID"] in said
    assert story.left["Who"] in said
    assert f"created {story.left['Created'][:10]}" in said


def test_reconcile_tells_the_way_out_of_a_lock(story: Story) -> None:
    """
    The exact command with the lock's id, on screen; id and owner in the record, whose
    status stays.
    """
    row = failed(story.told)
    attempt = story.kept_of_it["last_attempt"]

    assert story.told.code == 20
    offered = " ".join(offer["command"] for offer in story.told.events[-1]["next"])
    assert f"--unlock {story.left['ID']} --reason WHY" in offered
    assert story.left["ID"] in row["last_error"]
    assert story.kept_of_it["status"] == "error"
    assert (attempt["command"], attempt["mutated"]) == ("reconcile", False)
    assert story.left["ID"] in attempt["error"]["summary"]
    assert story.left["Who"] in attempt["error"]["summary"]


def test_only_the_lock_that_is_held_is_released(story: Story) -> None:
    """
    An id that is not the one that holds is refused, with the facts of the one that does.
    """
    assert story.wrong.code == 4
    assert failed(story.wrong)["error"]["code"] == "foreign_lock"
    assert story.left["ID"] in failed(story.wrong)["last_error"]


def test_the_lock_of_a_stranger_is_never_released(story: Story) -> None:
    """
    The id is right and the time fits, but the owner is not who our run was: refused, and the lock
    stays as it is.
    """
    assert story.refused.code == 4
    assert failed(story.refused)["error"]["code"] == "foreign_lock"
    assert "ann@laptop" in failed(story.refused)["last_error"]
    assert story.kept == story.strangers


def test_our_own_lock_is_released_by_its_id(story: Story) -> None:
    """
    Owner and time fit our run and nothing of ours is alive: the lock is gone, under a marker of its
    own; the update in doubt is settled, and the next apply has nothing to do.
    """
    commands = [e["active_command"] for e in story.project.history("web")[len(story.entries) :]]

    assert story.released.code == 0, story.released.said
    assert commands[0] == "unlock"
    assert (story.last.code, failed(story.last)["updated"]) == (0, [])
    assert [s.attributes["size"] for s in story.cloud.servers()] == ["large"]
    assert story.lock == {}


def test_a_living_engine_keeps_its_lock(aws: Aws, tmp_path: Path) -> None:
    """
    The tool is dead and its engine is not: the lock is in use, and nothing releases it.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    found = Story(tmp_path, aws, cloud, require_engine("terraform"))
    with cloud.attached() as reattach:
        found.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        found.write("small")
        cloud.arm("create", "web", "slow")
        tool = found.project.start("apply", "one", "--yes")
        cloud.wait_for_call("create", "web")
        kill(tool)
        lock = found.lock

        ended = found.unlock(lock["ID"])
        kept, entries = found.lock, found.project.entries("web")
    wait_for_answers(found.project)  # without its provider the engine ends, and saves its state

    assert ended.code == 20, ended.said
    assert kept == lock
    assert len(entries) == 1


def test_a_plan_that_became_stale_leaves_no_lock(aws: Aws, tmp_path: Path) -> None:
    """
    The state moves on between plan and apply. The engine refuses the plan, nothing is
    mutated, the status from before is back (law: failure keeps what is known), no lock is left,
    and the next apply goes on.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    found = Story(tmp_path, aws, cloud, require_engine("terraform"))
    project, engine = found.project, watched(found.project, tmp_path / "engine")
    with cloud.attached() as reattach:
        project.environ["TF_REATTACH_PROVIDERS"] = reattach
        found.write("small")
        project.ok("apply", "one", "--yes")
        found.write("large")
        engine.hold("apply")
        tool = project.start("apply", "one", "--yes")
        engine.wait_until_held("apply", tool)
        found.move_state()
        engine.release("apply")

        ended = finish(tool)
        record = project.record("web")
        lock = found.lock
        after = project.run("apply", "one", "--yes")

    assert (ended.code, "Saved plan is stale" in ended.said) == (6, True), ended.said
    assert (record["status"], record["last_attempt"]["mutated"]) == ("ok", False)
    assert (lock, after.code) == ({}, 0), after.said
    assert [server.attributes["size"] for server in cloud.servers()] == ["large"]


def test_a_kill_in_mid_create_is_settled_in_three_commands(aws: Aws, tmp_path: Path) -> None:
    """
    Tool and engine are killed while they create: `recover`, and then twice the command that the
    screen before recommends first, the lock of the dead run released before anything is adopted.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    found = Story(tmp_path, aws, cloud, require_engine("terraform"))
    with cloud.attached() as reattach:
        found.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        found.write("small", SEARCH)
        found.kill_in_create()

        first = found.project.run("recover", "one")
        second = found.follow(first)
        third = found.follow(second)
        after = found.project.run("apply", "one", "--yes")

    assert (first.code, third.code, found.lock) == (0, 0, {}), third.said
    assert found.project.record("web")["status"] == "ok"
    assert second.code == 20 and "root" in second.said, second.said
    assert after.code == 0 and len(cloud.servers()) == 1, after.said


def test_a_doubt_that_nothing_can_answer_brings_the_lines_that_would(
    aws: Aws, tmp_path: Path
) -> None:
    """
    Without `identity` and `search` the screen says which lines to add to which file. With them the
    next command, which releases the lock, finds the object, and the one after takes it over.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    found = Story(tmp_path, aws, cloud, require_engine("terraform"))
    with cloud.attached() as reattach:
        found.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        found.write("small")
        found.kill_in_create()

        first = found.project.run("reconcile", "one")
        told = " ".join(first.out.split())
        found.write("small", SEARCH)
        second = found.follow(first)
        third = found.follow(second)

    assert "blueprints/one.yaml" in told, first.out
    assert "fakecloud_server.this: data: fakecloud_servers arguments: " in told, first.out
    assert "identity: {fakecloud_server.this: " in told, first.out
    assert (second.code, third.code, found.lock) == (11, 0, {}), third.said
    assert found.project.record("web")["status"] == "ok"
