"""
The last look at a record before it is written.
"""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel

from orchestrator.domain.documents import schemas
from orchestrator.domain.events.events import Event, LiveObjects
from orchestrator.domain.json_model import JsonModel
from orchestrator.domain.masking import MARK, Masker
from orchestrator.domain.record.objects import (
    Absence,
    CheckedObject,
    Doubt,
    Readback,
    RecordModel,
    Resources,
)
from orchestrator.domain.record.record import (
    Attempt,
    Check,
    Diagnostic,
    Fault,
    Lineage,
    OperationRecord,
    Source,
    Verification,
)
from orchestrator.domain.record.run_record import RunRecord
from orchestrator.domain.redaction import redacted, redaction_of
from orchestrator.domain.text import Json, Word
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
    assert SECRET not in redacted(run, masker).to_json()


def test_what_quotes_no_secret_stays_as_it_was() -> None:
    """
    Redaction with nothing to hide changes nothing.
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


def models() -> list[type[BaseModel]]:
    """
    Every model of which values leave the process.
    """
    assert schemas.DOCUMENTS, "it imports all documents"
    found: list[type[BaseModel]] = []
    waiting: list[type[BaseModel]] = [RecordModel, JsonModel, Event, LiveObjects]
    while waiting:
        model = waiting.pop()
        found.append(model)
        waiting += model.__subclasses__()
    return [model for model in found if model.__module__.startswith("orchestrator.")]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_of_every_field_it_is_known_what_of_it_is_masked(model: type[BaseModel]) -> None:
    """
    A field of a type that redaction cannot walk through fails here, before a secret is in it.
    """
    for field in model.model_fields.values():
        redaction_of(Annotated[field.annotation, *field.metadata, None])


def test_a_text_that_nobody_classified_is_masked() -> None:
    """
    The default is to mask: a field that is added tomorrow leaks nothing, however deep it lies, and
    neither does one that only a newer version knows.
    """

    class Inner(RecordModel):
        said: str
        name: Word

    class Outer(RecordModel):
        inner: tuple[Inner, ...]
        by_name: dict[Word, str | None]
        anything: Json

    masker = Masker()
    masker.add(SECRET)
    outer = Outer.model_validate(
        {
            "inner": [{"said": SECRET, "name": SECRET}],
            "by_name": {SECRET: SECRET, "none": None},
            "anything": [{"deep": SECRET}],
            "newer": {"field": SECRET},
        }
    )

    assert redacted(outer, masker).model_dump() == {
        "inner": ({"said": MARK, "name": SECRET},),
        "by_name": {SECRET: MARK, "none": None},
        "anything": [{"deep": MARK}],
        "newer": {"field": MARK},
    }


def test_a_field_that_redaction_cannot_walk_is_an_error() -> None:
    """
    Nothing is passed over because its type is new.
    """

    class Strange(RecordModel):
        data: bytes

    with pytest.raises(TypeError, match="bytes"):
        redacted(Strange(data=b"x"), Masker())
