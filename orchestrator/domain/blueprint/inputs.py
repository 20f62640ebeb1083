"""
The input values of a step's module, which of them are secret, and how they are shown, written and
read again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE, Deployment, Step
from orchestrator.domain.blueprint.references import Lookup, Reference, Resolved, Unresolvable
from orchestrator.domain.provider_state import StateOutput
from orchestrator.domain.record.record import SENSITIVE
from orchestrator.domain.secrets import replaced_at
from orchestrator.domain.target import shown_step, step_of
from orchestrator.domain.text import Json, ValuePath, did_you_mean, scalar_text
from orchestrator.errors import Invalid, Problem

# JSON-like values as YAML text that reads back as the same values, here and with YAML 1.1
# readers.


def to_yaml(values: Mapping[str, Json], *, header: str) -> str:
    """
    Return a map as a YAML document below a comment; ambiguous text is quoted.

    >>> to_yaml({"cidr": "10.0.0.0/8", "port": 80, "code": "1e3"}, header="Inputs.")
    '# Inputs.\\ncidr: 10.0.0.0/8\\nport: 80\\ncode: "1e3"\\n'
    """
    import yaml

    dumper = _dumper()
    text = yaml.dump(dict(values), Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"# {header}\n{text}"


@cache
def _dumper() -> type:
    import yaml

    from orchestrator.domain.blueprint.yaml_tree import plain_scalar

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        plain = isinstance(plain_scalar(text), str) and text.isprintable()
        style = None if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
        text = repr(value)
        if "." not in text:  # YAML 1.1 takes 1e+20 for text
            text = text.replace("e", ".0e")
        return dumper.represent_scalar("tag:yaml.org,2002:float", text)

    Dumper.add_representer(str, represent_text)
    Dumper.add_representer(float, represent_float)
    return Dumper


_SHOWN_LENGTH = 200

Upstream = Callable[[str], Mapping[str, StateOutput]]


#: Gives the project's secret for digests, over the one in the operation store.
KEY_VARIABLE = "ORCHESTRATOR_KEY"
#: Name of the blob that holds it, in hexadecimal digits.
KEY_BLOB = "project-key"


def digest(value: Json, key: bytes) -> str:
    """
    Return the keyed digest of a value, "hmac-sha256:" and 64 hex digits. Equal JSON values have
    equal digests; so have texts that engines treat as equal (Unicode NFC).
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if "\\u" in text:
        plain = json.dumps(value, sort_keys=True, ensure_ascii=False)
        composed = json.loads(unicodedata.normalize("NFC", plain))
        text = json.dumps(composed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "hmac-sha256:" + hmac.digest(key, text.encode(), "sha256").hex()


def target_id(deployment: Deployment, step: str) -> str:
    """
    Return the stable identity of a target, for tags and client tokens: at most 63 of
    ``[a-z0-9_-]``.

    It depends on project, blueprint, environment and step only.
    """
    target = str(deployment.target(step))
    short = hashlib.sha256(f"{deployment.project}/{target}".encode()).hexdigest()[:16]
    words = re.sub(r"[^a-z0-9_-]+", "-", step).rstrip("-")
    return f"{words[:46]}-{short}"


class StepInputs(Struct, frozen=True):
    """
    Values for a module's variables. ``secrets`` maps each sensitive leaf to its source;
    ``unavailable`` names secrets replaced by a placeholder. ``sources`` describes the source of
    each value for people, if known.
    """

    values: Mapping[str, Json] = field(default_factory=dict)
    secrets: Mapping[ValuePath, str] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def masked(self) -> dict[str, str]:
        """
        Return each value as one line of text without its sensitive leaves; long ones are cut.
        """
        hidden = replaced_at(dict(self.values), self.secrets, lambda _path, _value: SENSITIVE)
        return {name: _one_line(value) for name, value in hidden.items()}

    def digest(self, key: bytes) -> str:
        return digest(dict(self.values), key)

    def with_stand_ins(self, key: bytes) -> dict[str, Json]:
        """
        Return the values with ``{secret: origin, digest: ...}`` in place of each sensitive leaf.
        """

        def stand_in(path: ValuePath, value: Json) -> Json:
            return {"secret": self.secrets[path], "digest": digest(value, key)}

        values: dict[str, Json] = replaced_at(dict(self.values), self.secrets, stand_in)
        return values

    def resolved_text(self, deployment: Deployment, key: bytes) -> str:
        name = f"{deployment.blueprint} in {deployment.environment}"
        return to_yaml(
            self.with_stand_ins(key),
            header=f"What a module of {name} was given. Secrets are named, never held.",
        )


class RecordedInputs(StepInputs, frozen=True):
    """
    The values of an earlier run, as ``resolved.inputs.yml`` has them, with current secrets filled
    in. ``digests`` maps each sensitive leaf to the digest that was recorded.
    """

    digests: Mapping[ValuePath, str] = {}

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
    Read ``resolved.inputs.yml``; ``current_secret`` returns a secret's current value by path and
    origin.

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
        if isinstance(value, dict) and value.keys() == {"secret", "digest"}:
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
    return RecordedInputs(values, secrets, digests=digests)


def rerun_text(deployment: Deployment, key: bytes) -> str:
    name = f"{deployment.blueprint} in {deployment.environment}"
    return to_yaml(
        rerun_inputs(deployment, key),
        header=f"The inputs of {name}. Give them again with --input-file.",
    )


def rerun_inputs(deployment: Deployment, key: bytes) -> dict[str, Json]:
    """
    Return the blueprint's inputs in the form of an input file: a sensitive one as its source and
    digest.
    """
    values: dict[str, Json] = {}
    for name, item in deployment.inputs.items():
        if not item.sensitive:
            values[name] = item.value
        elif item.value is not None:
            reference = item.reference or {"from": {"env": f"{INPUT_VARIABLE}{name}"}}
            values[name] = {**reference, "digest": digest(item.value, key)}
    return values


def input_sources(deployment: Deployment, step: Step) -> dict[str, str]:
    """
    Return the source of each input of a step, for people.
    """
    inputs = deployment.inputs if step.given is None else step.given

    def source(reference: Reference) -> str:
        if reference.kind == "input" and reference.names[0] in inputs:
            return inputs[reference.names[0]].origin
        return str(reference)

    return {
        name: ", ".join(dict.fromkeys(map(source, template.references))) or "blueprint"
        for name, template in step.inputs.items()
    }


class ReferenceScope(Struct, frozen=True):
    """
    What references in the values of a step may refer to. Names, blueprint inputs and environment
    variables are always there; outputs of ``upstream`` steps and the run if they are given. With
    ``inputs`` references are to the step's own inputs and ``outputs``.
    """

    deployment: Deployment
    step: Step
    upstream: Upstream | None = None
    inputs: StepInputs | None = None
    outputs: Mapping[str, StateOutput] = {}
    run_id: str | None = None

    def look_up(self, reference: Reference) -> Resolved:
        """
        Return the value of a reference; raises Unresolvable if it has none.
        """
        match reference.kind, reference.names:
            case "input", (name,) if self.inputs is not None:
                if name not in self.inputs.values:
                    step_name = self.step.name
                    raise Unresolvable(
                        f"step {step_name!r} does not set {name!r}: only its module knows it"
                    )
                return Resolved(dict(self.inputs.values), self.inputs.secrets).at((name,))
            case "input", (name,):
                inputs = self.deployment.inputs if self.step.given is None else self.step.given
                if name not in inputs:
                    why = self.deployment.unavailable.get(name)
                    reason = f": {why}" if why is not None else ""
                    raise Unresolvable(f"the input {name!r} has no value{reason}")
                is_secret = inputs[name].sensitive
                return Resolved(inputs[name].value, {(): f"inputs.{name}"} if is_secret else {})
            case "own_output", (name,) if self.inputs is not None:
                return _output(self.outputs, name, f"outputs.{name}")
            case "step_output", (step, name) if self.upstream is not None:
                return _output(self.upstream(step), name, f"steps.{step}.outputs.{name}")
            case "env", (name,):
                if name not in self.deployment.env:
                    raise Unresolvable(f"the environment variable {name} is not set")
                return Resolved(self.deployment.env[name], {(): f"env.{name}"})
            case "blueprint_name", _:
                return Resolved(self.deployment.blueprint)
            case "environment", _:
                return Resolved(self.deployment.environment)
            case "step_name", _:
                return Resolved(step_of(self.step.name))
            case "target_id", _:
                return Resolved(target_id(self.deployment, self.step.name))
            case "run_id", _ if self.run_id is not None:
                return Resolved(self.run_id)
            case _:
                raise Unresolvable(f"${{{reference}}} has no value here")


def module_inputs(step: Step, look_up: Lookup) -> StepInputs:
    """
    Return the values for the variables of a step's module. Raises Invalid, with all problems, if
    ``look_up`` cannot resolve one.

    A value for a variable that is sensitive or ephemeral is a secret, whatever its source.
    """
    values: dict[str, Json] = {}
    secrets: dict[ValuePath, str] = {}
    problems: list[Problem] = []
    for name, template in step.inputs.items():
        try:
            resolved = template.resolve(look_up)
        except Unresolvable as exc:
            problems.append(Problem(f"input {name!r} of {shown_step(step.name)}: {exc}", step.at))
            continue
        values[name] = resolved.value
        origins = dict(resolved.secrets)
        variable = step.module.variables.get(name)
        is_secret = variable is not None and variable.secret
        if is_secret and resolved.value is not None:
            whole = Resolved(resolved.value, {(): f"variable {name}"})
            origins = {**whole.leaves(), **origins}
        secrets.update({(name, *path): origin for path, origin in origins.items()})
    if problems:
        raise Invalid(problems)
    return StepInputs(values, secrets)


def _output(outputs: Mapping[str, StateOutput], name: str, shown: str) -> Resolved:
    if name not in outputs:
        hint = did_you_mean(name, outputs)
        raise Unresolvable(
            f"${{{shown}}} has no value: not in the provider state; {hint}".rstrip("; ")
        )
    item = outputs[name]
    leaves = {()} if item.sensitive else item.secret_leaves
    return Resolved(item.value, dict.fromkeys(leaves, shown))


def _one_line(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, str) and "\n" not in value:
        text = value
    elif isinstance(value, str | dict | list):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = scalar_text(value)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 1] + "…"
