"""
The sentences about the remedies that `recover` lists: what they do, and why they are not available.
Words in braces are placeholders (`domain.recovery.commands`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import get_args

from orchestrator.domain.record.objects import Doubt
from orchestrator.domain.record.record import CRASHED, Fault, Phase
from orchestrator.domain.recovery.context import Remedy, Situation
from orchestrator.domain.target import HookKind
from orchestrator.errors import Reason

_DOUBTFUL = (
    Situation.LOST,
    Situation.NOT_IMPORTED,
    Situation.FOUND,
    Situation.UNPROVEN,
    Situation.FOREIGN,
    Situation.IN_DOUBT,
    Situation.LEFT,
    Situation.UNANSWERABLE,
)

#: What a remedy does, where it can be taken; `SPECIAL` where a situation makes it special.
DESCRIPTIONS: Mapping[Remedy, str] = {
    Remedy.WAIT: "{working}: wait for it, then look again",
    Remedy.RECONCILE: "checks again: `ok` where a plan with the recorded inputs is empty and the "
    "checks pass; only the record changes",
    Remedy.VERIFY: "runs the checks and records their verdict; nothing else changes",
    Remedy.RETRY: "re-applies run {failed}: its module snapshot and inputs, with current secrets",
    Remedy.REDEPLOY: "applies the current module, blueprint and inputs: a new attempt",
    Remedy.ROLLBACK: "applies what run {earlier} applied, the newest in which the step was "
    "verified, and checks it again",
    Remedy.COMPENSATE: "runs the compensation that the step declares; it is recorded and resumable",
    Remedy.DESTROY: "destroys what the provider state holds: {objects}",
    Remedy.MANUAL: "no evidence here shows what happened to {doubts}: look {where} for what was "
    "done {window}, with the inputs in {inputs}. Once you know, {settle_by_hand}",
}
#: What is done after a move of the provider state that was cut short.
MOVING = "settles run {run}, which moved the provider state, and continues the move"
SITUATION_DESCRIPTIONS: Mapping[Remedy, Mapping[Situation, str]] = {
    Remedy.RECONCILE: {
        Situation.SILENT: "takes the step over and settles it from what is left, once you know "
        "that {unproven} is dead",
        Situation.INTERRUPTED: "settles run {run} from what it left: answer, journal, provider "
        "state; only the record changes",
        Situation.SPOOLED: "records the outcome that waits on disk, and looks again",
        Situation.LOCKED: "releases the state lock that a dead run left{adopts}, and settles the "
        "step",
        **dict.fromkeys(
            (Situation.STATE_EMPTIED, Situation.LOST),
            "imports what left the provider state back into it, each by its recorded id; it shows "
            "the plan of that first",
        ),
        Situation.SEALED: "decrypts the unsaved state with the key of the step, pushes it to the "
        "backend if lineage and serial fit, and looks again",
        Situation.UNSAVED: "pushes the unsaved state to the backend, if lineage and serial fit, "
        "and looks again",
        Situation.FOUND: "adopts what the provider has of {doubts}, and looks again",
        Situation.NOT_IMPORTED: "once its cause is fixed: imports {doubts} again by its own id",
        Situation.DISPLACED: "once you have deleted {displaced} by hand, for another object has "
        "its address: queries the provider again, which ends the doubt",
        Situation.IN_DOUBT: "checks provider state, a plan and the provider for {doubts}; only "
        "the record changes",
        Situation.LEFT: "looks again: {doubts} may be back in the provider state; only the record "
        "changes",
        **dict.fromkeys(
            (Situation.UNPROVEN, Situation.FOREIGN),
            "queries the provider again; only the record changes",
        ),
        Situation.UNANSWERABLE: "checks again for {doubts}; only the record changes",
        Situation.OCCUPIED: "looks again, and leaves what has lost its address in doubt; only the "
        "record changes",
        Situation.STATE_BACK: "records what the older provider state still holds; what it lacks "
        "becomes a doubt. If a newer one can be had ({state}), restore that instead",
    },
    Remedy.VERIFY: {
        Situation.CHECKS: "runs the checks again; everything was applied",
    },
    Remedy.REDEPLOY: {
        Situation.SURGERY: "applies what the step still misses; it shows that first",
        **dict.fromkeys(
            (Situation.NEVER, Situation.UNRECORDED),
            "applies it; where its provider state holds objects already, that is refused and they "
            "are adopted instead",
        ),
        Situation.GONE: "applies it again",
        Situation.DESTROYING: "applies it again instead of destroying the rest",
        Situation.TARGETED: "applies all of it, and not only {targets}",
    },
    Remedy.DESTROY: {
        Situation.INTERRUPTED: "settles run {run}, then destroys what exists; it ends `error`, "
        "not `destroyed`, while anything stays in doubt",
        **dict.fromkeys(
            _DOUBTFUL,
            "continues with what is left: {objects}; it ends `error`, not `destroyed`, while "
            "{doubts} stays in doubt",
        ),
        Situation.DISPLACED: "also destroys what has the address of {displaced}, which can be "
        "adopted then; it ends `error`, not `destroyed`",
        Situation.DESTROYING: "continues with what is left: {objects}",
    },
    Remedy.MANUAL: {
        Situation.VANISHED: "look {where}: were region, account and credentials right? If not, "
        "set them right and run the same command again. If so, and the objects are gone, the "
        "command {goes_on} all the same",
        Situation.SILENT: "from here it cannot be determined whether {unproven} is alive: look on "
        "that machine for it and for its engine",
        Situation.STATE_REPLACED: "restore the provider state that was applied ({state}). Only if "
        "that is lost: set the current one aside, then the command imports every recorded object "
        "into a new one",
        Situation.OCCUPIED: "look what the provider state holds at {occupied}: another object "
        "than the recorded one. The command removes it from the state (and deletes nothing); then "
        "`{rebuild}` imports the recorded one",
        Situation.UNPROVEN: "the provider has {unproven_ids}, and nothing proves that this step "
        "made it: look at it. If it is this step's, the command adopts it by your word; if it is "
        "not, `--forget` alone ends the doubt",
        Situation.FOREIGN: "the provider has {foreign_ids}, and that is not this step's: choose "
        "another name for {doubts}. The command ends the doubt",
        Situation.NOT_IMPORTED: "some types are imported by another id than their own, such as "
        "PARENT/ID: the documentation of the provider says which. The command adopts {doubts} by "
        "that id",
        Situation.FOUND: "where what was found is not of this step, or what was not found does "
        "not matter: the command forgets {doubts}",
        Situation.DISPLACED: "where it does not matter that {displaced} is there: the command "
        "ends the doubt by your word",
        **dict.fromkeys(
            (Situation.LOST, Situation.LEFT),
            "{doubts} left the provider state, and not by a delete of this tool: look {where} "
            "whether it exists. If it does, import it: `{take_back}`; the command forgets it",
        ),
        Situation.CUT_SHORT: "no evidence shows what {work} did in run {run} before it was "
        "interrupted: look at what it changes. The command runs it again",
        Situation.UNSAVED: "compare the unsaved state with the provider state; the command sets "
        "it aside where the state is sound without it",
    },
}

#: Why a remedy cannot be taken, by the code of the reason.
REFUSALS: Mapping[str, str] = {
    "records_elsewhere": "its records are on this machine only: copy them to the operation store "
    "first",
    "no_shared_store": "no operation store is known for its backend: name one first, by "
    "`operations.url`",
    "store_gone_back": "the operation store has gone back: reconcile what it holds, and accept it, "
    "first",
    "live": "{working}",
    "claimed": "{working}",
    "silent": "{unproven} may be alive",
    "spooled": "the outcome of run {run} waits on disk: record it first",
    "interrupted": "run {run} was interrupted: settle it first",
    "errored_state": "the newest provider state is not saved: push it or set it aside first",
    "state_locked": "a dead run of ours left the provider state locked: release that lock first",
    "state_emptied": "its recorded objects have left the provider state: reconcile that first",
    "occupied": "the provider state holds another object at {occupied}: remove it first",
    "state_replaced": "the provider state is not the one that was applied: restore that one first",
    "state_back": "the provider state has gone back: restore its newest version, or reconcile",
    "vanished": "it needs what the newest attempt could not find: the recorded objects",
    "settling": "for another {settling} s a request may be under way: nothing is forgotten before",
    "misplaced": "{misplaced}",
    "prevent_destroy": "prevent_destroy protects it: remove it from the module, and apply",
    "hook_target": "it is the module of a hook: that runs with its step",
    "orphaned": "it is no longer in the blueprint: it can be settled and destroyed",
    "in_doubt": "in doubt: {doubts}; settle that first",
    "unrecorded_state": "no live object of it is recorded, and its provider state holds objects: "
    "adopt them first",
    "no_record": "it has no record here",
    "nothing_there": "none of it exists ({status})",
    "upstream": "it needs {unready}: recover that first",
    "child_left": "{children} went with it and is still recorded as alive; finish that destroy "
    "first: `{finish}`",
    "unknown_run": "no earlier run is known in which it ended ok",
    "none_declared": "the step declares no compensation",
    "module_in_doubt": "in doubt in the module of its action: {module}; reconcile that first",
    "nothing_done": "it has no completed work",
    "compensated": "it was compensated since it was applied; `compensate --repeat WHY` does "
    "it again",
    "dependents": "alive and dependent on it: {dependents}; destroy them first, or together: "
    "`{together}`",
    "not_running": "nothing is in progress",
    "nothing_uncertain": "nothing about it is uncertain",
    "not_applied": "checks are for what is applied",
    "not_failed": "no apply of it has failed",
    "retained": "it is retained ({kept}); first release it, `{release}`, and remove `retain` from "
    "the blueprint if it is there",
    "nothing_missing": "no evidence is missing",
}

# What to do first about a fault, by its cause: as far as that can be told from its code and from
# what the engine said, else by the phase in which it happened.


PHASE_HINTS: Mapping[Phase, str] = {
    "settings": "fix the settings: orchestrator.yaml, environment variables, options; nothing was "
    "changed",
    "blueprint": "fix the blueprint or the input at the place named; nothing was changed",
    "module": "fix the module at the place named; nothing was changed",
    "engine": "look at the engine: `orchestrator engine info` shows which one is used and why; "
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
    "readback": "check region, account and credentials of the provider; then reconcile",
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
    "compensation_failed": "read what it said and fix the cause; the same command continues here",
    "compensation_unknown": _REPEAT.format("compensate --repeat"),
    "before_destroy_failed": "nothing of the step was destroyed: fix the cause and destroy again, "
    "or skip it with `destroy --skip-before-destroy WHY`",
    "before_destroy_unknown": "nothing of the step was destroyed: "
    + _REPEAT.format("destroy --repeat-before-destroy"),
    "unapplied": "look at what an apply would change (`plan`); apply it, or reconcile if that is "
    "nothing",
    "other_object": "remove it with `exec TARGET -- state rm ADDRESS`, then adopt the one "
    "that is in doubt",
    "managed_twice": "remove it from one of the addresses with `exec TARGET -- state rm ADDRESS`: "
    "what is managed twice is changed twice",
    "exists_already": _OTHER_NAME,
    "backend_changed": "the blueprint names another place for the provider state than it is in: "
    "`backend move TARGET` moves it there, or set the backend back",
    "state_of_another": "one provider state belongs to one target: make them differ in the "
    "backend's config, by ${environment} and ${step.name}",
    "errored_state": "save the provider state before anything else: `reconcile "
    "--push-errored-state`",
}


#: The fault of a hook that was interrupted.
_CUT_SHORT: Mapping[HookKind, str] = {
    "compensate": "compensation_unknown",
    "before_destroy": "before_destroy_unknown",
}

#: Causes that the engine's own words tell, whatever the phase.
_COLLISION = r"(?i)already\s*(exists|owned|in use)|AlreadyExist|AlreadyOwned|EntityExists|Duplicate"
_UNREACHED = (
    r"(?i)credential|ExpiredToken|InvalidClientTokenId|UnrecognizedClient|AuthFailure"
    r"|Unauthorized\b|\b401\b|AuthorizationHeaderMalformed|PermanentRedirect"
    r"|no such host|connection refused|i/o timeout|could not (connect|resolve)"
)
_ROUTE = (
    "look at region, account and credentials, and whether this machine reaches the provider and "
    "the state backend"
)
_NO_PROVIDER = (
    r"(?i)not found in any of the search locations|does not have a provider named"
    r"|no available releases match"
)
_PROVIDER = (
    "is the source of that provider right, and does its registry or mirror have such a version? "
    "Nothing was changed"
)
_UNREGISTERED = (
    r"(?i)could not connect to (?!the backend)\S*registry|failed to (request discovery document"
    r"|query available provider packages|install provider)"
)
_REGISTRY = (
    "can this machine reach that registry? If it must not, name a mirror in the CLI configuration "
    "(TF_CLI_CONFIG_FILE). Nothing was changed"
)
_NOT_OF_MODULE = r"(?i)does not exist in the configuration"
_ADDRESS = "name an address that the module has. Nothing was changed"
_UNDECRYPTED = r"the state cannot be decrypted"
_KEY = (
    "give the key that it was written with, by TF_ENCRYPTION or the module's encryption block; a "
    "former key, or `unencrypted`, as its fallback"
)
_CONFIGURATION = "fix the input or the configuration at the place named. Nothing was changed"
_CRASHED = (
    "the engine itself crashed: its first words say why. Change what they name, or use another "
    "version of the engine, by --engine; then the same command continues from here"
)
_KILLED = "the engine was killed, and nothing is in doubt: the same command continues from here"
_DOUBTS = "reconcile finds out about the objects in doubt; nothing is created again before that"
_OURS = "the provider has the object in doubt: adopt it; nothing is created again before that"
_TAKEN = (
    "the provider has the object in doubt, and its address holds another object: delete it by "
    "hand, and reconcile; nothing is created again before that"
)
_UNPROVEN = "look whether what was found is this step's; nothing is created again before that"
_LOOK = (
    "no evidence here can settle it: look by hand, then adopt what exists or forget what does not; "
    "nothing is created again before that"
)


def hint_of(fault: Fault, doubts: Collection[Doubt] = ()) -> str | None:
    """
    Return the hint for the cause of a fault that left ``doubts``. None for a refusal, which has
    only its own hint, and after a stop by a person.
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
    if re.search(_UNDECRYPTED, text):
        return _KEY
    if re.search(_COLLISION, text):
        return _OTHER_NAME
    crashed = CRASHED in text
    if crashed and not doubts:
        return _CRASHED
    if re.search(_NOT_OF_MODULE, text):
        return _ADDRESS
    if fault.phase in ("init", "plan"):
        if re.search(_NO_PROVIDER, text):
            return _PROVIDER
        if re.search(_UNREGISTERED, text):
            return _REGISTRY
        if re.search(_UNREACHED, text):
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
    return _ROUTE if re.search(_UNREACHED, text) else PHASE_HINTS[fault.phase]


def _doubt_hint(doubts: Collection[Doubt]) -> str:
    """
    Return what to do first about objects in doubt, depending on the provider's answers.
    """
    answers = [doubt.readback for doubt in doubts if doubt.readback is not None]
    if any(answer.adopts for answer in answers):
        return _OURS
    if any(answer.ownership == "ours" and not answer.adoptable for answer in answers):
        return _TAKEN
    if any(answer.unproven for answer in answers):
        return _UNPROVEN
    if any(answer.ownership == "foreign" for answer in answers):
        return _OTHER_NAME
    if any(answer.verdict == "unknown" and re.search(_UNREACHED, answer.why) for answer in answers):
        return _ROUTE
    return _LOOK if len(answers) == len(doubts) else _DOUBTS
