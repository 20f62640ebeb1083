"""
A plan in the formats that CI systems read: JUnit, SARIF, GitLab's terraform report.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote
from xml.etree import ElementTree

from msgspec import Struct

from orchestrator.views.formats import planned
from orchestrator.views.page import Page, Paper
from orchestrator.views.plan import forbidden, losses, plan_summary, plan_text, step_plan

if TYPE_CHECKING:
    from orchestrator.domain.documents.plan import (
        GateDocument,
        GateReason,
        PlanDocument,
        PlannedStep,
    )


#: What XML 1.0 cannot hold.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


class Finding(Struct, frozen=True):
    """
    Something in a step that people should look at, and its place. ``file`` is relative to the
    project.
    """

    rule: str
    level: Literal["error", "warning"]
    step: str
    message: str
    file: str
    line: int | None = None


def findings(document: PlanDocument, *, blueprint: str) -> Iterator[Finding]:
    """
    Yield the warnings of a plan; one without a file is attributed to the ``blueprint`` file.
    """
    for step in document.steps:
        details: set[str] = set()
        for item in step.diagnostics:
            details.add(item.detail)
            text = "\n".join(filter(None, (item.summary, item.detail)))
            rule = "plan-failed" if item.severity == "error" else "engine-warning"
            yield Finding(rule, item.severity, step.step, text, item.file or blueprint, item.line)
        if step.status == "failed" and not step.diagnostics:
            yield Finding("plan-failed", "error", step.step, _failure(step), blueprint)
        for check in step.checks:
            if check.status in ("fail", "error") and not details.intersection(check.problems):
                text = f"{check.address}: {'; '.join(check.problems) or check.status}"
                yield Finding("check-failed", "warning", step.step, text, blueprint)

    for violation in document.policy:
        level: Literal["error", "warning"] = "error" if violation.verdict == "fail" else "warning"
        yield Finding("policy", level, violation.step, violation.text, blueprint)


def gate_findings(document: GateDocument, *, blueprint: str) -> Iterator[Finding]:
    """
    Yield the warnings of a gate, except those of its plan.
    """
    for item in _beside_plan(document):
        level: Literal["error", "warning"] = "error" if item.severity == "fail" else "warning"
        file = item.file or blueprint
        yield Finding(item.code, level, item.step or "", item.message, file, item.line)


def _beside_plan(document: GateDocument) -> Iterator[GateReason]:
    of_plan = ("plan_failed", "deferred", "policy") if document.plan is not None else ()
    return (item for item in document.reasons if item.code not in of_plan)


class _Case(Struct, frozen=True):
    """
    A test case: its name, and the text of its failure, of why it was skipped, or of its output.
    """

    name: str
    text: str = ""
    outcome: Literal["failure", "skipped", "system-out"] = "system-out"


def junit(plan: PlanDocument | None, gate: GateDocument | None = None) -> str:
    """
    Return a JUnit report: a suite for the gate, if there is one, and one for the plan, if there is
    one.
    """
    root = ElementTree.Element("testsuites")
    if gate is not None:
        target = f"{gate.blueprint}/{gate.environment}"
        root.append(_suite(f"gate {target}", target, [_gate_case(gate)]))
    if plan is not None:
        target = f"{plan.blueprint}/{plan.environment}"
        root.append(_suite(f"plan of {plan.command} {target}", target, [*_plan_cases(plan)]))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(name: str, target: str, cases: Sequence[_Case]) -> ElementTree.Element:
    numbers = Counter(case.outcome for case in cases)
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(numbers["failure"]),
        errors="0",
        skipped=str(numbers["skipped"]),
    )
    for item in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=target, name=item.name)
        text = _NOT_XML.sub("", item.text)
        if item.outcome == "skipped":
            ElementTree.SubElement(case, "skipped", message=text)
        elif item.outcome == "failure":
            message = text.partition("\n")[0]
            ElementTree.SubElement(case, "failure", message=message).text = text
        elif text:
            ElementTree.SubElement(case, "system-out").text = text
    return suite


def _gate_case(document: GateDocument) -> _Case:
    """
    Return the test case of a gate, which fails with all reasons except those of the plan.
    """
    reasons = [item for item in _beside_plan(document) if item.severity == "fail"]
    lines = [f"{item.step}: {item.message}" if item.step else item.message for item in reasons]
    return _Case("gate", "\n".join(lines), "failure") if reasons else _Case("gate")


def _plan_cases(document: PlanDocument) -> Iterator[_Case]:
    """
    Yield a test case per step: failed if it could not be planned, skipped if deferred.
    """
    refused: dict[str, list[str]] = {}
    for item in document.policy:
        if item.verdict == "fail":
            refused.setdefault(item.step, []).append(item.text)
    for step in document.steps:
        if step.step in refused:
            yield _Case(step.step, "\n".join(refused[step.step]), "failure")
        elif step.status == "failed":
            yield _Case(step.step, _failure(step), "failure")
        elif step.status == "deferred":
            yield _Case(step.step, step.reason or "deferred", "skipped")
        else:
            yield _Case(step.step, planned(step.actions))
    if "" in refused:
        yield _Case("policy", "\n".join(refused[""]), "failure")


def sarif(items: Iterable[Finding], *, version: str, prefix: str = "") -> str:
    """
    Return a SARIF 2.1.0 report by file and line; ``prefix`` leads from the repository to the
    project.
    """
    results = [
        {
            "ruleId": item.rule,
            "level": item.level,
            "message": {"text": f"{item.step}: {item.message}" if item.step else item.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(prefix + item.file)},
                        "region": {"startLine": item.line or 1},
                    }
                }
            ],
        }
        for item in items
    ]
    rules = [{"id": rule} for rule in dict.fromkeys(str(item["ruleId"]) for item in results)]
    driver = {"name": "orchestrator", "version": version, "rules": rules}
    return json.dumps(
        {
            "$schema": _SARIF,
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": results}],
        },
        indent=2,
    )


def gitlab_report(document: PlanDocument) -> str:
    """
    Return the report that GitLab shows in a merge request: ``artifacts: reports: terraform``.
    """
    counts = document.counts
    return json.dumps(
        {
            "create": counts.create + counts.replace + counts.import_,
            "update": counts.update,
            "delete": counts.delete + counts.replace,
        }
    )


def _failure(step: PlannedStep) -> str:
    return step.error.summary if step.error else step.reason or "could not be planned"


# A plan as GitHub-flavoured Markdown: for a comment on a pull request, a step summary, a merge
# request.
#
# Whatever a provider, a module or a person wrote stands in code fences longer than any in it, so
# that it can neither format nor mention anybody.


#: A comment on GitHub takes 65,536 characters; something is left for what stands around it.
LIMIT = 60_000
_LEAST = 400  # characters that are worth a part of a step
_WIDTH = 100


def markdown(
    plan: PlanDocument | None, gate: GateDocument | None = None, *, paper: Paper, full_text_at: str
) -> str:
    """
    Return the verdict of a gate, the plan, or both, in at most `LIMIT` characters; where that is
    not all, ``full_text_at`` says where the rest is.
    """
    paper = Paper(now=paper.now, width=_WIDTH)
    head = ""
    if gate is not None:
        page = Page(paper)
        gate_reasons(page, gate)
        head = f"## gate: {gate.verdict}\n\n{fenced(page.render().strip())}\n"
    if plan is not None:
        head += _plan_head(plan, paper)
    sections = list(_sections(plan, paper)) if plan else []
    rows = "".join(f"| `{item.step}` | {item.outcome} |\n" for item in sections)
    head += f"\n| step | plan |\n|---|---|\n{rows}" if rows else ""
    note = f"\nShortened to {LIMIT:,} characters. In full: {full_text_at}\n"
    if len(head) + len(note) > LIMIT:
        return _beginning(head, LIMIT - len(note)) + note
    text, cut = head, False
    for section in sections:
        if not section.body:
            continue
        room = LIMIT - len(text) - len(note)
        full = section.text(section.body)
        if len(full) > room:
            cut = True
            beginning = section.body[: max(room - _LEAST, 0)].rpartition("\n")[0]
            full = section.text(f"{beginning}\n...") if len(beginning) > _LEAST else ""
            full = full if len(full) <= room else ""
        text += full
    return text + (note if cut else "")


def _plan_head(document: PlanDocument, paper: Paper) -> str:
    """
    Return what the plan comes to, what would be lost, and what the policy says of it.
    """
    target = f"{document.blueprint}/{document.environment}"
    head = f"### plan of {document.command} `{target}`: {plan_summary(document)}\n"
    page = Page(paper)
    if document.command == "apply":
        losses(page, document)
    text = page.render().strip("\n")
    if text:
        head += f"\n> [!CAUTION]\n> Objects would be destroyed or replaced.\n\n{fenced(text)}"
    refused = Page(paper)
    forbidden(refused, document)
    if document.policy:
        forbids = any(item.verdict == "fail" for item in document.policy)
        heading = "The policy forbids this." if forbids else "The policy warns of this."
        head += f"\n> [!WARNING]\n> {heading}\n\n"
        head += fenced(refused.render().strip("\n"))
    return head


def _beginning(text: str, room: int) -> str:
    """
    Return the first lines of the text that fit; a code fence that is open there is closed.
    """
    beginning = text[: room - _LEAST].rpartition("\n")[0] + "\n"
    fence = ""
    for line in beginning.split("\n"):
        if not fence and line.startswith("```"):
            fence = line
        elif line == fence:
            fence = ""
    return f"{beginning}...\n{fence}\n" if fence else beginning


class _Section(Struct, frozen=True):
    step: str
    outcome: str
    body: str

    def text(self, body: str) -> str:
        return (
            f"\n<details><summary><b>{self.step}</b>: {self.outcome}</summary>\n\n"
            f"{fenced(body)}\n</details>\n"
        )


def _sections(document: PlanDocument, paper: Paper) -> Iterator[_Section]:
    for step in document.steps:
        waits = ", ".join(f"`{name}`" for name in step.waits_for)
        outcome = {
            "planned": planned(step.actions) if step.actions else "only outputs change",
            "unchanged": "no changes",
            "deferred": f"deferred: waits for {waits}" if waits else "deferred",
            "failed": "**could not be planned**",
        }[step.status]
        page = Page(paper)
        if step.reason or step.status not in ("unchanged", "deferred") or step.has_changes:
            step_plan(page, step)
        yield _Section(step.step, outcome, page.render().strip("\n"))


def fenced(text: str) -> str:
    """
    Return the text in a code fence longer than any in it.
    """
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}\n"


# The verdict of a gate, for people.


_STYLES = {"pass": "good", "warn": "warn", "fail": "bad"}


def gate_text(document: GateDocument, paper: Paper) -> str:
    """
    Return the verdict with every reason, failures first, and the plan.
    """
    page = Page(paper)
    gate_reasons(page, document)
    text = page.render()
    if document.plan is None:
        return text
    return f"{text}\n{plan_text(document.plan, paper, extent='possible')}"


def gate_reasons(page: Page, document: GateDocument) -> None:
    target = f"{document.blueprint}/{document.environment}"
    page.line((f"gate {target}: ", "bold"), (document.verdict, _STYLES[document.verdict]))
    for item in sorted(document.reasons, key=lambda reason: reason.severity != "fail"):
        where = f"{item.step}: " if item.step else ""
        page.line(
            (item.severity, _STYLES[item.severity]),
            f" {where}{item.message} ",
            (f"({item.code})", "dim"),
            indent=2,
            hang=7,
        )
        if item.remedy:
            page.next(item.remedy, indent=7)
