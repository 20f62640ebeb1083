"""
The sentences about the remedies that `recover` lists: what they do, and why they cannot be taken.
Words in braces are filled in (`domain.recovery.commands`).
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.recovery.context import Remedy, Situation

_DOUBTFUL = (
    Situation.LOST,
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
    Remedy.DESTROY: "takes down what the provider state holds: {objects}",
    Remedy.MANUAL: "no evidence here tells what became of {doubts}: look {where} for what was done "
    "{window}, with the inputs in {inputs}. Once you know, {settle_by_hand}",
}
SITUATION_DESCRIPTIONS: Mapping[tuple[Remedy, Situation], str] = {
    (Remedy.RECONCILE, Situation.SILENT): "takes the step over and settles it from what is left, "
    "once you know that {unproven} is dead",
    (Remedy.RECONCILE, Situation.INTERRUPTED): "settles run {run} from what it left: answer, "
    "journal, provider state; only the record changes",
    (
        Remedy.RECONCILE,
        Situation.SPOOLED,
    ): "records the outcome that waits on disk, and looks again",
    (
        Remedy.RECONCILE,
        Situation.LOCKED,
    ): "releases the state lock that a dead run left{adopts}, and settles the step",
    **{
        (Remedy.RECONCILE, situation): "imports what left the provider state back into it, each by "
        "its recorded id; it shows the plan of that first"
        for situation in (Situation.STATE_EMPTIED, Situation.LOST)
    },
    (Remedy.REDEPLOY, Situation.SURGERY): "applies what the step still misses; it shows that first",
    (
        Remedy.MANUAL,
        Situation.VANISHED,
    ): "look {where}: were region, account and credentials right? "
    "If not, set them right and run the same command again. If so, and the objects are gone, the "
    "command {goes_on} all the same",
    (
        Remedy.RECONCILE,
        Situation.SEALED,
    ): "decrypts the unsaved state with the key of the step, pushes it to the backend if lineage "
    "and serial fit, and looks again",
    (
        Remedy.RECONCILE,
        Situation.UNSAVED,
    ): "pushes the unsaved state to the backend, if lineage and serial fit, and looks again",
    (
        Remedy.RECONCILE,
        Situation.FOUND,
    ): "adopts what the provider has of {doubts}, and looks again",
    (Remedy.RECONCILE, Situation.IN_DOUBT): "asks provider state, a plan and the provider what "
    "became of {doubts}; only the record changes",
    (Remedy.RECONCILE, Situation.LEFT): "looks again: {doubts} may be back in the provider state; "
    "only the record changes",
    **{
        (Remedy.RECONCILE, situation): "asks once more; only the record changes"
        for situation in (Situation.UNPROVEN, Situation.FOREIGN)
    },
    (
        Remedy.RECONCILE,
        Situation.UNANSWERABLE,
    ): "asks once more what became of {doubts}; only the record changes",
    (Remedy.VERIFY, Situation.CHECKS): "runs the checks again; everything was applied",
    **{
        (Remedy.REDEPLOY, situation): "applies it; where its provider state holds objects already, "
        "that is refused and they are adopted instead"
        for situation in (Situation.NEVER, Situation.UNRECORDED)
    },
    (Remedy.REDEPLOY, Situation.GONE): "applies it anew",
    (Remedy.REDEPLOY, Situation.DESTROYING): "applies it again instead of taking down the rest",
    (Remedy.REDEPLOY, Situation.TARGETED): "applies all of it, and not only {targets}",
    (Remedy.DESTROY, Situation.INTERRUPTED): "settles run {run}, then takes down what exists; it "
    "ends `error`, not `destroyed`, while anything stays in doubt",
    **{
        (Remedy.DESTROY, situation): "goes on with what is left: {objects}; it ends `error`, not "
        "`destroyed`, while {doubts} stays in doubt"
        for situation in _DOUBTFUL
    },
    (Remedy.DESTROY, Situation.DESTROYING): "goes on with what is left: {objects}",
    (
        Remedy.MANUAL,
        Situation.SILENT,
    ): "nobody can tell from here whether {unproven} is alive: look "
    "on that machine for it and for its engine",
    (
        Remedy.MANUAL,
        Situation.STATE_REPLACED,
    ): "restore the provider state that was applied ({state}). "
    "Only if that is lost: put the one that is there aside, then the command imports every "
    "recorded object into a new one",
    (Remedy.RECONCILE, Situation.STATE_BACK): "records what the older provider state still holds; "
    "what it lacks becomes a doubt. If a newer one can be had ({state}), restore that instead",
    (Remedy.MANUAL, Situation.UNPROVEN): "the provider has {unproven_ids}, and nothing proves that "
    "this step made it: look at it. If it is this step's, the command takes it over by your word; "
    "if it is not, `--forget` alone ends the doubt",
    (Remedy.MANUAL, Situation.FOREIGN): "the provider has {foreign_ids}, and that is not this "
    "step's: another name for {doubts} makes way. The command ends the doubt",
    (Remedy.MANUAL, Situation.FOUND): "where what was found is not of this step, or what was not "
    "found does not matter: the command forgets {doubts}",
    **{
        (Remedy.MANUAL, situation): "{doubts} left the provider state, and not by a delete of this "
        "tool: look {where} whether it exists. If it does, take it back: `{take_back}`; the "
        "command forgets it"
        for situation in (Situation.LOST, Situation.LEFT)
    },
    (
        Remedy.MANUAL,
        Situation.CUT_SHORT,
    ): "no evidence tells what {work} did in run {run} before it "
    "was cut short: look at what it changes. The command carries it out again",
    (
        Remedy.MANUAL,
        Situation.UNSAVED,
    ): "compare the unsaved state with the provider state; the command "
    "puts it aside where the state is sound without it",
}

#: Why a remedy cannot be taken, by the code of the reason.
REFUSALS: Mapping[str, str] = {
    "live": "{working}",
    "claimed": "{working}",
    "silent": "{unproven} may be alive",
    "spooled": "the outcome of run {run} waits on disk: record it first",
    "interrupted": "run {run} was interrupted: settle it first",
    "errored_state": "the newest provider state is not saved: push it or put it aside first",
    "state_locked": "a dead run of ours left the provider state locked: release that lock first",
    "state_emptied": "its recorded objects have left the provider state: reconcile that first",
    "state_replaced": "the provider state is not the one that was applied: restore that one first",
    "state_back": "the provider state has gone back: restore its newest version, or reconcile",
    "vanished": "it needs what the newest attempt could not find: the recorded objects",
    "settling": "for another {settling} s a request may be under way: nothing is forgotten before",
    "misplaced": "{misplaced}",
    "prevent_destroy": "prevent_destroy protects it: take that out of the module, and apply it",
    "hook_target": "it is the module of a hook: that runs with its step",
    "orphaned": "it is no longer in the blueprint: it can be settled and destroyed",
    "in_doubt": "in doubt: {doubts}; settle that first",
    "unrecorded_state": "nothing of it is recorded as there, and its provider state holds objects: "
    "adopt them first",
    "no_record": "no record of it is here",
    "nothing_there": "nothing of it is there ({status})",
    "upstream": "it needs {unready}: recover that first",
    "child_left": "{children} went with it and is still recorded as alive; finish that destroy "
    "first: `{finish}`",
    "unknown_run": "no earlier run is known in which it ended ok",
    "none_declared": "the step declares no compensation",
    "module_in_doubt": "in doubt in the module of its action: {module}; reconcile that first",
    "nothing_done": "nothing of it was completed",
    "compensated": "it was compensated since it was applied; `compensate --repeat WHY` does "
    "it again",
    "dependents": "alive and in need of it: {dependents}; take them down first, or together: "
    "`{together}`",
    "not_running": "nothing of it is going on",
    "nothing_uncertain": "nothing about it is uncertain",
    "not_applied": "checks are for what is applied",
    "not_failed": "no apply of it has failed",
    "retained": "it is kept ({kept}); first release it, `{release}`, and take `retain` out of the "
    "blueprint if it is there",
    "nothing_missing": "no evidence is missing",
}
