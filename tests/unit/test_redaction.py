"""
The last look at a record before it is written.
"""

from __future__ import annotations

from orchestrator.domain.masking import MARK, Masker
from orchestrator.domain.record.record import (
    Absence,
    Attempt,
    Check,
    CheckedObject,
    Diagnostic,
    Doubt,
    Fault,
    Lineage,
    OperationRecord,
    Readback,
    Resources,
    RunRecord,
    Source,
    Verification,
)
from orchestrator.domain.record.redaction import redacted, redacted_run
from tests.fakes.clock import START
from tests.fakes.entries import ACTOR, entry

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
        resources=Resources(
            in_doubt=(
                Doubt(
                    address="s.a",
                    action="create",
                    why=said,
                    readback=Readback(verdict="unknown", method="id", why=said, at=START),
                ),
            )
        ),
        lineage=Lineage(kind="retry", from_run="r", reason=said),
    )


def test_no_text_of_a_record_keeps_a_secret() -> None:
    """
    Law: secrets travel with values.
    Errors, diagnostics, checks, doubts and outputs that quote a secret are masked.
    """
    masker = Masker()
    masker.add(SECRET)
    assert SECRET in quoting().to_json()
    assert SECRET not in redacted(quoting(), masker).to_json()


def test_what_a_person_typed_is_masked_in_a_run() -> None:
    """
    Law: secrets travel with values.
    Reasons and arguments of a run keep no secret, whichever option they were given by.
    """
    said = f"it was {SECRET}"
    run = RunRecord(
        run_id="r",
        project="p",
        blueprint="b",
        environment="e",
        command="retry",
        arguments={"repeat": said},
        actor=ACTOR,
        reason=said,
        lineage=Lineage(kind="retry", from_run="q", reason=said),
        source=Source(blueprint_path="b.yaml"),
        skipped_preflight=said,
        started_at=START,
    )
    masker = Masker()
    masker.add(SECRET)
    assert run.to_json().count(SECRET) == 4
    assert SECRET not in redacted_run(run, masker).to_json()


def test_what_quotes_no_secret_stays_as_it_was() -> None:
    """
    Sealing with nothing to hide changes nothing.
    """
    assert redacted(quoting(), Masker()) == quoting()


def test_a_masked_output_keeps_its_shape() -> None:
    """
    Only the leaf that quotes the secret is replaced.
    """
    masker = Masker()
    masker.add(SECRET)
    assert redacted(quoting(), masker).outputs == {
        "plain": "x",
        "careless": {"deep": [f"v={MARK}"]},
    }
