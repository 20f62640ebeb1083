"""
Which inputs of a step differ from those that it was applied with.
"""

from __future__ import annotations

from orchestrator.domain.blueprint.inputs import StepInputs, digest
from orchestrator.domain.blueprint.recorded_inputs import RecordedInputs
from orchestrator.domain.plan.changes import UNKNOWN, InputChange
from orchestrator.domain.secret_leaves import value_at, without_leaves

_NOT_SET = "not set: the default of the module"


def changed_inputs(applied: RecordedInputs, now: StepInputs, key: bytes) -> tuple[InputChange, ...]:
    """
    The inputs that differ. Secrets are compared by their keyed digests.
    """
    names = dict.fromkeys([*now.values, *applied.values])
    changes = (_changed_input(name, applied, now, key) for name in names)
    return tuple(change for change in changes if change is not None)


def _changed_input(
    name: str, applied: RecordedInputs, now: StepInputs, key: bytes
) -> InputChange | None:
    secrets = {path for path in (*applied.digests, *now.secrets) if path[0] == name}
    hidden = {path[1:] for path in secrets}
    before = without_leaves(applied.values.get(name), hidden)
    after = without_leaves(now.values.get(name), hidden)
    other_secret = False
    for path in secrets:
        new = value_at(dict(now.values), path)
        old = applied.digests.get(path) or digest(value_at(dict(applied.values), path), key)
        other_secret = other_secret or old != digest(new, key)
    if before == after and not other_secret:
        return None
    whole, known = () in hidden, after != UNKNOWN
    return InputChange(
        name=name,
        before=None if whole else before,
        after=None if whole or not known else after,
        known=known,
        sensitive=whole or other_secret,
        source=now.sources.get(name, _NOT_SET),
    )
