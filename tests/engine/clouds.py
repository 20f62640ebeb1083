"""
Projects whose provider is that of the fixture cloud.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures.fakecloud import Cloud, environment, install
from tests.project import Project


def provide(project: Project, cloud: Cloud, place: Path) -> None:
    """
    Have the project's engine start the provider of the cloud, installed below ``place``.
    """
    project.environ = environment(install(place / "mirror"), cloud, project.environ)


@contextmanager
def attached(project: Project, cloud: Cloud, place: Path) -> Iterator[Cloud]:
    """
    The same with a provider that is there already: quicker, but nothing in it crashes.
    """
    provide(project, cloud, place)
    with cloud.attached() as reattach:
        project.environ["TF_REATTACH_PROVIDERS"] = reattach
        yield cloud
