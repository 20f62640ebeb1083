"""
Law: state moved without us.
In another region, account or with other credentials than the objects were made with: nothing
is mutated and nothing is forgotten, whatever else of the target can still be seen.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import provide
from tests.project import Project

pytestmark = pytest.mark.engine

#: One region from the environment, one that the module says, and an object that has no region.
MODULE = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    provider "fakecloud" {}
    provider "fakecloud" {
      alias  = "there"
      region = "there"
    }
    resource "terraform_data" "local" {}
    resource "fakecloud_server" "here" {
      name = "home"
    }
    resource "fakecloud_server" "there" {
      provider = fakecloud.there
      name     = "away"
    }
"""
BLUEPRINT = """
    version: 1
    name: regions
    steps:
      servers: {module: ../modules/servers}
"""


class Scene:
    """
    The target, applied; what it is made of can be compared.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.cloud = Cloud(root / "cloud.db")
        self.project = Project(root / "project", engine=engine)
        provide(self.project, self.cloud, root)
        self.project.write("modules/servers/main.tf", MODULE)
        self.project.write("blueprints/regions.yaml", BLUEPRINT)
        self.project.prepare("apply", "regions", "--yes")

    def content(self) -> tuple[object, ...]:
        """
        Remote objects, provider state and record, as they are now.
        """
        (state,) = self.project.own.glob("state/**/servers.tfstate")
        servers = [(server.region, server.name) for server in self.cloud.servers()]
        return servers, state.read_bytes(), self.project.entries("servers")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Scene:
    return Scene(tmp_path_factory.mktemp("scope"), engine)


@pytest.mark.parametrize(
    "verb",
    [
        "destroy",
        "destroy --refresh=false",
        "apply",
        "apply --refresh=false --replace terraform_data.local",
    ],
)
def test_one_of_two_regions_is_the_wrong_one(scene: Scene, verb: str) -> None:
    """
    One provider configuration finds nothing, the other one and a local object are found: exit 4
    with the object named, and neither objects, provider state nor record are touched.
    """
    before = scene.content()

    ended = scene.project.run(
        *(*verb.split(), "regions", "--yes", "--json"),
        environ={"FAKECLOUD_REGION": "elsewhere"},
    )

    fault = ended.events[-1]["steps"][0]["error"]
    assert (ended.code, fault["code"]) == (4, "vanished"), ended.said
    assert "fakecloud_server.here" in fault["summary"] and "there" not in fault["summary"]
    assert scene.content() == before


@pytest.mark.parametrize("engine", ["embedded"], indirect=True, scope="module")
def test_the_wrong_region_by_another_engine(tmp_path: Path, engine: str) -> None:
    """
    What rests on how plans tell of what vanished holds for every engine.
    """
    scene = Scene(tmp_path, engine)
    before = scene.content()

    for verb in ("destroy", "apply"):
        ended = scene.project.run(verb, "regions", "--yes", environ={"FAKECLOUD_REGION": "other"})
        assert (ended.code, scene.content()) == (4, before), ended.said


def test_another_account_is_refused(scene: Scene, tmp_path: Path) -> None:
    """
    Where all that is remote has vanished, a local object of the target does not vouch for it.
    """
    before = scene.content()

    ended = scene.project.run(
        "destroy", "regions", "--yes", environ={"FAKECLOUD_DB": str(tmp_path / "other.db")}
    )

    assert ended.code == 4, ended.said
    assert "fakecloud_server.here" in ended.said and "fakecloud_server.there" in ended.said
    assert scene.content() == before


def test_other_credentials_are_refused(scene: Scene) -> None:
    """
    Credentials that may not see the objects: the plan fails, exit 10, and nothing is touched.
    """
    before = scene.content()
    scene.cloud.require_token("t0k3n")
    try:
        ended = scene.project.run("destroy", "regions", "--yes")
    finally:
        scene.cloud.require_token(None)

    assert ended.code == 10, ended.said
    assert scene.content() == before


def test_a_targeted_apply_in_the_wrong_region_is_refused(scene: Scene) -> None:
    """
    It asks for one object and loses it: what it does not ask for does not vouch for the region.
    """
    before = scene.content()

    ended = scene.project.run(
        *("apply", "regions", "--yes", "--target", "fakecloud_server.here"),
        environ={"FAKECLOUD_REGION": "elsewhere"},
    )

    assert ended.code == 4, ended.said
    assert scene.content() == before


def test_without_a_refresh_an_unreadable_object_can_be_destroyed(
    tmp_path: Path, engine: str
) -> None:
    """
    What `--refresh=false` is for: an object that cannot be read does not stop the destroy. Where
    the provider was to confirm, it never saw that object and so cannot.
    """
    scene = Scene(tmp_path, engine)
    scene.cloud.arm("read", "home", "read_error", remaining=-1)
    words = ("destroy", "regions", "--refresh=false", "--yes")

    with_refresh = scene.project.run("destroy", "regions", "--yes")
    by_provider = scene.project.run(*words, "--verify", "provider")
    record = scene.project.record("servers")

    assert with_refresh.code == 10, with_refresh.said
    assert (by_provider.code, record["error"]["code"]) == (11, "unconfirmed"), by_provider.said
    assert [doubt["address"] for doubt in record["resources"]["in_doubt"]] == [
        "fakecloud_server.here"
    ]
    assert scene.cloud.servers() == ()


def test_a_lone_deposed_object_is_not_forgotten(tmp_path: Path, engine: str) -> None:
    """
    Provider state holds nothing but a deposed object, of whose drift no plan tells: a destroy in
    the wrong region is refused, one in the right region deletes it.
    """
    scene = Scene(tmp_path, engine)
    project, module = scene.project, scene.project.root / "modules/servers/main.tf"
    lifecycle = 'name = "home"\n lifecycle {\n  create_before_destroy = true\n }'
    text = module.read_text().replace('name = "home"', lifecycle)
    module.write_text(text)
    project.prepare("apply", "regions", "--yes")
    scene.cloud.arm("delete", "home", "delete_fails")
    module.write_text(text.replace('"home"', '"next"'))
    assert project.run("apply", "regions", "--yes").code == 10
    directory = project.steps("regions")["servers"]["directory"]
    for address in ("terraform_data.local", "fakecloud_server.there"):
        subprocess.run(
            [engine, "state", "rm", address],
            cwd=directory,
            env=project.environ,
            check=True,
            capture_output=True,
        )
    scene.cloud.delete_out_of_band("next")
    before = scene.content()

    wrong = project.run("destroy", "regions", "--yes", environ={"FAKECLOUD_REGION": "elsewhere"})
    kept = scene.content()
    project.run("destroy", "regions", "--yes")

    assert (wrong.code, kept) == (4, before), wrong.said
    assert [server.name for server in scene.cloud.servers()] == ["away"]
