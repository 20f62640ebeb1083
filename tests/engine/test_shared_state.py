"""
One provider state belongs to one target: what another one is bound to is neither applied over nor
adopted nor imported into.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.project import Ended, Project

pytestmark = pytest.mark.engine

MODULE = 'resource "terraform_data" "object" { input = 1 }\n'
BLUEPRINT = """
    version: 1
    name: {name}
    {more}
    inputs: {{{name}_place: {{type: string}}}}
    steps:
      data:
        module: ../modules/object
        backend: {{type: local, config: {{path: "${{inputs.{name}_place}}"}}}}
"""


class Shared:
    """
    ``owner`` is applied in a protected environment; ``twin`` keeps its state at the same place, and
    ``copy`` has a copy of the same state at a place of its own. The places come from variables, so
    that the blueprints do not tell by themselves that two of them are the same.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root / "project", engine=engine)
        project.write("modules/object/main.tf", MODULE)
        state, copy = root / "states/data.tfstate", root / "states/copy.tfstate"
        protected = "environments: {prod: {protected: true}}"
        places = {"owner": state, "twin": state, "copy": copy}
        self.project.environ |= {
            f"ORCHESTRATOR_INPUT_{name}_place": str(place) for name, place in places.items()
        }
        for name, more in (
            ("owner", protected),
            ("twin", ""),
            ("copy", ""),
        ):
            text = BLUEPRINT.format(name=name, more=more)
            project.write(f"blueprints/{name}.yaml", text)
        self.owner = ("owner", "-e", "prod")
        self.made = project.run("apply", *self.owner, "--yes", "--confirm", "prod", "--json")
        shutil.copy(state, copy)
        self.state = state
        self.before = state.read_bytes()

    def run(self, verb: str, name: str) -> Ended:
        words = {
            "import": [f"{name}/default/data", "terraform_data.object", "x", "--yes"],
            "adopt": [name],
        }
        return self.project.run(verb, *words.get(verb, [name, "--yes"]), "--json")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Shared:
    return Shared(tmp_path_factory.mktemp("shared"), engine)


@pytest.mark.parametrize("name", ["twin", "copy"])
@pytest.mark.parametrize("verb", ["apply", "adopt", "import", "destroy"])
def test_the_state_of_another_target_is_refused_with_its_name(
    shared: Shared, verb: str, name: str
) -> None:
    """
    By its place or by its lineage, the owner is named; nobody is told to adopt it, and neither
    record nor state changes (law: not ours until proven).
    """
    assert shared.made.code == 0
    ended = shared.run(verb, name)

    assert ended.code == 4
    (row,) = ended.events[-1]["steps"]
    assert row["error"]["code"] == "state_of_another"
    assert "belongs to owner/prod/data" in row["last_error"]
    assert "adopt" not in row["last_error"]
    (offer,) = ended.events[-1]["next"]  # all that changes the step would be refused for the same
    assert offer["command"].startswith("orchestrator recover")
    targets = {entry["target"]["blueprint"] for entry in shared.project.history("data")}
    assert targets == {"owner"}
    assert shared.state.read_bytes() == shared.before


def test_what_the_owner_has_destroyed_is_free(shared: Shared) -> None:
    """
    A state that holds nothing any more belongs to nobody.
    """
    gone = shared.project.run("destroy", *shared.owner, "--yes", "--confirm", "prod", "--json")
    ended = shared.run("apply", "twin")

    assert (gone.code, ended.code) == (0, 0)
