"""
Plans for a person: of one step while a run goes on, and of all steps by ``plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from orchestrator.domain.record.record import Diagnostic, PlannedAction
from orchestrator.views.formats import ACTION_STYLE, SYMBOLS, count, planned
from orchestrator.views.outcome import diagnostic, fault_text
from orchestrator.views.page import Page, Paper, Part, cut
from orchestrator.views.summary import next_commands

if TYPE_CHECKING:
    from orchestrator.domain.documents.documents import PlanDocument, PlannedStep
    from orchestrator.domain.events.events import PlanReady


def planned_actions(page: Page, plan: PlanReady | PlannedStep, *, indent: int = 0) -> None:
    """
    Add a plan: what drifted, each action with its symbol, the outputs that change.
    """
    _drift(page, plan.drifted, indent=indent)
    head = planned(plan.actions)
    if not plan.actions and plan.outputs:
        head = "no changes to objects"
    page.line(("plan", "bold"), f": {head}", indent=indent)
    _actions(page, plan.actions, indent=indent + 2)
    if plan.outputs:
        names = ", ".join(plan.outputs)
        page.line(("outputs", "dim"), f" that change: {names}", indent=indent + 2)
    if page.paper.verbose:
        dots = page.glyph("...")
        for name, value in plan.inputs.items():
            page.line(("input", "dim"), f" {name} = {cut(value, 60, dots)}", indent=indent + 2)


def plan_text(document: PlanDocument, paper: Paper) -> str:
    """
    The plan of a blueprint, step by step in the order they would run.
    """
    page = Page(paper)
    target = f"{document.blueprint}/{document.environment}"
    total = [item for step in document.steps for item in step.actions]
    waiting = sum(step.status == "deferred" for step in document.steps)
    failed = sum(step.status == "failed" for step in document.steps)
    tail = f"; {count(waiting, 'step')} cannot be planned yet" if waiting else ""
    tail += f"; {count(failed, 'step')} could not be planned" if failed else ""
    head = planned(total)
    if document.changes and not total:
        outputs = any(step.outputs for step in document.steps)
        head = "only outputs change" if outputs else "only provider state changes"
    page.line((f"plan of {document.command} {target}: ", "bold"), f"{head}{tail}")
    page.gap()
    for step in document.steps:
        _step(page, step)
    if document.orphaned:
        page.gap()
        page.line(("Orphaned", "warn"), ": alive, no longer in the blueprint, not in this plan")
        for orphan in document.orphaned:
            page.line(orphan, indent=2)
    if document.out:
        page.gap()
        page.line(("saved", "bold"), f": {document.out}")
    next_commands(page, document.next)
    return page.render()


def _step(page: Page, step: PlannedStep) -> None:
    name: Part = (step.step, "bold")
    match step.status:
        case "unchanged":
            page.line(name, ": no changes", f" ({step.reason})" if step.reason else "", indent=2)
            _drift(page, step.drifted, indent=4)
        case "planned":
            page.line(name, ":", f" {step.reason}" if step.reason else "", indent=2)
            if step.before_destroy:
                page.line(("first", "bold"), f": {step.before_destroy}", indent=4)
            planned_actions(page, step, indent=4)
        case "deferred":
            waits = f" (waits for {', '.join(step.waits_for)})" if step.waits_for else ""
            page.line(name, ": ", ("deferred", "warn"), f": {step.reason or ''}{waits}", indent=2)
        case "failed":
            words = fault_text(step.error) if step.error else step.reason or "could not be planned"
            page.line(name, ": ", (words, "bad"), indent=2)
            if step.error:
                errors = step.error.diagnostics or (Diagnostic(summary=step.error.summary),)
                for item in errors:
                    diagnostic(page, item, indent=4)
                if step.reason:
                    page.line(("next", "dim"), f": {step.reason}", indent=4, hang=6)
        case _:
            assert_never(step.status)


def _drift(page: Page, drifted: Sequence[PlannedAction], *, indent: int) -> None:
    if not drifted:
        return
    page.line(("changed outside the engine", "warn"), ":", indent=indent)
    for item in drifted:
        word = "vanished" if item.action == "delete" else "changed"
        page.line(("  ! ", "warn"), f"{item.address} {word}", indent=indent + 2, hang=6)


def _actions(page: Page, actions: Iterable[PlannedAction], *, indent: int) -> None:
    for item in actions:
        symbol = SYMBOLS[item.action]
        taken = f" (imported from {item.importing})" if item.importing else ""
        moved = f" (moved from {item.previous_address})" if item.previous_address else ""
        word = f" ({item.engine_word})" if item.engine_word else ""
        mark = (f"{symbol:>3} ", ACTION_STYLE[item.action])
        page.line(mark, f"{item.name}{taken}{moved}{word}", indent=indent, hang=6)
