"""
A destroy of AWS objects is confirmed by the provider, and goes on where a bucket was not empty; an
apply in another region than that of the objects is refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.cloud import Aws, Shop, configuration
from tests.engine.watched_engine import Watched, watched
from tests.project import Ended, require_engine

pytestmark = pytest.mark.engine

STEPS = """
    steps:
      estate: {module: ../fixtures/aws/estate, inputs: {name: acme-estate}}
"""
HOME, WRONG = "eu-west-1", "us-west-2"
BUCKET = "aws_s3_bucket.this"
#: Also those whose ids are composite, and that have no region.
ADDRESSES = {
    "aws_iam_policy.this",
    "aws_iam_role.this",
    "aws_iam_role_policy_attachment.this",
    "aws_instance.this",
    "aws_internet_gateway.this",
    "aws_route.out",
    "aws_route_table.this",
    'aws_route_table_association.this["a"]',
    'aws_route_table_association.this["b"]',
    BUCKET,
    "aws_security_group.this",
    'aws_subnet.this["a"]',
    'aws_subnet.this["b"]',
    "aws_vpc.this",
}


class Estate:
    """
    A small system, and how it is taken down.
    """

    def __init__(self, shop: Shop, aws: Aws, engine: Watched) -> None:
        self.shop = shop
        self._aws = aws
        self._region(HOME)
        self.applied = shop.run("apply", "shop", "--yes")
        self.entries = shop.entries("estate")
        self.there = self.alive()
        self._region(WRONG)
        self.wrong_region = shop.run("apply", "shop", "--yes", "--json")
        self.untouched = (shop.entries("estate"), self.alive())
        self._region(HOME)
        s3 = aws.client("s3")
        s3.put_object(Bucket="acme-estate", Key="notes.txt", Body=b"still needed")
        confirming = ("destroy", "shop", "--yes", "--verify", "provider")
        before = len(engine.verbs)
        self.partial = shop.run(*confirming)
        self.verbs = engine.verbs[before:]
        self.record = shop.record("estate")
        s3.delete_object(Bucket="acme-estate", Key="notes.txt")
        self.last = shop.run(*confirming)

    def _region(self, region: str) -> None:
        self.shop.blueprint(STEPS, configuration(region))

    def alive(self) -> dict[str, int]:
        """
        How many networks there are by region, and how many instances at home.
        """
        found = {
            region: len(self._aws.client("ec2", region=region).describe_vpcs()["Vpcs"])
            for region in (HOME, WRONG)
        }
        reservations = self._aws.client("ec2").describe_instances()["Reservations"]
        states = [i["State"]["Name"] for r in reservations for i in r["Instances"]]
        return found | {"instances": states.count("running")}


@pytest.fixture(scope="module")
def estate(whole_cloud: Aws, provider: str, tmp_path_factory: pytest.TempPathFactory) -> Estate:
    whole_cloud.empty()
    root = tmp_path_factory.mktemp("estate")
    engine = require_engine("terraform")
    shop = Shop(root / "project", whole_cloud, engine=engine, provider=provider)
    return Estate(shop, whole_cloud, watched(shop, root / "engine"))


def fault(ended: Ended) -> dict[str, Any]:
    """
    What went wrong in a run's one step.
    """
    found: dict[str, Any] = ended.events[-1]["steps"][0]["error"]
    return found


def test_an_apply_in_another_region_is_refused(estate: Estate) -> None:
    """
    Law: state moved without us.
    In the wrong region the role, its policy and the bucket are found, as they are from
    everywhere. They do not vouch for the network and what is in it: exit 4.
    """
    ended = estate.wrong_region

    assert estate.applied.code == 0, estate.applied.said
    assert (ended.code, fault(ended)["code"]) == (4, "vanished"), ended.said
    assert "aws_instance.this" in fault(ended)["summary"]


def test_the_refused_apply_changes_nothing(estate: Estate) -> None:
    """
    Neither the record nor any object has changed.
    """
    assert estate.untouched == (estate.entries, estate.there)


def test_a_bucket_that_is_not_empty_remains(estate: Estate) -> None:
    """
    A partial destroy: the record says what is gone and what remains, and outputs from before.
    """
    assert estate.partial.code == 10
    assert "BucketNotEmpty" in estate.record["last_error"]
    assert [item["address"] for item in estate.record["resources"]["inventory"]] == [BUCKET]
    assert estate.record["outputs"] == {"bucket": "acme-estate"}


def test_one_refresh_confirms_every_object(estate: Estate) -> None:
    """
    The state from before is refreshed once: it answers for composite ids, `for_each` and
    global objects alike; only the bucket remains.
    """
    checked = {item["address"]: item["state"] for item in estate.record["absence"]["checked"]}

    assert checked == dict.fromkeys(ADDRESSES, "gone") | {BUCKET: "remaining"}
    assert estate.verbs.count("plan") == 2  # that of the destroy, and the one that confirms


def test_the_next_destroy_goes_on_and_is_confirmed(estate: Estate) -> None:
    """
    Law: destroyed means confirmed.
    Once the bucket is empty the rest is destroyed, and the whole is confirmed absent.
    """
    record = estate.shop.record("estate")

    assert estate.last.code == 0, estate.last.said
    assert (record["status"], record["absence"]["method"]) == ("destroyed", "provider")
    assert {item["address"] for item in record["absence"]["checked"]} == ADDRESSES
    assert {item["state"] for item in record["absence"]["checked"]} == {"gone"}
    assert estate.alive()["instances"] == 0
