"""
Reads ``resolved.inputs.yml``: the input values of an earlier run, with current secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from orchestrator.domain.blueprint.inputs import digest
from orchestrator.domain.blueprint.references import Resolved, Unresolvable
from orchestrator.domain.text import Json, ValuePath
from orchestrator.errors import Invalid, Problem

_STAND_IN = frozenset({"secret", "digest"})


class RecordedInputs(Struct, frozen=True):
    """
    The recorded values with current secrets filled in. ``secrets`` maps each sensitive leaf to its
    source, ``digests`` to the digest that was recorded.
    """

    values: Mapping[str, Json]
    secrets: Mapping[ValuePath, str]
    digests: Mapping[ValuePath, str]

    def other_secrets(self, values: Mapping[str, Json], key: bytes) -> dict[str, str]:
        """
        Return the digests of recorded secrets that differ from those in ``values``, each with the
        source of the secret.
        """
        resolved = Resolved(dict(values))

        def is_the_same(path: ValuePath, old_digest: str) -> bool:
            try:
                return digest(resolved.at(path).value, key) == old_digest
            except Unresolvable:
                return False

        return {
            old_digest: self.secrets[path]
            for path, old_digest in self.digests.items()
            if not is_the_same(path, old_digest)
        }


def placeholder(type_: str | None) -> Json:
    """
    Return a stand-in for a secret that no longer exists, for a destroy that may go on without it.
    It has the type of the variable if that is a primitive one.
    """
    match type_:
        case "number":
            return 0
        case "bool":
            return False
        case _:
            return "unavailable-secret"


def read_recorded_inputs(
    text: str | bytes, current_secret: Callable[[ValuePath, str], Json]
) -> RecordedInputs:
    """
    Read the document; ``current_secret`` returns a secret's current value by path and origin.

    Raises Invalid, with all problems, if the document is damaged or ``current_secret`` raises
    Unresolvable.
    """
    import yaml

    try:
        document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not isinstance(document, dict):
            raise ValueError("they are no map")
    except (yaml.YAMLError, ValueError) as exc:
        raise Invalid([Problem(f"recorded inputs that cannot be read: {exc}")]) from exc
    secrets: dict[ValuePath, str] = {}
    digests: dict[ValuePath, str] = {}
    problems: list[Problem] = []

    def walk(value: Json, path: ValuePath) -> Json:
        if isinstance(value, dict) and value.keys() == _STAND_IN:
            secrets[path], digests[path] = str(value["secret"]), str(value["digest"])
            try:
                return current_secret(path, secrets[path])
            except Unresolvable as exc:
                name = secrets[path]
                problems.append(
                    Problem(
                        f"the secret {name} of input {path[0]!r} cannot be had: {exc} (a destroy "
                        f"can do without one that is gone for good: --unavailable-secret {name})"
                    )
                )
                return None
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, number)) for number, item in enumerate(value)]
        return value

    values = {str(name): walk(value, (str(name),)) for name, value in document.items()}
    if problems:
        raise Invalid(problems)
    return RecordedInputs(values, secrets, digests)
