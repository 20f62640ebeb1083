"""
Surgery on provider state: under the marker, never `ok` by itself, refused where it would do harm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.project import ENGINES, Ended, Project, require_engine

pytestmark = pytest.mark.engine

STEP = "servers"
TEXT = """
    version: 1
    name: shop
    steps:
      servers:
        module: ../modules/server
        inputs: {name: web, names: [spare]}
"""
WEB = "fakecloud_server.this"
SPARE = 'fakecloud_server.more["spare"]'


@pytest.fixture(params=ENGINES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    found = Project(tmp_path / "project", engine=require_engine(request.param))
    found.write("blueprints/shop.yaml", TEXT)
    return found


def row(ended: Ended) -> dict[str, Any]:
    """
    What became of the one step in that run.
    """
    found: dict[str, Any] = ended.events[-1]["steps"][0]
    return found


def ids(cloud: Cloud) -> dict[str | None, str]:
    return {server.name: server.id for server in cloud.servers()}


def lost_create(project: Project, cloud: Cloud) -> None:
    """
    An apply whose create of the spare server was done, and its answer lost.
    """
    cloud.arm("create", "spare", "lost_answer")
    assert project.run("apply", "shop", "--yes").code == 11


def test_an_object_in_doubt_is_adopted(project: Project, cloud: Cloud) -> None:
    """
    Laws 1 and 4: a marker with what is imported, then the status and error from before with the
    doubt settled as adopted; only the reconcile that follows, by an empty plan, makes `ok`. The
    next apply has nothing to do, and there is one object each.
    """
    lost_create(project, cloud)
    spare = ids(cloud)["spare"]

    ended = project.run("reconcile", "shop", "--yes", "--adopt", f"{SPARE}={spare}")

    assert ended.code == 0, ended.said
    failed, marker, restored, reconciled = project.history(STEP)[1:]
    assert (marker["status"], marker["active_command"]) == ("running", "import")
    assert marker["resources"]["planned"] == [{"address": SPARE, "action": "import"}]
    assert restored["status"] == "error"
    assert restored["error"] == failed["error"]
    assert restored["resources"]["in_doubt"] == []
    assert [(s["doubt"]["address"], s["how"]) for s in restored["settled"]] == [(SPARE, "adopted")]
    attempt = restored["last_attempt"]
    assert (attempt["command"], attempt["mutated"], attempt["error"]) == ("import", True, None)
    assert attempt["run_id"] == marker["run_id"]
    assert restored["provider_state"]["serial"] > failed["provider_state"]["serial"]
    assert reconciled["status"] == "ok"
    assert row(project.run("apply", "shop", "--yes", "--json"))["created"] == []
    assert sorted(filter(None, ids(cloud))) == ["spare", "web"]


def test_it_is_not_done_without_approval(project: Project, cloud: Cloud) -> None:
    """
    It changes provider state: exit 5 without --yes where nobody can be asked, record untouched.
    """
    lost_create(project, cloud)
    before = project.entries(STEP)

    ended = project.run("reconcile", "shop", "--adopt", f"{SPARE}={ids(cloud)['spare']}")

    assert (ended.code, project.entries(STEP)) == (5, before)


def test_an_id_that_does_not_exist_adopts_nothing(project: Project, cloud: Cloud) -> None:
    """
    The engine says so; the failure is recorded beside the status from before, and the doubt stays.
    """
    lost_create(project, cloud)
    before = project.record(STEP)

    ended = project.run("reconcile", "shop", "--yes", "--json", "--adopt", f"{SPARE}=srv-none")

    after = project.record(STEP)
    assert ended.code == 11
    assert (after["status"], after["error"]) == (before["status"], before["error"])
    assert after["resources"]["in_doubt"] == before["resources"]["in_doubt"]
    attempt = after["last_attempt"]
    assert (attempt["mutated"], attempt["error"]["phase"]) == (False, "surgery")
    assert "non-existent" in attempt["error"]["summary"]
    assert row(ended)["status"] == "error"
