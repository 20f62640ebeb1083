"""
Attempts of one step in a run: its ``retry`` rule says which failures are retried.
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
    Attempt a step until it succeeds or its rule allows no further attempt; returns the last result
    and the number of attempts. ``attempt`` takes the number, from 1.

    If a later attempt cannot begin, the result of the last one that did is returned.
    """
    services, rule = runner.services, runner.deployment.steps[name].retry
    number, result = 1, attempt(1)
    runner.steps.update(name, result.record, result.state)
    while rule is not None and _may_retry(rule, result, number):
        _pause(runner, name, rule, result, number)
        if services.stop.stopping:
            break
        number += 1
        try:
            result = attempt(number)
        except (Spooled, Fenced):
            raise
        except OrchestratorError as exc:
            services.note(f"attempt {number}: {exc.message}", level="warning", step=name)
            runner.session.codes.append(exc.exit_code)
            break
        runner.steps.update(name, result.record, result.state)
    return result, number


def _pause(runner: StepRunner, name: str, rule: RetryRule, result: StepResult, number: int) -> None:
    services = runner.services
    services.sink.emit(
        StepRetried(
            at=services.clock.now(),
            step=name,
            phase=result.fault.phase if result.fault else "apply",
            attempt=number + 1,
            reason=result.fault.summary if result.fault else "",
        )
    )
    services.pause(rule.pause(number, services.ids.fraction()))


def _may_retry(rule: RetryRule, result: StepResult, number: int) -> bool:
    """
    Return whether the rule covers this failure: every error matches, and nothing is in doubt.
    """
    fault = result.fault
    if number >= rule.attempts or result.record.resources.in_doubt:
        return False
    if fault is None or fault.code != "engine_failed":
        return False
    texts = [f"{diagnostic.summary}\n{diagnostic.detail}" for diagnostic in fault.diagnostics]
    return bool(texts) and all(any(re.search(p, text) for p in rule.on) for text in texts)
