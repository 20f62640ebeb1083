"""
What a step's module is given, and how it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.domain.blueprint.blueprint import Deployment, Step
from orchestrator.domain.blueprint.inputs import (
    ReferenceScope,
    StepInputs,
    Upstream,
    digest,
    module_inputs,
    rerun_inputs,
    rerun_text,
    target_id,
)
from orchestrator.domain.blueprint.references import Template, Unresolvable
from orchestrator.domain.blueprint.yaml_tree import parse_document
from orchestrator.domain.provider_state import StateOutput
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid
from tests.fakes.project import ProjectOnDisk

KEY = b"k" * 32
OUTPUTS = {"id": StateOutput("net-1", False), "token": StateOutput({"a": "tok", "n": 12345}, True)}


def upstream(step: str) -> Mapping[str, StateOutput]:
    return OUTPUTS if step == "net" else {}


def step_inputs(deployment: Deployment, step: Step, upstream: Upstream) -> StepInputs:
    """
    What the step's module is given, with these outputs of its upstream steps.
    """
    return module_inputs(step, ReferenceScope(deployment, step, upstream).look_up)


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    project = ProjectOnDisk(tmp_path)
    project.module("app", optional=dict.fromkeys("abcdef"), sensitive=["f"], outputs=["url"])
    project.module("net", outputs=["id", "token"])
    return project


@pytest.fixture
def deployment(project: ProjectOnDisk) -> Deployment:
    project.blueprint(
        """
        inputs:
          name: {type: string, default: "n"}
          pw: {type: string, sensitive: true}
        steps:
          net: {module: ../modules/net}
          app:
            module: ../modules/app
            inputs:
              a: "${inputs.name}-${steps.net.outputs.id}"
              b: {user: "${inputs.name}", password: "${inputs.pw}"}
              c: "${steps.net.outputs.token}"
              d: "${env.REGION}"
              e: [1, "${environment}/${step.name}/${blueprint.name}"]
              f: "open"
        """
    )
    return project.load(environ={"ORCHESTRATOR_INPUT_pw": "s3cret", "REGION": "eu-1"})


def test_values_and_the_secrets_in_them(deployment: Deployment) -> None:
    """
    Values keep their types; every sensitive leaf is known with where it came from.
    """
    found = step_inputs(deployment, deployment.steps["app"], upstream)
    assert found.values == {
        "a": "n-net-1",
        "b": {"user": "n", "password": "s3cret"},
        "c": {"a": "tok", "n": 12345},
        "d": "eu-1",
        "e": [1, "default/app/web"],
        "f": "open",
    }
    assert found.secrets == {
        ("b", "password"): "inputs.pw",
        ("c", "a"): "steps.net.outputs.token",
        ("c", "n"): "steps.net.outputs.token",
        ("d",): "env.REGION",
        ("f",): "variable f",
    }


def test_what_an_ephemeral_variable_is_given_is_a_secret(deployment: Deployment) -> None:
    """
    What the engine itself keeps nowhere is recorded nowhere.
    """
    step = deployment.steps["app"]
    variables = {**step.module.variables}
    variables["a"] = replace(variables["a"], ephemeral=True)
    step = replace(step, module=replace(step.module, variables=variables))

    assert step_inputs(deployment, step, upstream).secrets[("a",)] == "variable a"


def test_what_is_shown_holds_no_secret(deployment: Deployment) -> None:
    """
    The masked form shows the rest of a structure and none of its sensitive leaves.
    """
    shown = step_inputs(deployment, deployment.steps["app"], upstream).masked()
    assert shown["b"] == '{"user": "n", "password": "(sensitive)"}'
    assert shown["d"] == shown["f"] == "(sensitive)"
    assert shown["a"] == "n-net-1"


def test_the_documents_hold_no_secret(deployment: Deployment) -> None:
    """
    Neither file holds a sensitive value; each secret is named with a keyed digest.
    """
    found = step_inputs(deployment, deployment.steps["app"], upstream)
    resolved, rerun = found.resolved_text(deployment, KEY), rerun_text(deployment, KEY)
    assert not [
        secret for secret in ("s3cret", "tok\n", "12345", "eu-1") if secret in resolved + rerun
    ]
    assert parse_document(resolved, file="f").plain["b"] == {
        "user": "n",
        "password": {"secret": "inputs.pw", "digest": digest("s3cret", KEY)},
    }


def test_the_rerun_file_gives_the_same_inputs(
    project: ProjectOnDisk, deployment: Deployment
) -> None:
    """
    Fed back by --input-file, the rerun file gives the same values, secrets from their source, and
    says what their digest was.
    """
    file = project.write("rerun-inputs.yml", rerun_text(deployment, KEY))
    again = project.load(
        input_files=[file], environ={"ORCHESTRATOR_INPUT_pw": "s3cret", "REGION": "eu-1"}
    )
    values = {name: item.value for name, item in deployment.inputs.items()}
    assert {name: item.value for name, item in again.inputs.items()} == values


def test_a_changed_secret_shows_by_its_digest(
    project: ProjectOnDisk, deployment: Deployment
) -> None:
    """
    The digest in the rerun file stays with the input, so that another value today is noticed.
    """
    reference = rerun_inputs(deployment, KEY)["pw"]
    reference["from"] = {"env": "PW_TODAY"}
    file = project.write("rerun.json", f'{{"pw": {str(reference).replace(chr(39), chr(34))}}}')
    item = project.load(input_files=[file], environ={"PW_TODAY": "other", "REGION": "x"}).inputs[
        "pw"
    ]
    assert item.digest == digest("s3cret", KEY)
    assert item.digest != digest(item.value, KEY)


def test_digests_are_keyed_and_canonical() -> None:
    """
    Equal values have equal digests whatever the order of their keys; another key, another digest.
    """
    assert digest({"a": 1, "b": 2}, KEY) == digest({"b": 2, "a": 1}, KEY)
    assert digest("x", KEY) != digest("x", b"other")
    assert digest("1", KEY) != digest(1, KEY)


def test_a_missing_upstream_output_is_an_error_for_each_input(deployment: Deployment) -> None:
    """
    All inputs that cannot be had are named at once, with the step's place.
    """
    with pytest.raises(Invalid) as caught:
        step_inputs(deployment, deployment.steps["app"], lambda _: {"idd": StateOutput(1, False)})
    first, second = map(str, caught.value.problems)
    assert "blueprints/web.yaml:8:3: input 'a' of step 'app'" in first
    assert "did you mean 'idd'?" in first
    assert "${steps.net.outputs.token}" in second


def test_the_target_id_is_stable_and_short(deployment: Deployment) -> None:
    """
    It is the same on every machine, another for another target, and fits a tag or a client token.
    """
    assert target_id(deployment, "app") == "app-b99bbba50a5a20c9"
    assert target_id(deployment, "app") != target_id(deployment, "net")
    assert len(target_id(deployment, "s" * 63)) == 63


def test_a_scope_with_inputs_sees_the_steps_own_inputs_and_outputs(deployment: Deployment) -> None:
    """
    In ``verify`` the inputs are those of the module, and outputs are its own; secrets stay known.
    """
    step = deployment.steps["app"]
    inputs = step_inputs(deployment, step, upstream)
    outputs = {"url": StateOutput("http://u", False)}
    scope = ReferenceScope(deployment, step, inputs=inputs, outputs=outputs)
    resolved = Template(
        {"u": "${outputs.url}/${inputs.b.user}", "p": "${inputs.b.password}"}
    ).resolve(scope.look_up)
    assert resolved.value == {"u": "http://u/n", "p": "s3cret"}
    assert resolved.secrets == {("p",): "inputs.pw"}


def test_a_variable_left_to_its_default_has_no_value_for_checks(deployment: Deployment) -> None:
    """
    The default of a module's variable is known to the engine only: referring to it is an error.
    """
    step = deployment.steps["net"]
    inputs = step_inputs(deployment, step, upstream)
    scope = ReferenceScope(deployment, step, inputs=inputs)
    with pytest.raises(Unresolvable, match="only its module knows"):
        Template("${inputs.cidr}").resolve(scope.look_up)


def test_environment_variables_are_secret_everywhere(deployment: Deployment) -> None:
    """
    The value of ``${env.X}`` is treated as sensitive.
    """
    step, template = deployment.steps["app"], Template("${env.REGION}")
    for scope in (ReferenceScope(deployment, step), ReferenceScope(deployment, step, upstream)):
        assert template.resolve(scope.look_up).secrets == {(): "env.REGION"}
