"""
Errors and validation problems: for people on stderr, and as documents for ``--json``.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.domain.documents.documents import (
    ErrorDocument,
    ProblemDocument,
    ValidationDocument,
)
from orchestrator.domain.text import count
from orchestrator.errors import EngineFailed, Invalid, Location, OrchestratorError, Problem, Refused
from orchestrator.views.page import Page, Paper, callable_from


def error_text(error: OrchestratorError, paper: Paper) -> str:
    """
    Return ``error: ...``, each problem with its place, and ``next: ...`` if there is a hint.
    """
    page = Page(paper)
    if isinstance(error, Invalid):
        _problems(page, problem_documents(error.problems))
    else:
        page.line(("error", "bad"), f": {error.message}", hang=7)
        if error.hint:
            page.next(error.hint)
    return page.render()


def error_document(error: OrchestratorError, paper: Paper) -> ErrorDocument:
    """
    Return the error as a document; ``reason`` is that of a refusal, or the phase of an engine
    failure. Commands in its hint are written for ``paper``.
    """
    match error:
        case Refused():
            reason: str | None = error.reason
        case EngineFailed():
            reason = error.phase
        case _:
            reason = None
    problems = error.problems if isinstance(error, Invalid) else ()
    return ErrorDocument(
        code=error.code,
        exit_code=error.exit_code,
        message=error.message,
        # Those of problems stand with each of them.
        hint="" if problems else callable_from(paper.called_in, error.hint),
        reason=reason,
        problems=problem_documents(problems),
    )


def problem_documents(problems: Iterable[Problem]) -> tuple[ProblemDocument, ...]:
    """
    Return the problems as parts of a document, in the same order.
    """
    return tuple(
        ProblemDocument(
            message=problem.message,
            file=problem.at.file if problem.at else None,
            line=(problem.at.line or None) if problem.at else None,
            column=(problem.at.column or None) if problem.at else None,
            hint=problem.hint,
        )
        for problem in problems
    )


def validation_text(document: ValidationDocument, paper: Paper) -> str:
    page = Page(paper)
    if document.problems:
        _problems(page, document.problems)
        page.gap()
        page.line((f"{count(len(document.problems), 'problem')} found", "bold"))
        return page.render()
    for item in document.blueprints:
        environments = f"; environments {', '.join(item.environments)}" if item.environments else ""
        steps = count(len(item.steps), "step")
        page.line(item.file, ": ", ("valid", "good"), f" ({item.blueprint}: {steps}{environments})")
    if not document.blueprints:
        page.line("nothing to check: no blueprint found")
    return page.render()


def _problems(page: Page, problems: Iterable[ProblemDocument]) -> None:
    for problem in problems:
        page.line(("error", "bad"), f": {problem.message}", hang=7)
        if problem.file:
            location = Location(problem.file, problem.line or 0, problem.column or 0)
            page.line((f"at {location}", "dim"), indent=7, hang=0)
        if problem.hint:
            page.next(problem.hint, indent=7)
