"""
Who works on a whole store: its claims keep every run away meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from orchestrator.domain.record.record import Actor
from orchestrator.domain.record.run_record import Claim
from orchestrator.domain.record.states import Liveness
from orchestrator.errors import Busy
from orchestrator.ports.store import OperationStore
from orchestrator.ports.system import Clock, Ids, Processes


class StoreHolder(Struct, frozen=True):
    """
    ``claim`` is one of this process, on a blueprint and environment that nobody else uses.
    """

    claim: Claim
    processes: Processes

    @contextmanager
    def hold(self, store: OperationStore, places: Iterable[tuple[str, str]]) -> Iterator[None]:
        """
        Hold the claims of blueprints in environments while the body runs; Busy where a run holds
        one. What a command that was killed here still holds, and that did the same, is taken over.
        """
        with ExitStack() as stack:
            for blueprint, environment in sorted(set(places)):
                own = self.claim.model_copy(
                    update={"blueprint": blueprint, "environment": environment}
                )
                current = store.take_claim(own)
                if current is not None and self._is_left_behind(current):
                    current = store.take_claim(own, replaces=current)
                if current is not None:
                    raise busy(current, store.url)
                stack.callback(store.drop_claim, own)
            yield

    def _is_left_behind(self, claim: Claim) -> bool:
        gone = self.processes.liveness(claim.owner) is Liveness.GONE
        return claim.command == self.claim.command and gone


def store_holder(
    processes: Processes, clock: Clock, ids: Ids, actor: Actor, command: str
) -> StoreHolder:
    """
    This process, for a ``store`` command.
    """
    now = clock.now()
    claim = Claim(
        blueprint="store-check",
        environment=ids.entry_id(),
        run_id=ids.run_id(now),
        command=f"store {command}",
        owner=processes.me(),
        actor=actor,
        taken_at=now,
    )
    return StoreHolder(claim, processes)


def busy(claim: Claim, url: str) -> Busy:
    """
    The error of somebody else's claim in a store.
    """
    return Busy(
        f"{url}: run {claim.run_id} ({claim.command}) works on "
        f"{claim.blueprint}/{claim.environment}",
        hint="wait for it, or settle it with `orchestrator reconcile`, and do this again",
    )
