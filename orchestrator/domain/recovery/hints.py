"""
What to do first about a fault, by its cause: as far as that can be told from its code and from what
the engine said, else by the phase in which it happened.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import get_args

from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import CRASHED, Fault, Phase
from orchestrator.domain.target import HookKind
from orchestrator.errors import Reason

PHASE_HINTS: Mapping[Phase, str] = {
    "settings": "fix the settings: orchestrator.yaml, environment variables, options; nothing was "
    "changed",
    "blueprint": "fix the blueprint or the input at the place named; nothing was changed",
    "module": "fix the module at the place named; nothing was changed",
    "engine": "look at the engine: `orchestrator engine info` says which one is used and why; "
    "nothing was changed",
    "init": "can this machine reach the state backend and the provider registry, and with which "
    "credentials? Nothing was changed",
    "plan": "fix the input or the module that the engine names. Nothing was changed",
    "lock": "wait for whoever holds the state lock; if that was a run of ours that is dead, unlock "
    "it by its id: `reconcile --unlock LOCK_ID --reason WHY`",
    "apply": "read what the provider said; then fix the input, retry once capacity, quota or "
    "permission is there, or roll back to a verified run",
    "verify": "everything was applied: look at the service that the check asks, then verify "
    "again; roll back if it stays down",
    "destroy": "look at what still uses the objects that remain, then destroy again",
    "readback": "look at region, account and credentials that the provider was asked with; then "
    "reconcile",
    "record": "look at the operation store: disk, permissions, server; the next mutating command "
    "records what waits in the spool",
    "surgery": "compare the provider state with what exists, adopt or import what it misses, then "
    "reconcile",
}


_OTHER_NAME = (
    "an object of that name exists already. Where it is this step's, import it; else choose "
    "another name"
)
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
    "exists_already": _OTHER_NAME,
    "backend_changed": "the blueprint says another place for the provider state than it is in: "
    "`backend move TARGET` takes it there, or set the backend back",
    "state_of_another": "one provider state belongs to one target: tell them apart in the "
    "backend's config, by ${environment} and ${step.name}",
    "errored_state": "save the provider state before anything else: `reconcile "
    "--push-errored-state`",
}


#: The fault of a hook that was cut short.
_CUT_SHORT: Mapping[HookKind, str] = {
    "compensate": "compensation_unknown",
    "before_destroy": "before_destroy_unknown",
}

#: Causes that the engine's own words tell, whatever the phase.
_COLLISION = re.compile(
    r"already\s*(exists|owned|in use)|AlreadyExist|AlreadyOwned|EntityExists|Duplicate",
    re.IGNORECASE,
)
_UNREACHED = re.compile(
    r"credential|ExpiredToken|InvalidClientTokenId|UnrecognizedClient|AuthFailure"
    r"|Unauthorized\b|\b401\b|AuthorizationHeaderMalformed|PermanentRedirect"
    r"|no such host|connection refused|i/o timeout|could not (connect|resolve)",
    re.IGNORECASE,
)
_ROUTE = (
    "look at region, account and credentials, and whether this machine reaches the provider and "
    "the state backend"
)
_NO_PROVIDER = re.compile(
    r"not found in any of the search locations|does not have a provider named"
    r"|no available releases match",
    re.IGNORECASE,
)
_PROVIDER = (
    "is the source of that provider right, and does its registry or mirror have such a version? "
    "Nothing was changed"
)
_UNREGISTERED = re.compile(
    r"could not connect to (?!the backend)\S*registry|failed to (request discovery document|query"
    r" available provider packages|install provider)",
    re.IGNORECASE,
)
_REGISTRY = (
    "can this machine reach that registry? If it must not, name a mirror in the CLI configuration "
    "(TF_CLI_CONFIG_FILE). Nothing was changed"
)
_NOT_OF_MODULE = re.compile(r"does not exist in the configuration", re.IGNORECASE)
_ADDRESS = "name an address that the module has. Nothing was changed"
_UNDECRYPTED = re.compile(r"the state cannot be decrypted")
_KEY = (
    "give the key that it was written with, by TF_ENCRYPTION or the module's encryption block; a "
    "former key, or `unencrypted`, as its fallback"
)
_CONFIGURATION = "fix the input or the configuration at the place named. Nothing was changed"
_CRASHED = (
    "the engine itself crashed: its first words say why. Change what they name, or use another "
    "version of the engine, by --engine; then the same command goes on from here"
)
_KILLED = "the engine was killed, and nothing is in doubt: the same command goes on from here"
_DOUBTS = "reconcile asks what became of what is in doubt; nothing is made again before"
_OURS = "the provider has what is in doubt: adopt it; nothing is made again before"
_UNPROVEN = "look whether what was found is this step's; nothing is made again before"
_LOOK = (
    "nothing here can tell: look by hand, then adopt what exists or forget what does not; nothing "
    "is made again before"
)


def hint_of(fault: Fault, doubts: Collection[Doubt] = ()) -> str | None:
    """
    The hint for the cause of a fault that left ``doubts``; None for a refusal that brings a hint of
    its own only, and where a person stopped it.
    """
    if fault.code in (*get_args(Reason), "stopped") and doubts:
        return _doubt_hint(doubts)
    if fault.code in CODE_HINTS:
        return CODE_HINTS[fault.code]
    if fault.code in (*get_args(Reason), "stopped"):
        return None
    if fault.hook is not None:  # its time was up
        return CODE_HINTS[_CUT_SHORT[fault.hook]]
    if fault.phase == "lock":
        return PHASE_HINTS["lock"]
    errors = [item for item in fault.diagnostics if item.severity == "error"]
    text = " ".join([fault.summary, *(f"{d.summary} {d.detail}" for d in errors)])
    text = " ".join(text.split())  # the engine wraps its lines
    if _UNDECRYPTED.search(text):
        return _KEY
    if _COLLISION.search(text):
        return _OTHER_NAME
    crashed = CRASHED in text
    if crashed and not doubts:
        return _CRASHED
    if _NOT_OF_MODULE.search(text):
        return _ADDRESS
    if fault.phase in ("init", "plan"):
        if _NO_PROVIDER.search(text):
            return _PROVIDER
        if _UNREGISTERED.search(text):
            return _REGISTRY
        if _UNREACHED.search(text):
            return _ROUTE
        if any(d.at for d in errors):
            return _CONFIGURATION
    killed = fault.code in ("killed", "interrupted")
    if doubts:
        has_readback = any(doubt.readback for doubt in doubts)
        if has_readback or not (killed or crashed):
            return _doubt_hint(doubts)
        return f"the engine {'crashed' if crashed else 'was killed'}: {_DOUBTS}"
    if killed:
        return _KILLED
    return _ROUTE if _UNREACHED.search(text) else PHASE_HINTS[fault.phase]


def _doubt_hint(doubts: Collection[Doubt]) -> str:
    """
    What to do first about objects in doubt, by what the provider has been asked and said.
    """
    answers = [doubt.readback for doubt in doubts if doubt.readback is not None]
    if any(answer.adopts for answer in answers):
        return _OURS
    if any(answer.unproven for answer in answers):
        return _UNPROVEN
    if any(answer.ownership == "foreign" for answer in answers):
        return _OTHER_NAME
    if any(answer.verdict == "unknown" and _UNREACHED.search(answer.why) for answer in answers):
        return _ROUTE
    return _LOOK if len(answers) == len(doubts) else _DOUBTS
