"""
The steps of a blueprint as text, Graphviz or Mermaid.
"""

from __future__ import annotations

import json

from orchestrator.domain.documents.documents import GraphDocument
from orchestrator.views.page import Page, Paper, Part


def graph_text(document: GraphDocument, paper: Paper) -> str:
    """
    One row per step in the order of an apply; steps of one wave may run at once.
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
    A Graphviz digraph: an arrow leads from a step to what needs it, dashed to what it owns.
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
    A Mermaid flowchart, with the arrows of `graph_dot`.
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
    The steps as the matrix of jobs, in a line: what runners take from an output.
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
