"""
Runs steps concurrently: each starts as soon as its own upstreams are done, not in waves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import StrEnum

from msgspec import Struct

from orchestrator.domain.blueprint.graph import Graph
from orchestrator.errors import OrchestratorError
from orchestrator.ports.system import StopToken


class OnFailure(StrEnum):
    """
    The policy after a step failed: start nothing more, or continue where nothing upstream failed.
    """

    STOP = "stop"
    CONTINUE = "continue"


class Outcome(Struct, frozen=True):
    """
    The end of a step, for the scheduler. ``ready``: its dependents may start. ``halt``: start
    nothing more, whatever the policy.
    """

    ready: bool
    halt: bool = False


class Unstarted(Struct, frozen=True):
    """
    A step that never ran: the steps it waited for that are not ready, or why nothing more started.
    """

    step: str
    blocked_by: tuple[str, ...]
    reason: str


def run_steps(
    graph: Graph,
    work: Callable[[str], Outcome],
    *,
    jobs: int,
    stop: StopToken,
    on_failure: OnFailure,
    done: Collection[str] = (),
    missing: Collection[str] = (),
) -> list[Unstarted]:
    """
    Run ``work`` for every step of the graph and return the steps that never ran, in order.

    ``done`` are steps of the graph that are ready already, ``missing`` those that are not and do
    not run: both are neither run nor returned.

    Work in progress is always awaited. After the first stop request nothing more is started.
    ``work`` must not raise. Called in the main thread, which stays free for signal handlers.
    """
    ready = set(done)
    ended = ready | set(missing)
    halted = ""
    running: dict[Future[Outcome], str] = {}
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="step") as pool:
        while True:
            if not halted and stop.stopping:
                halted = "stopped by a signal"
            if not halted:
                begun = ended | set(running.values())
                for step in graph.order:
                    if len(running) >= jobs:
                        break
                    if step not in begun and graph.needs(step) <= ready:
                        running[pool.submit(work, step)] = step
            if not running:
                break
            finished, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
            for future in finished:
                step = running.pop(future)
                outcome = future.result()
                ended.add(step)
                if outcome.ready:
                    ready.add(step)
                    continue
                if outcome.halt or on_failure is OnFailure.STOP:
                    halted = halted or f"stopped after {step} failed"
    return [
        Unstarted(
            step=step,
            blocked_by=tuple(s for s in graph.order if s in graph.upstreams(step) - ready),
            reason=halted,
        )
        for step in graph.order
        if step not in ended
    ]


def failures_of(
    steps: Iterable[str],
    work: Callable[[str], object],
    kinds: tuple[type[OrchestratorError], ...] = (OrchestratorError,),
    *,
    jobs: int | None = None,
) -> dict[str, OrchestratorError]:
    """
    Call ``work`` for steps, in order or with so many ``jobs`` at once, and return the errors of
    these ``kinds`` by step.
    """
    failures: dict[str, OrchestratorError] = {}

    def one(name: str) -> None:
        try:
            work(name)
        except kinds as exc:
            failures[name] = exc

    if jobs is None:
        for step in steps:
            one(step)
    else:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, steps))
    return failures
