"""
The program that stands for OpenTofu does what OpenTofu was recorded to do, as far as tests need it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standin_tofu import ENCRYPTED

RECORDINGS = Path(__file__).parent.parent / "recordings" / "opentofu"
PROGRAM = Path(__file__).parent.parent / "standin_tofu.py"


@pytest.mark.parametrize(
    "case", ["early-evaluation", "state-encryption", "encryption-by-environment"]
)
def test_it_ends_each_recorded_call_as_opentofu_did(case: str, tmp_path: Path) -> None:
    """
    With the same exit code, from the same files and variables; and where a state cannot be read it
    says so in the same words.
    """
    root, cloud = tmp_path / "root", tmp_path / "cloud"
    root.mkdir()
    cloud.mkdir()
    recorded: list[dict[str, Any]] = json.loads((RECORDINGS / f"{case}.json").read_text())["calls"]
    for call in recorded:
        _arrange(root, call)
        done = subprocess.run(
            [sys.executable, "-S", str(PROGRAM), *call["argv"][1:]],
            cwd=root,
            env={"TOFU_OBJECTS": str(cloud), "PATH": os.defpath} | call.get("environment", {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == call["exit"], (call["argv"], done.stdout, done.stderr)
        known, said = call["stdout"] + call["stderr"], done.stdout + done.stderr
        assert (ENCRYPTED in known) == (ENCRYPTED in said), call["argv"]
        locked = "Error acquiring the state lock"
        assert (locked in known) == (locked in said), call["argv"]
        if call["argv"][1:] == ["state", "pull"] and call["exit"] == 0:
            (root / "before.tfstate").write_text(done.stdout)


def _arrange(root: Path, call: dict[str, Any]) -> None:
    """
    Do to the files what the recording notes of a call.
    """
    for name, text in call.get("files", {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text.replace("fakecloud_server", "thing_object"))
    match call.get("note", ""):
        case note if note.startswith("terraform.tfstate was replaced by the clear text"):
            (root / "terraform.tfstate").write_text((root / "before.tfstate").read_text())
        case note if note.startswith("no terraform.tfstate"):
            (root / "terraform.tfstate").unlink()
