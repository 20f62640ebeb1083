"""
The stored form of a deployment: JSON without secrets.

A later run restores the same deployment from it, even if blueprint and modules have changed since.
Equal deployments have equal texts, so that runs share one blob.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import (
    INPUT_VARIABLE,
    Deployment,
    EngineRequirement,
    Module,
    ModuleHook,
    Step,
    StoredValue,
)
from orchestrator.domain.blueprint.inputs import digest, rerun_inputs
from orchestrator.domain.blueprint.references import Resolved, Template
from orchestrator.domain.target import HOOK_KINDS
from orchestrator.domain.text import Json, ValuePath, is_credential
from orchestrator.domain.values import replace

SCHEMA = "orchestrator.deployment/1"


class StoredInput(StoredValue, frozen=True):
    """
    A blueprint input: its value, or for a sensitive one its source and digest in the form of an
    input file (None if the value was null). ``type`` is the type expression.
    """

    type: str = "any"
    sensitive: bool = False
    value: Json = None


class StoredDeployment(StoredValue, frozen=True, kw_only=True):
    """
    A deployment as data.

    ``env`` holds the digests of the environment variables that it refers to. ``withheld`` holds, by
    step, the digests of literal secrets in the blueprint: inputs by name, settings of backend and
    providers by path (``backend.conn_str``). ``key_id`` identifies the project key of the digests.
    """

    schema: str = SCHEMA
    project: str
    blueprint: str
    environment: str
    path: str
    moved_from: tuple[str, ...] = ()
    protected: bool = False
    engine: EngineRequirement
    key_id: str
    inputs: dict[str, StoredInput]
    env: dict[str, str]
    withheld: Mapping[str, Mapping[str, str]]
    steps: dict[str, Step]

    def to_json(self) -> str:
        """
        Return the canonical text of this deployment.
        """
        return json.dumps(_plain(self), ensure_ascii=False)


class Orphan(Struct, frozen=True):
    """
    A step that may be alive and is no longer in the blueprint: what it was applied from, and by
    which run.
    """

    step: str
    run_id: str
    stored: StoredDeployment


class UnreadableDeployment(Exception):
    """
    A stored deployment is damaged, or of another version of the tool.
    """


def content_digest(text: bytes) -> str:
    """
    Return the SHA-256 digest by which a blob is named.
    """
    return "sha256:" + hashlib.sha256(text).hexdigest()


def key_id(key: bytes) -> str:
    """
    Return an identifier of a project key that does not reveal it.
    """
    return digest("key", key)


def stored_form(deployment: Deployment, key: bytes) -> StoredDeployment:
    """
    Return the deployment as data, each secret replaced by its source and its keyed digest.
    """
    values, version = rerun_inputs(deployment, key), deployment.engine.version
    withheld = {
        name: _literal_secrets(root, key) for name, root in deployment.steps_and_hooks().items()
    }
    return StoredDeployment(
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        path=deployment.path,
        moved_from=deployment.moved_from,
        protected=deployment.protected,
        engine=replace(deployment.engine, version=version and replace(version, at=None)),
        key_id=key_id(key),
        inputs={
            name: StoredInput(
                type=item.type,
                sensitive=item.sensitive,
                value=_relative_file(values.get(name), deployment.project_dir)
                if item.sensitive
                else values.get(name),
            )
            for name, item in deployment.inputs.items()
        },
        env={name: digest(value, key) for name, value in deployment.env.items()},
        withheld={name: secrets for name, secrets in withheld.items() if secrets},
        steps={name: _portable_step(step, withheld) for name, step in deployment.steps.items()},
    )


def parse_deployment(text: bytes, digest: str) -> StoredDeployment:
    """
    Return the deployment in ``text``, which is stored under ``digest``.

    Raises UnreadableDeployment if it is damaged, of another version, or has fields that this
    version does not know: none may be ignored.
    """
    if content_digest(text) != digest:
        raise UnreadableDeployment("its content does not have the digest that it is named by")
    try:
        data = json.loads(text)
        for step in data["steps"].values():
            _tag_hooks(step)
        stored = msgspec.convert(data, StoredDeployment, dec_hook=lambda _, value: Template(value))
    except (msgspec.ValidationError, AttributeError, LookupError, TypeError, ValueError) as exc:
        raise UnreadableDeployment(f"damaged or unknown fields: {exc}") from exc
    if stored.schema != SCHEMA:
        raise UnreadableDeployment(f"schema {stored.schema!r}; this version reads {SCHEMA!r}")
    return stored


def changed_secrets(stored: StoredDeployment, current: Deployment, key: bytes) -> tuple[str, ...]:
    """
    Return the sorted names (see `known_secrets`) of the secrets that have changed, or that cannot
    be compared because the project key is another.
    """
    secrets = known_secrets(stored, current)
    return tuple(sorted(name for name, (then, now) in secrets.items() if digest(now, key) != then))


def changed_variables(
    stored: StoredDeployment, environ: Mapping[str, str], key: bytes
) -> tuple[str, ...]:
    """
    Return the names (see `known_secrets`) of the secrets whose environment variable has another
    value now. No other source is asked; with another project key none can be compared.
    """
    if stored.key_id != key_id(key):
        return ()
    then: dict[str, tuple[str, str]] = {}
    for name, item in stored.inputs.items():
        if item.sensitive and item.value is not None and item.type == "string":
            own = f"{INPUT_VARIABLE}{name}"
            source = own if own in environ else item.value.get("from", {}).get("env", "")
            then[name] = (source, str(item.value.get("digest")))
    then |= {f"env.{name}": (name, old_digest) for name, old_digest in stored.env.items()}
    return tuple(
        name
        for name, (variable, old_digest) in sorted(then.items())
        if variable in environ and digest(environ[variable], key) != old_digest
    )


def known_secrets(stored: StoredDeployment, current: Deployment) -> dict[str, tuple[str, Json]]:
    """
    Return the recorded digest and the current value of each secret of a deployment: inputs by name,
    others as ``env.NAME`` and ``steps.STEP.inputs.NAME``. A variable that is no longer set is left
    out: no step needs it.
    """
    then: dict[str, str] = {}
    today: dict[str, Json] = {}
    for name, item in stored.inputs.items():
        if item.sensitive and item.value is not None:
            then[name], today[name] = (
                str(item.value.get("digest")),
                current.inputs[name].value if name in current.inputs else None,
            )
    for name, old_digest in stored.env.items():
        if name in current.env:
            then[f"env.{name}"], today[f"env.{name}"] = old_digest, current.env[name]
    roots = current.steps_and_hooks()
    for root, inputs in stored.withheld.items():
        for name, old_digest in inputs.items():
            is_setting = "." in name
            secret = f"steps.{root}.{name if is_setting else f'inputs.{name}'}"
            settings = literal_credentials(roots[root])
            now = settings.get(name) if is_setting else roots[root].inputs[name].raw
            then[secret], today[secret] = old_digest, now
    return {name: (then[name], today[name]) for name in then}


def with_hook_steps(step: Step, change: Callable[[Step], Step]) -> Step:
    """
    Return the step with ``change`` applied to the steps of its module hooks.
    """

    if isinstance(hook := step.compensate, ModuleHook):
        step = replace(step, compensate=replace(hook, root=change(hook.root)))
    if isinstance(hook := step.before_destroy, ModuleHook):
        step = replace(step, before_destroy=replace(hook, root=change(hook.root)))
    return step


def _relative_file(reference: Json, root: str) -> Json:
    """
    Return the source of a secret; a file in the project as a path relative to it, so that another
    machine finds it.
    """
    if reference is None or "file" not in reference["from"]:
        return reference
    file = reference["from"]["file"].removeprefix(f"{root}/")
    return {**reference, "from": {"file": file}}


def _portable_step(step: Step, withheld: Mapping[str, Collection[str]]) -> Step:
    """
    Return the step and its module hooks without secrets, machine-dependent paths and places in
    files: one more comment must not make another deployment.
    """
    module = Module(
        directory="",
        variables={name: replace(item, at=None) for name, item in step.module.variables.items()},
        outputs={name: replace(item, at=None) for name, item in step.module.outputs.items()},
        required_versions=tuple(replace(c, at=None) for c in step.module.required_versions),
    )
    hidden = withheld[step.name]
    inputs = {name: template for name, template in step.inputs.items() if name not in hidden}
    portable = with_settings(step, dict.fromkeys(literal_credentials(step)))
    return with_hook_steps(
        replace(portable, inputs=inputs, module=module, given=None, at=None),
        lambda root: _portable_step(root, withheld),
    )


def _literal_secrets(step: Step, key: bytes) -> Mapping[str, str]:
    """
    Return the digests of secrets whose values are literals in the blueprint: inputs for sensitive
    variables, and credentials in the settings of backend and providers.
    """
    secrets: dict[str, Json] = {}
    for name, template in step.inputs.items():
        variable = step.module.variables.get(name)
        if variable is not None and variable.secret:
            parts = [part for _, part in _literals(template)]
            if any(isinstance(part, str | int | float) and part != "" for part in parts):
                secrets[name] = template.raw
    secrets |= literal_credentials(step)
    return {name: digest(value, key) for name, value in secrets.items()}


def literal_credentials(step: Step) -> dict[str, Json]:
    """
    Return the credentials that are literals in the settings of a step's backend and providers, by
    path.
    """
    return {
        ".".join((name, *map(str, path))): value
        for name, template in _settings(step).items()
        for path, value in _literals(template)
        if is_credential(str(path[-1]) if path else "", value)
    }


def with_settings(step: Step, values: Mapping[str, Json]) -> Step:
    """
    Return the step with the settings of its backend and providers at these paths replaced; None
    removes one.
    """
    if not values:
        return step
    raws = {path: template.raw for path, template in _settings(step).items()}
    for name, value in values.items():
        path = max((p for p in raws if name.startswith(f"{p}.")), key=len)
        raws[path] = _with_value(raws[path], name.removeprefix(f"{path}.").split("."), value)
    providers = {name: Template(raws[f"providers.{name}"]) for name in step.providers}
    backend = replace(step.backend, config=Template(raws["backend"]))
    return replace(step, backend=backend, providers=providers)


def _settings(step: Step) -> dict[str, Template]:
    providers = {f"providers.{name}": template for name, template in step.providers.items()}
    return {"backend": step.backend.config, **providers}


def _with_value(raw: Json, path: Sequence[str], value: Json) -> Json:
    head, *rest = path
    if isinstance(raw, list):
        inner = _with_value(raw[int(head)], rest, value) if rest else value
        return [*raw[: int(head)], inner, *raw[int(head) + 1 :]]
    nested = dict(raw or {})
    if rest:
        nested[head] = _with_value(nested.get(head), rest, value)
    elif value is None:
        nested.pop(head, None)
    else:
        nested[head] = value
    return nested


def _literals(template: Template) -> Iterator[tuple[ValuePath, Json]]:
    """
    Yield the parts of a template that are not one whole reference, with their path.
    """
    reference_paths = {use.path for use in template.uses if use.whole}
    everything = Resolved(template.raw, {(): ""})
    for path in everything.leaves():
        if path not in reference_paths:
            yield path, everything.at(path).value


#: Fields that came after the first version, left out where they say nothing: a deployment that does
#: not use them keeps its text, and with it the digest that it is known by.
_LATER_FIELDS = frozenset(
    {
        "until",
        "read_for",
        "early_variables",
        "passed_elsewhere",
        "encryption",
        "partial_backend",
        "interval",
        "jitter",
    }
)


def _plain(value: object) -> Json:
    """
    Return a part of a deployment as JSON; sets are sorted, so that every process writes the same
    text.
    """
    match value:
        case Template():
            return value.raw
        case Struct():
            fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return {
                name: _plain(item)
                for name, item in fields
                if not (name in _LATER_FIELDS and item in (None, (), ""))
            }
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case frozenset():
            return sorted(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _tag_hooks(step: Json) -> None:
    """
    Add the tag that tells the kinds of hooks in a stored step apart.
    """
    for kind in HOOK_KINDS:
        if hook := step.get(kind):
            hook["type"] = "command" if "argv" in hook else "module"
            _tag_hooks(hook.get("root", {}))
