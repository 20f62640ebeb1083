"""
Command lines for people to type.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from orchestrator.domain.target import step_of

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import Deployment
    from orchestrator.domain.record.objects import Doubt


class BlueprintAddress(Protocol):
    """
    The names in a command line: a blueprint, its file relative to the project, and the environment.
    """

    @property
    def blueprint(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def environment(self) -> str: ...

    @property
    def called_in(self) -> str: ...


def command_line(blueprint: BlueprintAddress, verb: str, *options: str) -> str:
    """
    Return the command line, quoted for a shell. It names the blueprint by name if that is found
    anywhere in the project, else by path.
    """
    by_name = blueprint.path.startswith("blueprints/")
    words = [*program(blueprint), verb, blueprint.blueprint if by_name else blueprint.path]
    if blueprint.environment != "default":
        words += ["-e", blueprint.environment]
    return shlex.join([*words, *options])


def program(blueprint: BlueprintAddress) -> tuple[str, ...]:
    """
    Return the program's name and the directory that it is called in.
    """
    return ("orchestrator", *(("-C", blueprint.called_in) if blueprint.called_in else ()))


def named_steps(steps: Iterable[str]) -> tuple[str, ...]:
    """
    Return the options that select these steps.
    """
    return tuple(word for step in steps for word in ("--step", step))


def accept_restored_command(blueprint: str = "", environment: str = "") -> str:
    """
    Return the command that accepts a restored store, with a placeholder for the reason: the store
    of a blueprint in an environment, else the project's own.
    """
    options = [*(("--blueprint", blueprint) if blueprint else ())]
    options += ("-e", environment) if environment not in ("", "default") else ()
    return shlex.join(("orchestrator", "store", "accept-restored", *options, "REASON"))


class RecordedBlueprint(Struct, frozen=True):
    """
    The blueprint of a target, by the target's name or record.
    """

    blueprint: str
    environment: str
    path: str = "blueprints/"
    called_in: str = ""


def step_options(deployment: Deployment, step: str) -> tuple[str, ...]:
    """
    Return the options that select one step or hook target, also an orphan.
    """
    name = step_of(step)
    is_orphan = name in deployment.orphans or name not in deployment.steps
    return (*(("--orphaned",) if is_orphan else ()), "--step", step)


def reconcile_command(deployment: Deployment, step: str) -> str:
    return command_line(deployment, "reconcile", *step_options(deployment, step))


def adoption_options(doubts: Iterable[Doubt]) -> tuple[str, ...]:
    """
    Return the options of ``reconcile`` that adopt objects proven to be ours: by id if there is only
    one.
    """
    ids = {item.address: item.readback.adopts for item in doubts if item.readback}
    proven = [f"{address}={id_}" for address, id_ in ids.items() if id_ is not None]
    return (
        ("--adopt-proven",) if len(proven) > 1 else tuple(w for p in proven for w in ("--adopt", p))
    )
