"""
The commands that the end of a run, ``status`` and ``recover`` offer next.

All of them come from the advice on single steps (`domain.recovery.advice`), so that no two screens
disagree. A command keeps the selection and options of the one that ended, which `EndedCommand`
holds. Nothing here reads or writes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from orchestrator.domain.record.record import OperationRecord, parent_of
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.record.states import NOTHING_THERE, Status
from orchestrator.domain.recovery.advice import Advice
from orchestrator.domain.recovery.command_line import (
    BlueprintAddress,
    accept_restored_command,
    command_line,
    copy_records_command,
    doubt_options,
    named_steps,
)
from orchestrator.domain.recovery.commands import command_of, destroy_options, make_way, move_state
from orchestrator.domain.recovery.context import Remedy, Situation
from orchestrator.domain.recovery.rerun_rules import APPLYING
from orchestrator.domain.target import hook_of, step_of
from orchestrator.errors import StoreUnavailable

#: The remedy that stands for carrying on with a command.
_REMEDY_OF: Mapping[str, Remedy] = {
    "apply": Remedy.REDEPLOY,
    "redeploy": Remedy.REDEPLOY,
    "retry": Remedy.RETRY,
    "rollback": Remedy.ROLLBACK,
    "verify": Remedy.VERIFY,
    "compensate": Remedy.COMPENSATE,
    "destroy": Remedy.DESTROY,
}
#: What a command over several steps is for, by the remedy that is recommended for each of them.
_PURPOSES: Mapping[Remedy, str] = {
    Remedy.RECONCILE: "settle what is uncertain; an apply is refused until then",
    Remedy.VERIFY: "run the checks again; everything was applied",
    Remedy.RETRY: "apply again what that run left undone, from the files that it had",
    Remedy.REDEPLOY: "apply what is still missing; it shows that first",
    Remedy.COMPENSATE: "continue the compensation, once the cause is fixed",
    Remedy.DESTROY: "continue the destroy",
}


class EndedCommand(Struct, frozen=True):
    """
    A command that ended, with its options as words of a command line.

    ``selection`` selects its steps, ``engine`` the engine, ``inputs`` are its inputs. ``own`` are
    other options, which only the same command repeats; ``given`` are repeated only if it did
    nothing. ``accepting`` are the options that accept the refusal that ended it; ``is_refused`` is
    true after a refusal.
    """

    blueprint: BlueprintAddress
    verb: str
    selection: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    accepting: tuple[str, ...] = ()
    is_refused: bool = False
    is_orphaned: bool = False

    def again(self, *options: str) -> str:
        """
        Return the same command with the same options; an option that accepts a refusal may change
        the selection.
        """
        return command_line(
            self.blueprint,
            self.verb,
            *(() if "--step" in self.accepting else self.selection),
            *self.inputs,
            *self.engine,
            *self.own,
            *self.accepting,
            *options,
        )

    def plan(self) -> str:
        """
        Return the command that plans the same again, for a new approval.
        """
        mode = ("--destroy",) if self.verb == "destroy" else ()
        words = (*mode, *self.selection, *self.inputs, *self.engine, "--out", "approval.json")
        return command_line(self.blueprint, "plan", *words)

    def other(self, verb: str, steps: Collection[str] | None = None) -> str:
        """
        Return another command over the same selection, or over ``steps``.
        """
        words = self.selection
        if steps is not None:
            orphaned = ("--orphaned",) if self.is_orphaned else ()
            words = (*orphaned, *named_steps(steps))
        inputs = self.inputs if verb in ("apply", "redeploy") else ()
        engine = () if verb in ("recover", "status") else self.engine
        return command_line(self.blueprint, verb, *words, *inputs, *engine)


def look_closer(blueprint: BlueprintAddress, *options: str) -> NextCommand:
    """
    Return the command that shows what is known of every step.
    """
    return NextCommand(
        command=command_line(blueprint, "recover", *options),
        why="what is known of every step, and what is safe now",
    )


def after_run(
    ended: EndedCommand,
    unfinished: Sequence[Advice],
    *,
    alive: Sequence[Advice] = (),
) -> tuple[NextCommand, ...]:
    """
    Return the next commands after a run: ``unfinished`` are its steps that need something,
    ``alive`` those with live objects.
    """
    # What keeps all else from being taken comes first; then what a person has to look at; then
    # the command that ended, only where it would not be refused again.
    selection = ended.selection if "--exclude" not in ended.selection else ()
    look = () if ended.is_orphaned else (look_closer(ended.blueprint, *selection),)
    if any(item.recommended is Remedy.WAIT for item in unfinished):
        wait = ended.again(*ended.given, "--wait")
        return (NextCommand(command=wait, why="wait for the run in progress, then do this"), *look)
    commands = (
        *_settling(ended, unfinished),
        *look,
        *about_unadopted(ended.blueprint, unfinished),
        *_by_hand(ended, unfinished),
        *_other_remedies(ended, unfinished),
        *_continuing(ended, unfinished),
        *_destroying(ended, unfinished, alive),
    )
    unique: dict[str, NextCommand] = {}
    for item in commands:
        unique.setdefault(item.command, item)
    return tuple(unique.values())


def _settling(ended: EndedCommand, steps: Iterable[Advice]) -> Iterator[NextCommand]:
    """
    Yield the commands that settle what evidence can settle: by adoption, or step by step; else one
    for all.
    """
    plain = []
    for item in steps:
        if item.recommended is not Remedy.RECONCILE:
            continue
        if item.situation in (Situation.FOUND, Situation.DISPLACED):
            yield from _answers(item)
        elif item.situation in _NAMED_BY_COMMAND or hook_of(item.step) is not None:
            yield _recommended(item)
        elif ended.verb != "reconcile" or not _has_been_asked(item) or not any(_answers(item)):
            plain.append(item)
    if plain:
        wait = max(item.context.facts.settling for item in plain)
        why = _PURPOSES[Remedy.RECONCILE]
        if ended.verb == "reconcile" and wait:
            why = f"ask again in {wait:.0f} s, when no request can be under way any more"
        yield NextCommand(command=ended.other("reconcile", [item.step for item in plain]), why=why)


def _has_been_asked(item: Advice) -> bool:
    """
    Return whether all evidence on its doubts is known, so that another `reconcile` would find
    nothing new.
    """
    exists = any(d.readback and d.readback.verdict == "exists" for d in item.context.doubts)
    return bool(item.context.doubts) and (exists or not item.context.facts.settling)


#: Situations whose recommended command has an option of its own.
_NAMED_BY_COMMAND = (
    Situation.LOCKED,
    Situation.UNSAVED,
    Situation.SEALED,
    Situation.STATE_EMPTIED,
    Situation.LOST,
)
_SHORT: Mapping[Situation, str] = {
    Situation.LOCKED: "release the state lock that a dead run left, and settle the step",
    Situation.UNSAVED: "save the provider state that the engine could not save",
    Situation.SEALED: "save the provider state that the engine could not save, with its key",
    Situation.STATE_EMPTIED: "import what left the provider state back into it",
    Situation.LOST: "import what left the provider state back into it",
    Situation.OCCUPIED: "where what holds that address is not of this step: out of the provider "
    "state with it; then `reconcile --rebuild-state` imports what was recorded there",
    Situation.STATE_REPLACED: "once that state is set aside: import each recorded object by its id",
    Situation.NOT_IMPORTED: "with the id by which the provider imports it: adopt it",
    Situation.SILENT: "once you know that its process is dead: take over, and settle it",
    Situation.VANISHED: "once you know that region, account and credentials are right, and that "
    "the objects are gone",
    Situation.CUT_SHORT: "once you have looked at what it did: run it again",
}
#: Situations with doubts in which one command of a person is offered, instead of every answer.
_BY_ONE_COMMAND = (Situation.SILENT, Situation.NOT_IMPORTED)


def _recommended(item: Advice) -> NextCommand:
    """
    Return the recommended command of a step, as `recover` prints it.
    """
    assert item.recommended is not None, "there is a recommendation"
    command = command_of(item, item.recommended)
    assert command is not None, "what is recommended can be taken"
    why = _SHORT.get(item.situation) or _PURPOSES[item.recommended]
    return NextCommand(command=command, why=why)


def _by_hand(ended: EndedCommand, steps: Iterable[Advice]) -> Iterator[NextCommand]:
    """
    Yield the commands by which a person settles what evidence cannot.
    """
    for item in steps:
        is_reconciled = ended.verb == "reconcile" and _has_been_asked(item)
        if item.recommended is Remedy.MANUAL:
            by_command = not item.context.doubts or item.situation in _BY_ONE_COMMAND
            if item.context.can_be_asked_otherwise:
                yield NextCommand(
                    command=ended.other("reconcile", [item.step]),
                    why="once lines like those above in the blueprint say how to ask for it",
                )
            yield from [_recommended(item)] if by_command else _answers(item)
        elif item.situation in _NAMED_BY_COMMAND:
            continue  # a person's word is refused until that is out of the way
        elif item.recommended is Remedy.RECONCILE and is_reconciled:
            yield from _answers(item)


def _answers(item: Advice) -> Iterator[NextCommand]:
    """
    Yield the possible answers of a person about a step's objects in doubt.
    """
    rivals = item.context.rivals
    for options, why in doubt_options(item.context.doubts, rivals):
        if item.context.facts.settling and _says_missing(options):
            continue  # refused while a request may be under way
        words = (*options, "--reason", "WHY") if options else ()
        options = (*item.context.step_options, *words)
        command = command_line(item.context.blueprint, "reconcile", *options)
        yield NextCommand(command=command, why=why)
    if any(doubt.has_left_state and doubt.address in rivals for doubt in item.context.doubts):
        occupants = ", ".join(f"{id_} at {address}" for address, id_ in rivals.items())
        yield NextCommand(
            command=make_way(item.context),
            why=f"where {occupants} is not of this step: out of the provider state with it; then "
            "`reconcile --rebuild-state` imports what was recorded there",
        )


def _says_missing(options: Sequence[str]) -> bool:
    """
    Return whether an object is forgotten that is not adopted in the same command.
    """
    pairs = list(pairwise(options))
    adopted = [word for flag, word in pairs if flag == "--adopt"]
    return any(
        flag == "--forget" and not any(item.startswith(f"{word}=") for item in adopted)
        for flag, word in pairs
    )


def _other_remedies(ended: EndedCommand, steps: Sequence[Advice]) -> Iterator[NextCommand]:
    """
    Yield the recommended commands, except the one that ended: of retries and compensations one for
    each step, else one for all.
    """
    if any(item.situation is Situation.TARGETED for item in steps):
        yield NextCommand(command=ended.other("apply"), why="apply what was left out")
    for remedy in (Remedy.VERIFY, Remedy.RETRY, Remedy.REDEPLOY, Remedy.COMPENSATE, Remedy.DESTROY):
        items = [item for item in steps if item.recommended is remedy]
        # What failed of checks and compensations is done again for its steps, and for no others.
        is_own = remedy is _REMEDY_OF.get(ended.verb)
        if not items or (is_own and remedy not in (Remedy.VERIFY, Remedy.COMPENSATE)):
            continue
        if remedy in (Remedy.RETRY, Remedy.REDEPLOY) and ended.verb in APPLYING:
            continue  # the command that ended continues with it
        if remedy in (Remedy.RETRY, Remedy.COMPENSATE):
            yield from map(_recommended, items)
        else:
            verb = "apply" if remedy is Remedy.REDEPLOY else str(remedy)
            command = ended.other(verb, [item.step for item in items])
            yield NextCommand(command=command, why=_PURPOSES[remedy])


def _continuing(ended: EndedCommand, steps: Sequence[Advice]) -> Iterator[NextCommand]:
    """
    Yield the ended command again, unless it would be refused.
    """
    if ended.verb == "move" and not ended.is_refused:
        for item in steps:
            if item.context.facts.misplaced is not None:
                yield NextCommand(
                    command=move_state(item.context), why="continue it, once the cause is fixed"
                )
    remedy = _REMEDY_OF.get(ended.verb)
    if remedy is None or ended.verb in ("verify", "compensate") or not steps:
        return
    if ended.is_refused and not ended.accepting:
        return
    remaining = steps
    if remedy is Remedy.RETRY:  # it skips what is well
        remaining = [i for i in steps if i.recommended or i.context.status is not Status.OK]
    if not remaining or not all(item.allows(remedy) for item in remaining):
        return
    if any(item.situation in (Situation.VANISHED, Situation.TARGETED) for item in steps):
        return  # its command is there already
    options: tuple[str, ...] = ()
    if remedy is Remedy.DESTROY:
        if not all(item.context.has_more_to_destroy for item in steps):
            return  # what nobody can destroy yet keeps what it needs
        repeated = {*ended.own, *ended.accepting}
        words = [word for item in steps for word in destroy_options(item.context)]
        needed = dict(zip(words[::2], words[1::2], strict=True))  # steps may need the same
        options = tuple(w for pair in needed.items() if pair[0] not in repeated for w in pair)
    purpose = "continue with what is left" if ended.verb == "destroy" else "continue from here"
    condition = "if what was refused is meant" if ended.accepting else "once the cause is fixed"
    yield NextCommand(command=ended.again(*options), why=f"{purpose}, {condition}")


def _destroying(
    ended: EndedCommand, unfinished: Sequence[Advice], alive: Sequence[Advice]
) -> Iterator[NextCommand]:
    offered = any(item.recommended is Remedy.DESTROY for item in unfinished)
    if ended.verb not in APPLYING or ended.is_refused or not alive or offered:
        return
    if any(item.context.doubts for item in unfinished):
        return  # it would not end `destroyed`
    items = (*alive, *unfinished)
    listed = {item.step for item in items}
    for item in items:
        facts = item.context.facts
        refused = not item.allows(Remedy.DESTROY) or facts.vanished or facts.lock is not None
        if refused or set(item.context.dependents) - listed or destroy_options(item.context):
            return
    yield NextCommand(
        command=ended.other("destroy"),
        why=f"destroy {'what exists of these steps' if ended.selection else 'all that exists'}",
    )


def about_store(blueprint: BlueprintAddress, refusal: StoreUnavailable) -> Iterator[NextCommand]:
    """
    Yield the commands after which mutating commands may rely on the operation store again.
    """
    match refusal.reason:
        case "records_elsewhere":
            yield NextCommand(
                command=copy_records_command(blueprint),
                why="copy the records of this machine to the operation store; nothing can be "
                "changed before that",
            )
        case "store_gone_back":
            yield NextCommand(
                command=command_line(blueprint, "adopt"),
                why="take under records what exists and is recorded as gone, or not at all",
            )
            yield NextCommand(
                command=command_line(blueprint, "reconcile"),
                why="bring the other records up to date from the provider states",
            )
            yield accept_restored(blueprint)


def accept_restored(blueprint: BlueprintAddress) -> NextCommand:
    """
    Return the command that accepts a store that has gone back.
    """
    return NextCommand(
        command=accept_restored_command(blueprint),
        why="believe the store, once all that moved since is reconciled",
    )


def about_unrecorded(
    blueprint: BlueprintAddress, refusal: StoreUnavailable | None
) -> Iterator[NextCommand]:
    """
    Yield the command that shows whether a blueprint without records here exists anywhere, and the
    one that adopts what does, unless the store ``refusal`` would refuse it.
    """
    yield NextCommand(
        command=command_line(blueprint, "plan"),
        why="no record here is not `never run`: this looks at the provider states",
    )
    if refusal is None:
        yield NextCommand(
            command=command_line(blueprint, "adopt"),
            why="take under records what the provider states hold already",
        )


def about_unadopted(blueprint: BlueprintAddress, steps: Iterable[Advice]) -> Iterator[NextCommand]:
    """
    Yield the command that adopts the provider states of steps without a record.
    """
    names = [item.step for item in steps if item.situation is Situation.UNADOPTED]
    if names:
        yield NextCommand(
            command=command_line(blueprint, "adopt", *named_steps(names)),
            why="take under records what the provider states hold already",
        )


def after_children(
    blueprint: BlueprintAddress, order: Iterable[str], records: Mapping[str, OperationRecord]
) -> Iterator[NextCommand]:
    """
    Yield the command that finishes the destroy of owned steps that are recorded as alive although
    their parent is gone. Orphans are handled by `about_orphans`.
    """
    children = []
    for step in order:
        record = records.get(step)
        parent = parent_of(record, records) if record else None
        alive = record is not None and record.status not in NOTHING_THERE
        if alive and parent is not None and parent.status in NOTHING_THERE:
            children.append(step)
    if children:
        yield NextCommand(
            command=command_line(blueprint, "destroy", *named_steps(children)),
            why=f"finish the destroy: {', '.join(children)} went with a parent that is gone",
        )


def about_orphans(
    blueprint: BlueprintAddress, orphaned: Collection[str], records: Mapping[str, OperationRecord]
) -> Iterator[NextCommand]:
    """
    Yield the commands for orphans; none if an earlier version applied one without storing its
    deployment: all would be refused.
    """
    alive = [r for _, r in sorted(records.items()) if str(r.target) in orphaned]
    steps = [record for record in alive if step_of(record.target.step) == record.target.step]
    if any(record.deployment is None for record in steps):
        return
    uncertain = [
        str(record.target)
        for record in alive
        if record.status is Status.RUNNING or record.resources.in_doubt
    ]
    if uncertain:
        yield NextCommand(
            command=command_line(blueprint, "reconcile", "--orphaned"),
            why=f"settle what is uncertain of {', '.join(uncertain)}",
        )
    retained = [record for record in alive if record.status is Status.RETAINED]
    if len(retained) < len(alive):
        yield NextCommand(
            command=command_line(blueprint, "destroy", "--orphaned"),
            why="destroy what is no longer in the blueprint, as it was applied",
        )
    for record in retained:
        options = ("--orphaned", "--step", record.target.step, "--reason", "WHY")
        kept, why = record.retained, f"{record.target} is retained"
        if kept is not None:
            why += f" for {kept.reason} ({kept.owner}, review by {kept.review_by})"
        yield NextCommand(
            command=command_line(blueprint, "release", *options),
            why=f"{why}: no destroy touches it before it is released",
        )


def about_all(
    blueprint: BlueprintAddress, steps: Sequence[Advice], *, waiting: bool
) -> Iterator[NextCommand]:
    """
    Yield what `recover` offers beyond single steps; ``waiting``: some steps never ran.
    """
    failed = [item for item in steps if item.context.status in (Status.ERROR, Status.RUNNING)]
    if any(item.context.facts.vanished for item in failed):
        return  # refused until a person says that its objects are gone: by its own command
    advised = {item.recommended for item in failed if item.recommended}
    runs = {item.context.facts.failed_run for item in failed}
    if waiting and advised == {Remedy.RETRY} and len(runs) == 1:
        yield NextCommand(
            command=command_line(blueprint, "retry"),
            why="all that the failed run left undone, from the files that it had",
        )
    if waiting and failed and all(item.allows(Remedy.REDEPLOY) for item in failed):
        yield NextCommand(
            command=command_line(blueprint, "apply", "--unfinished"),
            why="continue with the rest, from the current files",
        )
