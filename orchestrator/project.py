"""
The project that a command works in, and the blueprint that it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.domain.blueprint.store_location import StoreLocation
from orchestrator.settings import SHARED_GRACE, Settings, read_settings

if TYPE_CHECKING:
    from orchestrator.app.services import Limits


class ProjectContext(Struct, frozen=True):
    """
    Where the tool was called: the directory, the settings of its project, the environment
    variables. Relative paths of the command line start at ``directory``.
    """

    directory: Path
    settings: Settings
    environ: Mapping[str, str]

    @property
    def project_dir(self) -> Path:
        return self.settings.project_dir

    @property
    def called_in(self) -> str:
        """
        The directory that a command must be called in by ``-C``; "" where it is the current one.
        """
        here = Path.cwd()
        return "" if self.directory == here else os.path.relpath(self.directory, here)

    @property
    def operations(self) -> StoreLocation:
        """
        The operation store of the project, for what belongs to no blueprint.
        """
        return StoreLocation(url=self.settings.operations_url)

    def limits(self, operations: StoreLocation, store_grace: float | None) -> Limits:
        """
        The times of a run whose operation store is at this location, by the settings;
        ``store_grace`` is what the command line says, if anything.
        """
        from orchestrator.app.services import Limits  # here: reading commands must not wait for it

        settings = self.settings
        waits = (store_grace, settings.store_grace, SHARED_GRACE * operations.is_shared)
        return Limits(
            timeout=settings.timeout,
            grace=settings.grace,
            settle=settings.settle_seconds,
            store_grace=next(seconds for seconds in waits if seconds is not None),
        )

    @property
    def own_dir(self) -> Path:
        """
        The tool's own directory in the project.
        """
        return self.project_dir / ".orchestrator"


class BlueprintSelection(Struct, frozen=True):
    """
    A blueprint by name or path, its environment, and the inputs of the command line:
    ``variables`` are the NAME=VALUE of ``-i``, ``engine_option`` what ``--engine`` says.
    """

    blueprint: str
    environment: str | None = None
    variables: tuple[str, ...] = ()
    input_files: tuple[Path, ...] = ()
    engine_option: str | None = None


def project_context(directory: Path) -> ProjectContext:
    """
    The project that a directory belongs to; Invalid where its settings are wrong.
    """
    return ProjectContext(
        directory=directory, settings=read_settings(directory, os.environ), environ=os.environ
    )
