"""
A gate: one verdict and one exit code over the blueprint, its records, the plan and the policy;
every reason with what can be done about it; nothing changed, no lock taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.aws.proxy import proxy_before
from tests.engine.modules import COMMAND_MODULE
from tests.engine.state_server import state_server
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Ended, Project, finish
from tests.servers import s3_server

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: shop
    inputs:
      value: {type: string, default: one}
      command: {type: string, default: ":"}
    policy: {no_destroy: [terraform_data.kept]}
    steps:
      first:
        module: ../modules/m
        inputs: {value: "${inputs.value}", command: "${inputs.command}"}
      second: {module: ../modules/m, inputs: {value: fixed}, needs: [first]}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("modules/m/main.tf", COMMAND_MODULE)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    return project


def digests(project: Project) -> dict[str, str]:
    """
    What is recorded and what the provider state holds.
    """
    files = [*project.own.glob("operations.db*"), *project.own.rglob("*.tfstate")]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def reasons(document: dict[str, object]) -> list[tuple[str, str, str]]:
    found = document["reasons"]
    assert isinstance(found, list)
    return [(item["code"], item["severity"], item["step"]) for item in found]


def test_nothing_to_say_is_a_pass_and_changes_nothing(project: Project) -> None:
    """
    Reading changes nothing, with a lock of somebody else on the provider state as well.
    """
    project.prepare("apply", "shop", "--yes")
    before = digests(project)
    with (project.own / "state/shop/default/first.tfstate").open("r+") as state:
        fcntl.lockf(state, fcntl.LOCK_EX)
        ended = project.run("gate", "shop", "--json", "--drift", "--detailed-exitcode")
        alone = project.run("gate", "shop", "--step", "first")
        locked = project.run("plan", "shop", "--step", "first")
    assert (ended.code, ended.document["verdict"]) == (0, "pass")
    assert ended.document["reasons"] == []
    assert alone.code == 0, alone.said
    assert locked.code == 20, "a plan on its own takes the lock"
    assert digests(project) == before
    changed = project.run("gate", "shop", "--detailed-exitcode", "-i", "value=two", "--json")
    assert (changed.code, changed.document["verdict"]) == (2, "warn")
    assert reasons(changed.document) == [("deferred", "warn", "second")]


def test_a_repair_passes(project: Project) -> None:
    """
    What failed only warns, with the command that says more: the change may be what repairs it.
    """
    assert project.run("apply", "shop", "--yes", "-i", "command=false").code == 10
    ended = project.run("gate", "shop", "--json", "--plan-out", "approval.json")
    assert (ended.code, ended.document["verdict"]) == (0, "warn")
    first = ended.document["reasons"][0]
    assert (first["code"], first["severity"], first["step"]) == ("error", "warn", "first")
    assert first["remedy"] == "orchestrator recover shop --step first"
    project.ok("apply", "shop", "--plan", "approval.json")
    assert project.steps("shop")["first"]["status"] == "ok"


def test_what_the_policy_forbids_and_what_cannot_be_planned_fails(project: Project) -> None:
    """
    All reasons at once, exit 4, and no approval is written.
    """
    kept = (
        COMMAND_MODULE + '\n    resource "terraform_data" "kept" { triggers_replace = var.value }\n'
    )
    project.write("modules/m/main.tf", kept)
    project.prepare("apply", "shop", "--yes")
    ended = project.run(
        "gate", "shop", "-i", "value=two", "--json", "--plan-out", "a.json", "--junit", "j.xml"
    )
    assert (ended.code, ended.document["verdict"]) == (4, "fail")
    assert ("policy", "fail", "first") in reasons(ended.document)
    assert ended.document["policy"][0]["address"] == "terraform_data.kept"
    assert not (project.root / "a.json").exists()
    assert (project.root / "j.xml").exists()
    project.write("blueprints/shop.yaml", BLUEPRINT.replace("needs: [first]", "neds: [first]"))
    files = {name: project.root / f"broken.{name}" for name in ("md", "xml", "sarif", "json")}
    broken = project.run(
        *("gate", "shop", "--json", "--markdown", "broken.md", "--junit", "broken.xml"),
        *("--sarif", "broken.sarif", "--json-file", "broken.json"),
    )
    texts = {name: file.read_text() for name, file in files.items()}
    assert texts["md"].startswith("## gate: fail") and "unknown key 'neds'" in texts["md"]
    assert 'failures="1"' in texts["xml"]
    (result,) = json.loads(texts["sarif"])["runs"][0]["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "blueprints/shop.yaml"
    assert place["physicalLocation"]["region"]["startLine"] > 1
    assert json.loads(texts["json"]) == broken.document
    assert broken.code == 4
    (reason,) = broken.document["reasons"]
    assert (reason["code"], reason["severity"]) == ("invalid", "fail")
    assert "blueprints/shop.yaml:" in reason["message"]
    assert "needs" in reason["remedy"]


def test_what_was_cut_short_is_refused_unless_it_is_allowed(
    project: Project, tmp_path: Path
) -> None:
    """
    A run that was killed with its engine: by name, step by step.
    """
    engine = watched(project, tmp_path / "watched")
    engine.hold("apply")
    tool = project.start("apply", "shop", "--yes")
    engine.wait_until_held("apply", tool)
    running = project.run("gate", "shop", "--json")
    assert (running.code, running.document["verdict"]) == (0, "warn")
    assert ("running", "warn", "first") in reasons(running.document)
    waiting = project.start("gate", "shop", "--wait", "--json")
    kill_with_engine(project, tool, "apply")
    engine.release("apply")

    waited = finish(waiting)
    refused = project.run("gate", "shop", "--json")
    assert (waited.code, reasons(waited.document)) == (4, reasons(refused.document))
    assert refused.code == 4
    assert ("interrupted", "fail", "first") in reasons(refused.document)
    remedies = {item["code"]: item["remedy"] for item in refused.document["reasons"]}
    assert remedies["interrupted"] == "orchestrator reconcile shop --step first"
    allowed = project.run("gate", "shop", "--json", "--allow", "first=interrupted")
    assert allowed.code == 0
    assert ("interrupted", "warn", "first") in reasons(allowed.document)
    for wrong in ("second=interrupted", "first=silent"):
        assert project.run("gate", "shop", "--allow", wrong).code == 4
    assert project.run("gate", "shop", "--step", "frist").code == 64
    for wrong in ("first", "first=broken", "frist=in_doubt"):
        assert project.run("gate", "shop", "--allow", wrong).code == 64


PLACED = BLUEPRINT.replace("    policy:", "    {place}\n    policy:")
READING = (
    ("gate", "shop", "--json", "--drift"),
    ("gate", "shop", "-i", "value=two", "--json", "--plan-out", "reviewed.json"),
    ("plan", "shop", "-i", "value=two", "--json"),
    ("drift", "shop", "--json"),
    ("status", "shop", "--json"),
)


def read_only(project: Project) -> dict[tuple[str, ...], Ended]:
    """
    What reads, from a machine with a checkout and nothing else.
    """
    shutil.rmtree(project.own, ignore_errors=True)
    return {arguments: project.run(*arguments) for arguments in READING}


def check_read(ended: Mapping[tuple[str, ...], Ended]) -> None:
    for arguments, each in ended.items():
        assert each.code == 0, (arguments, each.said)
    unchanged, changed, plan, drift, status = (each.document for each in ended.values())
    assert (unchanged["verdict"], unchanged["reasons"]) == ("pass", [])
    assert changed["plan"]["verdict"] == plan["verdict"] == "changes"
    assert (drift["verdict"], status["verdict"]) == ("no_drift", "ok")


def test_it_needs_no_right_to_write_to_a_bucket(project: Project) -> None:
    """
    State and records in one bucket; from the end of the apply on every write to it is refused. None
    is even tried.
    """
    with s3_server() as s3, proxy_before(int(s3.endpoint.rpartition(":")[2])) as proxy:
        s3.make_bucket("acme")
        config = {
            **s3.config,
            "endpoints": {"s3": proxy.url},
            "bucket": "acme",
            "key": "shop/${step.name}.tfstate",
            "use_lockfile": True,
            "skip_credentials_validation": True,
            "skip_requesting_account_id": True,
            "skip_metadata_api_check": True,
        }
        place = "backend: " + json.dumps({"type": "s3", "config": config})
        project.write("blueprints/shop.yaml", PLACED.replace("{place}", place))
        project.write("orchestrator.yaml", "project: acme\n")
        project.environ |= s3.environ
        project.ok("apply", "shop", "--yes")
        for call in ("PUT object", "DELETE object", "POST bucket", "POST object"):
            proxy.arm(call, "deny", times=1000)
        seen = len(proxy.calls)
        ended = read_only(project)
        tried = {call for call in proxy.calls[seen:] if not call.startswith(("GET", "HEAD"))}
    check_read(ended)
    assert tried == set()


def test_it_needs_no_right_to_write_to_a_server_or_a_file(project: Project, tmp_path: Path) -> None:
    """
    States behind http that refuses saves and locks, records in a file that cannot be written.
    """
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    with state_server() as address:
        backend = {
            "type": "http",
            "config": {
                **dict.fromkeys(("address", "lock_address"), address + "/${step.name}"),
                "unlock_address": address + "/${step.name}",
                "retry_max": 0,
            },
        }
        lines = [f"backend: {json.dumps(backend)}", f'operations: {{url: "sqlite:{shared}/o.db"}}']
        project.write("blueprints/shop.yaml", PLACED.replace("{place}", "\n    ".join(lines)))
        project.write("orchestrator.yaml", "project: acme\n")
        project.ok("apply", "shop", "--yes")
        for step in ("first", "second"):
            for fault in ("refuse=403", "refuse_locks=403"):
                urllib.request.urlopen(f"{address}/{step}?{fault}").close()
        before = sorted((path.name, path.read_bytes()) for path in shared.iterdir())
        with unwritable(shared):
            ended = read_only(project)
        after = sorted((path.name, path.read_bytes()) for path in shared.iterdir())
        (shared / "o.db").write_bytes(b"")
        unreadable = project.run("gate", "shop", "--json", "--markdown", "gate.md")
    check_read(ended)
    assert before == after
    assert (unreadable.code, unreadable.document["verdict"]) == (4, "fail")
    assert [item["code"] for item in unreadable.document["reasons"]] == ["store_unavailable"]
    assert "fail" in (project.root / "gate.md").read_text()


@contextlib.contextmanager
def unwritable(place: Path) -> Iterator[None]:
    """
    Nobody may write there; a named skip where this user cannot be kept from it.
    """
    if os.geteuid() != 0:
        place.chmod(0o500)
        yield
        place.chmod(0o700)
        return
    for options in (["--bind", place], ["-o", "remount,ro,bind"]):
        if subprocess.run(["mount", *options, place], check=False).returncode != 0:
            pytest.skip("mounting is not permitted: needs root with CAP_SYS_ADMIN")
    yield
    subprocess.run(["umount", place], check=True)
