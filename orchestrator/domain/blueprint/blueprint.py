"""
A blueprint in an environment, checked and ready to run: what the use cases start from.

Everything here was validated when it was loaded; nothing in it refers to a file format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.record.objects import AbsenceMethod
from orchestrator.domain.store_location import StoreLocation
from orchestrator.domain.target import HookKind, Target
from orchestrator.domain.text import Json
from orchestrator.errors import Location

# What plans of a blueprint may not do, and what drift is accepted.


class Policy(Struct, frozen=True):
    """
    The policy of a blueprint in an environment. A rule that is not set forbids nothing.

    ``no_destroy`` are types and addresses (``*`` matches anything) that must not be destroyed,
    replaced or forgotten; in ``protected_steps`` no object may be. ``additive_only`` forbids any
    change of existing objects. ``max_destroys`` limits how many objects a run destroys or replaces.
    ``required_tags`` are keys that the tags or labels of an object must have, if it has any;
    ``regions`` are the allowed regions. ``rego`` are files and directories with Open Policy Agent
    rules, relative to the project.
    """

    no_destroy: tuple[str, ...] = ()
    protected_steps: tuple[str, ...] = ()
    additive_only: bool = False
    max_destroys: int | None = None
    required_tags: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    rego: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """
        Whether the policy forbids nothing.
        """
        return self == Policy()


class DriftRule(Struct, frozen=True):
    """
    Drift that is accepted, with a reason: by type or address of the object and path of the
    attribute (``*`` matches anything), up to and including the day ``until`` (2027-06-30).
    """

    address: str
    reason: str
    attribute: str = "*"
    until: str | None = None


class StoredValue(Struct, frozen=True, forbid_unknown_fields=True):
    """
    A part of a step that is stored with its deployment. An unknown field is an error: if it were
    ignored, a later run would apply something else.
    """


class Variable(StoredValue, frozen=True):
    """
    An input variable that a module declares. ``type`` is the text of its type expression.
    """

    name: str
    type: str | None = None
    required: bool = True
    sensitive: bool = False
    ephemeral: bool = False
    nullable: bool = True
    at: Location | None = None

    @property
    def typed(self) -> bool:
        """
        Whether the type is fully known (contains no ``any``).
        """
        return self.type is not None and not re.search(r"\bany\b", self.type)

    @property
    def secret(self) -> bool:
        """
        Whether every value of the variable is a secret, whatever its source.
        """
        return self.sensitive or self.ephemeral


class Output(StoredValue, frozen=True):
    name: str
    sensitive: bool = False
    at: Location | None = None


#: Which program reads a configuration: they differ in the files and constraints that they heed.
EngineKind = Literal["terraform", "tofu"]


class Constraint(StoredValue, frozen=True):
    """
    A version constraint and where it is stated. Engines from version ``until`` on ignore it.
    """

    text: str
    at: Location | None = None
    until: str | None = None


class ProviderDependencies(StoredValue, frozen=True):
    """
    The dependencies of a provider configuration: the variables it may use, and whether it refers to
    managed resources of the module.
    """

    variables: frozenset[str] = frozenset()
    managed_objects: bool = False


class ProtectedResource(StoredValue, frozen=True):
    """
    A resource with ``prevent_destroy``: its address without instance keys. ``at`` is relative to
    the module.
    """

    address: str
    at: Location


class Module(StoredValue, frozen=True):
    """
    A module's configuration as far as it can be read without an engine.

    - ``directory``: absolute. ``package``: the absolute directory that is copied with it if the
    reference is ``dir//sub``. ``local_modules``: absolute directories of all modules called by
    relative path, transitively.
    - ``backend``: the type of its backend block ("cloud" for a cloud block). ``partial_backend``:
    the same if that is its only backend block and leaves all settings to ``init``.
    - ``provider_blocks``: local names of providers that it configures itself. ``provider_sources``:
    from its own required_providers. ``provider_uses``: name and source of every provider that it or
    its local modules use, None if remote modules hide that. ``provider_reach``: dependencies of
    each provider configuration, by local name and alias ("aws.west"; "module.aws" for what local
    modules configure).
    - ``protected``: the resources with ``prevent_destroy`` in it and its local modules.
    - ``read_for``: the kind of engine that it was read for, None if the other kind reads the same
    files.
    - ``early_variables``: those that OpenTofu needs to load the configuration (module sources,
    backend, encryption, for_each of providers). ``passed_elsewhere``: those passed to remote
    modules, which may need them as early. ``encryption``: a digest of its encryption blocks, None
    if it has none.
    """

    directory: str
    variables: Mapping[str, Variable]
    outputs: Mapping[str, Output]
    required_versions: tuple[Constraint, ...] = ()
    local_modules: tuple[str, ...] = ()
    provider_sources: Mapping[str, str] = {}
    provider_blocks: tuple[str, ...] = ()
    backend: str | None = None
    provider_uses: Mapping[str, str] | None = None
    package: str | None = None
    provider_reach: Mapping[str, ProviderDependencies] = {}
    protected: tuple[ProtectedResource, ...] = ()
    read_for: EngineKind | None = None
    early_variables: tuple[str, ...] = ()
    passed_elsewhere: tuple[str, ...] = ()
    partial_backend: str = ""
    encryption: str | None = None


CheckKind = Literal["http", "tcp", "command"]


class CheckSpec(StoredValue, frozen=True):
    """
    A ``verify`` check: its kind and its settings as written, which may hold references.
    """

    kind: CheckKind
    settings: Template


_FIRST_PAUSE = 2.0  # seconds before the second try


class RetryRule(StoredValue, frozen=True):
    """
    The rule by which errors of an apply or destroy are retried.

    ``on`` are regular expressions that are searched in summary and detail of each error;
    ``attempts`` counts all tries. The pause before the second try is ``interval`` seconds (2 if
    None) and doubles each time, plus up to ``jitter`` random seconds.
    """

    on: tuple[str, ...]
    attempts: int
    interval: float | None = None
    jitter: float | None = None

    def pause(self, tried: int, fraction: float) -> float:
        """
        Return the seconds to wait after ``tried`` tries; ``fraction`` is random, from 0 to 1.

        >>> [RetryRule((), 3, interval=5.0, jitter=2.0).pause(tried, 0.5) for tried in (1, 2)]
        [6.0, 11.0]
        """
        first = _FIRST_PAUSE if self.interval is None else self.interval
        return float(first * 2 ** (tried - 1) + (self.jitter or 0.0) * fraction)


class Backend(StoredValue, frozen=True):
    type: str
    config: Template


class Retain(StoredValue, frozen=True):
    reason: str
    owner: str
    review_by: str


class EngineRequirement(StoredValue, frozen=True):
    """
    The engine that the blueprint requires: its kind and a version constraint in Terraform's syntax.
    """

    kind: EngineKind | None = None
    version: Constraint | None = None


class CommandHook(StoredValue, frozen=True, tag="command"):
    """
    A hook that runs a program without a shell: its argv and extra environment variables, as
    written. ``timeout`` is in seconds.
    """

    argv: Template
    environment: Template
    timeout: float | None = None


class ModuleHook(StoredValue, frozen=True, tag="module"):
    """
    A hook that is a Terraform module with a state of its own; `hook_step_name` names its ``root``.
    """

    root: Step


#: What a step declares as ``compensate`` or ``before_destroy``.
Hook = CommandHook | ModuleHook


class Step(StoredValue, frozen=True):
    """
    One use of a module. ``needs`` holds explicit and implied upstream steps; ``timeout`` and
    ``absence_timeout`` are seconds.

    ``compensate_after`` are the steps whose compensations come first; if None, those of its
    dependents do. ``given`` are the blueprint inputs that this step was applied with, if they
    differ from those of the deployment.
    """

    name: str
    module_ref: str
    module: Module
    inputs: Mapping[str, Template]
    needs: frozenset[str]
    backend: Backend
    providers: Mapping[str, Template]
    verify: tuple[CheckSpec, ...] = ()
    retry: RetryRule | None = None
    refused_on: tuple[str, ...] = ()
    timeout: float | None = None
    identity: Mapping[str, Template] = {}
    search: Mapping[str, Template] = {}
    owned_by: str | None = None
    retain: Retain | None = None
    verify_absence: AbsenceMethod | None = None
    absence_timeout: float | None = None
    compensate: Hook | None = None
    compensate_after: tuple[str, ...] | None = None
    before_destroy: Hook | None = None
    given: Mapping[str, InputValue] | None = None
    at: Location | None = None

    def hook(self, kind: HookKind) -> Hook | None:
        return self.compensate if kind == "compensate" else self.before_destroy

    def roots(self) -> list[Step]:
        """
        Return the step, and its hooks that are modules as steps.
        """
        hooks = (self.compensate, self.before_destroy)
        return [self, *(hook.root for hook in hooks if isinstance(hook, ModuleHook))]

    def templates(self) -> Iterator[Template]:
        """
        Yield the templates that are resolved when the step is applied, without those of its hooks.
        """
        yield from self.inputs.values()
        yield from self.providers.values()
        yield self.backend.config
        yield from self.identity.values()
        yield from self.search.values()
        yield from (check.settings for check in self.verify)

    def hook_templates(self) -> Iterator[Template]:
        for hook in (self.compensate, self.before_destroy):
            if isinstance(hook, ModuleHook):
                yield from hook.root.templates()
            elif hook is not None:
                yield from (hook.argv, hook.environment)


#: What the environment variables begin with that give inputs.
INPUT_VARIABLE = "ORCHESTRATOR_INPUT_"


class InputValue(StoredValue, frozen=True):
    """
    A blueprint input with its value.

    ``origin`` describes its source for people. ``reference`` stands for a sensitive value in the
    rerun file (a ``from:`` mapping); ``digest`` is the digest that the rerun file recorded for it.
    ``type`` is the declared type expression.
    """

    value: Json
    sensitive: bool
    origin: str
    reference: Json = None
    digest: str | None = None
    type: str = "any"


class StepSummary(Struct, frozen=True):
    """
    A step as its YAML file describes it, without reading the module: name, module reference, needs,
    declared hooks, and the provider configuration, unresolved.
    """

    name: str
    module_ref: str
    needs: frozenset[str]
    owned_by: str | None = None
    retain: Retain | None = None
    compensate: bool = False
    before_destroy: bool = False
    providers: Mapping[str, Template] = {}
    at: Location | None = None


class BlueprintSummary(Struct, frozen=True, kw_only=True):
    """
    A blueprint in an environment as its file describes it, without reading modules or resolving
    values: enough for commands that only read records. A `Deployment` is the same, resolved.

    ``project_dir`` is absolute; ``path`` is the blueprint file relative to it, with "/".
    ``moved_from`` are former paths of this blueprint, whose records still belong to it.
    ``called_in`` is the directory for ``-C`` in offered commands; "" for the current one.
    ``orphans`` are steps that were removed from the blueprint, as they were applied.
    """

    project: str
    blueprint: str
    environment: str
    project_dir: str
    path: str
    steps: Mapping[str, StepSummary | Step]
    graph: Graph
    operations: StoreLocation = field(default_factory=StoreLocation)
    protected: bool = False
    policy: Policy = field(default_factory=Policy)
    moved_from: tuple[str, ...] = ()
    called_in: str = ""
    orphans: frozenset[str] = frozenset()

    def target(self, step: str) -> Target:
        return Target(self.blueprint, self.environment, step)


class Deployment(BlueprintSummary, frozen=True, kw_only=True):
    """
    A blueprint in an environment with inputs and modules resolved: the unit that is claimed,
    applied and destroyed. `StoredDeployment` is its JSON form.

    ``env`` holds the environment variables that the blueprint refers to and that are set.
    ``unavailable`` says, by input, why its source gave no value.
    """

    steps: Mapping[str, Step]
    inputs: Mapping[str, InputValue]
    engine: EngineRequirement
    drift_rules: tuple[DriftRule, ...] = ()
    env: Mapping[str, str] = {}
    unavailable: Mapping[str, str] = {}

    def steps_and_hooks(self) -> Mapping[str, Step]:
        """
        Return all steps, and the hooks that are modules as steps, by name.
        """
        roots = [root for step in self.steps.values() for root in step.roots()]
        return {**self.steps, **{root.name: root for root in roots}}

    def secrets(self) -> list[Json]:
        """
        Return the values that must never be shown: sensitive inputs and environment variables.
        """
        mappings = [self.inputs, *(step.given for step in self.steps.values() if step.given)]
        inputs = [item.value for each in mappings for item in each.values() if item.sensitive]
        return [*inputs, *self.env.values()]
