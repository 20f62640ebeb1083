"""
A place for a provider state belongs to one target, over all environments and blueprints.
"""

from __future__ import annotations

import pytest

from tests.fakes.project import ProjectOnDisk

ENVIRONMENTS = "environments: {prod: {protected: true}, staging: {}}\n"


def blueprint(project: ProjectOnDisk, backend: str, *, rest: str = "", name: str = "web") -> None:
    steps = "steps: {one: {module: ../modules/plain}, two: {module: ../modules/plain}}\n"
    project.blueprint(f"{rest}backend: {backend}\n{steps}", name=name)


@pytest.mark.parametrize(
    "backend",
    [
        '{type: local, config: {path: "/states/${step.name}.tfstate"}}',
        '{type: local, config: {path: "states/../states/${blueprint.name}-${step.name}"}}',
        '{type: s3, config: {bucket: b, key: "${blueprint.name}/${step.name}", region: r}}',
        '{type: gcs, config: {bucket: b, prefix: "${step.name}"}}',
        "{type: azurerm, config: {storage_account_name: a, container_name: c, "
        'key: "${step.name}"}}',
        '{type: pg, config: {conn_str: "postgres://h/d", schema_name: "${step.name}"}}',
        '{type: http, config: {address: "https://h/${step.name}"}}',
        '{type: consul, config: {path: "${step.name}"}}',
    ],
)
@pytest.mark.parametrize("environment", ["prod", "staging"])
def test_environments_do_not_share_a_state(
    project: ProjectOnDisk, backend: str, environment: str
) -> None:
    """
    Under another name the objects of a protected environment would be changed: both are refused,
    naming the targets.
    """
    blueprint(project, backend, rest=ENVIRONMENTS)
    problems = project.problems(environment=environment)
    assert len(problems) == 2
    assert all("would share one provider state" in problem for problem in problems)
    assert "web/prod/one, web/staging/one" in problems[0]
    assert "blueprints/web.yaml:" in problems[0]


def test_blueprints_do_not_share_a_state(project: ProjectOnDisk) -> None:
    """
    Nor do two blueprints of the project, whichever of them is loaded.
    """
    blueprint(project, '{type: local, config: {path: "states/${step.name}.tfstate"}}')
    blueprint(project, '{type: local, config: {path: "./states/one.tfstate"}}', name="other")
    assert "other/default/one, other/default/two, web/default/one" in project.problems()[0]
    assert "web/default/one" in project.problems("other")[0]


def test_a_blueprint_does_not_name_the_place_of_one_that_names_none(project: ProjectOnDisk) -> None:
    """
    The default places belong to their blueprints; both are refused.
    """
    own = ".orchestrator/state/other/default/one.tfstate"
    project.blueprint(
        f"""
        steps:
          one: {{module: ../modules/plain, backend: {{type: local, config: {{path: {own}}}}}}}
        """
    )
    project.blueprint("steps: {one: {module: ../modules/plain}}\n", name="other")

    assert "other/default/one, web/default/one" in project.problems()[0]
    assert "other/default/one, web/default/one" in project.problems("other")[0]


def test_steps_do_not_share_a_state(project: ProjectOnDisk) -> None:
    """
    Nor do two steps.
    """
    blueprint(project, "{type: local, config: {path: one.tfstate}}")
    assert "web/default/one, web/default/two" in project.problems()[0]


def test_a_link_leads_to_the_same_state(project: ProjectOnDisk) -> None:
    """
    Two ways to write one place are one place.
    """
    (project.root / "states").mkdir()
    (project.root / "link").symlink_to("states")
    blueprint(project, '{type: local, config: {path: "states/${step.name}"}}')
    blueprint(project, '{type: local, config: {path: "link/${step.name}"}}', name="other")
    assert len(project.problems()) == 2


def test_a_value_of_the_environment_tells_states_apart(project: ProjectOnDisk) -> None:
    """
    An input whose value differs from environment to environment is enough; the same value is not.
    """
    backend = '{type: local, config: {path: "${inputs.place}/${step.name}"}}'
    inputs = "inputs: {place: {type: string}}\n"
    apart = "environments: {prod: {inputs: {place: p}}, staging: {inputs: {place: s}}}\n"
    blueprint(project, backend, rest=inputs + apart)
    assert project.problems(environment="prod") == []
    together = "environments: {prod: {inputs: {place: p}}, staging: {inputs: {place: p}}}\n"
    blueprint(project, backend, rest=inputs + together)
    assert len(project.problems(environment="prod")) == 2


def test_what_is_given_on_the_command_line_is_not_known_of_others(project: ProjectOnDisk) -> None:
    """
    A place that depends on what somebody gives another environment is no conflict.
    """
    backend = '{type: local, config: {path: "${inputs.place}/${step.name}"}}'
    blueprint(project, backend, rest=ENVIRONMENTS + "inputs: {place: {type: string}}\n")
    assert project.problems(environment="prod", variables=["place=p"]) == []


def test_states_of_hooks_count(project: ProjectOnDisk) -> None:
    """
    A hook that is a module has a state of its own, which nobody else may have either.
    """
    project.blueprint(
        """
        backend: {type: local, config: {path: "s/${step.name}.tfstate"}}
        steps:
          one: {module: ../modules/plain, compensate: {module: ../modules/plain}}
          two:
            module: ../modules/plain
            backend: {config: {path: s/one.compensate.tfstate}}
        """
    )
    assert 'web/default/one["@compensate"], web/default/two' in project.problems()[0]


def test_the_default_place_is_nobody_elses(project: ProjectOnDisk) -> None:
    """
    Where nothing is said each target has its own.
    """
    rest = "environments: {prod: {}, staging: {}}\n"
    project.blueprint(f"{rest}steps: {{one: {{module: ../modules/plain}}}}\n")
    project.blueprint(f"{rest}steps: {{one: {{module: ../modules/plain}}}}\n", name="other")
    assert project.problems(environment="prod") == []


def test_no_secret_is_told(project: ProjectOnDisk) -> None:
    """
    The message names targets, never the place: settings may hold what nobody is to see.
    """
    rest = "inputs: {p: {type: string, sensitive: true}, q: {type: string}}\n"
    blueprint(project, '{type: local, config: {path: "${inputs.p}/${inputs.q}"}}', rest=rest)
    problems = project.problems(variables=["p=s3cret", "q=als0-s3cret"])
    assert problems
    assert "s3cret" not in str(problems)
    blueprint(project, '{type: local, config: {path: "${inputs.q}"}}', rest=rest)
    problems = project.problems(variables=["p=s3cret", "q=h1dden"])
    assert "would share" in problems[0]
    assert "h1dden" not in str(problems)
