"""
``plan`` plans the steps of a blueprint together: what an upstream will change is planned in every
step that depends on it, nothing is applied, and what cannot be composed is planned on its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.watched_engine import kill, watched
from tests.project import Project, every_engine

pytestmark = pytest.mark.engine

NETWORK = """
    variable "cidr" {}
    resource "terraform_data" "network" { input = var.cidr }
    resource "terraform_data" "subnet" {
      for_each = toset(["a", "b"])
      input    = "${terraform_data.network.output}-${each.key}"
    }
    output "id" { value = terraform_data.network.id }
    output "cidr" { value = terraform_data.network.output }
    output "key" {
      value     = "s3cr3t-${var.cidr}"
      sensitive = true
    }
"""
SERVICE = """
    variable "network" {}
    variable "labels" { type = map(string) }
    variable "key" { sensitive = true }
    resource "terraform_data" "service" {
      input            = var.labels
      triggers_replace = var.network
    }
    resource "terraform_data" "key" { input = var.key }
    output "labels" { value = terraform_data.service.output }
"""
#: An engine calls it a change that a check reads its data source again.
CHECKED = """
    check "reads" {
      data "terraform_remote_state" "other" {
        backend = "local"
        config  = { path = "EMPTY" }
      }
      assert {
        condition     = data.terraform_remote_state.other.outputs == {}
        error_message = "it holds something"
      }
    }
"""
BLUEPRINT = """
    version: 1
    name: shop
    inputs:
      cidr: {type: string, default: 10.0.0.0/16}
    steps:
      network:
        module: ../modules/network
        inputs: {cidr: "${inputs.cidr}"}
      service:
        module: ../modules/service
        inputs:
          network: "${steps.network.outputs.id}"
          labels: {range: "in ${steps.network.outputs.cidr}, not $${this}"}
          key: "${steps.network.outputs.key}"
      other:
        module: ../modules/service
        inputs: {network: fixed, labels: {odd: "%{if}"}, key: "${steps.network.outputs.key}"}
"""


@pytest.fixture
def shop(project: Project) -> Project:
    """
    Three steps, two of which read outputs of the first.
    """
    project.write("modules/network/main.tf", NETWORK)
    project.write("modules/service/main.tf", SERVICE)
    project.write("blueprints/shop.yaml", BLUEPRINT)
    return project


def planned(project: Project, *options: str, blueprint: str = "shop") -> dict[str, dict[str, Any]]:
    """
    The rows of a plan, which must not fail.
    """
    ended = project.ok("plan", blueprint, "--json", *options)
    return ended.rows


def methods(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {step: row["method"] for step, row in rows.items()}


def changes(row: dict[str, Any]) -> set[tuple[str, str]]:
    return {(item["address"], item["action"]) for item in row["actions"]}


def depose(state: Path, resource: str) -> None:
    """
    Add a deposed object to a resource in a provider state.
    """
    document = json.loads(state.read_text())
    (found,) = (item for item in document["resources"] if item["name"] == resource)
    current = found["instances"][0]
    earlier = {**current, "attributes": {**current["attributes"], "id": "id-before"}}
    found["instances"].append({**earlier, "deposed": "0badcafe"})
    state.write_text(json.dumps({**document, "serial": document["serial"] + 1}))


def temporary(project: Project) -> list[Path]:
    """
    What is left of composed roots.
    """
    return [*project.own.rglob("main.tf.json"), *project.own.rglob(".private-*")]


@every_engine
def test_a_blueprint_that_was_never_applied_is_planned_whole(shop: Project) -> None:
    rows = planned(shop)

    assert methods(rows) == dict.fromkeys(rows, "composed")
    assert changes(rows["service"]) == {
        ("terraform_data.service", "create"),
        ("terraform_data.key", "create"),
    }
    assert len(changes(rows["network"])) == 3
    assert not (shop.own / "state").exists() or not list((shop.own / "state").rglob("*.tfstate"))
    assert temporary(shop) == []


@every_engine
def test_a_change_is_planned_with_its_dependents(shop: Project) -> None:
    """
    The dependents change by what the upstream will be, which no plan of theirs alone can tell;
    without a change nothing is planned for anybody, sensitive values and escapes included.
    """
    empty = shop.write("empty.json", json.dumps({"version": 4, "lineage": "l", "serial": 1}))
    shop.write("modules/service/checks.tf", CHECKED.replace("EMPTY", str(empty)))
    shop.prepare("apply", "shop", "--yes")
    unchanged, apart = planned(shop), planned(shop, "--separate")
    rows = planned(shop, "-i", "cidr=10.1.0.0/16")

    assert {row["status"] for row in (*unchanged.values(), *apart.values())} == {"unchanged"}
    assert methods(unchanged) == dict.fromkeys(unchanged, "composed")
    assert changes(rows["service"]) == {
        ("terraform_data.service", "update"),
        ("terraform_data.key", "update"),
    }
    assert changes(rows["other"]) == {("terraform_data.key", "update")}
    shop.prepare("apply", "shop", "--yes", "-i", "cidr=10.1.0.0/16")
    assert shop.steps("shop")["other"]["status"] == "ok"


EDITS = {
    "a resource removed": ('resource "terraform_data" "key" { input = var.key }', ""),
    "a resource renamed": ('"terraform_data" "key"', '"terraform_data" "secret"'),
    "a resource moved": (
        'resource "terraform_data" "key" {',
        "moved {\n from = terraform_data.key\n to = terraform_data.secret\n}\n"
        'resource "terraform_data" "secret" {',
    ),
    "an output removed": ('output "labels" { value = terraform_data.service.output }', ""),
    "an output made sensitive": (
        'output "labels" { value = terraform_data.service.output }',
        'output "labels" {\n value = terraform_data.service.output\n sensitive = true\n}',
    ),
    "a replacement": ("triggers_replace = var.network", 'triggers_replace = "another"'),
    "a count": (
        'resource "terraform_data" "key" { input = var.key }',
        'resource "terraform_data" "key" {\n count = 2\n input = var.key\n}',
    ),
    "a deposed object": ("", ""),
}


@pytest.mark.parametrize("edit", EDITS)
def test_both_ways_of_planning_say_the_same(shop: Project, edit: str) -> None:
    """
    Where no upstream changes, a composed plan says of each step what the step's own plan does.
    """
    shop.prepare("apply", "shop", "--yes")
    old, new = EDITS[edit]
    assert old in SERVICE
    shop.write("modules/service/main.tf", SERVICE.replace(old, new) if old else SERVICE)
    if edit == "a deposed object":
        depose(shop.own / "state/shop/default/other.tfstate", "key")

    together, apart = planned(shop), planned(shop, "--separate")

    assert methods(together) == dict.fromkeys(together, "composed")
    assert methods(apart) == dict.fromkeys(apart, "separate")
    for step, row in together.items():
        for rows in (row, apart[step]):  # in the order in which the engine got to them
            rows["actions"].sort(key=json.dumps)
        for field in ("status", "actions", "outputs", "resources", "outputs_changed", "counts"):
            assert row[field] == apart[step][field], (step, field)


OWN_WAYS = {
    "the place of the root": 'resource "terraform_data" "place" { input = path.root }',
    "a path from the root": 'resource "terraform_data" "by" { for_each = fileset(".", "*.tf") }',
    "an import block": """
        import {
          to = terraform_data.old
          id = "x"
        }
        resource "terraform_data" "old" {}
    """,
    "an ephemeral variable": """
        variable "once" {
          ephemeral = true
          default   = "x"
        }
    """,
}


@pytest.mark.parametrize("way", OWN_WAYS)
def test_what_cannot_be_composed_is_planned_on_its_own(shop: Project, way: str) -> None:
    """
    The rest is composed all the same.
    """
    shop.prepare("apply", "shop", "--yes")
    shop.write("modules/extra/main.tf", SERVICE)
    shop.write("modules/extra/own.tf", OWN_WAYS[way])
    head, other = BLUEPRINT.split("other:\n")
    other = other.replace("../modules/service", "../modules/extra")
    shop.write("blueprints/shop.yaml", f"{head}other:\n{other}")

    rows = planned(shop)

    assert methods(rows) == {"network": "composed", "service": "composed", "other": "separate"}


def test_what_nobody_changed_is_no_change_for_the_digits_of_a_number(project: Project) -> None:
    """
    An engine computes with more digits than we do, and writes small numbers out: neither is a
    difference between the plan of all and that of each.
    """
    project.write(
        "modules/a/main.tf",
        """
        output "third" { value = 1 / 3 }
        output "small" { value = 0.0000001 }
        """,
    )
    project.write(
        "modules/b/main.tf",
        """
        variable "value" { type = any }
        resource "terraform_data" "this" { input = var.value }
        """,
    )
    project.write(
        "blueprints/n.yaml",
        """
        version: 1
        name: n
        steps:
          a: {module: ../modules/a}
          third: {module: ../modules/b, inputs: {value: "${steps.a.outputs.third}"}}
          text: {module: ../modules/b, inputs: {value: "is ${steps.a.outputs.small}"}}
        """,
    )
    first = planned(project, "--out", "approval.json", blueprint="n")
    assert set(methods(first).values()) == {"composed"}
    project.ok("apply", "n", "--plan", "approval.json")

    for options in ([], ["--separate"]):
        rows = planned(project, *options, blueprint="n")
        assert {row["status"] for row in rows.values()} == {"unchanged"}, options


def test_a_failing_step_does_not_take_the_others_along(shop: Project) -> None:
    """
    Who made the composed plan fail is planned apart, with what depends on it, and fails there with
    its own error, by the file of its module.
    """
    shop.prepare("apply", "shop", "--yes")
    broken = SERVICE.replace(
        "input            = var.labels",
        'input = var.labels\n lifecycle {\n precondition {\n condition = var.network != "fixed"\n'
        ' error_message = "no fixed networks"\n }\n }',
    )
    shop.write("modules/service/main.tf", broken)

    ended = shop.run("plan", "shop", "--json")

    assert ended.code == 10
    assert methods(ended.rows)["network"] == "composed"
    assert ended.rows["other"]["status"] == "failed"
    assert "no fixed networks" in ended.rows["other"]["error"]["summary"]
    assert ended.rows["service"]["status"] in ("unchanged", "planned")


def test_a_value_that_does_not_fit_concerns_the_step_that_is_given_it(shop: Project) -> None:
    """
    The others are composed all the same, also beside a step whose name an engine might take for
    something else.
    """
    blueprint = BLUEPRINT.replace("other:\n", "an_override:\n")
    shop.write("blueprints/shop.yaml", blueprint)
    shop.prepare("apply", "shop", "--yes")
    shop.write("modules/mapped/main.tf", SERVICE.replace("{}", "{ type = map(string) }"))
    shop.write("blueprints/shop.yaml", blueprint.replace("modules/service", "modules/mapped", 1))

    ended = shop.run("plan", "shop", "--json")

    assert ended.code == 10
    assert {name: methods(ended.rows)[name] for name in ("network", "an_override")} == {
        "network": "composed",
        "an_override": "composed",
    }
    assert ended.rows["an_override"]["status"] == "unchanged"
    assert ended.rows["service"]["status"] == "failed"


def test_one_provider_configuration_is_one(project: Project, cloud: Cloud) -> None:
    """
    What the blueprint configures is the root's, once for all steps that are given the same; an
    object that leaves a module is destroyed by it.
    """
    project.write("modules/server/backend.tf", 'terraform {\n  backend "local" {}\n}\n')
    project.write(
        "blueprints/web.yaml",
        """
        version: 1
        name: web
        inputs: {more: {type: "list(string)", default: [x]}}
        providers: {fakecloud: {region: eu}}
        steps:
          one:
            module: ../modules/server
            inputs: {name: one, names: "${inputs.more}"}
          two:
            module: ../modules/server
            inputs: {name: "two-${steps.one.outputs.id}"}
        """,
    )
    first = planned(project, blueprint="web")
    project.prepare("apply", "web", "--yes")

    same = planned(project, blueprint="web")
    fewer = planned(project, "-i", "more=[]", blueprint="web")

    assert methods(first) == {"one": "composed", "two": "composed"}
    assert not any(row["diagnostics"] for row in first.values()), "that its backend is ignored"
    assert changes(first["two"]) == {("fakecloud_server.this", "create")}
    assert {row["status"] for row in same.values()} == {"unchanged"}
    assert changes(fewer["one"]) == {('fakecloud_server.more["x"]', "delete")}
    assert fewer["two"]["status"] == "unchanged"


def test_a_repeated_apply_costs_one_plan(shop: Project, tmp_path: Path) -> None:
    """
    Steps with the module and inputs that they were applied with are planned as one and recorded
    from that plan; a step that is not as it was has a plan of its own, and so have its dependents.
    """
    engine = watched(shop, tmp_path / "watched")
    shop.prepare("apply", "shop", "--yes")
    first = len(engine.calls("plan"))
    again = shop.ok("apply", "shop", "--yes", "--json")
    repeat = len(engine.calls("plan"))
    shop.write("modules/service/more.tf", 'resource "terraform_data" "more" {}\n')
    changed = shop.ok("apply", "shop", "--yes", "--json")

    assert (first, repeat) == (3, 4)
    assert again.statuses == changed.statuses == dict.fromkeys(again.rows, "ok")
    assert len(engine.calls("plan")) == repeat + 3
    assert {step: row["created"] for step, row in changed.rows.items()} == {
        "network": [],
        "service": ["terraform_data.more"],
        "other": ["terraform_data.more"],
    }
    assert [entry["status"] for entry in shop.history("network")] == ["running", "ok", "ok", "ok"]


def test_an_init_serves_the_plans_of_the_same_modules(shop: Project, tmp_path: Path) -> None:
    """
    What `init` did for composed modules serves the next plan of them; where a module is another
    one, or what it did is gone, it is done again.
    """
    engine = watched(shop, tmp_path / "watched")
    shop.prepare("apply", "shop", "--yes")
    inits = len(engine.calls("init"))

    first, second = planned(shop), planned(shop)
    assert len(engine.calls("init")) == inits + 1
    assert first == second
    assert methods(second) == dict.fromkeys(second, "composed")

    shop.write("modules/network/inner/main.tf", 'resource "terraform_data" "inner" {}\n')
    shop.write("modules/network/more.tf", 'module "inner" { source = "./inner" }\n')
    assert changes(planned(shop)["network"]) == {("module.inner.terraform_data.inner", "create")}

    (installed,) = shop.own.glob("work/shop/*/.composed/modules/modules.json")
    installed.unlink()
    damaged, after = planned(shop), planned(shop)
    assert changes(damaged["network"]) == {("module.inner.terraform_data.inner", "create")}
    assert methods(after) == dict.fromkeys(after, "composed")


def test_what_changed_outside_is_not_taken_for_unchanged(project: Project, cloud: Cloud) -> None:
    """
    An object that somebody deleted or changed shows in the plan that all share, and its step is
    planned and applied on its own.
    """
    project.write(
        "blueprints/web.yaml",
        """
        version: 1
        name: web
        steps:
          one: {module: ../modules/server, inputs: {name: one, names: [x]}}
          two: {module: ../modules/server, inputs: {name: two}}
          three: {module: ../modules/server, inputs: {name: "${steps.two.outputs.name}-three"}}
        """,
    )
    project.prepare("apply", "web", "--yes")
    cloud.delete_out_of_band("x")

    applied = project.ok("apply", "web", "--yes", "--json")

    assert applied.rows["one"]["created"] == ['fakecloud_server.more["x"]']
    assert applied.rows["three"]["status"] == "ok"
    assert {item.name for item in cloud.servers()} == {"one", "x", "two", "two-three"}


def test_what_a_killed_command_composed_is_removed_by_the_next(
    shop: Project, tmp_path: Path
) -> None:
    """
    The merged provider state and the values of the inputs are nobody else's, and gone at the end;
    also where the plan or the apply that made them was killed.
    """
    engine = watched(shop, tmp_path / "watched")
    shop.prepare("apply", "shop", "--yes")
    for command in (("plan", "shop"), ("apply", "shop", "--yes")):
        engine.hold("plan")
        tool = shop.start(*command)
        engine.wait_until_held("plan", tool)
        (root,) = shop.own.rglob("main.tf.json")
        kill(tool)
        engine.release("plan")

        assert root.parent.stat().st_mode & 0o077 == 0
        assert root.exists()
        shop.ok(*command)
        assert temporary(shop) == []
        assert "s3cr3t" not in "".join(
            path.read_text(errors="replace")
            for path in (shop.own / "runs").rglob("*")
            if path.is_file()
        )


def test_a_rollback_is_planned_whole(shop: Project) -> None:
    """
    From the modules and inputs of the run, which are not in the project any more; dependents with
    what their upstream would be. What would be rolled back to is what the rollback then does.
    """
    shop.prepare("apply", "shop", "--yes")
    good = shop.last_run()["run_id"]
    shop.write("modules/service/main.tf", SERVICE + '\nresource "terraform_data" "more" {}\n')
    shop.prepare("apply", "shop", "--yes", "-i", "cidr=10.1.0.0/16")
    rows = planned(shop, "--rerun", good)
    assert methods(rows) == dict.fromkeys(rows, "composed")
    assert changes(rows["service"]) == {
        ("terraform_data.service", "update"),
        ("terraform_data.key", "update"),
        ("terraform_data.more", "delete"),
    }
    why = ("--unverified", "no checks", "--reason", "a test", "--yes")
    shop.ok("rollback", "shop", "--to", good, *why)
    assert {row["status"] for row in planned(shop, "--rerun", good).values()} == {"unchanged"}
    assert shop.run("plan", "shop", "--rerun", "no-such-run").code == 4
    assert shop.run("plan", "shop", "--rerun", good, "--destroy").code == 64


def test_a_destroy_is_planned_whole(shop: Project, tmp_path: Path) -> None:
    """
    With the inputs that each step was applied with, from one engine plan; it says what each step's
    own plan says, and what a step protects is told of that step.
    """
    shop.prepare("apply", "shop", "--yes")
    engine = watched(shop, tmp_path / "watched")
    together = planned(shop, "--destroy")
    calls = len(engine.calls("plan"))
    apart = planned(shop, "--destroy", "--separate")

    assert (methods(together), calls) == (dict.fromkeys(together, "composed"), 1)
    assert [*together] == [*apart]
    for step, row in together.items():
        for field in ("status", "outputs", "resources", "outputs_changed", "counts", "reason"):
            assert row[field] == apart[step][field], (step, field)
    plain = 'resource "terraform_data" "key" { input = var.key }'
    lasting = """resource "terraform_data" "key" {
        input = var.key
        lifecycle { prevent_destroy = true }
    }"""
    kept = SERVICE.replace(plain, lasting)
    shop.write("modules/service/main.tf", kept)
    shop.prepare("apply", "shop", "--yes")
    ended = shop.run("plan", "shop", "--destroy", "--json")
    rows = {step: row["status"] for step, row in ended.rows.items()}
    assert rows == {"network": "planned", "service": "failed", "other": "failed"}
    assert ended.code != 0
