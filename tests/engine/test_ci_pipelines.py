"""
The pipelines in docs/ci, run: their shell steps as they stand there, with the environment that such
a runner sets, each job on an empty machine with a checkout; state and records in one bucket.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project import PATIENCE, REPOSITORY, Project
from tests.servers import ObjectServer

pytestmark = pytest.mark.engine

MODULE = """
    variable "name" { type = string }
    variable "command" {
      type    = string
      default = ":"
    }
    resource "terraform_data" "this" {
      input = var.name
      provisioner "local-exec" { command = var.command }
    }
    output "name" { value = terraform_data.this.output }
"""
BLUEPRINT = """
    version: 1
    name: shop
    environments: {{prod: {{}}}}
    {backend}
    steps:
      net: {{module: ../modules/m, inputs: {{name: net}}}}
      app: {{module: ../modules/m, inputs: {{name: "${{steps.net.outputs.name}}"}}}}
"""
GITHUB, GITLAB = (
    yaml.safe_load((REPOSITORY / f"docs/ci/{name}.yml").read_text())
    for name in ("github", "gitlab")
)


@dataclass
class Step:
    """
    How a shell step ended.
    """

    code: int
    said: str


@dataclass
class Job:
    """
    How a job ended: its shell steps by name, or by their text, and its machine.
    """

    machine: Path
    steps: dict[str, Step] = field(default_factory=dict)
    summary: str = ""
    outputs: str = ""

    @property
    def codes(self) -> dict[str, int]:
        return {name: step.code for name, step in self.steps.items()}


class Repository:
    """
    What the jobs share: the files that are checked out, the bucket, and what they upload.
    """

    def __init__(self, root: Path, s3: ObjectServer, engine: str) -> None:
        self.root = root
        self.engine = engine
        self.files = Project(root / "repository")
        self.artifacts = root / "artifacts"
        self.artifacts.mkdir()
        self.tools = root / "tools"
        self.tools.mkdir()
        self.comments = root / "comments"
        self.environ = dict(s3.environ)
        self._jobs = 0
        bucket = f"ci-{uuid.uuid4().hex}"
        s3.make_bucket(bucket)
        config = {
            **s3.config,
            "bucket": bucket,
            "key": "shop/${step.name}.tfstate",
            "use_lockfile": True,
            "skip_credentials_validation": True,
            "skip_requesting_account_id": True,
            "skip_metadata_api_check": True,
        }
        backend = "backend: " + json.dumps({"type": "s3", "config": config})
        self.files.write("blueprints/shop.yaml", BLUEPRINT.format(backend=backend))
        self.files.write("modules/m/main.tf", MODULE)
        self.files.write("orchestrator.yaml", "project: acme\n")
        python = f"{shlex.quote(sys.executable)} -m orchestrator"
        program = f'export PYTHONPATH={REPOSITORY}; exec {python} "$@"'
        self._tool(
            "pipx",
            f"""
            [ "$1" = install ] && [ -n "$2" ] || exit 64
            mkdir -p "$HOME/.local/bin"
            printf '#!/bin/sh\\n%s\\n' {shlex.quote(program)} > "$HOME/.local/bin/orchestrator"
            chmod 700 "$HOME/.local/bin/orchestrator"
            """,
        )
        self._tool(
            "gh",
            f"""
            case "$1 $2" in
            "pr comment") [ "$4" = --body-file ] && cp "$5" {self.comments}.$3 ;;
            "run download") [ "$3" = --name ] && cp {self.artifacts}/"$4"/* . ;;
            *) exit 64 ;;
            esac
            """,
        )

    def _tool(self, name: str, text: str) -> None:
        file = self.tools / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o700)

    def machine(self) -> tuple[Path, dict[str, str]]:
        """
        An empty machine with a checkout, and what is set on it.
        """
        self._jobs += 1
        machine = self.root / f"machine-{self._jobs}"
        for name in ("home", "temp"):
            (machine / name).mkdir(parents=True)
        shutil.copytree(self.files.root, machine / "checkout")
        path = f"{self.tools}:{os.environ['PATH']}"
        known = {"PATH": path, "HOME": str(machine / "home"), "CI": "true", "LANG": "C.UTF-8"}
        return machine, {**known, **self.environ, "ORCHESTRATOR_ENGINE": self.engine}


def bash(script: str, checkout: Path, environ: Mapping[str, str], *options: str) -> Step:
    """
    A script as a runner runs it: from a file, no terminal.
    """
    file = checkout.parent / "temp/script.sh"
    file.write_text(script)
    ended = subprocess.run(
        ["bash", *options, str(file)],
        cwd=checkout,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Step(ended.returncode, ended.stdout)


class GitHub:
    """
    GitHub's runner, as far as the workflow uses it.
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def event(self, action: str, *, run: str, merged: bool = False) -> dict[str, Job]:
        """
        The jobs that an event of the pull request starts.
        """
        pull = {
            "number": 7,
            "merged": merged,
            "head": {"sha": "aaaa1111"},
            "merge_commit_sha": "bbbb2222",
        }
        github = {"event": {"action": action, "pull_request": pull}, "token": "gh-token-1"}
        return {
            name: self._job(job, {"github": github}, run)
            for name, job in GITHUB["jobs"].items()
            if _holds(job["if"], {"github": github})
        }

    def _job(self, job: Mapping[str, Any], context: Mapping[str, Any], run: str) -> Job:
        machine, environ = self.repository.machine()
        checkout, done = machine / "checkout", Job(machine)
        summary, outputs = machine / "temp/summary", machine / "temp/output"
        environ |= {
            **GITHUB["env"],
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_REPOSITORY": "acme/shop",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_RUN_ID": run,
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_WORKSPACE": str(checkout),
            "PATH": f"{machine}/home/.local/bin:{environ['PATH']}",  # what pipx installs is on it
            "RUNNER_OS": "Linux",
            "RUNNER_TEMP": str(machine / "temp"),
            "RUNNER_TRACKING_ID": f"github_{machine.name}",
        }
        failed = False
        for step in job["steps"]:
            if failed and "always()" not in step.get("if", ""):
                continue
            if step.get("uses", "").startswith("actions/upload-artifact"):
                name = _filled(step["with"]["name"], context)
                (self.repository.artifacts / name).mkdir(exist_ok=True)
                shutil.copy(checkout / step["with"]["path"], self.repository.artifacts / name)
            if "run" in step:
                own = {key: _filled(text, context) for key, text in step.get("env", {}).items()}
                ended = bash(step["run"], checkout, environ | own, "-e")
                done.steps[step.get("name", step["run"])] = ended
                failed = failed or ended.code != 0
        done.summary = summary.read_text() if summary.exists() else ""
        done.outputs = outputs.read_text() if outputs.exists() else ""
        return done


def _filled(text: str, context: Mapping[str, Any]) -> str:
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: str(_value(found[1], context)), text)


def _value(path: str, context: Any) -> Any:
    for name in path.split("."):
        context = context[name]
    return context


def _holds(condition: str, context: Mapping[str, Any]) -> bool:
    """
    A condition of a job: paths that are true, or compared with a text, all of them.
    """
    for part in condition.split(" && "):
        path, operator, text = (*part.split(" "), "", "")[:3]
        value = _value(path, context)
        wanted = {"": bool(value), "==": value == text.strip("'"), "!=": value != text.strip("'")}
        if not wanted[operator]:
            return False
    return True


class GitLab:
    """
    GitLab's runner, as far as the pipeline uses it.
    """

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    def pipeline(self, number: str, **variables: str) -> dict[str, Job]:
        """
        The jobs of a pipeline, one stage after the other; those that wait for a person are started.
        """
        known = {"CI_DEFAULT_BRANCH": "main", "CI_PIPELINE_ID": number, **variables}
        done: dict[str, Job] = {}
        for name in GITLAB["stages"]:
            (rule,) = GITLAB[name]["rules"]
            left, right = rule["if"].split(" == ")
            right = right.strip('"') if right.startswith('"') else known.get(right[1:], "")
            if known.get(left[1:], "") == right:
                done[name] = self.job(name, known)
                if done[name].steps["script"].code != 0:
                    break
        return done

    def job(self, name: str, known: Mapping[str, str]) -> Job:
        job = GITLAB[name]
        machine, environ = self.repository.machine()
        checkout, done = machine / "checkout", Job(machine)
        environ |= {key: str(value) for key, value in GITLAB["variables"].items()}
        environ |= {**known, "GITLAB_CI": "true", "CI_PROJECT_DIR": str(checkout)}
        for file in self.repository.artifacts.glob(f"{known['CI_PIPELINE_ID']}/*"):
            shutil.copy(file, checkout)
        script = "\n".join([*GITLAB["default"]["before_script"], *job["script"]])
        done.steps["script"] = bash(script, checkout, environ, "-eo", "pipefail")
        if "after_script" in job:
            after = "\n".join(job["after_script"])
            done.steps["after_script"] = bash(after, checkout, environ, "-eo", "pipefail")
        place = self.repository.artifacts / known["CI_PIPELINE_ID"]
        place.mkdir(exist_ok=True)
        artifacts = job.get("artifacts", {})
        kept = done.steps["script"].code == 0 or artifacts.get("when") == "always"
        for path in artifacts.get("paths", ()) if kept else ():
            if (checkout / path).exists():
                shutil.copy(checkout / path, place)
        return done


@pytest.fixture
def repository(tmp_path: Path, s3: ObjectServer, engine: str) -> Repository:
    return Repository(tmp_path / "ci", s3, engine)


def test_a_pull_request_is_judged_and_its_merge_applies_that(repository: Repository) -> None:
    """
    The comment and the summary are the verdict; the merge changes what was reviewed. The same job
    again, on another machine, returns the run that it made.
    """
    github = GitHub(repository)
    (gate,) = github.event("opened", run="1").values()
    comment = Path(f"{repository.comments}.7").read_text()
    (apply,) = github.event("closed", run="2", merged=True).values()
    (again,) = github.event("closed", run="2", merged=True).values()
    (unmerged,) = [github.event("closed", run="3")]

    assert set(gate.codes.values()) == {0}, gate.steps
    assert "has_changes=true" in gate.outputs
    assert "terraform_data.this" in comment and comment.strip() in gate.summary
    assert set(apply.codes.values()) == {0}, apply.steps
    assert "2 ok" in apply.steps["Apply"].said
    assert "net" in apply.summary and "ok" in apply.summary
    assert again.steps["Apply"].code == 0
    assert "nothing is done again" in " ".join(again.steps["Apply"].said.split())
    assert unmerged == {}


def test_what_was_not_reviewed_is_not_applied(repository: Repository) -> None:
    """
    Another change was merged in between: exit 6 before anything is touched, and the job settles and
    sums up all the same. A change that the gate refuses leaves nothing to apply, and is commented.
    """
    github = GitHub(repository)
    (gate,) = github.event("opened", run="1").values()
    repository.files.write("modules/m/more.tf", "locals { x = 1 }")
    (apply,) = github.event("closed", run="2", merged=True).values()
    repository.files.write("blueprints/shop.yaml", "version: 1\nname: shop\nsteps: {net: {}}\n")
    (refused,) = github.event("synchronize", run="3").values()

    assert set(gate.codes.values()) == {0}, gate.steps
    assert (apply.steps["Apply"].code, apply.steps["Settle"].code) == (6, 0), apply.steps
    assert "pending" in apply.summary
    assert (refused.steps["Gate"].code, refused.steps["Comment"].code) == (4, 0)
    assert "::error file=blueprints/shop.yaml" in refused.steps["Gate"].said


def test_a_failed_apply_is_summed_up(repository: Repository) -> None:
    """
    The job fails with the code of the apply; what always runs says what is left.
    """
    github = GitHub(repository)
    repository.files.write("modules/m/main.tf", MODULE.replace('":"', '"false"'))
    github.event("opened", run="1")
    (apply,) = github.event("closed", run="2", merged=True).values()
    assert apply.codes["Apply"] == 10, apply.steps
    assert apply.codes["Summary"] == 0
    assert "local-exec provisioner error" in apply.summary


def test_a_merge_request_of_gitlab(repository: Repository) -> None:
    """
    The gate with its reports; on the default branch the plan, and its apply from another machine.
    """
    gitlab = GitLab(repository)
    judged = gitlab.pipeline("11", CI_PIPELINE_SOURCE="merge_request_event")
    merged = gitlab.pipeline("12", CI_PIPELINE_SOURCE="push", CI_COMMIT_BRANCH="main")
    again = gitlab.job("apply", {"CI_PIPELINE_ID": "12", "CI_DEFAULT_BRANCH": "main"})

    assert list(judged) == ["gate"]
    assert judged["gate"].codes == {"script": 0}, judged["gate"].steps
    checkout = judged["gate"].machine / "checkout"
    counts = json.loads((checkout / "gl-terraform-report.json").read_text())
    assert counts["create"] == 2
    assert "<testsuite" in (checkout / "gate.xml").read_text()
    assert list(merged) == ["plan", "apply"]
    assert merged["apply"].codes == {"script": 0, "after_script": 0}, merged["apply"].steps
    assert "2 ok" in merged["apply"].steps["script"].said
    assert again.steps["script"].code == 0
    assert "nothing is done again" in " ".join(again.steps["script"].said.split())
