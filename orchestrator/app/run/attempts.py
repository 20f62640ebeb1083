"""
The attempts of one step in a run: its ``retry`` says which failures are tried again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.mutation import StepResult
from orchestrator.domain.blueprint.blueprint import RetryRule
from orchestrator.domain.events.events import StepRetried
from orchestrator.errors import Fenced, OrchestratorError, Spooled


def with_retries(
    runner: StepRunner, name: str, attempt: Callable[[int], StepResult]
) -> tuple[StepResult, int]:
    """
    What ``attempt`` (by number, from 1) made of the step in the end, and how many there were.

    What an attempt did is told even if a later one could not begin.
    """
    services, rule = runner.services, runner.deployment.steps[name].retry
    number, done = 1, attempt(1)
    runner.steps.update(name, done.record, done.state)
    while rule is not None and _may_retry(rule, done, number):
        _pause(runner, name, rule, done, number)
        if services.stop.stopping:
            break
        number += 1
        try:
            done = attempt(number)
        except (Spooled, Fenced):
            raise
        except OrchestratorError as exc:
            services.note(f"attempt {number}: {exc.message}", level="warning", step=name)
            runner.session.fail(exc.exit_code)
            break
        runner.steps.update(name, done.record, done.state)
    return done, number


def _pause(runner: StepRunner, name: str, rule: RetryRule, done: StepResult, number: int) -> None:
    services = runner.services
    services.sink.emit(
        StepRetried(
            at=services.clock.now(),
            step=name,
            phase=done.fault.phase if done.fault else "apply",
            attempt=number + 1,
            reason=done.fault.summary if done.fault else "",
        )
    )
    services.pause(rule.pause(number, services.ids.fraction()))


def _may_retry(rule: RetryRule, done: StepResult, number: int) -> bool:
    """
    Whether the rule covers this failure: every error matches, and nothing is in doubt.
    """
    fault = done.fault
    if number >= rule.attempts or done.record.resources.in_doubt:
        return False
    if fault is None or fault.code != "engine_failed":
        return False
    texts = [f"{diagnostic.summary}\n{diagnostic.detail}" for diagnostic in fault.diagnostics]
    return bool(texts) and all(any(re.search(p, text) for p in rule.on) for text in texts)
