"""
One request per command, the options that all of them share, and the steps that they select.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec import Struct, field

from orchestrator.app.schedule import OnFailure
from orchestrator.app.steps.engine_plan import PlanOptions
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.destroy import with_children
from orchestrator.domain.record.record import Lineage
from orchestrator.domain.target import hook_of, shown_step
from orchestrator.domain.text import Json, did_you_mean
from orchestrator.domain.values import changed_fields
from orchestrator.errors import PlanChanged, Usage

Verb = Literal[
    "apply", "destroy", "verify", "reconcile", "adopt", "import", "exec", "retain", "release",
    "retry", "redeploy", "rollback", "compensate",
    "move",
]  # fmt: skip

_RETENTION = ("retain", "release")

#: The options that the run record does not keep among the arguments: they do not decide what is
#: done, or the record has a field of its own for them.
_NOT_ARGUMENTS = {
    "options", "plan", "lineage", "engine", "skip_preflight", "jobs", "wait", "reason", "approval",
    "request_token", "confirm", "interactive", "inputs_given", "values", "locking", "only_refresh",
    "reviewed",
}  # fmt: skip


class ImportSpec(Struct, frozen=True):
    """
    An existing object, and the address to import it at.
    """

    address: str
    object_id: str

    @classmethod
    def parse(cls, text: str) -> ImportSpec:
        """
        Parse ``ADDRESS=ID``; keys in the address may hold "=". Raises ValueError if it is invalid.

        >>> ImportSpec.parse('aws_x.y["a=b"]=i-1=2')
        ImportSpec(address='aws_x.y["a=b"]', object_id='i-1=2')
        """
        parts = _IMPORT_SPEC.fullmatch(text)
        if parts is None:
            raise ValueError(f"{text!r} is not ADDRESS=ID")
        return cls(parts[1], parts[2])

    def __str__(self) -> str:
        return f"{self.address}={self.object_id}"


_IMPORT_SPEC = re.compile(r'((?:[^"=]|"(?:[^"\\]|\\.)*")+)=(.+)', re.DOTALL)


class RunOptions(Struct, frozen=True, kw_only=True):
    """
    The options that commands share.

    ``steps`` and ``exclude`` are patterns (`Graph.select`); ``orphaned`` selects among the orphans.
    ``at`` is the sequence that the newest entry of the one selected step must have, 0 for no
    record: the entry on which the command was offered. ``takeover`` and ``skip_preflight`` (start
    although steps could not be prepared) are reasons, ``confirm`` is the name of a protected
    environment. ``max_age`` is the maximal age of an approval in seconds. ``unavailable_secrets``
    are inputs that a destroy may do without. ``interactive``: the user can be asked.
    ``inputs_given``: the command line set inputs, so that a repetition must, too. ``engine`` is the
    option as given. ``request_token`` names the request: it is carried out once.
    """

    engine: str | None = None
    steps: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    orphaned: bool = False
    on_failure: OnFailure = OnFailure.STOP
    allow_engine_change: bool = False
    takeover: str | None = None
    at: int | None = None
    max_age: float | None = None
    unavailable_secrets: tuple[str, ...] = ()
    skip_preflight: str | None = None
    jobs: int = 4
    wait: bool = False
    reason: str | None = None
    request_token: str | None = None
    confirm: str | None = None
    interactive: bool = False
    inputs_given: bool = False
    plan: PlanOptions = field(default_factory=PlanOptions)


class RunRequest(Struct, frozen=True, kw_only=True):
    """
    The fields that all requests share. ``lineage`` is the earlier run that this one repeats;
    ``uses_current`` is true if it works with the current modules and requires all inputs, else it
    works with what is recorded.
    """

    verb: ClassVar[Verb]
    uses_current: ClassVar[bool] = False
    options: RunOptions = field(default_factory=RunOptions)
    lineage: Lineage | None = None

    @property
    def mutates(self) -> bool:
        """
        Whether it changes more than records, so that it must be approved.
        """
        return self.verb not in ("verify", "adopt", *_RETENTION)

    @property
    def needs_approval(self) -> bool:
        """
        Whether the user is asked first: for mutations, and for records that rest on a person's
        word.
        """
        return self.mutates

    @property
    def needs_confirmation(self) -> bool:
        """
        Whether the name of a protected environment is required: also for what widens or narrows a
        later destroy.
        """
        return self.mutates or self.verb in _RETENTION

    def arguments(self) -> dict[str, Json]:
        """
        Return the options for the run record: those that differ from their defaults.
        """
        arguments: dict[str, Json] = {}
        for part in (self.options, self.options.plan, self):
            for name, value in changed_fields(part):
                if name in _NOT_ARGUMENTS:
                    continue
                if isinstance(value, tuple):
                    arguments[name] = [str(item) for item in value]
                else:
                    arguments[name] = value if isinstance(value, int) else str(value)
        return arguments


class ApplyRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``apply``. ``unfinished`` leaves out steps that are ok; ``from_run`` is the run
    whose modules are promoted.
    """

    verb: ClassVar[Verb] = "apply"
    uses_current: ClassVar[bool] = True
    unfinished: bool = False
    from_run: str | None = None


class RedeployRequest(ApplyRequest, frozen=True, kw_only=True):
    """
    The request of ``redeploy``: a new attempt after the failed run ``from_run``.
    """

    verb: ClassVar[Verb] = "redeploy"


class RerunRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request to repeat an earlier run. ``from_run`` is its id, if given;
    ``accept_changed_secret`` names secrets that may differ from those of that run.
    """

    from_run: str | None = None
    accept_changed_secret: tuple[str, ...] = ()


class RetryRequest(RerunRequest, frozen=True, kw_only=True):
    """
    The request of ``retry``: apply what a failed run left undone.
    """

    verb: ClassVar[Verb] = "retry"


class RollbackRequest(RerunRequest, frozen=True, kw_only=True):
    """
    The request of ``rollback``: apply the steps as in an earlier run; ``unverified`` is the reason
    to accept one without checks.
    """

    verb: ClassVar[Verb] = "rollback"
    unverified: str | None = None


class DestroyRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``destroy``. ``skip_before_destroy`` is the reason to skip the hook, ``repeat``
    the reason to run it again.
    """

    verb: ClassVar[Verb] = "destroy"
    skip_before_destroy: str | None = None
    repeat: str | None = None


class CompensateRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``compensate``. ``repeat`` is the reason to repeat what was done, or may have
    been.
    """

    verb: ClassVar[Verb] = "compensate"
    repeat: str | None = None


class VerifyRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``verify``: run the checks of what is applied.
    """

    verb: ClassVar[Verb] = "verify"


class ReconcileRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``reconcile``: settle what is in doubt. The fields are the requested state
    operations, and whether the provider is queried for objects that are recorded as gone.
    """

    verb: ClassVar[Verb] = "reconcile"
    verify_destroyed: bool = False
    forget: tuple[str, ...] = ()
    adopt: tuple[ImportSpec, ...] = ()
    adopt_proven: bool = False
    rebuild_state: bool = False
    untaint: tuple[str, ...] = ()
    unlock: str | None = None
    push_errored_state: bool = False
    dismiss_errored_state: str | None = None

    @property
    def mutates(self) -> bool:
        per_object = self.adopt or self.untaint or self.unlock
        whole = self.adopt_proven or self.rebuild_state or self.push_errored_state
        return bool(per_object) or whole

    @property
    def needs_approval(self) -> bool:
        return self.mutates or bool(self.forget or self.dismiss_errored_state)


class AdoptRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``adopt``: start recording existing state; ``accept_changes`` is the reason to
    adopt what an apply would change.
    """

    verb: ClassVar[Verb] = "adopt"
    uses_current: ClassVar[bool] = True
    accept_changes: str | None = None


class ImportRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``import``: one object into one step.
    """

    verb: ClassVar[Verb] = "import"
    uses_current: ClassVar[bool] = True
    adopt: tuple[ImportSpec, ...]


class MoveRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``backend move``: move the provider state of one step to the blueprint's backend.
    """

    verb: ClassVar[Verb] = "move"


class ExecRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``exec``: an engine command, in words.
    """

    verb: ClassVar[Verb] = "exec"
    words: tuple[str, ...]


class RetainRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``retain``: steps that no destroy touches, with owner and date of review.
    """

    verb: ClassVar[Verb] = "retain"
    owner: str
    review_by: str


class ReleaseRequest(RunRequest, frozen=True, kw_only=True):
    """
    The request of ``release``: stop retaining steps.
    """

    verb: ClassVar[Verb] = "release"


class PlanRequest(Struct, frozen=True, kw_only=True):
    """
    The request of ``plan``: the steps, for an apply or a destroy; with ``separate`` each step on
    its own. Without ``locking`` the engine does not lock the provider state, which read-only
    credentials cannot. Without ``hooks`` a destroy does not plan the modules of `before_destroy`.
    Without ``values`` only the actions are read. ``affected`` are the steps that a change affects,
    with the reasons, if only those are planned.
    """

    options: RunOptions = field(default_factory=RunOptions)
    verb: Literal["apply", "destroy"] = "apply"
    detailed_exitcode: bool = False
    separate: bool = False
    locking: bool = True
    hooks: bool = True
    values: bool = True
    affected: Mapping[str, tuple[str, ...]] | None = None


# Which steps a request is about.


def match_steps(deployment: Deployment, options: RunOptions, verb: str) -> tuple[str, ...]:
    """
    Return the steps that a request names: orphans with ``orphaned``, else steps of the blueprint.
    Some commands may name the modules of hooks instead: declared ones, and no steps beside them.
    """
    takes_hooks = verb in ("destroy", "exec", "move", "reconcile")
    if takes_hooks and any(hook_of(name) for name in options.steps):
        hooks = [root for root in deployment.steps_and_hooks() if hook_of(root)]
        for name in options.steps:
            if hook_of(name) is None:
                raise Usage(f"{name!r} is a step: modules of hooks are selected without steps")
            if name not in hooks:
                raise Usage(
                    f"the blueprint declares no module as {shown_step(name)}",
                    hint=did_you_mean(name, hooks),
                )
        return tuple(dict.fromkeys(options.steps))
    graph = deployment.graph
    if options.orphaned:
        graph = graph.subset(deployment.orphans)
    if options.plan.approval is not None:
        gone = [step for step in options.steps if step not in graph.order]
        if gone:
            raise PlanChanged(
                f"the blueprint has no step {', '.join(gone)} any more, which was approved",
                hint="plan it again, and have that approved",
            )
        if not options.steps:
            return ()
    return graph.select_some(options.steps, options.exclude)


def select_steps(deployment: Deployment, options: RunOptions, verb: str) -> tuple[str, ...]:
    """
    Return the steps of a request. A destroy includes the steps that they own, unless excluded.

    Raises Usage if an option that is about one step is used with more: several may have an address.
    """
    chosen = match_steps(deployment, options, verb)
    plan = options.plan
    about_one = {"--at": options.at is not None}
    if verb != "retry":  # it takes over the targets of its run, whose steps are selected with them
        about_one |= {"--replace": bool(plan.replace), "--target": bool(plan.targets)}
    used = [option for option, is_used in about_one.items() if is_used]
    if used and len(chosen) != 1:
        message = f"{used[0]} is about one step, and {len(chosen)} are selected"
        raise Usage(message, hint="name the step with --step")
    if verb != "destroy" or any(hook_of(name) for name in chosen):
        return chosen
    left_out = deployment.graph.select(options.exclude) if options.exclude else ()
    return tuple(s for s in with_children(deployment, chosen) if s not in left_out)
