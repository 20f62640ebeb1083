"""
An answer of the AWS API is lost after the call was carried out: the tool knows what is in doubt,
finds it, takes it over, and the next apply has nothing to create.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.aws.cloud import Aws, Shop, configuration
from tests.engine.watched_engine import Watched, watched
from tests.project import require_engine

pytestmark = pytest.mark.engine

BUCKET, INSTANCE = "aws_s3_bucket.this", "aws_instance.this"
GROUP, OTHER = "aws_security_group.this", "aws_security_group.other"

#: The second group's identity is wrong: its name, where the provider's import id is another.
STEPS = f"""
    steps:
      site:
        module: ../fixtures/aws/site
        inputs: {{name: acme-site}}
        identity:
          {BUCKET}: "${{inputs.name}}"
          {OTHER}: "${{inputs.name}}-other"
        search:
          {INSTANCE}:
            data: aws_instances
            arguments: {{instance_tags: {{orchestrator: "${{target.id}}"}}}}
            ids: ids
          {GROUP}:
            data: aws_security_groups
            arguments:
              tags: {{orchestrator: "${{target.id}}"}}
              filter: [{{name: group-name, values: ["${{inputs.name}}"]}}]
            ids: ids
"""
#: The verbs of the engine that load no provider schemas.
LIGHT = ("version", "init", "state", "output")


class Lost:
    """
    An apply of which four creates lose their answer, and the commands after it.
    """

    def __init__(self, shop: Shop, aws: Aws, engine: Watched) -> None:
        self.shop = shop
        self._aws = aws
        tags = {"tags": {"orchestrator": "${target.id}"}}
        # One try: the second would be answered with "already exists".
        shop.blueprint(STEPS, configuration(max_retries=1, default_tags=tags))
        aws.proxy.arm("PUT bucket", "drop")
        aws.proxy.arm("RunInstances", "drop")
        aws.proxy.arm("CreateSecurityGroup", "drop", times=2)
        self.applied = shop.run("apply", "shop", "--yes")
        self.record = shop.record("site")
        shop.blueprint(STEPS, configuration(default_tags=tags))
        self.blocked = shop.run("apply", "shop", "--yes")
        self.there = self.alive()
        before = len(engine.verbs)
        self.asked = shop.run("reconcile", "shop")
        self.heavy = [verb for verb in engine.verbs[before:] if verb not in LIGHT]
        self.found = self.readbacks()
        self.adopted = shop.run(*self._adoption())
        self.last = shop.run("apply", "shop", "--yes", "--json")

    def alive(self) -> dict[str, list[str]]:
        """
        The ids of what is really there, under the address of its kind.
        """
        ec2, found = self._aws.client("ec2"), dict[str, list[str]]()
        found[BUCKET] = [b["Name"] for b in self._aws.client("s3").list_buckets()["Buckets"]]
        reservations = ec2.describe_instances()["Reservations"]
        found[INSTANCE] = [i["InstanceId"] for r in reservations for i in r["Instances"]]
        for address, name in ((GROUP, "acme-site"), (OTHER, "acme-site-other")):
            groups = ec2.describe_security_groups()["SecurityGroups"]
            found[address] = [g["GroupId"] for g in groups if g["GroupName"] == name]
        return found

    def readbacks(self) -> dict[str, dict[str, Any]]:
        """
        What reconcile found out of each object in doubt.
        """
        doubts = self.shop.record("site")["resources"]["in_doubt"]
        return {doubt["address"]: doubt["readback"] for doubt in doubts}

    def _adoption(self) -> list[str]:
        """
        Adopt what was found, and the other group by the id that a person looked up.
        """
        ids = {address: found["ids"] for address, found in self.found.items() if found["ids"]}
        ids[OTHER] = self.there[OTHER]
        wanted = [f"--adopt={address}={id_}" for address, (id_,) in ids.items()]
        wanted += [f"--forget={address}" for address in ids]
        return ["reconcile", "shop", *wanted, "--reason", "the answers were lost", "--yes"]


@pytest.fixture(scope="module")
def lost(whole_cloud: Aws, provider: str, tmp_path_factory: pytest.TempPathFactory) -> Lost:
    whole_cloud.empty()
    root: Path = tmp_path_factory.mktemp("lost")
    engine = require_engine("terraform")
    shop = Shop(root / "project", whole_cloud, engine=engine, provider=provider)
    return Lost(shop, whole_cloud, watched(shop, root / "engine"))


def test_a_lost_answer_leaves_the_create_in_doubt(lost: Lost) -> None:
    """
    Each create whose answer is lost is in doubt, with the address, the time and the reason;
    provider state holds none of them: exit 11.
    """
    doubts = lost.record["resources"]["in_doubt"]

    assert lost.applied.code == 11
    assert lost.record["status"] == "error"
    assert [item["address"] for item in lost.record["resources"]["inventory"]] == [
        "terraform_data.label"
    ]
    assert {d["address"] for d in doubts} == {BUCKET, INSTANCE, GROUP, OTHER}
    assert all(d["started_at"] and "request send failed" in d["why"] for d in doubts)


def test_nothing_is_made_twice(lost: Lost) -> None:
    """
    The next apply does not create again what may exist: exit 11, and each object is there
    once.
    """
    assert lost.blocked.code == 11
    assert {address: len(ids) for address, ids in lost.there.items()} == dict.fromkeys(
        (BUCKET, INSTANCE, GROUP, OTHER), 1
    )


@pytest.mark.parametrize(
    ("address", "method"), [(BUCKET, "identity"), (INSTANCE, "search"), (GROUP, "search")]
)
def test_what_was_made_without_an_answer_is_found(lost: Lost, address: str, method: str) -> None:
    """
    Reconcile asks the provider, by the import id that is known before the create or by the tag of
    the target, and says the id of the one that is there. Those that the tag proves ours are offered
    in one go.
    """
    found = lost.found[address]

    assert lost.asked.code == 11
    assert (found["verdict"], found["method"]) == ("exists", method)
    assert found["ids"] == lost.there[address]
    assert found["ids"][0] in lost.asked.said
    one = f"--adopt {address}={found['ids'][0]}"
    assert ("--adopt-proven" if method == "search" else one) in lost.asked.said


def test_a_wrong_identity_says_nothing(lost: Lost) -> None:
    """
    A name where the provider wants an id: it answers "non-existent" although the group is there,
    so the verdict is unknown, never absent.
    """
    assert lost.found[OTHER]["verdict"] == "unknown"
    assert len(lost.there[OTHER]) == 1


def test_a_reconcile_loads_provider_schemas_twice_at_most(lost: Lost) -> None:
    """
    With a large provider that is its time: one plan with the inputs of the run, one that asks for
    all that is in doubt.
    """
    assert lost.heavy == ["plan", "plan"]


def test_what_was_found_is_taken_over(lost: Lost) -> None:
    """
    After the adoption nothing is in doubt, the next apply creates nothing, and each object is there
    once, with the id that it had.
    """
    row = lost.last.events[-1]["steps"][0]
    ids = {
        item["address"]: item["id"] for item in lost.shop.record("site")["resources"]["inventory"]
    }
    ids.pop("terraform_data.label")

    assert (lost.adopted.code, lost.last.code) == (0, 0), lost.adopted.said + lost.last.said
    assert (row["status"], row["created"], row["replaced"]) == ("ok", [], [])
    assert {address: [id_] for address, id_ in ids.items()} == lost.there
    assert lost.alive() == lost.there
