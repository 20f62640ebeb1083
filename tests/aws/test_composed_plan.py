"""
Three steps of AWS, each of which needs what the one before it makes, are planned as one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws.cloud import Aws, Shop, configuration
from tests.project import require_engine

pytestmark = pytest.mark.engine

MODULES = {
    "net": """
        resource "aws_vpc" "this" { cidr_block = "10.0.0.0/16" }
        output "id" { value = aws_vpc.this.id }
    """,
    "subnet": """
        variable "vpc" {}
        resource "aws_subnet" "this" {
          vpc_id     = var.vpc
          cidr_block = "10.0.1.0/24"
        }
        output "arn" { value = aws_subnet.this.arn }
    """,
    "assets": """
        variable "reader" {}
        resource "aws_s3_bucket" "this" { bucket = "shop-assets" }
        resource "aws_s3_bucket_policy" "this" {
          bucket = aws_s3_bucket.this.id
          policy = jsonencode({
            Version = "2012-10-17"
            Statement = [{
              Effect    = "Allow"
              Action    = "s3:GetObject"
              Principal = "*"
              Resource  = "${aws_s3_bucket.this.arn}/*"
              Condition = { StringEquals = { "aws:SourceArn" = var.reader } }
            }]
          })
        }
    """,
}
STEPS = """
    steps:
      net: {module: ../modules/net}
      subnet: {module: ../modules/subnet, inputs: {vpc: "${steps.net.outputs.id}"}}
      assets: {module: ../modules/assets, inputs: {reader: "${steps.subnet.outputs.arn}"}}
"""


def test_what_was_never_applied_is_planned_whole(
    whole_cloud: Aws, provider: str, tmp_path: Path
) -> None:
    """
    From the network to the policy of a bucket: everything is shown, what nobody knows yet as that.
    What is approved so is what an apply does; then one plan finds nothing to do.
    """
    whole_cloud.empty()
    engine = require_engine("terraform")
    shop = Shop(tmp_path / "project", whole_cloud, engine=engine, provider=provider)
    for name, text in MODULES.items():
        shop.write(f"modules/{name}/main.tf", text)
    shop.blueprint(STEPS, configuration())

    rows = shop.ok("plan", "shop", "--json", "--out", "reviewed.json").rows
    made = {call for call in whole_cloud.proxy.calls if call.startswith(("Create", "Run", "PUT"))}
    applied = shop.ok("apply", "shop", "--plan", "reviewed.json", "--json")
    again = shop.ok("plan", "shop", "--json").rows

    assert {row["method"] for row in rows.values()} == {"composed"}
    found = {
        (step, item["address"]): {each["path"]: each for each in item["attributes"]}
        for step, row in rows.items()
        for item in row["resources"]
    }
    assert [*found] == [
        ("net", "aws_vpc.this"),
        ("subnet", "aws_subnet.this"),
        ("assets", "aws_s3_bucket.this"),
        ("assets", "aws_s3_bucket_policy.this"),
    ]
    assert found["subnet", "aws_subnet.this"]["vpc_id"]["known"] is False
    assert found["subnet", "aws_subnet.this"]["cidr_block"]["after"] == "10.0.1.0/24"
    assert found["assets", "aws_s3_bucket_policy.this"]["policy"]["known"] is False
    assert made == set(), "nothing is made for a plan"
    assert set(applied.statuses.values()) == {"ok"}
    assert {(row["method"], row["status"]) for row in again.values()} == {("composed", "unchanged")}
