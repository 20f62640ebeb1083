"""
``compensate`` and ``before_destroy`` as they are written: what is loaded, and what is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.domain.blueprint.blueprint import CommandHook, ModuleHook
from orchestrator.domain.blueprint.references import Template
from orchestrator.loading.inputs import InputPolicy
from tests.fakes.project import ProjectOnDisk


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    found = ProjectOnDisk(tmp_path)
    found.module("db", required={"size": "number"}, outputs=["arn"])
    found.module("archive", required={"arn": "string"}, optional={"keep": "number"})
    return found


def test_actions_arrive_in_the_deployment(project: ProjectOnDisk) -> None:
    """
    A command keeps its templates; a module becomes a root of its own, with the providers of its
    step and another name for its state.
    """
    project.blueprint(
        """
        backend: {type: s3, config: {bucket: acme, key: "${step.name}.tfstate", region: eu-1}}
        steps:
          net: {module: ../modules/plain, compensate: {command: [y]}}
          db:
            module: ../modules/db
            needs: [net]
            inputs: {size: 3}
            providers: {aws: {region: eu-1}}
            compensate:
              command: [bin/drain, "${outputs.arn}", 5]
              environment: {SIZE: "${inputs.size}"}
              timeout: 2m
              after: [net]
            before_destroy:
              module: ../modules/archive
              inputs: {arn: "${outputs.arn}", keep: 2}
              timeout: 1m
          last: {module: ../modules/plain, compensate: {command: [x], after: []}}
          first: {module: ../modules/plain, compensate: {command: [x]}}
        """
    )
    found = project.load()
    db = found.steps["db"]
    assert db.compensate == CommandHook(
        Template(["bin/drain", "${outputs.arn}", 5]), Template({"SIZE": "${inputs.size}"}), 120.0
    )
    assert isinstance(db.before_destroy, ModuleHook)
    root = db.before_destroy.root
    assert (root.name, root.timeout, root.needs) == ('db["@before_destroy"]', 60.0, frozenset())
    assert root.inputs == {"arn": Template("${outputs.arn}"), "keep": Template(2)}
    assert root.backend.type == "s3"
    assert root.backend.config.raw["key"] == "${step.name}.before_destroy.tfstate"
    assert root.backend.config.raw["bucket"] == "acme"
    assert root.providers == db.providers
    assert db.compensate_after == ("net",)
    assert found.steps["last"].compensate_after == ()
    assert found.steps["first"].compensate_after is None
    assert found.steps_and_hooks().keys() == {"net", "db", "last", "first", 'db["@before_destroy"]'}
    assert "db" in found.graph
    assert 'db["@before_destroy"]' not in found.graph


def test_a_variable_that_only_the_checks_of_a_hook_name_is_read(project: ProjectOnDisk) -> None:
    """
    The ``module.yaml`` of a hook's module may refer to the environment, as that of a step may.
    """
    project.write(
        "modules/archive/module.yaml", 'verify:\n  - command: {argv: [test, "${env.ARCHIVE}"]}\n'
    )
    project.blueprint(
        """
        steps:
          db:
            module: ../modules/db
            inputs: {size: 3}
            before_destroy: {module: ../modules/archive, inputs: {arn: "${outputs.arn}"}}
        """
    )
    assert project.load(environ={"ARCHIVE": "cold"}).env == {"ARCHIVE": "cold"}
    assert project.load(environ={}).env == {}


def test_an_outline_tells_which_actions_a_step_declares(project: ProjectOnDisk) -> None:
    """
    Reading commands know of actions without reading a module; null takes one away.
    """
    project.blueprint(
        """
        environments: {default: {}, calm: {steps: {db: {compensate: null}}}}
        steps:
          db: {module: ../nowhere, compensate: {command: [x]}, before_destroy: {module: ../no}}
          net: {module: ../nowhere}
        """
    )
    steps = project.outline().steps
    assert (steps["db"].compensate, steps["db"].before_destroy) == (True, True)
    assert (steps["net"].compensate, steps["net"].before_destroy) == (False, False)
    assert not project.outline(environment="calm").steps["db"].compensate


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("verify:\n  - tcp: {host: '${outputs.hots}', port: 22}", "has no output 'hots'"),
        ("verify:\n  - tcp: {host: '${inputs.ran}', port: 22}", "there is no input 'ran'"),
        ("identity: {aws_s3_bucket.b: '${inputs.ran}'}", "there is no input 'ran'"),
        ("verify:\n  - tcp: {host: a, port: many}", "tcp: "),
    ],
)
def test_what_is_wrong_in_the_behaviour_of_a_hooks_module(
    project: ProjectOnDisk, behaviour: str, said: str
) -> None:
    """
    The ``module.yaml`` of a hook's module is checked as that of a step, before anything runs.
    """
    project.write("modules/archive/module.yaml", behaviour + "\n")
    project.blueprint(
        """
        steps:
          db:
            module: ../modules/db
            inputs: {size: 3}
            before_destroy: {module: ../modules/archive, inputs: {arn: "${outputs.arn}"}}
        """
    )
    problems = project.problems()
    assert any(said in problem and "module.yaml" in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("compensate: drain", "9:17: compensate of step 'db' must be a map, not text"),
        ("compensate: {comand: [x]}", "9:18: unknown key 'comand' in compensate of step 'db'"),
        ("compensate: {}", "9:17: compensate of step 'db' says what to do by one"),
        ("compensate: {command: [x], module: ../modules/plain}", "by one of two keys"),
        ("compensate: {command: bin/drain}", "9:27: compensate of step 'db': command must be"),
        ("compensate: {command: []}", "command must be a list of a program and its arguments"),
        ("compensate: {command: [x, [y]]}", "9:31: each entry of command must be text"),
        ("compensate: {command: [x], inputs: {a: 1}}", "9:32: compensate of step 'db': `inputs`"),
        ("before_destroy: {command: [x], after: [net]}", "unknown key 'after' in before_destroy"),
        ("compensate: {command: [x], timeout: soon}", "timeout: "),
        ("compensate: {command: [x], environment: {A-B: 1}}", "'A-B' is not the name of"),
        ("compensate: {command: [x], environment: {ORCHESTRATOR_STEP: x}}", "is set by this tool"),
        ("compensate: {command: [x], environment: {A: [1]}}", "environment.A must be text"),
        ("compensate: {module: ../modules/no}", "there is no module directory '../modules/no'"),
        (
            "compensate: {module: ../modules/archive}",
            "9:26: compensate of step 'db' does not set 'arn'",
        ),
        (
            "compensate: {module: ../modules/archive, inputs: {arn: a, kep: 1}}",
            "9:63: the module of compensate of step 'db' has no variable 'kep'",
        ),
        (
            "before_destroy: {module: ../modules/archive, inputs: {arn: a, keep: many}}",
            "variable 'keep' must be a number",
        ),
        ("compensate: {command: [x, '${outputs.arm}']}", "9:32: the module has no output 'arm'"),
        ("compensate: {command: [x, '${inputs.sise}']}", "9:32: there is no input 'sise'"),
        ("compensate: {command: [x, '${steps.nets.outputs.id}']}", "there is no step 'nets'"),
        (
            "compensate: {command: [x, '${steps.app.outputs.id}']}",
            "9:32: compensate of step 'db' refers to 'app', which 'db' does not need",
        ),
        ("compensate: {command: [x], after: [nett]}", "9:40: there is no step 'nett'"),
        ("compensate: {command: [x], after: [app]}", "step 'app' declares no `compensate`"),
        ("compensate: {command: [x], after: [db]}", "compensate of step 'db' comes after itself"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_an_action(project: ProjectOnDisk, step: str, said: str) -> None:
    """
    Each mistake in an action is told before anything runs, with its place.
    """
    project.blueprint(
        f"""
        steps:
          net: {{module: ../modules/plain, compensate: {{command: [x]}}}}
          app: {{module: ../modules/plain, needs: [db]}}
          db:
            module: ../modules/db
            inputs: {{size: 3}}
            {step}
        """
    )
    problems = project.problems()
    assert any(said in problem for problem in problems), problems


def test_a_module_needs_a_backend_whose_states_can_be_told_apart(project: ProjectOnDisk) -> None:
    """
    The root of an action never writes the state of its step: where no other name for one can be
    made, that is an error, and a command is offered.
    """
    project.blueprint(
        """
        backend: {type: http, config: {address: "https://state.example/x"}}
        steps:
          a: {module: ../modules/plain, compensate: {module: ../modules/plain}}
        """
    )
    (problem,) = project.problems()
    assert "a module needs a state of its own" in problem
    assert "use a `command` here" in problem


def test_compensations_that_wait_for_each_other_are_named(project: ProjectOnDisk) -> None:
    """
    ``after`` and the order of dependents together may not lead in a circle.
    """
    project.blueprint(
        """
        steps:
          a: {module: ../modules/plain, compensate: {command: [x]}}
          b: {module: ../modules/plain, needs: [a], compensate: {command: [x]}}
          c: {module: ../modules/plain, needs: [b], compensate: {command: [x], after: [a]}}
        """
    )
    (problem,) = project.problems()
    assert "compensations wait for each other: c -> a -> b -> c" in problem
    assert problem.startswith("blueprints/web.yaml:6:")


def test_an_action_does_not_stand_in_the_way_of_an_apply(project: ProjectOnDisk) -> None:
    """
    A variable of the environment that only an action refers to need not be set to apply.
    """
    project.blueprint(
        """
        steps:
          a: {module: ../modules/plain, compensate: {command: [x, "${env.TOKEN}"]}}
        """
    )
    assert project.load().env == {}
    assert project.load(environ={"TOKEN": "t"}, need=InputPolicy.AVAILABLE).env == {"TOKEN": "t"}
