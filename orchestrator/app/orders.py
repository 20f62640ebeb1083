"""
What a mutating command was asked to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.app.proposal import Wishes
from orchestrator.app.schedule import OnFailure
from orchestrator.domain.blueprint import Deployment
from orchestrator.domain.commands import command_line as command_line
from orchestrator.domain.record import Json
from orchestrator.errors import ApprovalMissing, Usage

Verb = Literal["apply", "destroy", "verify", "reconcile", "adopt"]


@dataclass(frozen=True, slots=True)
class Order:
    """
    One command with its options. ``steps`` and ``exclude`` are patterns (`Graph.select`).

    ``skip_preflight`` and ``takeover`` carry the reasons given for them; ``confirm`` the
    environment's name where it is protected; ``interactive`` tells that a person can be asked;
    ``inputs_given`` that the command line named inputs, so that the same blueprint alone is not the
    same command. ``at`` is the sequence that the newest entry of the one selected step must have,
    0 for no record: the command was offered on it.
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
    skip_preflight: str | None = None
    takeover: str | None = None
    inputs_given: bool = False
    at: int | None = None
    forget: tuple[str, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)

    def arguments(self) -> dict[str, Json]:
        """
        What the run record keeps of it: everything that is not a default.
        """
        shown: dict[str, Json] = {
            "steps": list(self.steps),
            "exclude": list(self.exclude),
            "on_failure": str(self.on_failure) if self.on_failure != OnFailure.STOP else None,
            "unfinished": self.unfinished,
            "allow_engine_change": self.allow_engine_change,
            "approved": self.wishes.approved,
            "refresh": None if self.wishes.refresh else False,
            "replace": list(self.wishes.replace),
            "targets": list(self.wishes.targets),
            "accept_vanished": self.wishes.accept_vanished,
            "takeover": self.takeover,
            "at": self.at,
            "forget": list(self.forget),
        }
        return {
            name: value
            for name, value in shown.items()
            if value or (value is not None and name in ("refresh", "at"))
        }


def check_at(order: Order, selected: Sequence[str]) -> None:
    """
    Usage where ``at`` is given for anything but one step.
    """
    if order.at is not None and len(selected) != 1:
        raise Usage(
            f"--at is the entry of one step, and {len(selected)} are selected",
            hint="name the step with --step",
        )


def check_approval(deployment: Deployment, order: Order, selected: Sequence[str]) -> None:
    """
    ApprovalMissing where nobody approved the mutation and nobody can be asked, or where a protected
    environment was not named. What changes only records needs no approval.
    """
    if order.verb not in ("apply", "destroy"):
        return
    where = f"{deployment.blueprint}/{deployment.environment}"
    if not order.wishes.approved and not order.interactive:
        raise ApprovalMissing(
            f"{order.verb} of {len(selected)} steps of {where} is not approved, and there is no "
            "terminal to ask at",
            hint="add --yes",
        )
    if deployment.protected and order.confirm != deployment.environment:
        raise ApprovalMissing(
            f"{deployment.environment} is a protected environment",
            hint=f"name it to go on: --confirm {deployment.environment}",
        )
