"""
Approvals as files: what ``plan --out`` writes, and ``apply --plan`` and ``destroy --plan`` read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.running import RunCall
from orchestrator.domain.values import replace

if TYPE_CHECKING:
    from orchestrator.domain.plan.approval import Approval


def with_approval(call: RunCall, file: Path | None, approve_only: tuple[str, ...]) -> RunCall:
    """
    The call with what was approved in a file, which says what it is about. Usage where options
    contradict that; Invalid where the file is no approval.
    """
    from orchestrator.errors import Usage

    options = call.options
    if file is None:
        if approve_only or options.max_age is not None:
            raise Usage("--approve-only and --max-age go with --plan")
        return call
    if options.steps or options.exclude:
        raise Usage("--plan says which steps; --approve-only takes some of them")
    approval = _read(call.project.directory / file)
    names = [item.step for item in approval.steps]
    unknown = [name for name in approve_only if name not in names]
    if unknown:
        from orchestrator.domain.text import did_you_mean

        hint = did_you_mean(unknown[0], names)
        raise Usage(f"the approval has no step {unknown[0]!r}", hint=hint)
    plan = replace(options.plan, approval=approval, approved=True, values=True)
    return replace(call, options=replace(options, steps=approve_only or tuple(names), plan=plan))


def write_approval(path: Path, approval: Approval) -> None:
    """
    Write an approval. Usage where that is not possible.
    """
    from orchestrator.errors import Usage
    from orchestrator.local_files import write_file

    try:
        write_file(path, approval.to_json() + "\n")
    except OSError as exc:
        raise Usage(f"{path} cannot be written: {exc.strerror}") from exc


def _read(path: Path) -> Approval:
    from pydantic import ValidationError

    from orchestrator.domain.plan.approval import Approval
    from orchestrator.errors import Invalid, Problem
    from orchestrator.local_files import read_regular

    hint = "give the file that `orchestrator plan --out FILE` wrote"
    try:
        return Approval.model_validate_json(read_regular(path))
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no approval"
        if isinstance(exc, ValidationError) and exc.errors()[0]["loc"] == ("schema",):
            why = "it is no orchestrator.approval/1"
        raise Invalid([Problem(f"{path}: {why}", hint=hint)]) from exc
