"""
The last look at a record before it is written.
"""

from __future__ import annotations

from orchestrator.domain.masking import MARK, Masker
from orchestrator.domain.record import (
    Absence,
    Attempt,
    Check,
    CheckedObject,
    Diagnostic,
    Doubt,
    Fault,
    OperationRecord,
    Resources,
    Verification,
)
from orchestrator.domain.sealing import sealed
from tests.fakes.clock import START
from tests.fakes.entries import entry

SECRET = "hunter2secret"


def quoting() -> OperationRecord:
    """
    A record that quotes the secret wherever foreign text ends up.
    """
    said = f"bad password {SECRET}"
    fault = Fault(
        code="engine_failed",
        phase="apply",
        summary=said,
        diagnostics=(Diagnostic(summary=said, detail=said),),
    )
    return entry(
        status="error",
        outputs={"plain": "x", "careless": {"deep": [f"v={SECRET}"]}},
        last_error=said,
        error=fault,
        last_attempt=Attempt(command="apply", run_id="r", at=START, error=fault),
        verification=Verification(
            verdict="failed", checks=(Check(name=said, passed=False, detail=said),), at=START
        ),
        absence=Absence(
            verdict="unconfirmed",
            method="provider",
            checked=(CheckedObject(address="s.a", state="forgotten", why=said),),
            at=START,
        ),
        resources=Resources(in_doubt=(Doubt(address="s.a", action="create", why=said),)),
    )


def test_no_text_of_a_record_keeps_a_secret() -> None:
    """
    Law 15: errors, diagnostics, checks, doubts and outputs that quote a secret are masked.
    """
    masker = Masker()
    masker.add(SECRET)
    assert SECRET in quoting().to_json()
    assert SECRET not in sealed(quoting(), masker).to_json()


def test_what_quotes_no_secret_stays_as_it_was() -> None:
    """
    Sealing with nothing to hide changes nothing.
    """
    assert sealed(quoting(), Masker()) == quoting()


def test_a_masked_output_keeps_its_shape() -> None:
    """
    Only the leaf that quotes the secret is replaced.
    """
    masker = Masker()
    masker.add(SECRET)
    assert sealed(quoting(), masker).outputs == {
        "plain": "x",
        "careless": {"deep": [f"v={MARK}"]},
    }
