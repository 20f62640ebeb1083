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

import pytest

from fixtures.fakecloud import Cloud, environment, install
from tests.engine.state_server import state_server
from tests.project import Ended, Project
from tests.servers import ObjectServer, s3_server

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
        inputs: {{name: db, password: "${{inputs.password}}"}}
        needs: [net]
      web: {{module: ../modules/server, inputs: {{name: web}}, needs: [db]}}
"""
LOCAL = 'operations: {url: "sqlite:.orchestrator/operations.db"}'
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


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with s3_server() as server:
        yield server


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


def test_no_shared_store_no_mutation(jobs: Jobs) -> None:
    """
    Provider state over http and no operation store named: exit 22 before anything is created, with
    both ways out; `status` says that it knows this machine only. Named in words, the file on this
    machine is used without a warning.
    """
    with state_server() as address:
        backend = {"type": "http", "config": {"address": address + "/${step.name}"}}
        line = "backend: " + json.dumps(backend)
        project = jobs.machine("laptop", line)
        refused = project.run("apply", "shop", "--yes")
        nothing = (jobs.cloud.calls("create"), project.entries("net"))
        seen = project.run("status", "shop")
        jobs.machine("laptop", line, LOCAL)
        applied = project.ok("apply", "shop", "--yes")

    assert (refused.code, nothing) == (22, ((), []))
    assert "no operation store is known for the backend 'http'" in said(refused)
    assert LOCAL in said(refused)
    assert (seen.code, "this machine only" in said(seen)) == (0, True)
    assert "this machine only" not in said(applied)


def test_records_of_a_laptop_move_into_the_bucket(jobs: Jobs) -> None:
    """
    A blueprint whose records lie in a file on this machine does not start afresh in the bucket:
    exit 22, with the command that moves them; after that nothing changes, here and elsewhere.
    """
    laptop = jobs.machine("laptop", jobs.backend, LOCAL)
    laptop.ok("apply", "shop", "--yes")
    jobs.machine("laptop")
    refused = laptop.run("apply", "shop", "--yes")
    command = re.search("`orchestrator (store copy .*?)`", said(refused))
    assert command is not None
    moved = laptop.run(*shlex.split(command[1]))
    again = jobs.machine("ci").ok("apply", "shop", "--yes", "--json")

    assert refused.code == 22
    assert (moved.code, "6 entries of 3 targets" in said(moved)) == (0, True)
    assert again.statuses == {"net": "ok", "db": "ok", "web": "ok"}
    assert len(jobs.cloud.calls("create")) == 3
