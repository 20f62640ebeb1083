"""
What docs/oncall.md shows: each case played on real Terraform, and its screen without what differs
from run to run.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures.fakecloud import Cloud, environment, install
from tests.aws.cloud import aws_cloud
from tests.project import REPOSITORY, Ended, Project, Running, eventually, finish, require_engine

PAGE = REPOSITORY / "docs/oncall.md"
_BLOCK = re.compile(
    r"(<!-- case: (?P<name>[a-z-]+) -->\n```console\n)(?P<text>.*?)(```\n)", re.DOTALL
)

BLUEPRINT = """
    version: 1
    name: shop
    {more}
    steps:
      network: {{module: ../modules/server, inputs: {{name: network}}}}
      compute:
        module: ../modules/server
        inputs: {{name: compute, size: {size}, tags: {{orchestrator: "${{target.id}}"}}}}
        needs: [network]
        search:
          fakecloud_server.this:
            data: fakecloud_servers
            arguments: {{tags: {{orchestrator: "${{target.id}}"}}}}
            ids: ids
        verify: {verify}
      dns: {{module: ../modules/server, inputs: {{name: dns}}, needs: [compute]}}
"""


#: Stands for every id of a lock.
LOCK = "0e1f2a3b-4c5d-6e7f-8a9b-0c1d2e3f4a5b"


class Stage:
    """
    A project with three steps in a cloud, and the screen on which everything typed appears.
    """

    def __init__(self, root: Path, cloud: Cloud, reattach: str) -> None:
        self.project = Project(root / "project", engine=require_engine("terraform"))
        self.cloud = cloud
        project = self.project
        project.environ = environment(install(root / "mirror"), cloud, project.environ)
        project.environ |= {"TF_REATTACH_PROVIDERS": reattach, "COLUMNS": "100"}
        project.copy("fixtures/fakecloud/modules/server")
        found = project.root / "fixtures/fakecloud/modules/server"
        shutil.move(found, project.root / "modules/server")
        own_store = 'operations: {url: "sqlite:.orchestrator/operations.db"}'
        project.write("orchestrator.yaml", f"{own_store}\nsettle_seconds: 0\n")
        self.blueprint()
        self._screen: list[str] = []

    def blueprint(self, *, more: str = "", size: str = "small", verify: str = "[]") -> None:
        """
        Write the blueprint; ``more`` stands at its top, the rest is of step ``compute``.
        """
        text = BLUEPRINT.format(more=more, size=size, verify=verify)
        self.project.write("blueprints/shop.yaml", text)

    def quietly(self, *arguments: str) -> None:
        """
        Do something that is not shown.
        """
        self.project.ok(*arguments)

    def kill_all(self, tool: Running) -> None:
        """
        Kill the tool and the engine of step ``compute``, as a lost runner does.
        """
        identity = max(self.project.own.glob("runs/*/steps/compute/*/apply.identity.json"))
        tool.kill()
        os.killpg(json.loads(identity.read_text())["wrapper"]["pid"], signal.SIGKILL)

    def type(self, line: str) -> str:
        """
        Type a command; what it said.
        """
        _, *arguments = shlex.split(line)
        return self.show(line, self.project.run(*arguments))

    def show(self, line: str, ended: Ended, *, killed: bool = False) -> str:
        """
        Show a command that was started otherwise.
        """
        self._screen.append(f"$ {line}\n{'...' if killed else _essence(ended.said)}\n")
        return ended.said

    def offered(self, said: str, verb: str, **filled: str) -> str:
        """
        The command that a screen offers for a verb, with its placeholders filled in.
        """
        found = re.search(rf"^ +(orchestrator {verb} .*)$", said, re.MULTILINE)
        assert found is not None, f"no {verb} was offered: {said}"
        line = found[1]
        for name, value in filled.items():
            line = line.replace(name, shlex.quote(value))
        return line

    @property
    def screen(self) -> str:
        """
        All that was shown, without what differs from run to run.
        """
        return _stable("\n".join(self._screen), self.project.root)


def _essence(said: str) -> str:
    """
    What a command said at its end: not where its evidence lies, nor its progress.
    """
    _, ruler, end = said.rpartition("─" * 100 + "\n")
    text = end if ruler else said
    return re.sub(r"\n+Evidence:\s+\S+\n*\Z", "", text).strip("\n")


def _stable(text: str, root: Path) -> str:
    names: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        kind = "srv" if found[0].startswith("srv-") else "run"
        same = [name for name in names.values() if name.startswith(kind)]
        return names.setdefault(found[0], f"{kind}-{len(same) + 1}")

    text = text.replace(str(root), "/srv/shop")
    text = re.sub(r"srv-[0-9a-f]{12}|\d{8}T\d{9}Z-[0-9a-f]{6}", numbered, text)
    text = re.sub(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( \+0000)?( UTC)?", "2027-01-31 03:12:07 UTC", text
    )
    text = re.sub(r"\b\d+(\.\d)? s\b", "4 s", text)
    text = re.sub(r"\bpid \d+ on \S+(?=: )", "pid 4711 on runner-7", text)
    text = re.sub(r"127\.0\.0\.1:(?!443)\d+", "states.example.com", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", LOCK, text)
    text = re.sub(r"\b[0-9a-f]{32}\b", LOCK.replace("-", ""), text)
    text = re.sub(r"\b10(\.\d+){3}\b", "10.0.0.12", text)
    text = re.sub(r"\bwho \S+@\S+,", "who ci@runner-7,", text)
    return text.replace("just now", "4 s ago")


def failed_apply(stage: Stage) -> None:
    stage.cloud.arm("create", "compute", "error_before:QuotaExceeded")
    stage.type("orchestrator apply shop --yes")
    said = stage.type("orchestrator recover shop --step compute")
    stage.type(stage.offered(said, "retry", WHY="quota was raised") + " --yes")


def lost_answer(stage: Stage) -> None:
    stage.quietly("apply", "shop", "--yes", "--step", "network")
    stage.cloud.arm("create", "compute", "lost_answer")
    stage.type("orchestrator apply shop --yes")
    said = stage.type("orchestrator reconcile shop --step compute")
    line = stage.offered(said, "reconcile .*--adopt", WHY="its answer was lost")
    stage.type(line + " --yes")
    stage.type("orchestrator apply shop --yes")


def killed_runner(stage: Stage) -> None:
    project = stage.project
    stage.quietly("apply", "shop", "--yes", "--step", "network")
    stage.cloud.arm("create", "compute", "hang_after")
    line = "orchestrator apply shop --yes"
    tool = project.start(*shlex.split(line)[1:])
    stage.cloud.wait_for_call("create", "compute")
    told = "the heartbeat tells what is under way"
    eventually(lambda: any(lease["in_flight"] for lease in project.leases()), told, tool)
    stage.kill_all(tool)
    stage.show(line, finish(tool), killed=True)
    stage.type("orchestrator recover shop --step compute")
    said = stage.type("orchestrator reconcile shop --step compute")
    line = stage.offered(said, "reconcile .*--adopt", WHY="the runner was lost")
    stage.type(line + " --yes")


def unsaved_state(stage: Stage) -> None:
    with _states() as address:
        stage.blueprint(more=_backend(address))
        stage.quietly("apply", "shop", "--yes", "--step", "network")
        stage.cloud.arm("create", "compute", "slow")
        line = "orchestrator apply shop --yes"
        tool = stage.project.start(*shlex.split(line)[1:])
        stage.cloud.wait_for_call("create", "compute")
        _ask(f"{address}/compute?refuse=500")
        stage.cloud.disarm()
        stage.show(line, finish(tool))
        _ask(f"{address}/compute?refuse=0")
        said = stage.type("orchestrator recover shop --step compute")
        stage.type(stage.offered(said, "reconcile", WHY="the state server is back") + " --yes")


def lost_state(stage: Stage) -> None:
    stage.quietly("apply", "shop", "--yes")
    (state,) = (stage.project.root / ".orchestrator/state").rglob("compute.tfstate")
    state.unlink()
    stage.type("orchestrator apply shop --yes")
    said = stage.type("orchestrator recover shop --step compute")
    stage.type(stage.offered(said, "reconcile") + " --yes")


def lock_left(stage: Stage) -> None:
    with aws_cloud() as aws:
        region = {"LocationConstraint": "eu-west-1"}
        aws.client("s3").create_bucket(Bucket="states", CreateBucketConfiguration=region)
        stage.project.environ = aws.environment(stage.project.environ)
        stage.blueprint(more=_S3)
        stage.quietly("apply", "shop", "--yes", "--step", "network", "--step", "compute")
        stage.blueprint(more=_S3, size="large")
        stage.cloud.arm("update", "compute", "hang_after")
        tool = stage.project.start("apply", "shop", "--yes")
        stage.cloud.wait_for_call("update", "compute")
        stage.kill_all(tool)
        finish(tool)
        said = stage.type("orchestrator reconcile shop --step compute")
        stage.type(stage.offered(said, "reconcile", WHY="its runner is gone") + " --yes")


def failed_check(stage: Stage) -> None:
    up = stage.project.root / "up"
    stage.blueprint(verify="[{command: {argv: [test, -e, up], cwd: .}}]")
    stage.type("orchestrator apply shop --yes")
    said = stage.type("orchestrator recover shop --step compute")
    up.touch()
    stage.type(stage.offered(said, "verify"))
    stage.type("orchestrator apply shop --yes")


def remaining(stage: Stage) -> None:
    stage.quietly("apply", "shop", "--yes")
    stage.cloud.arm("delete", "compute", "delete_fails")
    stage.type("orchestrator destroy shop --yes")
    said = stage.type("orchestrator recover shop --step compute")
    stage.type(stage.offered(said, "destroy") + " --yes")
    stage.type("orchestrator destroy shop --yes")


def spooled(stage: Stage) -> None:
    project = stage.project
    stage.quietly("apply", "shop", "--yes", "--step", "network")
    stage.cloud.arm("create", "compute", "slow")
    line = "orchestrator apply shop --yes"
    tool = project.start(*shlex.split(line)[1:])
    stage.cloud.wait_for_call("create", "compute")
    # The log of the store cannot grow any more; smaller files can be written.
    full = (project.own / "operations.db-wal").stat().st_size
    resource.prlimit(tool.pid, resource.RLIMIT_FSIZE, (full, full))
    stage.cloud.disarm()
    stage.show(line, finish(tool))
    stage.type("orchestrator status shop --step compute")
    stage.type("orchestrator apply shop --yes")


def left_blueprint(stage: Stage) -> None:
    stage.quietly("apply", "shop", "--yes")
    text = (stage.project.root / "blueprints/shop.yaml").read_text()
    kept = [line for line in text.splitlines() if not line.strip().startswith("dns:")]
    stage.project.write("blueprints/shop.yaml", "\n".join(kept) + "\n")
    stage.type("orchestrator status shop")
    stage.type("orchestrator destroy shop --orphaned --yes")


CASES: dict[str, Callable[[Stage], None]] = {
    "failed-apply": failed_apply,
    "lost-answer": lost_answer,
    "killed-runner": killed_runner,
    "unsaved-state": unsaved_state,
    "lost-state": lost_state,
    "lock-left": lock_left,
    "failed-check": failed_check,
    "remaining": remaining,
    "spooled": spooled,
    "left-blueprint": left_blueprint,
}


def play(name: str, root: Path) -> str:
    """
    Play a case in an empty directory; the screen.
    """
    cloud = Cloud(root / "cloud.db")
    with cloud.attached() as reattach:
        stage = Stage(root, cloud, reattach)
        CASES[name](stage)
        return stage.screen


def blocks() -> dict[str, str]:
    """
    What the page shows, by case.
    """
    return {found["name"]: found["text"] for found in _BLOCK.finditer(PAGE.read_text("utf-8"))}


def write(name: str, screen: str) -> None:
    """
    Put a screen into the page.
    """
    page = PAGE.read_text("utf-8")
    PAGE.write_text(
        _BLOCK.sub(lambda m: f"{m[1]}{screen}{m[4]}" if m["name"] == name else m[0], page),
        "utf-8",
    )


@contextmanager
def _states() -> Iterator[str]:
    """
    A server of provider states that keeps locks; its address.
    """
    script = REPOSITORY / "fixtures/refuses-state/state_server.py"
    server = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


_S3 = "backend: " + json.dumps(
    {
        "type": "s3",
        "config": {
            "bucket": "states",
            "key": "shop/${step.name}.tfstate",
            "region": "eu-west-1",
            "use_lockfile": True,
            "use_path_style": True,
        },
    }
)


def _backend(address: str) -> str:
    own = f"{address}/${{step.name}}"
    addresses = dict.fromkeys(("address", "lock_address", "unlock_address"), own)
    return "backend: " + json.dumps({"type": "http", "config": addresses | {"retry_max": 0}})


def _ask(address: str) -> None:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).close()
