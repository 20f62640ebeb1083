"""
Module snapshots and the working directories made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:  # a reading command does not pay for importing the shapes
    from orchestrator.domain.blueprint.blueprint import (
        Module,
        ProtectedResource,
        ProviderDependencies,
        Variable,
    )
    from orchestrator.domain.record.record import ProviderState
    from orchestrator.domain.target import Target
    from orchestrator.domain.text import Json


class Snapshot(Struct, frozen=True):
    """
    A module and the local modules it uses, content-addressed.

    ``digest`` is "sha256:..."; ``module_path`` is the module's path inside ("." or "a/b");
    ``archive`` is a deterministic tar for `WorkDirs.unpack`; ``has_lock_file`` is true if the
    module has a lock file of its own. ``early_variables``, ``encryption`` and ``partial_backend``
    are as in `Module`, but the first include those passed to remote modules.
    """

    digest: str
    module_path: str
    archive: bytes
    variables: Mapping[str, Variable]
    provider_sources: Mapping[str, str]
    provider_blocks: tuple[str, ...] = ()
    provider_uses: Mapping[str, str] | None = None
    has_lock_file: bool = False
    provider_reach: Mapping[str, ProviderDependencies] | None = None
    protected: tuple[ProtectedResource, ...] = ()
    early_variables: tuple[str, ...] = ()
    encryption: str = ""
    partial_backend: str = ""

    def uses_provider(self, provider: str) -> bool:
        """
        Return whether the module uses the provider with this local name.
        """
        uses = self.provider_uses
        return uses is None or provider in uses or provider in self.provider_sources

    @property
    def all_provider_sources(self) -> Mapping[str, str]:
        """
        The source addresses of the providers that the module is known to use, by local name.
        """
        return {**(self.provider_uses or {}), **self.provider_sources}

    @property
    def has_ephemeral_variables(self) -> bool:
        """
        Whether the module has ephemeral variables, which an apply of a saved plan needs again.
        """
        return any(item.ephemeral for item in self.variables.values())

    def configuration_depends_on_resources(self, configuration: str) -> bool:
        """
        Return whether a provider configuration of the module, named as in `StateObject`, may depend
        on managed resources. One inside a local module may; so may all in snapshots stored before
        this was recorded.
        """
        if configuration.startswith("module."):
            return True
        source, _, alias = configuration.removeprefix('provider["').partition('"]')
        names = self.provider_blocks if self.provider_reach is None else (*self.provider_reach,)
        for name in names:
            label, _, own = name.partition(".")
            if not f"/{source}".endswith(
                f"/{self.all_provider_sources.get(label, f'hashicorp/{label}')}"
            ):
                continue
            if self.provider_reach is None:
                return True
            # OpenTofu: `by["eu"]` is an instance of the configuration `by`.
            if (
                own == alias.removeprefix(".").partition("[")[0]
                and self.provider_reach[name].managed_objects
            ):
                return True
        return False

    def provider_may_depend_on_resources(self, name: str) -> bool:
        """
        Return whether any configuration of this provider (any alias) depends on managed resources;
        for an unknown provider: whether any configuration does.
        """
        reach = self.provider_reach
        if reach is None:
            return bool(self.provider_blocks)
        own = [
            item
            for key, item in reach.items()
            if name in (key.partition(".")[0], key.removeprefix("module."))
        ]
        if own:
            return any(item.managed_objects for item in own)
        providers = {*self.provider_sources, *(self.provider_uses or ())}
        return name not in providers and any(item.managed_objects for item in reach.values())

    def provider_may_depend_on_variable(self, variable: str) -> bool:
        """
        Return whether a provider configuration may use the variable; true for snapshots stored
        before this was recorded.
        """
        if self.provider_reach is None:
            return bool(self.provider_blocks)
        return any(variable in reach.variables for reach in self.provider_reach.values())


class Secret(Struct, frozen=True):
    """
    A sensitive leaf in provider configuration: passed as a variable, never written to a file.
    """

    value: Json


class WorkDirConfig(Struct, frozen=True):
    """
    The configuration to generate around a snapshot: backend and providers (values may hold Secret),
    and the initial lock file. ``early_values`` are the values of the snapshot's early variables,
    ``early_digest`` identifies them.
    """

    backend_type: str
    backend_config: Mapping[str, Json]
    providers: Mapping[str, Json] = field(default_factory=dict)
    lock_file: bytes | None = None
    early_values: Mapping[str, Json] = field(default_factory=dict)
    early_digest: str = ""


class WorkDir(Struct, frozen=True):
    """
    A working directory, ready for ``init``.

    ``location`` names the provider state as in the record; ``variables`` are extra values for the
    variable file (secrets of provider configuration). ``init_needed`` is False if the last init of
    this directory is still valid. ``early_values`` are the variables that every engine call needs
    to load the configuration. ``module`` is the path of the module's sources, relative to the
    project. ``required_providers`` and ``provider_blocks`` are the generated ones, in Terraform's
    JSON syntax, the blocks by local name. ``init_key`` is equal for directories whose ``init``
    differs only in the state location; "" if unknown. ``backend_file`` holds the backend settings
    for ``init``, relative to ``directory``; None if the configuration has them all.
    """

    directory: Path
    location: str
    backend_type: str
    variables: Mapping[str, Json]
    init_needed: bool
    early_values: Mapping[str, Json] = field(default_factory=dict)
    module: str = ""
    required_providers: Mapping[str, Json] = field(default_factory=dict)
    provider_blocks: Mapping[str, list[Json]] = field(default_factory=dict)
    init_key: str = ""
    backend_file: Path | None = None


class WorkDirs(Protocol):
    """
    Module snapshots and the working directories made from them.
    """

    def lock(self, blueprint: str, environment: str) -> AbstractContextManager[None]:
        """
        Hold the lock on these working directories. Raises Busy if another process holds it. The
        lock is released when the process ends.
        """

    def snapshot(self, module: Module) -> Snapshot:
        """
        Pack a module. Raises Invalid if it refers to files outside itself and its local modules.
        """

    def unpack(self, archive: bytes) -> Snapshot:
        """
        Return a stored snapshot, parsed as untrusted. Raises StoreUnavailable if it is damaged.
        """

    def empty_snapshot(self) -> Snapshot:
        """
        Return an empty module, for work that only needs the provider state.
        """

    def prepare(
        self, target: Target, snapshot: Snapshot, setup: WorkDirConfig, engine: str
    ) -> WorkDir:
        """
        Lay out the target's working directory. The engine's files in it (``.terraform``,
        ``errored.tfstate``, lock file) are kept. ``engine`` is its kind and version, as text.
        """

    def copy_init(self, twin: WorkDir, root: WorkDir) -> bool:
        """
        Copy the result of ``init`` from ``twin``, which is initialised and has the same
        ``init_key``. Returns whether ``root`` is initialised now.
        """

    def mark_initialised(self, root: WorkDir) -> None:
        """
        Remember that ``init`` succeeded in this directory.
        """

    def lock_file(self, root: WorkDir) -> bytes | None: ...

    def make_state_private(self, root: WorkDir) -> None:
        """
        Make a local provider state readable by its owner only.
        """

    def drop_state_backup(self, state: ProviderState) -> None:
        """
        Remove the engine's backup of a local provider state.
        """

    def errored_state(self, root: WorkDir) -> Path | None:
        """
        Return the ``errored.tfstate`` in the directory.
        """

    def state_file(self, root: WorkDir) -> Path | None:
        """
        Return the state file of a local backend, None for any other backend.
        """

    def damaged_state(self, root: WorkDir) -> Path | None:
        """
        Return the state file of a local backend if its content is no provider state, encrypted or
        not.
        """

    def set_aside(self, file: Path, directory: Path) -> Path:
        """
        Move a file with provider state into ``place``, 0600, and return its new path.
        """

    def with_files(self, root: WorkDir, files: Mapping[str, str]) -> AbstractContextManager[None]:
        """
        Add configuration files to the directory, by name, until the context ends. What a killed
        process left of them is removed when the directory is prepared again.
        """

    def scratch_copy(self, root: WorkDir, directory: Path, *, extra: Mapping[str, str]) -> WorkDir:
        """
        Copy the configuration of ``root`` to the directory ``place``, with an empty local backend:
        queries there change neither ``root`` nor its provider state.

        ``extra`` are further files by name. The copy holds secrets: the caller removes ``place``.
        """

    def state_locked(self, root: WorkDir) -> bool:
        """
        Return whether another process holds the lock of a local provider state; False if only an
        engine could tell.
        """

    def not_composable(self, roots: Mapping[str, tuple[Snapshot, WorkDir]]) -> Set[str]:
        """
        Return the initialised steps that cannot be planned as modules of one root without changing
        their plan.
        """

    def composed_root(
        self, directory: Path, content: Json, *, state: bytes, modules: Mapping[str, WorkDir]
    ) -> WorkDir:
        """
        Write a root module to the directory ``place``, on a local copy of ``state``. Its
        ``content``, in Terraform's JSON syntax, calls the ``modules`` by the sources that
        `module_source` returns, without the provider configuration generated for them; the file of
        a call has a name that begins with that of the call. The modules' directories are not
        changed. The root holds secrets: the caller removes ``place``.

        It needs no init if the previous composed root was the same and `keep_composed_init` was
        called for it.
        """

    def keep_composed_init(self, root: WorkDir) -> None:
        """
        Keep the ``init`` of a composed root, whose plan succeeded, for the next one.
        """

    def module_source(self, name: str, root: WorkDir) -> str:
        """
        Return the source by which a composed root calls a module.
        """
