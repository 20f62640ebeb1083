"""
The steps of a blueprint as modules of one root, and what a plan of it says of each.
"""

from __future__ import annotations

import json

import pytest

from orchestrator.domain.blueprint.references import Reference, Resolved, Template, Unresolvable
from orchestrator.domain.composed_plan import (
    ComposedRoot,
    ModuleCall,
    ProviderConfiguration,
    call_names,
)
from orchestrator.domain.events.events import (
    Message,
    OutputChange,
    PlannedChange,
    RefreshComplete,
    ResourceDrift,
)
from orchestrator.domain.plan.changes import (
    CheckResult,
    OutputValueChange,
    PlanChanges,
    PlanContent,
    PlannedObject,
    ResourceChange,
)
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.text import Json

CLOUD = 'provider["registry.example/acme/cloud"]'


def module_call(step: str, **fields: Json) -> ModuleCall:
    """
    A call of a step's module, named as the step is.
    """
    known: dict[str, Json] = {
        "step": step,
        "name": step,
        "source": f"./{step}/root",
        "module": f"modules/{step}",
        "expressions": {},
        "values": {},
        "outputs": {},
    }
    return ModuleCall(**{**known, **fields})


def composed(*calls: ModuleCall, **states: Json) -> ComposedRoot:
    return ComposedRoot.of(calls, states)


def test_values_are_variables_and_references_expressions() -> None:
    root = composed(
        module_call("web", values={"size": "${not}"}, expressions={"id": "${module.net.id}"})
    )

    content, values = root.configuration()

    assert values == {"v0": "${not}"}
    assert content["module"]["web"] == {
        "source": "./web/root",
        "id": "${module.net.id}",
        "size": "${var.v0}",
    }


def test_an_output_that_the_module_no_longer_has_is_known_from_the_state() -> None:
    """
    The plan removes it; one that it declares is an output of the root, as sensitive as it is.
    """
    state: Json = {"outputs": {"old": {"value": 1, "type": "number"}}, "resources": []}
    root = composed(module_call("web", outputs={"key": True}), web=state)

    content, _ = root.configuration()
    merged = json.loads(root.state({"web": state}, "1.11.4"))

    by_output = {key: name for name, key in root.outputs.items()}
    assert content["output"] == {
        by_output["web", "key"]: {"value": "${module.web.key}", "sensitive": True}
    }
    assert merged["outputs"] == {by_output["web", "old"]: state["outputs"]["old"]}


def test_outputs_are_told_in_the_order_of_each_step() -> None:
    """
    An engine tells them by name: also where there are more than ten.
    """
    root = composed(*(module_call(f"m{n}", outputs=dict.fromkeys("abcd", False)) for n in range(4)))

    told = [root.outputs[name] for name in sorted(root.outputs)]

    assert [name for step, name in told if step == "m2"] == [*"abcd"]


def test_equal_provider_configurations_are_one() -> None:
    """
    Those with other secrets are not equal, whatever the text.
    """

    def given(region: str, secret: str) -> ProviderConfiguration:
        block = {"region": region, "token": "${var.orchestrator_secret_1}"}
        return ProviderConfiguration("acme/cloud", block, {"orchestrator_secret_1": secret})

    root = composed(
        module_call("a", providers={"cloud": given("eu", "x")}),
        module_call("b", providers={"cloud": given("eu", "x")}),
        module_call("c", providers={"cloud": given("eu", "y")}),
    )

    content, values = root.configuration()

    assert content["terraform"]["required_providers"] == {"p0": {"source": "acme/cloud"}}
    assert [block["token"] for block in content["provider"]["p0"]] == ["${var.v0}", "${var.v1}"]
    assert values == {"v0": "x", "v1": "y"}
    passed = [content["module"][step]["providers"] for step in "abc"]
    assert passed == [{"cloud": "p0.c0"}, {"cloud": "p0.c0"}, {"cloud": "p0.c1"}]


@pytest.mark.parametrize(
    ("call", "configuration", "expected"),
    [
        (module_call("web"), CLOUD, CLOUD),
        (
            module_call("web", configured=frozenset({"acme/cloud"})),
            f"{CLOUD}.west",
            f"module.web.{CLOUD}.west",
        ),
        (module_call("web"), f"module.inner.{CLOUD}", f"module.web.module.inner.{CLOUD}"),
        (
            module_call(
                "web", providers={"cloud": ProviderConfiguration("acme/cloud", {"a": 1}, {})}
            ),
            CLOUD,
            f"{CLOUD}.c0",
        ),
    ],
)
@pytest.mark.parametrize("at", ["resource", "instance"])
def test_objects_stay_with_their_provider_configuration(
    call: ModuleCall, configuration: str, expected: str, at: str
) -> None:
    """
    OpenTofu keeps the configuration with an instance where a provider block has ``for_each``.
    """
    instance: dict[str, Json] = {"attributes": {"id": "x"}, "dependencies": ["module.inner.t.a"]}
    resource: dict[str, Json] = {"mode": "managed", "type": "t", "name": "b", "module": "module.i"}
    (resource if at == "resource" else instance)["provider"] = configuration
    state = {"resources": [{**resource, "instances": [instance]}]}

    root = composed(call, web=state)
    (placed,) = json.loads(root.state({"web": state}, "1.11.4"))["resources"]

    assert placed["module"] == "module.web.module.i"
    assert placed["instances"][0]["dependencies"] == ["module.web.module.inner.t.a"]
    assert (placed if at == "resource" else placed["instances"][0])["provider"] == expected


def test_each_step_is_told_what_its_own_plan_would_say() -> None:
    root = composed(module_call("web", outputs={"url": False}), module_call("db"))
    said: list[Message] = [
        PlannedChange("module.web.t.a", "create", "t", previous_address="module.web.t.b"),
        ResourceDrift("module.db.module.inner.t.a", "update", "t"),
        RefreshComplete("module.db.t.c[0]", "i-1"),
        OutputChange("o000000", "create"),
        OutputChange("stranger", "create"),
        Diagnostic(
            summary="by address",
            detail="called by module.db, in module.db.module.inner",
            address="module.db.t.a",
        ),
        Diagnostic(summary="by file", at="web/root/main.tf:3"),
        Diagnostic(summary="of nobody"),
        Diagnostic(severity="warning", summary="of the call", at="web.call.tf.json:7"),
    ]

    found = root.messages(said)

    assert found["web"] == [
        PlannedChange("t.a", "create", "t", previous_address="t.b"),
        OutputChange("url", "create"),
        Diagnostic(summary="by file", at="modules/web/main.tf:3"),
    ]
    assert found["db"] == [
        ResourceDrift("module.inner.t.a", "update", "t"),
        RefreshComplete("t.c[0]", "i-1"),
        Diagnostic(
            summary="by address",
            detail="called by the root module, in module.inner",
            address="t.a",
        ),
    ]


def test_each_step_gets_its_part_of_what_the_plan_holds() -> None:
    """
    Addresses, outputs and provider configurations, by the names of the step's own root.
    """
    root = composed(module_call("web", outputs={"url": False}), module_call("db"))
    moved = PlannedAction(
        address="module.web.t.a", previous_address="module.web.t.b", action="update"
    )
    nested = ResourceChange(
        address="module.db.module.in.t.a",
        action="create",
        type="t",
        name="a",
        module="module.db.module.in",
    )
    plain = ResourceChange(
        address="module.web.t.a",
        action="update",
        type="t",
        name="a",
        module="module.web",
        previous_address="module.web.t.b",
    )
    content = PlanContent(
        actions=(moved,),
        moved=frozenset({"module.db.t.m"}),
        outputs=("o000000", "stranger"),
        changes=PlanChanges(
            resources=(plain, nested),
            drift=(nested,),
            outputs_changed=(OutputValueChange(name="o000000", action="create"),),
            checks=(CheckResult(address="module.db.check.c", status="fail"),),
        ),
        objects=(
            PlannedObject(
                "module.web.t.a", "update", after={"x": 1}, previous_address="module.web.t.b"
            ),
            PlannedObject("output.o000000", "create", after="u"),
        ),
        regions={"module.web:cloud.b": "eu", "module.db.module.in:cloud": "us", "p0.c0": "us"},
    )

    parts = root.contents(content)

    assert [*parts] == ["web", "db"]
    web, db = parts["web"], parts["db"]
    assert web.actions == (moved.model_copy(update={"address": "t.a", "previous_address": "t.b"}),)
    assert (web.outputs, web.moved, db.moved) == (("url",), frozenset(), frozenset({"t.m"}))
    assert [(item.address, item.previous_address, item.after) for item in web.objects] == [
        ("t.a", "t.b", {"x": 1}),
        ("output.url", None, "u"),
    ]
    assert (web.regions, db.regions) == ({"cloud.b": "eu"}, {"module.in:cloud": "us"})
    (changed,) = web.changes.resources
    assert (changed.address, changed.previous_address, changed.module) == ("t.a", "t.b", None)
    assert [item.name for item in web.changes.outputs_changed] == ["url"]
    (inner,) = db.changes.resources
    assert (inner.address, inner.module, db.changes.drift) == (
        "module.in.t.a",
        "module.in",
        (inner,),
    )
    assert [item.address for item in db.changes.checks] == ["check.c"]
    assert not (db.actions or db.outputs or db.objects or web.changes.checks or web.changes.drift)


def test_call_names_are_identifiers_and_differ() -> None:
    names = call_names(["web", "9lives", 'web["eu"]', "web['eu']"])

    assert len(set(names.values())) == len(names)
    assert all(name.replace("-", "_").isidentifier() for name in names.values())


def outputs_of_net(reference: Reference) -> str | None:
    if reference.kind != "step_output" or reference.names[0] != "net":
        return None
    call = module_call("net", outputs={"key": True, "ids": False})
    return call.output_reference(reference, typed=True)


def given(reference: Reference) -> Resolved:
    values: dict[str, Json] = {"name": "a${b}%{c}", "tags": {"x${": [1, None]}}
    if reference.kind != "input" or reference.names[0] not in values:
        raise Unresolvable("nothing")
    return Resolved(values[reference.names[0]])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("${steps.net.outputs.ids[0]}", "${module.net.ids[0]}"),
        ('${steps.net.outputs.ids["a.b"]}', '${module.net.ids["a.b"]}'),
        ("${steps.net.outputs.key}", "${nonsensitive(module.net.key)}"),
        ("$${x} %{y} ${steps.net.outputs.ids}", "$${x} %%{y} ${module.net.ids}"),
        (
            ["${inputs.name}-${steps.net.outputs.ids}", "${inputs.tags}", 1.5, None, True],
            ["a$${b}%%{c}-${module.net.ids}", {"x$${": [1, None]}, 1.5, None, True],
        ),
        ({"k%{": "${steps.net.outputs.ids}"}, {"k%%{": "${module.net.ids}"}),
    ],
)
def test_what_a_step_reads_of_another_becomes_an_expression(raw: Json, expected: Json) -> None:
    """
    All other text stands for itself.
    """
    assert Template(raw).expression(given, outputs_of_net) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("string", "m"),
        (None, "jsondecode(jsonencode(m))"),
        (["tuple", ["string", "number"]], "m"),
        (["object", {"a": "bool"}], "m"),
        (["set", "string"], "(m == null ? null : [for v0 in m : v0])"),
        (["map", "string"], "(m == null ? null : {for k0, v0 in m : k0 => v0})"),
        (
            ["list", ["map", "number"]],
            "(m == null ? null : [for v0 in m : "
            "(v0 == null ? null : {for k1, v1 in v0 : k1 => v1})])",
        ),
        (
            ["object", {"a b": ["list", "string"], "c": "string"}],
            '(m == null ? null : {"a b" = (m["a b"] == null ? null : [for v1 in m["a b"] : v1]), '
            '"c" = m["c"]})',
        ),
        (
            ["tuple", ["string", ["set", "string"]]],
            "(m == null ? null : [m[0], (m[1] == null ? null : [for v1 in m[1] : v1])])",
        ),
    ],
)
def test_a_value_goes_on_with_the_type_of_its_json(kind: Json, expected: str) -> None:
    """
    As a step on its own is given it; to a variable that says its type, as it is.
    """
    call = module_call("net", outputs={"ids": False}, types={"ids": kind})
    reference = Reference("step_output", ("net", "ids"))
    assert call.output_reference(reference, typed=False).replace("module.net.ids", "m") == expected
    assert call.output_reference(reference, typed=True) == "module.net.ids"
