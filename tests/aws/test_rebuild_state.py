"""
A lost state of AWS objects is rebuilt from the record: what is recorded comes back, nothing more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aws.cloud import Aws, Shop, configuration
from tests.project import require_engine

pytestmark = pytest.mark.engine

STEPS = """
    steps:
      site: {module: ../fixtures/aws/site, inputs: {name: acme-site}}
"""


def test_a_lost_state_comes_back_with_every_id(
    whole_cloud: Aws, provider: str, tmp_path: Path
) -> None:
    """
    A bucket, an instance, two security groups and a label: one plan of imports, after which the
    step is `ok` and has nothing to do; a destroy then takes all of it down.
    """
    whole_cloud.empty()
    engine = require_engine("terraform")
    shop = Shop(tmp_path / "project", whole_cloud, engine=engine, provider=provider)
    shop.blueprint(STEPS, configuration(default_tags={"tags": {"of": "acme"}}))
    shop.ok("apply", "shop", "--yes")
    known = shop.record("site")["resources"]["inventory"]
    (state,) = (shop.root / ".orchestrator/state").rglob("site.tfstate")
    state.unlink()

    rebuilt = shop.run("reconcile", "shop", "--rebuild-state", "--yes")

    record = shop.record("site")
    assert rebuilt.code == 0, rebuilt.said
    assert record["status"] == "ok"
    assert sorted(ref["address"] for ref in known) == sorted(
        ref["address"] for ref in record["resources"]["inventory"]
    )
    assert {ref["id"] for ref in known} == {ref["id"] for ref in record["resources"]["inventory"]}
    assert "no changes" in shop.ok("plan", "shop").out
    shop.ok("destroy", "shop", "--yes")
    assert whole_cloud.client("s3").list_buckets()["Buckets"] == []
