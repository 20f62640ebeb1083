"""
Snapshots of modules, and the working directories made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    ``digest`` is "sha256:..."; ``module_path`` is where the module lies inside ("." or "a/b");
    ``archive`` is a deterministic tar that `WorkDirs.unpack` takes back; ``has_lock_file``
    tells that the module brings a lock file of its own. ``early_variables`` are all
    that the module may need so early, ``encryption`` is that of the module, ``partial_backend`` the
    type of a backend block in it that leaves all settings to ``init``.
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
        Return whether a configuration of the provider with this local name is of any use to the
        module.
        """
        uses = self.provider_uses
        return uses is None or provider in uses or provider in self.provider_sources

    @property
    def all_provider_sources(self) -> Mapping[str, str]:
        """
        The source addresses of the providers that the module is known to use, by local name.
        """
        return {**(self.provider_uses or {}), **self.provider_sources}

    def configuration_depends_on_resources(self, configuration: str) -> bool:
        """
        Return whether the module makes a provider configuration, named as a `StateObject` names it,
        from managed objects. That of a module in it may be, and that of a snapshot from before it
        was noted.
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
        Return whether the module configures a provider with what it is given for a variable; one
        that was stored before that was noted may.
        """
        if self.provider_reach is None:
            return bool(self.provider_blocks)
        return any(variable in reach.variables for reach in self.provider_reach.values())


class Secret(Struct, frozen=True):
    """
    A sensitive leaf in provider configuration: passed as a variable, never written in a file.
    """

    value: Json


class WorkDirConfig(Struct, frozen=True):
    """
    What is generated around a snapshot: backend and provider configuration (values may hold
    Secret), and the lock file to start from. ``early_values`` are those of the snapshot's early
    variables, ``early_digest`` tells one set of them from another.
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

    ``location`` names the provider state as the record holds it; ``variables`` are extra values for
    the variable file (secrets of provider configuration). ``init_needed`` is False if the last init
    of this directory still holds. ``early_values`` are what any call of the engine in it needs to
    load the configuration. ``module`` is where its files come from, relative to the project.
    ``required_providers`` and ``provider_blocks`` are what is generated of the kind, in Terraform's
    JSON syntax, the blocks by local name. ``init_key`` is the same where an ``init`` does the same
    but for the place of the provider state; "" where that cannot be told. ``backend_file`` holds
    the settings of the backend for ``init``, None if the configuration has them all.
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
    Snapshots of modules and the working directories made from them.
    """

    def lock(self, blueprint: str, environment: str) -> AbstractContextManager[None]:
        """
        Be the only process that uses these working directories; raises Busy if another one does.
        Who dies lets go.
        """

    def snapshot(self, module: Module) -> Snapshot:
        """
        Pack a module. Raises Invalid if it reaches for files outside itself and its local modules.
        """

    def unpack(self, archive: bytes) -> Snapshot:
        """
        Return a stored snapshot, parsed as untrusted; raises StoreUnavailable if it is damaged.
        """

    def empty_snapshot(self) -> Snapshot:
        """
        Return a module that holds nothing: enough where only the provider state matters.
        """

    def prepare(
        self, target: Target, snapshot: Snapshot, setup: WorkDirConfig, engine: str
    ) -> WorkDir:
        """
        Lay out the target's working directory. What the engine left there (``.terraform``,
        ``errored.tfstate``, lock file) stays. ``engine`` is its kind and version, as text.
        """

    def copy_init(self, twin: WorkDir, root: WorkDir) -> bool:
        """
        Take over what ``init`` did in ``twin``, which is initialised and has the same ``init_key``;
        whether ``root`` is initialised by that.
        """

    def mark_initialised(self, root: WorkDir) -> None:
        """
        Remember that ``init`` succeeded in it.
        """

    def lock_file(self, root: WorkDir) -> bytes | None: ...

    def make_state_private(self, root: WorkDir) -> None:
        """
        Make provider state that the engine wrote on this machine readable to its owner only.
        """

    def drop_state_backup(self, state: ProviderState) -> None:
        """
        Remove the engine's own copy of what a provider state on this machine held before.
        """

    def errored_state(self, root: WorkDir) -> Path | None:
        """
        Return the ``errored.tfstate`` that lies in the directory.
        """

    def state_file(self, root: WorkDir) -> Path | None:
        """
        Return the file in which a local backend keeps the provider state; None of any other
        backend.
        """

    def damaged_state(self, root: WorkDir) -> Path | None:
        """
        Return the file of a local backend whose content is no provider state, nor an encrypted one.
        """

    def set_aside(self, file: Path, place: Path) -> Path:
        """
        Move a file with provider state into ``place``, 0600; where it is then.
        """

    def with_files(self, root: WorkDir, files: Mapping[str, str]) -> AbstractContextManager[None]:
        """
        Further files of configuration in the directory, by name, until the context ends. What a
        killed process left of them goes when the directory is prepared again.
        """

    def scratch_copy(self, root: WorkDir, place: Path, *, extra: Mapping[str, str]) -> WorkDir:
        """
        Return the configuration of ``root`` in the directory ``place``, on a local provider state
        that is not there yet: what is asked there changes neither ``root`` nor its provider state.

        ``extra`` are further files by name. It holds secrets: the caller removes ``place``.
        """

    def state_locked(self, root: WorkDir) -> bool:
        """
        Return whether another process holds the lock of a provider state that is a file on this
        machine; False if that cannot be told without an engine.
        """

    def not_composable(self, roots: Mapping[str, tuple[Snapshot, WorkDir]]) -> Mapping[str, str]:
        """
        Of initialised steps those that cannot be planned as modules of one root without planning
        something else, with the reason.
        """

    def composed_root(
        self, place: Path, content: Json, *, state: bytes, modules: Mapping[str, WorkDir]
    ) -> WorkDir:
        """
        Return a root in the directory ``place``, on a local copy of ``state``, whose ``content`` in
        Terraform's JSON syntax calls the ``modules`` by the sources that `module_source` gives for
        their names, without the provider configuration generated for them; the name of the file
        that a call is in begins with that of the call. Nothing is written to their directories. It
        holds secrets: the caller removes ``place``.

        It needs no init where the composed root before it was the same and `keep_composed_init` was
        called for it.
        """

    def keep_composed_init(self, root: WorkDir) -> None:
        """
        Have what ``init`` did in a composed root, which could be planned, serve the next one.
        """

    def module_source(self, name: str, root: WorkDir) -> str:
        """
        What a composed root calls a module by.
        """
