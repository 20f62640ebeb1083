"""
The options of ``reconcile`` by which a person settles objects in doubt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orchestrator.domain.provider_query.readback import OCCUPIED
from orchestrator.domain.record.objects import Doubt, Readback
from orchestrator.domain.recovery.command_line import adoption_options


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
