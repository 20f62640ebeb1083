"""
Judges a pytest report: which engines ran, and whether anything was skipped that may not be.

    verdict.py JUNIT_XML

A skip is allowed only by name, and only while its reason holds on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree


def absent(program: str) -> Callable[[], bool]:
    """Whether a program is not on PATH."""
    return lambda: shutil.which(program) is None


def no_postgres() -> bool:
    """Whether PostgreSQL's programs are neither on PATH nor where Debian puts them."""
    return absent("initdb")() and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def no_mirror_is_named() -> bool:
    """Whether there is no provider mirror for the AWS tests; `.ci/run` looks for one."""
    return not os.environ.get("ORCHESTRATOR_TEST_PROVIDERS")


def mounting_is_forbidden() -> bool:
    """Whether this user cannot mount a tmpfs."""
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", place], check=True)
        return mounted.returncode != 0


def root_writes_anywhere() -> bool:
    """Whether this user is root, and cannot be kept from writing a file either."""
    if os.geteuid() != 0:
        return False
    with tempfile.NamedTemporaryFile() as file:
        kept = subprocess.run(["chattr", "+i", file.name], capture_output=True).returncode == 0
        if kept:
            subprocess.run(["chattr", "-i", file.name], check=True)
    return not kept


def no_root() -> bool:
    """Whether this user cannot give files away."""
    return os.geteuid() != 0


#: What a skip may say, and what must be so.
ALLOWED: tuple[tuple[str, Callable[[], bool]], ...] = (
    (r"only root gives files away", no_root),
    (r"(engine missing: )?tofu( is not (installed|on PATH))?", absent("tofu")),
    (r"(engine missing: )?terraform( is not (installed|on PATH))?", absent("terraform")),
    (r"ORCHESTRATOR_TEST_PROVIDERS names no provider mirror", no_mirror_is_named),
    (r"PostgreSQL is not installed", no_postgres),
    (r"mounting a tmpfs is not permitted.*", mounting_is_forbidden),
    (r"this user cannot be kept from writing a file", root_writes_anywhere),
)


def engines_wanted() -> Iterator[str]:
    """The engines that must have run here."""
    yield "embedded"
    if not absent("terraform")():
        yield "terraform"


def is_allowed(reason: str) -> bool:
    """Whether a skip for this reason is one of those allowed, and true."""
    return any(re.fullmatch(said, reason) and holds() for said, holds in ALLOWED)


def main(report: Path) -> int:
    """Print the verdict; 0 if nothing is wrong."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    for case in cases:
        skip = case.find("skipped")
        if skip is not None:
            skipped[skip.get("message", "no reason given")] += 1
        else:
            ran.update(set(re.findall(r"embedded|terraform|tofu", case.get("name", ""))))
    wrong = [] if cases else ["no test ran"]
    for reason, count in sorted(skipped.items()):
        verdict = "allowed" if is_allowed(reason) else "NOT ALLOWED"
        sys.stdout.write(f"skipped {count}: {reason} ({verdict})\n")
        if verdict != "allowed":
            wrong.append(f"skipped: {reason}")
    for engine in engines_wanted():
        sys.stdout.write(f"tests on {engine}: {ran[engine]}\n")
        if not ran[engine]:
            wrong.append(f"nothing ran on {engine}")
    for problem in wrong:
        sys.stderr.write(f"error: {problem}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
