"""
Attempts of one step in a run: its ``retry`` rule says which failures are retried.
"""

from __future__ import annotations

import itertools
import re

from orchestrator.app.run.step_runner import StepRunner
from orchestrator.app.steps.engine_plan import Direction, EnginePlan
from orchestrator.app.steps.mutation import StepResult
from orchestrator.app.steps.pipeline import BeforeMutation, StepPipeline
from orchestrator.domain.blueprint.blueprint import RetryRule
from orchestrator.domain.blueprint.inputs import StepInputs
from orchestrator.domain.events.events import StepRetried
from orchestrator.errors import Fenced, OrchestratorError, Spooled


def attempt_step(
    runner: StepRunner,
    name: str,
    inputs: StepInputs,
    *,
    verb: Direction,
    first: BeforeMutation | None = None,
    engine_plan: EnginePlan | None = None,
) -> tuple[StepResult, int]:
    """
    Apply or destroy a prepared step until that succeeds or its rule allows no further attempt;
    returns the last result and the number of attempts. ``first`` and ``engine_plan`` are for the
    first attempt (`StepPipeline`).

    If a later attempt cannot begin, the result of the last one that did is returned.
    """
    services, step = runner.services, runner.deployment.steps.get(name)
    rule = step.retry if step is not None else None  # the module of a hook is not tried again
    result: StepResult | None = None
    for number in itertools.count(1):
        pipeline = StepPipeline(
            runner.session,
            runner.steps.prepared[name],
            inputs,
            runner.options.plan,
            verb=verb,
            attempt=number,
            engine_plan=engine_plan if number == 1 else None,
        )
        try:
            result = pipeline.run(first if number == 1 else None)
        except OrchestratorError as exc:
            if result is None or isinstance(exc, Spooled | Fenced):
                raise
            services.note(f"attempt {number}: {exc.message}", level="warning", step=name)
            runner.session.codes.append(exc.exit_code)
            return result, number
        runner.steps.update(name, result.record, result.state)
        if rule is None or not _may_retry(rule, result, number):
            return result, number
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
        if services.stop.stopping:
            return result, number
    raise AssertionError("an attempt ends the loop")


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
