"""
A backend that refuses reads and writes from the middle of an apply on: nothing can be read after
it, and whatever the journal began is in doubt with the id that it told.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engine.state_server import state_server
from tests.project import Ended, Project

pytestmark = pytest.mark.engine

REASON = ("--dismiss-errored-state", "nobody needs it", "--yes")


def ask(address: str) -> None:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).close()


def doubts(record: dict[str, Any]) -> dict[str, str | None]:
    return {item["address"]: item["id"] for item in record["resources"]["in_doubt"]}


def status(project: Project, blueprint: str) -> Ended:
    return project.run("status", blueprint, "--step", "breaks", "--expect", "destroyed")


@pytest.mark.parametrize("lost", ["nothing", "working directories"])
def test_a_state_that_cannot_be_read_after_an_apply_is_a_doubt_about_all_it_did(
    project: Project, lost: str
) -> None:
    """
    Law: state moved without us.
    Exit 11 with every id; once the backend is back neither a dismissed saved state nor a repeat
    makes the objects absent or a second time.
    """
    blueprint = project.fixture("refuses-state")
    with state_server() as address:
        project.environ["ORCHESTRATOR_INPUT_state_address"] = address
        broken = f"refuse_url={address}/breaks?refuse=403&refuse_reads=403"
        options = (blueprint, "--step", "+breaks")

        failed = project.run("apply", *options, "--yes", "-i", broken)

        record = project.record("breaks")
        assert failed.code == 11, failed.said
        known = doubts(record)
        assert known and all(known.values()), record["resources"]
        assert all(str(object_id) in failed.said for object_id in known.values())

        ask(f"{address}/breaks?refuse=0&refuse_reads=0")
        if lost == "working directories":
            for file in Path(project.root).rglob("errored.tfstate"):
                file.unlink()
            reconciled = project.run("reconcile", *options)
        else:
            reconciled = project.run("reconcile", *options, *REASON)
        assert reconciled.code == 11, reconciled.said
        assert doubts(project.record("breaks")) == known
        assert status(project, blueprint).code != 0

        again = project.run("apply", *options, "--yes")
        assert again.code == 11, again.said
        destroyed = project.run("destroy", blueprint, "--step", "breaks", "--yes", "--json")
        assert destroyed.code == 11, destroyed.said
        record = project.record("breaks")
        assert (record["status"], doubts(record)) == ("error", known), json.dumps(record)
