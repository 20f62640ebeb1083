"""
An answer of the AWS API is lost after the call was carried out: the tool knows what is in doubt.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.cloud import Aws, Shop
from tests.project import require_engine

pytestmark = pytest.mark.engine

STEPS = """
    steps:
      trio:
        module: ../fixtures/aws/trio
        inputs: {name: acme-trio}
        identity: {aws_s3_bucket.this: "${inputs.name}"}
        search:
          aws_instance.this:
            data: aws_instances
            arguments: {instance_tags: {orchestrator: "${target.id}"}}
            ids: ids
          aws_security_group.this:
            data: aws_security_groups
            arguments: {tags: {orchestrator: "${target.id}"}}
            ids: ids
"""
#: The calls whose answers are lost, and what they make.
CREATES = {
    "PUT bucket": "aws_s3_bucket.this",
    "RunInstances": "aws_instance.this",
    "CreateSecurityGroup": "aws_security_group.this",
}


def alive(aws: Aws) -> list[str]:
    """
    What is really there of the three, under the addresses of its kind.
    """
    ec2 = aws.client("ec2")
    found: list[Any] = []
    found += ["aws_s3_bucket.this" for _ in aws.client("s3").list_buckets()["Buckets"]]
    for reservation in ec2.describe_instances()["Reservations"]:
        found += ["aws_instance.this" for _ in reservation["Instances"]]
    groups = ec2.describe_security_groups()["SecurityGroups"]
    found += ["aws_security_group.this" for g in groups if g["GroupName"] != "default"]
    return sorted(found)


class Lost:
    """
    An apply whose three creates all lose their answer, and the commands after it.
    """

    def __init__(self, shop: Shop, aws: Aws) -> None:
        shop.blueprint(STEPS)
        for call in CREATES:
            aws.proxy.arm(call, "drop")
        self.applied = shop.run("apply", "shop", "--yes")
        self.record = shop.record("trio")
        self.again = shop.run("apply", "shop", "--yes")
        self.alive = alive(aws)


@pytest.fixture(scope="module")
def lost(whole_cloud: Aws, tmp_path_factory: pytest.TempPathFactory) -> Lost:
    whole_cloud.empty()
    root = tmp_path_factory.mktemp("lost") / "project"
    return Lost(Shop(root, whole_cloud, engine=require_engine("terraform")), whole_cloud)


def test_a_lost_answer_leaves_the_create_in_doubt(lost: Lost) -> None:
    """
    Each create whose answer is lost is in doubt, with the address, the time and the reason;
    provider state holds none of them: exit 11.
    """
    doubts = lost.record["resources"]["in_doubt"]

    assert lost.applied.code == 11
    assert lost.record["status"] == "error"
    assert lost.record["resources"]["inventory"] == []
    assert {d["address"]: d["action"] for d in doubts} == dict.fromkeys(CREATES.values(), "create")
    assert all(d["started_at"] and "request send failed" in d["why"] for d in doubts)


def test_nothing_is_made_twice(lost: Lost) -> None:
    """
    FIELD 9: the next apply does not create again what may exist: exit 11, and each object is there
    once.
    """
    assert lost.again.code == 11
    assert lost.alive == sorted(CREATES.values())
