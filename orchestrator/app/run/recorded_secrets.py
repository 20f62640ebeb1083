"""
The secrets that a target was applied with, masked also where they are not at hand.

Law: secrets travel with values. A record holds a secret's keyed digest, by which it is found again
in the provider state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from orchestrator.app.run.prepared_steps import PreparedSteps
from orchestrator.app.steps.engine_calls import mask_by_digest
from orchestrator.app.steps.preparation import PreparedStep
from orchestrator.domain.blueprint.recorded_inputs import read_recorded_inputs
from orchestrator.domain.events.engine_messages import PulledState
from orchestrator.domain.record.record import OperationRecord
from orchestrator.domain.record.states import Status
from orchestrator.errors import Refused


def check_maskable(steps: PreparedSteps, prepared: PreparedStep, state: PulledState) -> None:
    """
    Mask what the target was applied with and its provider state may hold from here on.

    Refused where a secret of the last apply is neither at hand nor found by its digest.
    """
    if not state.objects and not state.outputs:
        return
    services, target = steps.services, steps.deployment.target(prepared.step.name)
    history = services.store.history(target)
    documents = list(
        dict.fromkeys(filter(None, map(steps.values.recorded_text, _since_complete(history))))
    )
    unknown = [_not_at_hand(steps, prepared, text) for text in documents]
    found = mask_by_digest(services, state, {name for names in unknown for name in names})
    steps.learn_secrets(prepared.record, state)
    missing = (
        {origin for name, origin in unknown[0].items() if name not in found} if unknown else ()
    )
    if missing:
        raise Refused(
            "secret_not_at_hand",
            f"{target}: withheld, for it could show what was given as {', '.join(sorted(missing))}:"
            " the value is not at hand and its digest finds it nowhere in the provider state, so "
            "nothing can mask it",
            hint="give the secret as for the apply, or use the engine itself in the directory that "
            "`orchestrator status -v` shows",
        )


def _since_complete(history: list[OperationRecord]) -> Iterator[OperationRecord]:
    """
    The entries, newest first, that the values in the provider state may come from: back to the last
    one by which all of it was applied.
    """
    for entry in history:
        yield entry
        if entry.status is Status.OK:
            return


def _not_at_hand(steps: PreparedSteps, prepared: PreparedStep, text: str) -> Mapping[str, str]:
    """
    The digests in a document of recorded inputs that belong to no secret of today, each with the
    name of the secret. What is at hand is masked from here on.
    """
    found = read_recorded_inputs(text, partial(steps.values.secret_at_hand, prepared.step))
    return found.other_secrets(found.values, steps.services.key)
