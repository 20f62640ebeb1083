"""
Commands for a person to type.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import Deployment


class Place(Protocol):
    """
    What a command names: a blueprint, its file relative to the project, and the environment.
    """

    @property
    def blueprint(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def environment(self) -> str: ...


def command_line(place: Place, verb: str, *options: str) -> str:
    """
    The command: by name where that finds the blueprint from anywhere in the project, quoted for a
    shell.
    """
    inside = place.path.startswith("blueprints/")
    words = ["orchestrator", verb, place.blueprint if inside else place.path]
    if place.environment != "default":
        words += ["-e", place.environment]
    return shlex.join([*words, *options])


def naming(deployment: Deployment, step: str) -> tuple[str, ...]:
    """
    The options of a command that name one step, also one that left the blueprint.
    """
    return (*(("--orphaned",) if step in deployment.orphans else ()), "--step", step)
