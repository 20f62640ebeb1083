"""
``import`` blocks of a module: planned actions like any other, never objects that were there before.
"""

from __future__ import annotations

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.readback_project import REQUIRED
from tests.project import Project
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

BLUEPRINT = """
    version: 1
    name: taken
    steps:
      things: {{module: ../modules/things, inputs: {{size: {size}}}}}
"""
IMPORTING = """
    variable "size" {{ type = string }}

    import {{
      to = fakecloud_server.this
      id = "{id}"
    }}

    resource "fakecloud_server" "this" {{
      name = "legacy"
      size = var.size
    }}

    resource "fakecloud_server" "beside" {{
      name = "beside"
    }}
"""
MOVED = """
    variable "size" { type = string }

    moved {
      from = fakecloud_server.this
      to   = fakecloud_server.moved
    }

"""
THIS, BESIDE = "fakecloud_server.this", "fakecloud_server.beside"


@pytest.fixture
def project(project: Project, cloud: Cloud) -> Project:
    """
    A server that plain use of the engine made, in a module that imports it.
    """
    directory = project.root / "plain"
    project.write(
        "plain/modules/things/main.tf",
        REQUIRED + 'resource "fakecloud_server" "this" {\n  name = "legacy"\n}\n',
    )
    project.write(
        "plain/blueprints/made.yaml",
        "version: 1\nname: made\nsteps: {things: {module: ../modules/things}}\n",
    )
    elsewhere = Project(directory)
    elsewhere.environ = project.environ
    elsewhere.ok("apply", "made", "--yes")
    write(project, cloud, size="small")
    return project


def write(project: Project, cloud: Cloud, *, size: str) -> None:
    (server,) = (item for item in cloud.servers() if item.name == "legacy")
    project.write("modules/things/main.tf", REQUIRED + IMPORTING.format(id=server.id))
    project.write("blueprints/taken.yaml", BLUEPRINT.format(size=size))


def test_a_new_step_imports_what_its_module_says(project: Project, cloud: Cloud) -> None:
    """
    Planned as an import, applied without `adopt`, recorded as taken in and not as made here.
    """
    planned = project.ok("plan", "taken")
    document = project.ok("plan", "taken", "--json").document
    applied = project.ok("apply", "taken", "--yes", "--json")

    record = project.record("things")
    actions = {item["address"]: item for item in document["steps"][0]["actions"]}
    assert "1 to import" in planned.out and "imported from srv-" in planned.out
    assert actions[THIS]["importing"] == cloud.servers()[0].id
    assert (applied.row["imported"], applied.row["created"]) == ([THIS], [BESIDE])
    assert record["status"] == "ok"
    assert [item["address"] for item in record["adopted"]] == [THIS]
    assert sorted(server.name for server in cloud.servers()) == ["beside", "legacy"]
    assert project.ok("apply", "taken", "--yes", "--json").row["imported"] == []


def test_an_import_that_changes_the_object_is_both(project: Project, cloud: Cloud) -> None:
    """
    Counted as an import and as an update, in plan and outcome.
    """
    write(project, cloud, size="large")

    planned = project.ok("plan", "taken")
    applied = project.ok("apply", "taken", "--yes", "--json")

    assert "1 to update" in planned.out and "1 to import" in planned.out, planned.out
    assert (applied.row["imported"], applied.row["updated"]) == ([THIS], [THIS])


def test_what_was_imported_is_not_destroyed_unasked(project: Project, cloud: Cloud) -> None:
    """
    Nothing proves that this target made it: a destroy needs a reason for it, and so does its plan,
    also where it was moved to.
    """
    project.prepare("apply", "taken", "--yes")

    accepted = ("--accept-adopted", "it is ours by contract")
    plans = [project.run("plan", "taken", "--destroy", *more) for more in ((), accepted)]
    replaced = ("--replace", THIS)
    plans += [project.run("plan", "taken", *replaced, *more) for more in ((), accepted)]
    refused = project.run("destroy", "taken", "--yes")

    assert [plan.code for plan in plans] == [4, 0, 4, 0], "".join(plan.said for plan in plans)
    assert "--accept-adopted" in plans[2].out

    assert refused.code == 4 and "import block" in refused.said, refused.said
    assert len(cloud.servers()) == 2
    assert project.run("apply", "taken", "--yes", *replaced).code == 4
    project.environ.pop("TF_IN_AUTOMATION")
    terminal = Terminal(project, "apply", "taken", *replaced)
    assert terminal.finish() == 4
    assert "Continue?" not in terminal.shown, "nobody is asked about what is refused anyway"

    to_nowhere = project.write("modules/things/main.tf", REQUIRED + MOVED)
    assert project.run("plan", "taken").code == 4, "it would be destroyed at another address"
    with to_nowhere.open("a") as module:
        module.write('resource "fakecloud_server" "moved" {\n  name = "legacy"\n}\n')
    project.ok("apply", "taken", "--yes")
    refused = project.run("destroy", "taken", "--yes")
    assert refused.code == 4 and "fakecloud_server.moved" in refused.said, refused.said
    project.ok("destroy", "taken", "--yes", *accepted)
    assert not cloud.servers()


def test_an_import_that_fails_leaves_no_record(project: Project, cloud: Cloud) -> None:
    """
    What is not there cannot be imported: nothing was begun, nothing is recorded.
    """
    cloud.delete_out_of_band("legacy")

    ended = project.run("apply", "taken", "--yes")

    assert ended.code == 10, ended.said
    assert project.entries("things") == []
    assert not cloud.servers()


def test_what_another_target_has_is_named_before_it_is_imported(
    project: Project, cloud: Cloud
) -> None:
    """
    The blueprint is copied, the import block with it: plan, apply and the verb `import` say whose
    the object is, before anything is approved.
    """
    project.prepare("apply", "taken", "--yes")
    text = (project.root / "blueprints/taken.yaml").read_text()
    project.write("blueprints/copy.yaml", text.replace("name: taken", "name: copy"))
    object_id = next(item.id for item in cloud.servers() if item.name == "legacy")
    said = f"{object_id} is {THIS} of taken/default/things already"

    planned = project.ok("plan", "copy")
    applied = project.ok("apply", "copy", "--yes", "--json")
    by_hand = project.run("import", "copy/default/things", THIS, object_id, "--yes", "--json")

    assert said in " ".join(planned.said.replace("things │", "").split())
    assert said in applied.out and said in by_hand.out
