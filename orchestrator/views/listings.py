"""
Listings: engines, outputs, graphs, the content of a store.
"""

from __future__ import annotations

import json
import shlex

from orchestrator.domain.documents.documents import (
    EngineDocument,
    GraphDocument,
    StoreCheckDocument,
    StoreCopyDocument,
    StorePruneDocument,
)
from orchestrator.domain.documents.status import OutputsDocument
from orchestrator.domain.record.states import StepStatus
from orchestrator.domain.text import count
from orchestrator.views.formats import moment
from orchestrator.views.page import Page, Paper, Part


def check_text(document: StoreCheckDocument, paper: Paper) -> str:
    """
    List the requirements on a store: whether it meets each, how long that takes, or why not. A
    reason equal to the one before is not repeated.
    """
    page = Page(paper)
    verdict = "fit for its work" if document.ok else "not usable"
    page.line((document.url, "bold"), f"  {verdict}")
    rows: list[list[Part]] = []
    previous = ""
    for check in document.checks:
        time = f"{check.milliseconds:.1f} ms" if check.milliseconds is not None else ""
        outcome: Part = ("ok", "green") if check.ok else ("failed", "red")
        message = (check.message or time).removeprefix(f"{document.url}: ")
        rows.append(
            [outcome, check.name, message if check.ok or message != previous else "the same"]
        )
        previous = message
    page.table(rows, indent=2)
    if not document.ok:
        page.line("docs/stores.md lists the permissions and grants that are needed")
    return page.render()


def prune_text(document: StorePruneDocument, paper: Paper) -> str:
    """
    List the runs that can be removed, or were, with the size of their files.
    """
    page = Page(paper)
    did = "removed" if document.removed else "can be removed"
    page.line(
        (document.url, "bold"),
        f"  {count(len(document.runs), 'run')} and {count(len(document.blobs), 'blob')} {did}; "
        f"{count(document.kept_runs, 'run')} stay, and all entries",
    )
    rows: list[list[Part]] = [
        [
            (run.run_id, "bold"),
            f"{run.command} {run.blueprint}/{run.environment}",
            moment(run.started_at, paper.now),
        ]
        for run in document.runs
    ]
    page.table(rows, indent=2)
    if document.blobs and not document.removed:
        page.line("nothing is removed without --yes")
    return page.render()


def copy_text(document: StoreCopyDocument, paper: Paper) -> str:
    """
    Count what the destination store holds now.
    """
    page = Page(paper)
    page.line(
        f"{count(document.entries, 'entry')} of {count(document.targets, 'target')} and "
        f"{count(document.blobs, 'blob')} are in {document.destination}"
    )
    page.line((f"from {document.source}, verified: sha256 {document.digest}", "dim"))
    return page.render()


# The engine in use, for a person.


def engine_text(document: EngineDocument, paper: Paper) -> str:
    """
    Describe an engine: kind, version, argv, and why it was chosen.
    """
    page = Page(paper)
    page.line((f"{document.kind} {document.version}", "bold"))
    page.table(
        [
            [("started as", "dim"), shlex.join(document.program)],
            [("chosen by", "dim"), f"{document.source}: {document.why}"],
        ],
        indent=2,
    )
    return page.render()


# The outputs of steps, for a person.


def outputs_text(document: OutputsDocument, paper: Paper) -> str:
    """
    Return a line for each output, not truncated: ``step.name = value``.
    """
    page = Page(paper)
    for step in document.steps:
        note = "" if step.status in (StepStatus.OK, StepStatus.RETAINED) else "  (was known)"
        for name, value in sorted(step.outputs.items()):
            shown = json.dumps(value, ensure_ascii=False)
            page.line(f"{step.step}.{name} = {shown}", (note, "dim"))
        for name in sorted(step.sensitive_outputs):
            page.line(f"{step.step}.{name} = ", ("(sensitive)", "dim"))
    if not any(step.outputs or step.sensitive_outputs for step in document.steps):
        page.line(f"{document.blueprint}/{document.environment}: no output is recorded")
    return page.render()


# The steps of a blueprint as text, Graphviz or Mermaid.


def graph_text(document: GraphDocument, paper: Paper) -> str:
    """
    Return one row per step in the order of an apply; steps of one wave can run concurrently.
    """
    page = Page(paper)
    page.line((f"{document.blueprint}/{document.environment}", "bold"))
    rows: list[list[Part]] = []
    last_wave = 0
    for step in document.steps:
        facts = [f"needs {', '.join(step.needs)}"] if step.needs else []
        if step.owned_by:
            facts.append(f"owned by {step.owned_by}")
        facts += step.reasons
        facts.append(step.module_ref)
        wave = "" if step.wave == last_wave else str(step.wave)
        last_wave = step.wave
        rows.append([(wave, "dim"), (step.step, "bold"), "; ".join(facts)])
    page.table(rows, indent=2)
    return page.render()


def graph_dot(document: GraphDocument) -> str:
    """
    Return a Graphviz digraph with an arrow from each step to its dependents, dashed to the steps
    that it owns.
    """
    lines = [
        f"digraph {_quoted(f'{document.blueprint}/{document.environment}')} {{",
        "  rankdir=LR;",
    ]
    lines += [f"  {_quoted(step.step)} [shape=box];" for step in document.steps]
    for step in document.steps:
        for need in step.needs:
            style = " [style=dashed]" if need == step.owned_by else ""
            lines.append(f"  {_quoted(need)} -> {_quoted(step.step)}{style};")
    return "\n".join([*lines, "}", ""])


def graph_mermaid(document: GraphDocument) -> str:
    """
    Return a Mermaid flowchart, with the arrows of `graph_dot`.
    """
    ids = {step.step: f"s{number}" for number, step in enumerate(document.steps)}
    lines = ["flowchart LR"]
    for step in document.steps:
        label = step.step.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;")
        lines.append(f'  {ids[step.step]}["{label}"]')
    for step in document.steps:
        for need in step.needs:
            if need in ids:
                arrow = "-.->" if need == step.owned_by else "-->"
                lines.append(f"  {ids[need]} {arrow} {ids[step.step]}")
    return "\n".join([*lines, ""])


def graph_matrix(document: GraphDocument) -> str:
    """
    Return the steps as a job matrix on one line, as CI runners take it from an output.
    """
    entries = [
        {
            "step": step.step,
            "wave": step.wave,
            "needs": step.needs,
            "reasons": step.reasons,
            "environment": document.environment,
            "target": f"{document.blueprint}/{document.environment}/{step.step}",
        }
        for step in document.steps
    ]
    return json.dumps({"include": entries})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
