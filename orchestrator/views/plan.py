"""
Plans for people: of one step during a run, and of all steps by ``plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, assert_never

from orchestrator.domain.plan.changes import PlanChanges
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import count
from orchestrator.views.formats import ACTIONS, diagnostic, fault_text, planned
from orchestrator.views.page import Page, Paper, Part, cut
from orchestrator.views.plan_changes import (
    LOSSES,
    changed_inputs,
    changed_objects,
    changed_outputs,
    drifted_objects,
    warnings,
)
from orchestrator.views.summary import next_commands, orphaned_targets

if TYPE_CHECKING:
    from orchestrator.domain.documents.plan import (
        DriftDocument,
        DriftedStep,
        PlanDocument,
        PlannedStep,
    )
    from orchestrator.domain.events.events import PlanReady


#: How much of a plan is shown: what it comes to, all that changes, or that without the steps of
#: which the reader has been told why they could not be planned.
Extent = Literal["summary", "changes", "possible"]

_ALIVE = "alive, no longer in the blueprint"
#: Lines after which what a plan comes to is told again: its head has left the screen.
_SCREEN = 40


def planned_actions(page: Page, plan: PlanReady | PlannedStep, *, indent: int = 0) -> None:
    """
    Add a plan: its reason, drift, each object with its action, and the changed outputs; with values
    if they were read, else by name.
    """
    changes = plan if isinstance(plan, PlanChanges) else plan.changes
    head = planned(plan.actions)
    if not plan.actions and plan.outputs:
        head = "no changes to objects"
    if changes is not None and changes.has_changes:
        changed_inputs(page, changes, indent=indent)
        drifted_objects(page, changes.drift, indent=indent)
        page.line(("plan", "bold"), f": {head}", indent=indent)
        changed_objects(page, changes.resources, indent=indent + 2)
        changed_outputs(page, changes.outputs_changed, indent=indent + 2)
        warnings(page, changes, indent=indent)
    else:
        _drift(page, plan.drifted, indent=indent)
        page.line(("plan", "bold"), f": {head}", indent=indent)
        _actions(page, plan.actions, indent=indent + 2)
        if plan.outputs:
            names = ", ".join(plan.outputs)
            page.line(("outputs", "dim"), f" that change: {names}", indent=indent + 2)
    if page.paper.verbose:
        dots = page.glyph("...")
        for name, value in plan.inputs.items():
            page.line(("input", "dim"), f" {name} = {cut(value, 60, dots)}", indent=indent + 2)


def plan_text(document: PlanDocument, paper: Paper, *, extent: Extent = "changes") -> str:
    """
    Return the plan of a blueprint: the summary, the objects that would be lost, then the steps that
    change, in order.
    """
    page = Page(paper)
    target = f"{document.blueprint}/{document.environment}"
    summary = ((f"plan of {document.command} {target}: ", "bold"), plan_summary(document))
    page.line(*summary)
    if document.command == "apply":
        losses(page, document)
    forbidden(page, document)
    if document.affected:
        page.heading("Touched by the change")
        for item in document.affected:
            page.line((item.step, "bold"), f"  {'; '.join(item.reasons)}", indent=2, hang=4)
    page.gap()
    unchanged = [step.step for step in document.steps if _is_quiet(step)]
    for step in document.steps:
        if step.step in unchanged:
            continue
        if extent == "summary":
            step_line(page, step)
        elif extent == "changes" or step.status != "failed":
            step_plan(page, step)
    if unchanged:
        page.line(("no changes", "bold"), f": {', '.join(unchanged)}", indent=2)
    orphaned_targets(page, document.orphaned, f"{_ALIVE}, not in this plan")
    if page.height > _SCREEN:
        page.gap()
        page.line(*summary)
    if document.out:
        page.heading("saved", more=f": {document.out}")
    next_commands(page, document.next)
    return page.render()


def _is_quiet(step: PlannedStep) -> bool:
    """
    Return whether a step has nothing to show except that it does not change.
    """
    details = step.reason or step.drift or step.drifted or step.diagnostics
    failing = any(check.status in ("fail", "error") for check in step.checks)
    return step.status == "unchanged" and not (details or failing)


def step_text(step: PlannedStep, paper: Paper) -> str:
    page = Page(paper)
    step_plan(page, step)
    return page.render()


def plan_summary(document: PlanDocument) -> str:
    total = [item for step in document.steps for item in step.actions]
    waiting = sum(step.status == "deferred" for step in document.steps)
    failed = sum(step.status == "failed" for step in document.steps)
    rest = len(document.steps) - waiting - failed
    head = planned(total) if document.steps else "no step to plan"
    if document.changes and not total:
        outputs = any(step.outputs for step in document.steps)
        head = "only outputs change" if outputs else "only provider state changes"
    elif not total and (waiting or failed):  # of those nobody knows
        head = f"no changes in {count(rest, 'step')}" if rest else ""
    parts = (
        head,
        f"{count(waiting, 'step')} cannot be planned yet" if waiting else "",
        f"{count(failed, 'step')} could not be planned" if failed else "",
    )
    return "; ".join(filter(None, parts))


def losses(page: Page, document: PlanDocument) -> None:
    """
    Add the objects that an apply would remove, of all steps, before anything else.
    """
    removed = [
        (step.step, item)
        for step in document.steps
        for item in step.actions
        if item.action in LOSSES
    ]
    if not removed:
        return
    page.heading("Destroyed or replaced", "bad")
    for step, item in removed:
        page.line(ACTIONS[item.action].mark, (step, "bold"), f"  {item.name}", indent=2, hang=6)


def forbidden(page: Page, document: PlanDocument) -> None:
    """
    Add the violations of the blueprint's policy.
    """
    if not document.policy:
        return
    page.gap()
    for verdict, title, style in (
        ("fail", "Forbidden by the policy", "bad"),
        ("warn", "The policy warns", "warn"),
    ):
        violations = [item for item in document.policy if item.verdict == verdict]
        if violations:
            page.line((title, style))
        for item in violations:
            page.line((item.step or "all steps", "bold"), f"  {item.text}", indent=2, hang=6)


def step_line(page: Page, step: PlannedStep) -> None:
    text = step.reason or ""
    match step.status:
        case "planned":
            text = planned(step.actions) if step.actions else "only outputs change"
        case "unchanged":
            text = "no changes"
        case "failed" if step.error:
            text = fault_text(step.error)
    style = {"deferred": "warn", "failed": "bad"}.get(step.status, "")
    word = f"{step.status}: " if step.status == "deferred" else ""
    page.line((step.step, "bold"), ": ", (word, style), text, indent=2)


def step_plan(page: Page, step: PlannedStep) -> None:
    name: Part = (step.step, "bold")
    match step.status:
        case "unchanged":
            page.line(name, ": no changes", f" ({step.reason})" if step.reason else "", indent=2)
            if step.has_changes:
                drifted_objects(page, step.drift, indent=4)
                warnings(page, step, indent=4)
            else:
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
            reason = fault_text(step.error) if step.error else step.reason or "could not be planned"
            page.line(name, ": ", (reason, "bad"), indent=2)
            for item in step.diagnostics:
                diagnostic(page, item, indent=4, whole=True)
            if step.error and not step.diagnostics:
                diagnostic(page, Diagnostic(summary=step.error.summary), indent=4)
            if step.error and step.reason:
                page.line(("next", "dim"), f": {step.reason}", indent=4, hang=6)
            if step.actions:  # its plan was made, and is refused
                planned_actions(page, step, indent=4)
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
        imported = f" (imported from {item.importing})" if item.importing else ""
        moved = f" (moved from {item.previous_address})" if item.previous_address else ""
        word = f" ({item.engine_word})" if item.engine_word else ""
        loss = (f"  {LOSSES[item.action]}", "bad") if item.action in LOSSES else ""
        page.line(
            ACTIONS[item.action].mark,
            item.name,
            loss,
            f"{imported}{moved}{word}",
            indent=indent,
            hang=6,
        )


# What changed outside the engine, for people.


def drift_text(document: DriftDocument, paper: Paper) -> str:
    """
    Return the drift of a blueprint, step by step.
    """
    page = Page(paper)
    objects = sum(len(step.resources) for step in document.steps)
    failed = sum(step.status == "failed" for step in document.steps)
    head = f"{count(objects, 'object')} changed" if objects else "none"
    tail = f"; {count(failed, 'step')} could not be read" if failed else ""
    target = f"{document.blueprint}/{document.environment}"
    page.line((f"drift of {target}: ", "bold"), head, tail)
    page.gap()
    for step in document.steps:
        _step(page, step)
    for address in document.expired:
        page.line(("warning", "warn"), f": the rule that accepts drift of {address} has expired")
    orphaned_targets(page, document.orphaned, f"{_ALIVE}, not checked")
    return page.render()


def _step(page: Page, step: DriftedStep) -> None:
    name: Part = (step.step, "bold")
    accepted = f" ({count(len(step.accepted), 'object')} accepted)" if step.accepted else ""
    match step.status:
        case "failed":
            page.line(name, ": ", (fault_text(step.error) if step.error else "", "bad"), indent=2)
            for item in step.diagnostics:
                diagnostic(page, item, indent=4, whole=True)
            if step.error and not step.diagnostics:
                page.line(step.error.summary, indent=4)
        case "skipped":
            page.line(name, f": {step.reason}", indent=2)
        case "same":
            page.line(name, ": as it was left", accepted, indent=2)
        case "drifted":
            page.line(name, ":", accepted, indent=2)
            drifted_objects(page, step.resources, indent=4)
