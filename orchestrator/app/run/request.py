"""
What a mutating command was asked to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.app.schedule import OnFailure
from orchestrator.app.steps.planned_step import PlanOptions
from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.destroy.order import with_children
from orchestrator.domain.record.record import Json, Lineage
from orchestrator.domain.recovery.rerun_rules import APPLYING
from orchestrator.domain.suggestions import did_you_mean
from orchestrator.domain.target import action_of, shown_root
from orchestrator.errors import ApprovalMissing, Usage

Verb = Literal[
    "apply", "destroy", "verify", "reconcile", "adopt", "import", "exec", "retain", "release",
    "retry", "redeploy", "rollback", "compensate",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """
    An object that exists, and the address it belongs at.
    """

    address: str
    object_id: str

    @classmethod
    def parse(cls, text: str) -> ImportSpec:
        """
        From ``ADDRESS=ID``; keys in the address may hold "=". ValueError where it is none.

        >>> Adoption.parse('aws_x.y["a=b"]=i-1=2')
        Adoption(address='aws_x.y["a=b"]', object_id='i-1=2')
        """
        found = _ADOPTION.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not ADDRESS=ID")
        return cls(found[1], found[2])


_ADOPTION = re.compile(r'((?:[^"=]|"(?:[^"\\]|\\.)*")+)=(.+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """
    One command with its options. ``steps`` and ``exclude`` are patterns (`Graph.select`).

    ``skip_preflight`` and ``takeover`` carry the reasons given for them; ``confirm`` the
    environment's name where it is protected; ``interactive`` tells that a person can be asked;
    ``inputs_given`` that the command line named inputs, so that the same blueprint alone is not the
    same command. ``at`` is the sequence that the newest entry of the one selected step must have,
    0 for no record: the command was offered on it. ``adopt`` to ``dismiss_errored_state`` are the
    surgery of ``reconcile`` and ``import``; ``accept_changes`` is the reason to adopt what an apply
    would change; ``words`` are the engine command of ``exec``; ``owner`` and ``review_by``, a date,
    go with the reason of ``retain``. ``from_run`` is the earlier run that somebody named,
    ``lineage`` what becomes of it in records; ``unverified`` is the reason to go back to what had
    no checks. ``repeat`` is the reason to do again what an action did, or may have done, and
    ``skip_before_destroy`` the one to destroy without it. ``unavailable_secrets`` are
    those that a destroy does without.
    """

    verb: Verb
    steps: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    jobs: int = 4
    on_failure: OnFailure = OnFailure.STOP
    unfinished: bool = False
    wait: bool = False
    interactive: bool = False
    allow_engine_change: bool = False
    confirm: str | None = None
    reason: str | None = None
    owner: str | None = None
    review_by: str | None = None
    skip_preflight: str | None = None
    takeover: str | None = None
    inputs_given: bool = False
    at: int | None = None
    orphaned: bool = False
    forget: tuple[str, ...] = ()
    adopt: tuple[ImportSpec, ...] = ()
    untaint: tuple[str, ...] = ()
    unlock: str | None = None
    push_errored_state: bool = False
    dismiss_errored_state: str | None = None
    accept_changes: str | None = None
    words: tuple[str, ...] = ()
    from_run: str | None = None
    unverified: str | None = None
    accept_changed_secret: tuple[str, ...] = ()
    lineage: Lineage | None = None
    unavailable_secrets: tuple[str, ...] = ()
    repeat: str | None = None
    skip_before_destroy: str | None = None
    plan_options: PlanOptions = field(default_factory=PlanOptions)

    @property
    def mutates(self) -> bool:
        """
        Whether more than records changes, so that somebody has to approve it.
        """
        return (
            self.verb in (*APPLYING, "destroy", "import", "exec", "compensate")
            or bool(self.adopt or self.untaint or self.unlock)
            or self.push_errored_state
        )

    def arguments(self) -> dict[str, Json]:
        """
        What the run record keeps of it: everything that is not a default.
        """
        shown: dict[str, Json] = {
            "steps": list(self.steps),
            "exclude": list(self.exclude),
            "on_failure": str(self.on_failure) if self.on_failure != OnFailure.STOP else None,
            "unfinished": self.unfinished,
            "orphaned": self.orphaned,
            "allow_engine_change": self.allow_engine_change,
            "approved": self.plan_options.approved,
            "refresh": None if self.plan_options.refresh else False,
            "replace": list(self.plan_options.replace),
            "targets": list(self.plan_options.targets),
            "accept_vanished": self.plan_options.accept_vanished,
            "verify_absence": self.plan_options.verify_absence,
            "takeover": self.takeover,
            "owner": self.owner,
            "review_by": self.review_by,
            "at": self.at,
            "forget": list(self.forget),
            "adopt": [f"{item.address}={item.object_id}" for item in self.adopt],
            "untaint": list(self.untaint),
            "unlock": self.unlock,
            "push_errored_state": self.push_errored_state,
            "dismiss_errored_state": self.dismiss_errored_state,
            "accept_changes": self.accept_changes,
            "words": list(self.words),
            "from_run": self.from_run,
            "unverified": self.unverified,
            "accept_changed_secret": list(self.accept_changed_secret),
            "unavailable_secrets": list(self.unavailable_secrets),
            "repeat": self.repeat,
            "skip_before_destroy": self.skip_before_destroy,
        }
        return {
            name: value
            for name, value in shown.items()
            if value or (value is not None and name in ("refresh", "at"))
        }


def match_steps(deployment: Deployment, request: RunRequest) -> tuple[str, ...]:
    """
    The steps that a request names: of those that left the blueprint if it is about ``orphaned``
    ones, else of the others. A destroy or reconcile may name roots of actions instead.
    """
    if request.verb in ("destroy", "reconcile") and any(action_of(name) for name in request.steps):
        return _match_hook_targets(deployment, request.steps)
    graph = deployment.graph
    if request.orphaned:
        graph = graph.subset(deployment.orphans)
    return graph.select(request.steps, request.exclude)


def _match_hook_targets(deployment: Deployment, names: Sequence[str]) -> tuple[str, ...]:
    """
    Usage where steps are named beside them, or what the blueprint does not declare.
    """
    known = [root for root in deployment.roots() if action_of(root)]
    for name in names:
        if action_of(name) is None:
            raise Usage(f"{name!r} is a step: what an action made goes by itself")
        if name not in known:
            raise Usage(
                f"the blueprint declares no module as {shown_root(name)}",
                hint=did_you_mean(name, known),
            )
    return tuple(dict.fromkeys(names))


def select_steps(deployment: Deployment, request: RunRequest) -> tuple[str, ...]:
    """
    The steps that a request is about. A destroy takes along what they own, unless it is excluded.

    Usage where ``at`` is given for anything but one step.
    """
    chosen = match_steps(deployment, request)
    check_at(request, chosen)
    if request.verb != "destroy":
        return chosen
    if any(action_of(name) for name in chosen):
        return chosen
    left_out = deployment.graph.select(request.exclude) if request.exclude else ()
    return tuple(s for s in with_children(deployment, chosen) if s not in left_out)


def check_at(request: RunRequest, selected: Sequence[str]) -> None:
    """
    Usage where ``at`` is given for anything but one step.
    """
    if request.at is not None and len(selected) != 1:
        raise Usage(
            f"--at is the entry of one step, and {len(selected)} are selected",
            hint="name the step with --step",
        )


def check_approval(deployment: Deployment, request: RunRequest, selected: Sequence[str]) -> None:
    """
    ApprovalMissing where nobody approved the mutation and nobody can be asked, or where a protected
    environment was not named. What changes only records needs no approval.
    """
    if not request.mutates:
        return
    where = f"{deployment.blueprint}/{deployment.environment}"
    if not request.plan_options.approved and not request.interactive:
        count = "1 step" if len(selected) == 1 else f"{len(selected)} steps"
        raise ApprovalMissing(
            f"{request.verb} of {count} of {where} is not approved, and there is no terminal to "
            "ask at",
            hint="add --yes",
        )
    if deployment.protected and request.confirm != deployment.environment:
        raise ApprovalMissing(
            f"{deployment.environment} is a protected environment",
            hint=f"name it to go on: --confirm {deployment.environment}",
        )
