"""
A blueprint in an environment, checked and ready to run: what the use cases start from.

Everything here was validated when it was loaded; nothing in it refers to a file format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.record.objects import AbsenceMethod
from orchestrator.domain.target import HOOK_KINDS, HookKind, Target
from orchestrator.domain.text import Json
from orchestrator.errors import Location

# Where the operation store of a blueprint in an environment lies.


#: Where records lie beside provider states in a bucket or container.
PREFIX = "orchestrator"
#: The schemes of ``operations.url`` by which a store is one for several machines.
DATABASES, BUCKETS = ("postgres", "postgresql"), ("s3", "gs", "az")
SHARED_SCHEMES = (*DATABASES, *BUCKETS)


#: The forms of ``operations.url``.
STORE_URLS = (
    "sqlite:///ABSOLUTE/PATH, sqlite:RELATIVE/PATH, a path, postgres://HOST/DATABASE, "
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or memory:"
)
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(//(?P<authority>[^/?#]*))?(?P<path>[^?#]*)(?P<more>.*)",
    re.DOTALL,
)
_HOST = re.compile(r"(?:.*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:@]*)(?::(?P<port>[^:]*))?")
#: The variables by which PostgreSQL's own client finds a database that no URL names.
_DATABASE_VARIABLES = ("PG_CONN_STR", "PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


def url_scheme(url: str) -> str | None:
    """
    Return the scheme of an ``operations.url``, None if it is a path.

    >>> url_scheme("S3://bucket"), url_scheme("ops.db")
    ('s3', None)
    """
    match = _URL.fullmatch(url)
    return match["scheme"].lower() if match else None


def store_url_problem(url: str, environ: Mapping[str, str]) -> str | None:
    """
    Why this can be no ``operations.url``; None if it can. Nothing of it is repeated: it may hold a
    password.

    >>> store_url_problem("s3:///prefix", {}), store_url_problem("postgres://db/ops", {})
    ('names no bucket', None)
    """
    match = _URL.fullmatch(url)
    if match is None or match["scheme"].lower() == "memory":
        return None
    scheme, authority = match["scheme"].lower(), match["authority"] or ""
    if scheme == "sqlite":
        is_path = match["path"].strip("/") and not (authority or match["more"])
        return None if is_path else "not a SQLite path"
    if scheme in BUCKETS:
        return None if authority else "names no bucket"
    if scheme not in DATABASES:
        return f"unknown kind {scheme!r}"
    elsewhere = url.endswith(":") or any(environ.get(name) for name in _DATABASE_VARIABLES)
    if not elsewhere and not url.partition(":")[2].strip("/"):
        return "names no database"
    hosts = [_HOST.fullmatch(host) for host in authority.split(",")]
    is_valid = all(host and (host["port"] or "0").isdecimal() for host in hosts)
    return None if is_valid else "its host or port is none"


class StoreLocation(Struct, frozen=True):
    """
    ``url`` is what ``operations.url`` says, else the place beside the provider states of
    ``backend``. Without one, records are kept on this machine: as they should with the backend
    ``local``, for want of a shared store with any other.

    ``config`` is the backend block where it has the credentials for ``url``.
    """

    backend: str = "local"
    url: str | None = None
    config: Mapping[str, Json] = {}

    def __repr__(self) -> str:
        return f"StoreLocation({self.backend!r}, {self.url!r})"

    @property
    def lacks_shared_store(self) -> bool:
        """
        Whether provider states are shared and the records would not be.
        """
        return self.url is None and self.backend != "local"

    @property
    def is_shared(self) -> bool:
        """
        Whether the store is one for several machines.
        """
        return url_scheme(self.url or "") in SHARED_SCHEMES


def location_beside(backend: str, config: Mapping[str, Json]) -> StoreLocation:
    """
    Return the location beside the provider states that a backend block holds.

    >>> location_beside("s3", {"bucket": "acme-tfstate"}).url
    's3://acme-tfstate/orchestrator'
    """
    match backend, config:
        case "s3", {"bucket": str(bucket)}:
            url = f"s3://{bucket}/{PREFIX}"
        case "gcs", {"bucket": str(bucket)}:
            url = f"gs://{bucket}/{PREFIX}"
        case "azurerm", {"container_name": str(container), "storage_account_name": str(_)}:
            url = f"az://{container}/{PREFIX}"
        case "pg", _:
            url = "postgres:"  # the block, or the environment, says which
        case _:
            return StoreLocation(backend)
    return StoreLocation(backend, url, config)


# What plans of a blueprint may not do, and what drift is accepted.


class Policy(Struct, frozen=True):
    """
    The rules of a blueprint in an environment; one that is not set forbids nothing.

    ``no_destroy`` are types and addresses, with ``*`` for anything, that are neither destroyed nor
    replaced nor forgotten; nothing at all of ``protected_steps`` is. ``additive_only``: nothing
    that exists is changed. ``max_destroys`` counts what a run destroys and replaces.
    ``required_tags`` are keys of the tags or labels of whatever has some; ``regions`` are those
    that objects may be in. ``rego`` are files and directories with rules of the Open Policy Agent,
    relative to the project.
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
    Drift that is accepted, for a reason: of objects by type or address and of attributes by path,
    each with ``*`` for anything; up to and including the day ``until``, such as 2027-06-30.
    """

    address: str
    reason: str
    attribute: str = "*"
    until: str | None = None


class StoredValue(Struct, frozen=True, forbid_unknown_fields=True):
    """
    A part of a step, stored with the deployment that it was applied from. An unknown field is an
    error: to leave it out would run something else.
    """


class Variable(StoredValue, frozen=True):
    """
    An input variable that a module declares. ``type`` is its type expression as text.
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
        Whether the type leaves nothing open (it holds no ``any``).
        """
        return self.type is not None and not re.search(r"\bany\b", self.type)

    @property
    def secret(self) -> bool:
        """
        Whether any value of the variable is a secret, wherever it comes from.
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
    A version constraint and the place that states it. Engines from version ``until`` on do not heed
    it.
    """

    text: str
    at: Location | None = None
    until: str | None = None


class ProviderDependencies(StoredValue, frozen=True):
    """
    What the configuration of a provider is made from: the variables that it may depend on, and
    whether it refers to managed objects of the module.
    """

    variables: frozenset[str] = frozenset()
    managed_objects: bool = False


class ProtectedResource(StoredValue, frozen=True):
    """
    A resource with ``prevent_destroy``: its address without keys; ``at`` is relative to the module.
    """

    address: str
    at: Location


class Module(StoredValue, frozen=True):
    """
    What a module's configuration says of itself, read without an engine.

    ``directory`` is absolute; ``local_modules`` are the absolute directories of the modules it
    calls by relative path, transitively. ``backend`` is the type of its backend block ("cloud" for
    a cloud block), ``partial_backend`` the same where that block is the only one and leaves all
    settings to ``init``. ``provider_blocks`` are the local names it configures itself.
    ``provider_sources`` are those of its own required_providers; ``provider_uses`` are the names
    and sources of every provider that it or its local modules use, None if modules from elsewhere
    hide that. ``package`` is the absolute directory that is copied with it, for a module referred
    to as ``dir//sub``. ``provider_reach`` is by local name and alias ("aws.west"; what its local
    modules configure as "module.aws"); ``protected`` are the resources in all of them. ``read_for``
    is the kind of engine that it was read for, None if another kind reads the same files.
    ``early_variables`` are those without which OpenTofu cannot load the configuration: module
    sources, backend, encryption and repeated providers depend on them. ``passed_elsewhere`` are
    those that modules from elsewhere are given, of which nobody knows here whether they need them
    so early. ``encryption`` is a digest of its encryption blocks, None if it has none.
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


class CheckSpec(StoredValue, frozen=True):
    """
    One ``verify`` check: its kind and its settings as written (they may hold references).
    """

    kind: Literal["http", "tcp", "command"]
    settings: Template


_FIRST_PAUSE = 2.0  # seconds before the second try


class RetryRule(StoredValue, frozen=True):
    """
    Which errors of an apply or destroy are tried again: regular expressions, searched for in
    summary and detail of each; tries in all. ``interval`` are the seconds before the second try (2
    where it is None), doubled for each that follows; up to ``jitter`` seconds are added at random.
    """

    on: tuple[str, ...]
    attempts: int
    interval: float | None = None
    jitter: float | None = None

    def pause(self, tried: int, fraction: float) -> float:
        """
        Return the seconds after so many tries; ``fraction`` is random, from 0 to 1.

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
    The engine that the blueprint asks for; a version constraint like Terraform's.
    """

    kind: EngineKind | None = None
    version: Constraint | None = None


class CommandHook(StoredValue, frozen=True, tag="command"):
    """
    A hook that is a program: its argument vector and what its environment holds beside ours, as
    written. ``timeout`` in seconds. No shell ever sees it.
    """

    argv: Template
    environment: Template
    timeout: float | None = None


class ModuleHook(StoredValue, frozen=True, tag="module"):
    """
    A hook that is a Terraform root with a state of its own; ``root`` is named by `hook_step_name`.
    """

    root: Step


#: What a step declares as ``compensate`` or ``before_destroy``.
Hook = CommandHook | ModuleHook


class Step(StoredValue, frozen=True):
    """
    One use of a module. ``needs`` holds explicit and implied upstream steps, ``timeout`` and
    ``absence_timeout`` seconds.

    ``compensate_after`` are the steps whose compensations come before its own; None: those of its
    dependents do. ``given`` are the inputs of the blueprint as this step was applied with, where
    they are not those of the deployment.
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
        """
        Return the hook of this kind that the step declares.
        """
        return self.compensate if kind == "compensate" else self.before_destroy


#: What the environment variables begin with that give inputs.
INPUT_VARIABLE = "ORCHESTRATOR_INPUT_"


class InputValue(StoredValue, frozen=True):
    """
    A blueprint input with its value. ``origin`` says where it came from, for people;
    ``reference`` is what stands for a sensitive value in the rerun file (a ``from:`` mapping);
    ``digest`` is what the rerun file it came from says that the value was; ``type`` is the type
    expression that the blueprint declares.
    """

    value: Json
    sensitive: bool
    origin: str
    reference: Json = None
    digest: str | None = None
    type: str = "any"


class StepSummary(Struct, frozen=True):
    """
    A step without its module: its name, module reference and needs, which hooks it declares, and
    the provider configuration that the blueprint gives it, unresolved.
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
    A blueprint in an environment as far as its file tells, without modules and values: all that
    reading commands need. A `Deployment` is the same, resolved.

    ``project_dir`` is the absolute project directory, ``path`` the blueprint file relative to it
    with "/". ``moved_from`` are former paths of this blueprint whose records are still ours.
    ``called_in`` is the directory that a command must be called in by ``-C``; "" where it is the
    current one.
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

    def target(self, step: str) -> Target:
        """
        Return the target of a step.
        """
        return Target(self.blueprint, self.environment, step)


class Deployment(BlueprintSummary, frozen=True, kw_only=True):
    """
    A blueprint in an environment, with its inputs and modules: the unit that is claimed, applied,
    destroyed. `StoredDeployment` is its JSON form.

    ``env`` holds the environment variables that the blueprint refers to and that are set.
    ``orphans`` are steps that the blueprint no longer has: they are as they were applied.
    ``unavailable`` says why an input has no value whose source gave none.
    """

    steps: Mapping[str, Step]
    inputs: Mapping[str, InputValue]
    engine: EngineRequirement
    drift_rules: tuple[DriftRule, ...] = ()
    env: Mapping[str, str] = {}
    orphans: frozenset[str] = frozenset()
    unavailable: Mapping[str, str] = {}

    def steps_and_hooks(self) -> Mapping[str, Step]:
        """
        Return every Terraform root by its name: those of the steps, and those of hooks that are
        modules.
        """
        actions = (step.hook(kind) for step in self.steps.values() for kind in HOOK_KINDS)
        hooks = [action.root for action in actions if isinstance(action, ModuleHook)]
        return {**self.steps, **{root.name: root for root in hooks}}

    def secrets(self) -> list[Json]:
        """
        Return the values that must never be shown: sensitive inputs, and environment variables.
        """
        mappings = [self.inputs, *(step.given for step in self.steps.values() if step.given)]
        inputs = [item.value for each in mappings for item in each.values() if item.sensitive]
        return [*inputs, *self.env.values()]
