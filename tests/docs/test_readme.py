"""
What the README tells newcomers to type works as it stands there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import REPOSITORY, Project

_MARKED = re.compile(r"<!-- test(?:: (?P<file>\S+))? -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)


def _script() -> str:
    """
    The README's marked blocks in order: commands as they are, files written where they are named.
    """
    parts = ["set -euxo pipefail"]
    for block in _MARKED.finditer((REPOSITORY / "README.md").read_text(encoding="utf-8")):
        if block["file"]:
            parts.append(f"cat > {block['file']} <<'END'\n{block['text']}END")
        else:
            parts.append(block["text"])
    return "\n".join(parts)


@pytest.mark.engine
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """
    The shell blocks of the README, typed one after the other into an empty directory, all succeed
    with whatever engine there is.
    """
    environ = Project(tmp_path).environ
    path = os.pathsep.join((str(Path(sys.executable).parent), environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", _script()],
        cwd=tmp_path,
        env=environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "plan of apply site/default: no changes" in done.stdout


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target: str) -> None:
    """
    `make demo` and `make test` stand in the README, and each needs nothing but the set-up.
    """
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^make {target}\b", readme, re.MULTILINE)
    assert re.search(rf"^{target}: \$\(STAMP\)$", makefile, re.MULTILINE)
