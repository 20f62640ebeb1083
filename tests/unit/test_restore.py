"""
A kept deployment made ready to run again: what is of then, what is of today.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.domain.blueprint.blueprint import Deployment
from orchestrator.domain.blueprint.stored_deployment import (
    StoredDeployment,
    changed_secrets,
    content_digest,
    parse_deployment,
    stored_form,
)
from orchestrator.domain.values import replace
from orchestrator.errors import Invalid
from orchestrator.loading.restore import restore_deployment
from orchestrator.project import ProjectContext, Settings
from tests.fakes.project import ProjectOnDisk

KEY = b"k" * 32
BLUEPRINT = """
    environments: {staging: {}, prod: {extends: staging}}
    inputs:
      name: {type: string, default: acme}
      size: {type: number, default: 3}
      password: {type: string, sensitive: true}
      pair: {type: "object({user = string, pin = number})", sensitive: true}
      token: {from: {command: [get-token]}, sensitive: true}
      certificate: {from: {file: secrets/certificate}, sensitive: true}
    steps:
      network: {module: ../modules/plain, inputs: {x: "${inputs.name}"}}
      server:
        module: ../modules/plain
        inputs: {x: "${inputs.password}", y: "${inputs.pair.user}"}
        needs: [network]
        providers:
          aws: {region: "${env.REGION}", token: "${inputs.token}", key: "${inputs.certificate}"}
"""
SETTINGS = """
    backend: {type: http, config: {address: "https://state/${step.name}", password: hunter3}}
    steps:
      one:
        module: ../modules/plain
        providers: {aws: {region: eu, assume: [{token: "${env.REGION}", role: deploy}]}}
      two: {module: ../modules/plain}
"""
ENVIRON = {
    "ORCHESTRATOR_INPUT_password": "of-then",
    "ORCHESTRATOR_INPUT_pair": '{"user": "ada", "pin": 7}',
    "REGION": "eu-west-1",
}


@dataclass
class Stored:
    """
    The deployment of a project as it was stored, and what becomes of it today.
    """

    project: ProjectOnDisk
    deployment: StoredDeployment
    token: str = "from-command"
    commands: list[Sequence[str]] = field(default_factory=list)

    def restore(
        self, environ: Mapping[str, str] = ENVIRON, root: Path | None = None, **current: object
    ) -> Deployment:
        def run(argv: Sequence[str]) -> str:
            self.commands.append(tuple(argv))
            return f"{self.token}\n"

        root = root or self.project.root
        project = ProjectContext(root, Settings(root), environ)
        return restore_deployment(
            project,
            self.deployment,
            run_id="R1",
            run_command=run,
            **current,  # type: ignore[arg-type]
        )

    def changed(self, environ: Mapping[str, str] = ENVIRON) -> tuple[str, ...]:
        return changed_secrets(self.deployment, self.restore(environ), KEY)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    project = ProjectOnDisk(tmp_path)
    project.blueprint(BLUEPRINT)
    project.write("blueprints/secrets/certificate", "of-then")
    loaded = project.load(environment="prod", environ=ENVIRON)
    text = stored_form(loaded, KEY).to_json().encode()
    return Stored(project, parse_deployment(text, content_digest(text)))


def test_the_deployment_comes_back(stored: Stored) -> None:
    """
    Values, steps and their order are those of then, whatever is in the blueprint now.
    """
    stored.project.blueprint("steps: {other: {module: ../modules/plain}}")
    found = stored.restore()

    assert (found.blueprint, found.environment, found.path) == (
        "web",
        "prod",
        "blueprints/web.yaml",
    )
    assert (found.inputs["name"].value, found.inputs["size"].value) == ("acme", 3)
    assert found.graph.order == ("network", "server")
    assert found.steps["server"].inputs["y"].raw == "${inputs.pair.user}"
    assert found.env == {"REGION": "eu-west-1"}


def test_freezing_it_again_gives_the_same_text(stored: Stored) -> None:
    """
    A retry means what the run meant that it repeats: so is it recognised.
    """
    assert stored_form(stored.restore(), KEY).to_json() == stored.deployment.to_json()


def test_secrets_are_those_of_today(stored: Stored) -> None:
    """
    Each from where it came: variable or command, with the type that the blueprint declared.
    """
    stored.token = "of-today"
    found = stored.restore(ENVIRON | {"ORCHESTRATOR_INPUT_pair": '{"user": "bob", "pin": 8}'})

    assert found.inputs["pair"].value == {"user": "bob", "pin": 8}
    assert found.inputs["token"].value == "of-today"
    assert stored.commands == [("get-token",)]
    assert all(found.inputs[name].sensitive for name in ("password", "pair", "token"))


def test_a_secret_in_a_file_of_the_project_is_found_on_another_machine(
    stored: Stored, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    The place of a file is kept by its path from the project.
    """
    root = tmp_path_factory.mktemp("elsewhere")
    place = root / "blueprints/secrets/certificate"
    place.parent.mkdir(parents=True)
    place.write_text("of-today")

    assert stored.restore(root=root).inputs["certificate"].value == "of-today"
    assert str(stored.project.root) not in stored.deployment.to_json()


def test_a_variable_stands_for_a_secret_that_came_from_elsewhere(stored: Stored) -> None:
    """
    Where the program that gave a secret is not to be had, its variable gives it.
    """
    found = stored.restore(ENVIRON | {"ORCHESTRATOR_INPUT_token": "by-hand"})

    assert found.inputs["token"].value == "by-hand"
    assert stored.commands == []


def test_a_credential_in_the_settings_of_a_backend_comes_from_the_blueprint_of_today(
    project: ProjectOnDisk,
) -> None:
    """
    For a step that left the blueprint, from where all others agree; where nothing has it any more
    the error says so.
    """
    project.blueprint(SETTINGS)
    deployment = project.load(environ=ENVIRON)
    text = stored_form(deployment, KEY).to_json().encode()
    stored = Stored(project, parse_deployment(text, content_digest(text)))
    steps = deployment.steps
    others = {"two": replace(steps["two"], name="two")}

    again = stored.restore(present=steps)
    left = stored.restore(present=others)

    assert again.steps["one"].providers == steps["one"].providers
    assert {again.steps["one"].backend, left.steps["one"].backend} == {steps["one"].backend}
    with pytest.raises(Invalid, match=r"backend\.password.*was written in the blueprint only"):
        stored.restore(present={})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ()),
        ({"ORCHESTRATOR_INPUT_token": "another"}, ("token",)),
        ({"REGION": "us-east-1"}, ("env.REGION",)),
    ],
)
def test_what_only_a_provider_is_given_is_compared_too(
    stored: Stored, environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    """
    Secrets of provider configurations have digests as well.
    """
    assert stored.changed(ENVIRON | environ) == expected


def test_what_is_missing_is_told_all_at_once(stored: Stored) -> None:
    """
    Every secret that is not to be had, with the run that had it, before anything is done.
    """
    with pytest.raises(Invalid) as caught:
        stored.restore({})
    said = [str(problem) for problem in caught.value.problems]

    assert len(said) == 3
    for name in ("ORCHESTRATOR_INPUT_password", "ORCHESTRATOR_INPUT_pair", "REGION"):
        assert f"run R1: the environment variable {name} is not set" in said


def test_a_moved_blueprint_is_known_by_all_its_paths(stored: Stored) -> None:
    """
    Records of the file of then are ours, and those of the file of today.
    """
    stored.project.blueprint(BLUEPRINT + "    moved_from: [blueprints/older.yaml]\n", name="web")
    outline = stored.project.outline(environment="prod")
    found = stored.restore(summary=replace(outline, path="blueprints/newer.yaml"))

    assert found.path == "blueprints/newer.yaml"
    assert found.moved_from == ("blueprints/web.yaml", "blueprints/older.yaml")


def test_an_environment_that_is_protected_today_is_protected(stored: Stored) -> None:
    """
    What has to be confirmed is not a matter of then.
    """
    outline = replace(stored.project.outline(environment="prod"), protected=True)

    assert not stored.restore().protected
    assert stored.restore(summary=outline).protected
