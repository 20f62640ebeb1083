"""
What to do first about a fault, by the phase in which it happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from orchestrator.domain.record.record import Fault, Phase
from orchestrator.errors import Reason

PHASE_HINTS: Mapping[Phase, str] = {
    "settings": "fix the settings: orchestrator.yaml, environment variables, options; nothing was "
    "changed",
    "blueprint": "fix the blueprint or the input at the place named; nothing was changed",
    "module": "fix the module at the place named; nothing was changed",
    "engine": "look at the engine: `orchestrator engine info` says which one is used and why; "
    "nothing was changed",
    "init": "look at the route: can this machine reach the state backend and the provider "
    "registry, with which credentials? Nothing was changed",
    "plan": "fix the input or the module that the engine names; where it could not ask the "
    "provider, look at route and credentials. Nothing was changed",
    "lock": "wait for whoever holds the state lock; if that was a run of ours that is dead, unlock "
    "it by its id: `reconcile --unlock LOCK_ID --reason WHY`",
    "apply": "read what the provider said; then fix the input, retry once capacity, quota or "
    "permission is there, or roll back to a verified run",
    "verify": "everything was applied: look at the service that the check asks, then verify "
    "again; roll back if it stays down",
    "destroy": "look at what still uses the objects that remain, then destroy again",
    "readback": "look at the route: region, account and credentials that the provider was asked "
    "with; then reconcile, and adopt what is found",
    "record": "look at the operation store: disk, permissions, server; the next mutating command "
    "records what waits in the spool",
    "surgery": "compare the provider state with what exists, adopt or import what it misses, then "
    "reconcile",
}


_REPEAT = "look at what it did. If it may be done again, `{} WHY` does it"
#: Faults that the hint of their phase does not fit.
CODE_HINTS: Mapping[str, str] = {
    "compensation_failed": "read what it said and fix the cause; the same command goes on here",
    "compensation_unknown": _REPEAT.format("compensate --repeat"),
    "before_destroy_failed": "nothing of the step was destroyed: fix the cause and destroy again, "
    "or go without by `destroy --skip-before-destroy WHY`",
    "before_destroy_unknown": "nothing of the step was destroyed: "
    + _REPEAT.format("destroy --repeat-before-destroy"),
    "unapplied": "look at what an apply would change (`plan`); apply it, or reconcile if that is "
    "nothing",
    "other_object": "take it out again with `exec TARGET -- state rm ADDRESS`, then adopt the one "
    "that is in doubt",
    "managed_twice": "take it out at one of the addresses with `exec TARGET -- state rm ADDRESS`: "
    "what is managed twice is changed twice",
    "errored_state": "save the provider state before anything else: `reconcile "
    "--push-errored-state`",
}


def hint_of(fault: Fault, *, doubtful: bool = False) -> str | None:
    """
    The hint of the fault's code or phase, or of readback where it left objects in doubt (but an
    unsaved state may hold them); None for a refusal, which brings one of its own, and where a
    person stopped it.
    """
    if doubtful and fault.code != "errored_state":
        return PHASE_HINTS["readback"]
    if fault.code in (*get_args(Reason), "stopped"):
        return None
    return CODE_HINTS.get(fault.code) or PHASE_HINTS[fault.phase]
