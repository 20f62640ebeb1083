"""
Command lines for people to type.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from orchestrator.domain.record.objects import OCCUPIED, Doubt, Readback
from orchestrator.domain.store_location import OWN_STORE
from orchestrator.domain.target import step_of

if TYPE_CHECKING:
    from orchestrator.domain.blueprint.blueprint import BlueprintSummary, Deployment


class RecordedBlueprint(Struct, frozen=True):
    """
    The blueprint of a target, by the target's name or record.
    """

    blueprint: str
    environment: str
    path: str = "blueprints/"
    called_in: str = ""


#: What a command line names: a blueprint, its file relative to the project, and the environment.
BlueprintAddress: TypeAlias = "BlueprintSummary | RecordedBlueprint"


def command_line(blueprint: BlueprintAddress, verb: str, *options: str) -> str:
    """
    Return the command line, quoted for a shell. It names the blueprint by name if that is found
    anywhere in the project, else by path.
    """
    words = [*program(blueprint), verb, _name(blueprint)]
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


def copy_records_command(blueprint: BlueprintAddress) -> str:
    """
    Return the command that copies the records of this machine into the store of a blueprint.
    """
    return _store_command(blueprint, "copy", f"sqlite:{OWN_STORE}")


def accept_restored_command(blueprint: BlueprintAddress | None) -> str:
    """
    Return the command that accepts a restored store, with a placeholder for the reason: that of a
    blueprint, else the project's own.
    """
    if blueprint is None:
        return shlex.join(("orchestrator", "store", "accept-restored", "REASON"))
    return _store_command(blueprint, "accept-restored", "REASON")


def _store_command(blueprint: BlueprintAddress, verb: str, argument: str) -> str:
    environment = () if blueprint.environment == "default" else ("-e", blueprint.environment)
    name = ("--blueprint", _name(blueprint))
    return shlex.join([*program(blueprint), "store", verb, *name, *environment, argument])


def _name(blueprint: BlueprintAddress) -> str:
    return blueprint.blueprint if blueprint.path.startswith("blueprints/") else blueprint.path


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


# The options by which a person settles objects in doubt.


def doubt_options(
    doubts: Iterable[Doubt], occupied: Collection[str] = ()
) -> list[tuple[tuple[str, ...], str]]:
    """
    Return the options of ``reconcile`` for doubts that evidence does not settle, each with its
    purpose; no options where the provider is only asked again. Nothing is adopted at an
    ``occupied`` address.
    """
    newest = {doubt.address: doubt for doubt in doubts}.values()
    adopt = adoption_options(doubt for doubt in newest if doubt.address not in occupied)
    unproven: list[str] = []
    unknown: list[str] = []
    forget: list[str] = []
    options: list[tuple[tuple[str, ...], str]] = []
    for doubt in newest:
        readback = doubt.readback
        ids = readback.ids if readback else ()
        adoptable = readback is None or readback.adoptable
        if ids and not adoptable:
            why = f"once you have deleted {' and '.join(ids)} by hand: {OCCUPIED}"
            word = ("--forget", doubt.address) if doubt.saved is None else ()
            options.append((word, why))
        elif doubt.address in occupied:
            forget += ["--forget", doubt.address]
        elif readback is None or readback.adopts is None:
            forget += ["--forget", doubt.address]
            if readback is not None and readback.ownership == "found":
                unproven += [*_adopt_and_forget(doubt, ids[0])]
                continue
            if not ids and adoptable and doubt.action in ("create", "forget"):
                unknown += ["--adopt", f"{doubt.address}={doubt.id or 'ID'}"]
            for id_ in ids:
                options.append((_adopt_and_forget(doubt, id_), _why_unproven(doubt, readback, id_)))
    if adopt:
        why = "adopt what is proven ours; then it can be kept or destroyed"
        options.insert(0, (adopt, why))
    if unproven:
        options.append((tuple(unproven), f"{_ONLY_IF_KNOWN}: nothing proves that it was made here"))
    if unknown:
        why = "where you have found it, with the provider's id: adopt it"
        options.append((tuple(unknown), why))
    if forget:
        why = "once you have looked, and know that it does not exist or does not matter"
        options.append((tuple(forget), why))
    return options


#: What adopting an object means that nothing proves to be ours.
_ONLY_IF_KNOWN = (
    "only if you know that what was found is yours (your word closes the doubt, and a destroy of "
    "it needs --accept-adopted REASON)"
)


def _adopt_and_forget(doubt: Doubt, id_: str) -> tuple[str, ...]:
    """
    Return options that adopt an object and forget the doubt: without proof, the adoption leaves the
    doubt open.
    """
    return "--adopt", f"{doubt.address}={id_}", "--forget", doubt.address


def _why_unproven(doubt: Doubt, readback: Readback | None, id_: str) -> str:
    if readback is not None and readback.ownership is not None:
        return f"{_ONLY_IF_KNOWN}; {readback.evidence}"
    return f"if {id_} is {doubt.address}: its attributes tell"
