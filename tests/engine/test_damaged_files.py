"""
Whatever is in the place of a file that a run left: an exit code of ours.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.project import Project

pytestmark = pytest.mark.engine

#: How many damages are drawn; after each, three calls.
DAMAGED = 20
#: As documented; a bug would be 1, and what never ends is killed by the harness.
CODES = {0, 2, 3, 4, 5, 6, 10, 11, 12, 13, 20, 21, 22, 23, 64}

BLUEPRINT = """
    version: 1
    name: b
    inputs: {x: {type: string, default: "1"}}
    steps:
      a: {module: ../m, inputs: {x: "${inputs.x}"}}
      c: {module: ../m, inputs: {x: "${steps.a.outputs.y}"}}
"""
MODULE = """
    variable "x" { default = "1" }
    resource "terraform_data" "a" { input = var.x }
    resource "terraform_data" "b" {
      input = var.x
      lifecycle {
        precondition {
          condition     = var.x != "bad"
          error_message = "no"
        }
      }
    }
    output "y" { value = terraform_data.a.output }
"""
CALLS = (
    "status b", "status b --json", "status --all", "recover b", "history b/default/a", "runs",
    "runs show RUN", "runs logs RUN a", "outputs b", "plan b", "drift b", "gate b", "graph b",
    "reconcile b", "verify b", "adopt b --yes", "apply b --yes", "apply b --yes --plan plan.json",
    "retry b --yes", "destroy b --yes", "exec b/default/a -- state list", "store check",
    "store export", "store prune", "store import export.json",
)  # fmt: skip
TOKENS = (
    b"\0", b"null", b"1e400", b'"', b"{", b"[", b"\xff\xfe", b"9" * 30, b"-1", b"\xe2\x80\xae",
    b"../..", b"\x1b[2J", b"\n",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    1,
    -1,
    1e300,
    "x",
    "",
    [],
    {},
    [1],
    True,
    "2026-13-45T00:00:00Z",
    "/etc/passwd",
)

Damage = Callable[[Path, bytes, random.Random], object]


def _bytes(path: Path, data: bytes, chance: random.Random) -> None:
    at, more = chance.randrange(len(data) + 1), chance.choice(TOKENS)
    ends = (data[at:], data[at + len(more) :], data[at + chance.randrange(1, 9) :])
    path.write_bytes(data[:at] + chance.choice((more, b"")) + chance.choice(ends))


def _value(path: Path, data: bytes, chance: random.Random) -> None:
    """
    Another value somewhere in a JSON document.
    """
    try:
        document = json.loads(data)
    except ValueError:
        path.write_bytes(chance.choice((b"[]", b"{}", b"null", b"1")))
        return
    node = document
    while isinstance(node, dict | list) and node:
        key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or chance.random() < 0.3:
            node[key] = chance.choice(VALUES)
            break
        node = node[key]
    path.write_text(json.dumps(document))


def _place(path: Path, data: bytes, chance: random.Random) -> None:
    """
    Something else than a file in its place, or nothing.
    """
    path.unlink()
    match chance.randrange(5):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(chance.choice((path.name, "/dev/zero", "nowhere")))
        case 3:
            path.write_bytes(data[: chance.randrange(len(data) + 1)])
        case _:
            pass


DAMAGES: tuple[Damage, ...] = (_bytes, _value, _place)


def test_no_damaged_file_of_a_run_causes_a_traceback(project: Project, tmp_path: Path) -> None:
    """
    Records, evidence, notes, provider states, approvals and exports, each damaged at a time.
    """
    project.write("blueprints/b.yaml", BLUEPRINT)
    project.write("m/main.tf", MODULE)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    project.ok("apply", "b", "--yes")
    assert project.run("apply", "b", "-i", "x=bad", "--yes").code == 10
    project.ok("plan", "b", "--out", "plan.json")
    project.write("export.json", project.ok("store", "export").out)
    intact = tmp_path / "intact"
    shutil.copytree(project.root, intact)
    files = [
        path.relative_to(intact)
        for path in sorted(intact.rglob("*"))
        if path.is_file() and not path.is_symlink() and "providers" not in path.parts
    ]
    runs = sorted(path.name for path in (intact / ".orchestrator/runs").iterdir())
    seed = int(os.environ.get("ORCHESTRATOR_TEST_SEED", random.SystemRandom().randrange(2**32)))
    chance = random.Random(seed)
    for round_ in range(DAMAGED):
        shutil.rmtree(project.root)
        shutil.copytree(intact, project.root)
        file, damage = chance.choice(files), chance.choice(DAMAGES)
        damage(project.root / file, (project.root / file).read_bytes(), chance)
        for call in chance.sample(CALLS, 3):
            words = call.replace("RUN", chance.choice(runs)).split()
            ended = project.run(*words)
            where = f"ORCHESTRATOR_TEST_SEED={seed}, {round_}: {call}, {file} {damage.__name__}"
            assert ended.code in CODES, f"{where}\n{ended.said}"
    print(f"ORCHESTRATOR_TEST_SEED={seed}")
