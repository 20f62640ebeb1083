"""
The system around a run: time, ids, the actor, the revision of the source.
"""

from __future__ import annotations

import platform
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchestrator.domain.record.record import Actor, Source
from orchestrator.domain.text import escaped, shown_text

#: CI systems: the variable that tells, its name, and the variables that make the job's address.
_CI = (
    (
        "GITHUB_ACTIONS",
        "github",
        "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}",
    ),
    ("GITLAB_CI", "gitlab", "{CI_JOB_URL}"),
    (
        "TF_BUILD",
        "azure",
        "{SYSTEM_COLLECTIONURI}{SYSTEM_TEAMPROJECT}/_build/results?buildId={BUILD_BUILDID}",
    ),
    ("CIRCLECI", "circleci", "{CIRCLE_BUILD_URL}"),
    ("BUILDKITE", "buildkite", "{BUILDKITE_BUILD_URL}"),
    ("JENKINS_URL", "jenkins", "{BUILD_URL}"),
)


def warn(message: str) -> None:
    """
    Print a warning on stderr, whatever the command prints.
    """
    with suppress(OSError):
        sys.stderr.write(f"warning: {escaped(message)}\n")


class SystemClock:
    """
    The clock of this machine.
    """

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class RandomIds:
    """
    Run ids such as 20261129T123000123Z-3f9a1c (to the millisecond), and random entry ids.
    """

    def run_id(self, now: datetime, after: str = "") -> str:
        """
        Return a new run id. If the clock was set back, it uses the millisecond after that of
        ``after``.
        """
        import secrets

        with suppress(ValueError, OverflowError):  # it is no time
            # Not strptime: it imports locale and calendar, which each command would pay for.
            earlier = datetime.fromisoformat(f"{after[:15]}.{after[15:18]}Z")
            now = max(now, earlier + timedelta(milliseconds=1))
        milliseconds = now.microsecond // 1000
        return f"{now:%Y%m%dT%H%M%S}{milliseconds:03d}Z-{secrets.token_hex(3)}"

    def entry_id(self) -> str:
        return uuid.uuid4().hex

    def fraction(self) -> float:
        import secrets

        return secrets.randbelow(1000) / 1000


def actor(environ: Mapping[str, str]) -> Actor:
    """
    Return who runs the tool; in CI with the system's name and the job's URL.
    """
    import getpass

    try:
        user = shown_text(getpass.getuser())
    except (KeyError, OSError):  # a container with a uid that no passwd entry names
        user = "unknown"
    ci = "ci" if environ.get("CI") else None
    for variable, name, address in _CI:
        if environ.get(variable):
            try:
                ci = shown_text(f"{name} {address.format_map(environ)}")
            except KeyError:
                ci = name
            break
    return Actor(user=user, host=shown_text(platform.node()) or "unknown", ci=ci)


def source(root: Path, blueprint_path: str) -> Source:
    """
    Return the project's git revision and whether it has uncommitted changes; none outside git.
    """
    revision = _git(root, "rev-parse", "HEAD")
    dirty = bool(revision and _git(root, "status", "--porcelain", "--untracked-files=no"))
    return Source(revision=revision or None, dirty=dirty, blueprint_path=blueprint_path)


def _git(root: Path, *arguments: str) -> str:
    import subprocess  # here: reading commands must not wait for it

    try:
        done = subprocess.run(
            ("git", "-C", str(root), *arguments),
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
