"""
A deployment as it is kept in the store: whole, without secrets, the same text for the same intent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.domain.blueprint.blueprint import CommandHook, ModuleHook
from orchestrator.domain.blueprint.stored_deployment import (
    StoredDeployment,
    UnreadableDeployment,
    changed_secrets,
    changed_variables,
    content_digest,
    parse_deployment,
    stored_form,
)
from orchestrator.engine.workdir.snapshot import unpack
from tests.fakes.project import ProjectOnDisk

KEY = b"k" * 32
BLUEPRINT = """
    inputs:
      name: {type: string, default: acme}
      password: {type: string, sensitive: true}
    steps:
      network: {module: ../modules/plain, inputs: {x: "${inputs.name}"}}
      server:
        module: ../modules/secret
        inputs:
          given: "${inputs.password}"
          written: wr1tten-in-the-blueprint
          token: "${env.TOKEN}"
          plain: "${steps.network.outputs.id}"
        providers: {aws: {region: eu-west-1}}
        verify: [{tcp: {host: "${outputs.id}", port: 22}}]
        retry: {on: [busy], attempts: 2}
        timeout: 5m
        compensate: {module: ../modules/secret, inputs: {written: wr1tten-for-the-action}}
        before_destroy: {command: [archive, "${outputs.id}"]}
"""
ENVIRON = {"ORCHESTRATOR_INPUT_password": "s3cret-input", "TOKEN": "t0ken-from-env"}


def read(text: str) -> StoredDeployment:
    """
    What is kept as this text.
    """
    return parse_deployment(text.encode(), content_digest(text.encode()))


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    found = ProjectOnDisk(tmp_path)
    found.module(
        "secret",
        optional=dict.fromkeys(("given", "written", "token", "plain")),
        sensitive=["given", "written"],
        outputs=["id"],
    )
    found.blueprint(BLUEPRINT)
    return found


def test_what_is_read_back_is_what_was_written(project: ProjectOnDisk) -> None:
    """
    Nothing of a deployment is lost on the way through the store: the text stays the same.
    """
    text = stored_form(project.load(environ=ENVIRON), KEY).to_json()
    found = read(text)
    step = found.steps["server"]
    assert found.to_json() == text
    assert (step.timeout, step.needs, step.retry and step.retry.on) == (
        300.0,
        frozenset({"network"}),
        ("busy",),
    )
    assert step.inputs["plain"].raw == "${steps.network.outputs.id}"


def test_no_secret_is_in_it(project: ProjectOnDisk) -> None:
    """
    Law: secrets travel with values.
    Inputs, environment variables, and what stands in the blueprint for a variable that its
    module calls sensitive are named with a keyed digest, never held.
    """
    stored = stored_form(project.load(environ=ENVIRON), KEY)
    text = stored.to_json()
    assert not [word for word in ("s3cret", "t0ken", "wr1tten") if word in text]
    assert stored.inputs["password"].value["from"] == {"env": "ORCHESTRATOR_INPUT_password"}
    assert {name: list(found) for name, found in stored.withheld.items()} == {
        "server": ["written"],
        'server["@compensate"]': ["written"],
    }


def test_a_credential_in_the_settings_of_a_backend_or_provider_is_not_in_it(
    project: ProjectOnDisk,
) -> None:
    """
    What its name or its text shows to be one is named by its path, with a keyed digest.
    """
    project.blueprint(
        """
        backend:
          type: http
          config:
            address: "https://kim:hunter2@state/${step.name}"
            username: kim
            password: hunter3
            retry_max: 2
        steps:
          one:
            module: ../modules/plain
            providers: {aws: {region: eu, assume: [{token: hunter4, role: deploy}], urls: ["http://k:hunter5@x"]}}
          two: {module: ../modules/plain}
        """
    )
    deployment = project.load()
    stored = stored_form(deployment, KEY)
    text = stored.to_json()

    assert "hunter" not in text
    assert list(stored.withheld["one"]) == [
        "backend.address",
        "backend.password",
        "providers.aws.assume.0.token",
        "providers.aws.urls.0",
    ]
    assert "kim" in text and "deploy" in text
    assert changed_secrets(stored, deployment, KEY) == ()


def test_what_a_sensitive_variable_is_given_is_a_secret(project: ProjectOnDisk) -> None:
    """
    A value that is given to an input is a secret if a module says so of the variable that it goes
    to, declared or not. What stands in the blueprint for everybody to read is none.
    """
    project.blueprint(
        """
        inputs: {typed: {type: string}, public: {type: string, default: publ1c}}
        steps:
          one:
            module: ../modules/secret
            inputs: {given: "${inputs.typed}", written: "${inputs.public}"}
        """
    )
    deployment = project.load(variables=["typed=typed-1n"])
    text = stored_form(deployment, KEY).to_json()

    assert deployment.inputs["typed"].sensitive
    assert "typed-1n" not in text
    assert not deployment.inputs["public"].sensitive
    assert "publ1c" in text


def test_where_a_line_stands_does_not_matter(project: ProjectOnDisk) -> None:
    """
    A comment more in the blueprint means the same deployment.
    """
    before = stored_form(project.load(environ=ENVIRON), KEY).to_json()
    project.blueprint(BLUEPRINT.replace("steps:", "# a comment\n    steps:"))
    assert stored_form(project.load(environ=ENVIRON), KEY).to_json() == before


def test_sets_have_one_order_in_every_process(project: ProjectOnDisk) -> None:
    """
    The text depends on the deployment only, not on the process that writes it.
    """
    project.blueprint(
        "steps:\n"
        + "".join(f"  s{n}: {{module: ../modules/plain}}\n" for n in range(20))
        + f"  last: {{module: ../modules/plain, needs: {[f's{n}' for n in range(20)]}}}\n"
    )
    text = stored_form(project.load(), KEY).to_json()
    again = (
        "import sys; "
        "from orchestrator.domain.blueprint.stored_deployment import ("
        "content_digest, parse_deployment); "
        "text = sys.stdin.buffer.read(); "
        "sys.stdout.write(parse_deployment(text, content_digest(text)).to_json())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", again],
            input=text,
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {text}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ()),
        ({"TOKEN": "another"}, ("env.TOKEN",)),
        ({"ORCHESTRATOR_INPUT_password": "another"}, ("password",)),
    ],
)
def test_a_changed_secret_is_told_by_its_name(
    project: ProjectOnDisk, change: dict[str, str], expected: tuple[str, ...]
) -> None:
    """
    Secrets are those of today; which of them differ is known, also of those that only
    the environment holds.
    """
    stored = stored_form(project.load(environ=ENVIRON), KEY)
    assert changed_secrets(stored, project.load(environ=ENVIRON | change), KEY) == expected
    assert changed_variables(stored, ENVIRON | change, KEY) == expected


def test_a_changed_literal_secret_is_told(project: ProjectOnDisk) -> None:
    """
    So is one that stands in the blueprint for a sensitive variable.
    """
    stored = stored_form(project.load(environ=ENVIRON), KEY)
    project.blueprint(BLUEPRINT.replace("wr1tten-in", "ch4nged-in"))
    now = project.load(environ=ENVIRON)
    assert changed_secrets(stored, now, KEY) == ("steps.server.inputs.written",)


def test_with_another_key_no_secret_counts_as_the_same(project: ProjectOnDisk) -> None:
    """
    A digest of another project key proves nothing: every secret must be accepted then, and of no
    variable it is known that it has changed.
    """
    deployment = project.load(environ=ENVIRON)
    stored = stored_form(deployment, KEY)
    assert changed_secrets(stored, deployment, b"o" * 32) == (
        "env.TOKEN",
        "password",
        "steps.server.inputs.written",
        'steps.server["@compensate"].inputs.written',
    )
    assert changed_variables(stored, {"TOKEN": "another"}, b"o" * 32) == ()


def test_what_is_not_understood_is_not_left_out(project: ProjectOnDisk) -> None:
    """
    A deployment of a newer version is refused where it says more than this one knows: to do a part
    of what was meant is to guess.
    """
    document = json.loads(stored_form(project.load(environ=ENVIRON), KEY).to_json())
    document["steps"]["server"]["approve"] = {"by": "two"}
    with pytest.raises(UnreadableDeployment, match="unknown field `approve`"):
        read(json.dumps(document))


@pytest.mark.parametrize("damage", ["schema", "text"])
def test_a_damaged_deployment_is_an_error(project: ProjectOnDisk, damage: str) -> None:
    """
    What cannot be read is never taken for an empty deployment (law: unreadable is not empty).
    """
    document = json.loads(stored_form(project.load(environ=ENVIRON), KEY).to_json())
    text = json.dumps(document | {"schema": "orchestrator.deployment/2"})
    if damage == "text":
        text = text[:-20]
    with pytest.raises(UnreadableDeployment):
        read(text)


def test_what_was_meant_is_what_was_kept(project: ProjectOnDisk) -> None:
    """
    A kept deployment whose content is not the one that it is named by is damaged, however well it
    reads: nothing else is done in its place.
    """
    text = stored_form(project.load(environ=ENVIRON), KEY).to_json()
    other = text.replace("eu-west-1", "eu-west-2")
    assert other != text
    with pytest.raises(UnreadableDeployment, match="digest"):
        parse_deployment(other.encode(), content_digest(text.encode()))


STORED = Path(__file__).parent / "stored"


def test_what_an_earlier_version_stored_is_read() -> None:
    """
    A deployment that the first version wrote is read whole, and has the same text again: it keeps
    the digest that records know it by.
    """
    text = (STORED / "deployment-1.json").read_text()
    deployment = read(text)
    assert deployment.to_json() == text
    step = deployment.steps["server"]
    assert isinstance(step.compensate, ModuleHook)
    assert isinstance(step.before_destroy, CommandHook)
    assert step.compensate.root.name == 'server["@compensate"]'
    assert step.module.variables["given"].sensitive


def test_a_snapshot_that_an_earlier_version_stored_is_unpacked() -> None:
    """
    So is a module's archive, with what it says of the module.
    """
    snapshot = unpack((STORED / "snapshot-1.tar.gz").read_bytes())
    assert sorted(snapshot.variables) == ["given", "plain", "token", "written"]
    assert snapshot.provider_reach == {}
