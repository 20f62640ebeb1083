"""
Blueprints: what is loaded, and what is refused, all at once and with its place.
"""

from __future__ import annotations

import shutil

import pytest

from orchestrator.domain.blueprint.blueprint import Retain, RetryRule
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.store_location import StoreLocation
from orchestrator.errors import Invalid
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import InputPolicy
from orchestrator.project import BlueprintSelection, ProjectContext, Settings
from tests.fakes.project import ProjectOnDisk


def test_a_complete_blueprint_becomes_a_deployment(project: ProjectOnDisk) -> None:
    """
    Every key of a blueprint arrives in the deployment, names followed and times in seconds.
    """
    project.module(
        "app", required={"subnet": "string", "n": "number"}, outputs=["url"], sensitive=[]
    )
    project.blueprint(
        """
        engine: {kind: tofu, version: ">= 1.6"}
        backend: {type: s3, config: {bucket: acme, key: "${blueprint.name}/${step.name}.tfstate"}}
        operations: {url: "s3://acme/${environment}"}
        providers: {aws: {region: eu-1, assume_role: {role_arn: r}}}
        moved_from: [old/web.yaml]
        inputs: {n: {type: number, default: 3, description: how many}}
        environments:
          default: {}
          prod:
            protected: true
            backend: {config: {bucket: prod}}
            providers: {aws: {region: us-1}}
        steps:
          net: {module: ../modules/plain, inputs: {x: 1}}
          app:
            module: ../modules/app
            inputs: {subnet: "${steps.net.outputs.id}", n: "${inputs.n}"}
            identity: {aws_s3_bucket.this: "${inputs.subnet}"}
            search: {aws_instance.this: {data: d, arguments: {t: "${target.id}"}, ids: ids}}
            verify: [{http: {url: "${outputs.url}/healthz", within: 60s}}]
            retry: {on: [Limit], attempts: 5}
            refused_on: [Refused]
            timeout: 5m
            verify_absence: provider
          boot: {module: ../modules/plain, needs: [app], owned_by: app}
          dns:
            module: ../modules/plain
            retain: {reason: shared, owner: net, review_by: 2027-06-30}
            backend: {type: local}
        """
    )
    found = project.load(environment="prod")
    assert (found.blueprint, found.environment, found.path) == (
        "web",
        "prod",
        "blueprints/web.yaml",
    )
    assert (found.engine.kind, found.protected, found.moved_from) == (
        "tofu",
        True,
        ("old/web.yaml",),
    )
    assert found.operations.url == "s3://acme/prod"
    assert found.graph.order == ("net", "app", "boot", "dns")
    app, dns = found.steps["app"], found.steps["dns"]
    assert app.needs == {"net"}
    assert app.backend.config.raw["bucket"] == "prod"
    assert app.providers == {"aws": Template({"region": "us-1", "assume_role": {"role_arn": "r"}})}
    assert app.retry == RetryRule(("Limit",), 5)
    assert (app.timeout, app.refused_on, app.verify_absence) == (300.0, ("Refused",), "provider")
    assert [check.kind for check in app.verify] == ["http"]
    assert found.steps["boot"].owned_by == "app"
    assert dns.retain == Retain("shared", "net", "2027-06-30")
    assert dns.backend.type == "local"
    assert dns.backend.config.raw == {
        "path": ".orchestrator/state/${blueprint.name}/${environment}/${step.name}.tfstate"
    }


def test_all_problems_are_told_at_once_with_their_places(project: ProjectOnDisk) -> None:
    """
    Unknown keys and names, cycles, missing and undeclared variables and outputs, wrong types, bad
    names, secrets: one run finds them all, in the order of the file.
    """
    project.module("app", required={"cidr": "string", "size": "number"}, outputs=["id"])
    project.blueprint(
        """
        engin: {kind: terraform}
        backend: {type: s3, config: {key: "${inputs.pw}", bucket: b}}
        inputs:
          cidr: {type: strng}
          pw: {type: string, sensitive: true, default: hunter2}
          n: {type: number, default: many}
        environments:
          default: {extends: nowhere, inputs: {cidrr: x}, steps: {ap: {timeout: 1m}}}
        steps:
          app:
            module: ../modules/app
            inputs: {cider: "${inputs.cidrr}", size: [1]}
            needs: [db]
            timeout: soon
          two: {module: ../modules/app, inputs: {cidr: "${steps.app.outputs.idd}", size: "${x}"}}
          Bad: {module: ../modules/ap, needs: [c1]}
          c1: {module: ../modules/app, inputs: {cidr: a, size: 1}, needs: [c2]}
          c2: {module: ../modules/app, inputs: {cidr: a, size: 1}, needs: [c1], retry: {on: ["("]}}
          own: {module: ../modules/app, inputs: {cidr: a, size: 1}, owned_by: app}
        """
    )
    place = "blueprints/web.yaml:"
    assert project.problems(variables=["cidr=a"]) == [
        f"{place}3:1: unknown key 'engin' in the blueprint | did you mean 'engine'?",
        f"{place}4:36: '${{inputs.pw}}' cannot be used in a backend"
        " | it is sensitive; give credentials by the environment of the engine",
        f"{place}6:16: the type of input 'cidr': 'strng' is not a type; did you mean 'string'?",
        f"{place}7:48: input 'pw' is sensitive: its value must not be written here"
        " | use ${env.NAME}, from: {command: [...]}, an input file or the environment",
        f"{place}8:30: input 'n' must be a number, not text",
        f"{place}10:3: environment 'default' extends 'nowhere', which is not declared"
        " | known: default",
        f"{place}10:40: there is no input 'cidrr' | did you mean 'cidr'?",
        f"{place}10:59: there is no step 'ap' | did you mean 'app'?",
        f"{place}13:13: step 'app' does not set 'cidr'"
        " | the module requires it: modules/app/main.tf:4:1",
        f"{place}14:14: the module of step 'app' has no variable 'cider' | did you mean 'cidr'?",
        f"{place}14:22: there is no input 'cidrr' | did you mean 'cidr'?",
        f"{place}14:46: variable 'size' must be a number, not a list",
        f"{place}15:13: there is no step 'db' | known: app, two, Bad, c1, c2, own",
        f"{place}16:14: timeout: a duration is a number of seconds or a text such as "
        '"30s" or "1h30m"',
        f"{place}17:49: the module of step 'app' has no output 'idd' | did you mean 'id'?",
        f"{place}17:83: '${{x}}' is not a reference | known: inputs, steps, outputs, env,"
        " blueprint, environment, step, target, each, run; write $${ for the text ${ itself",
        f"{place}18:3: the name of step 'Bad' must match [a-z0-9][a-z0-9_-]{{0,62}}",
        f"{place}18:17: there is no module directory '../modules/ap' | did you mean 'app'?",
        f"{place}19:68: steps need each other: c1 -> c2 -> c1",
        f"{place}20:86: retry.on: not a regular expression: missing ), unterminated subpattern at"
        " position 0",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2\nname: web\nsteps: {}", ":1:10: a blueprint says `version: 1`"),
        ("version: 1\nsteps: {}", ":1:1: a blueprint has a `name`"),
        ("version: 1\nname: web", ":1:1: a blueprint has `steps`"),
        ("version: 1\nname: We b\nsteps: {}", "must match"),
        ("[1]", "the blueprint must be a map, not a list"),
        ("", "a blueprint says `version: 1`"),
        ("version: 1\nname: web\nsteps: [a]", ":3:8: steps must be a map, not a list"),
        ("version: 1\nname: web\nsteps: {a: x}", ":3:12: steps.a must be a map, not text"),
        ("version: 1\nname: web\nsteps: {a: {}}", ":3:9: step 'a' names no `module`"),
        ("version: 1\nname: web\nsteps: {a: {module: 'git::https://x'}}", "not a local directory"),
        ("version: 1\nname: web\nsteps: {a: {module: ../../..}}", "outside of the project"),
        ("version: 1\nname: web\nbackend: x\nsteps: {}", "backend must be a map"),
        ("version: 1\nname: web\nproviders: {aws: x}\nsteps: {}", "providers.aws must be a map"),
        ("version: 1\nname: web\nengine: {kind: pulumi}\nsteps: {}", "engine.kind must be"),
        ("version: 1\nname: web\nsteps: {}\ninputs: {a b: {}}", "the name of input 'a b'"),
        ("version: 1\nname: web\nsteps: {}\nenvironments: {a: {extends: a}}", "a -> a"),
        ("version: 1\nname: web\nsteps: {}\noperations: {url: '${inputs.x}'}", "cannot be used in"),
    ],
)
def test_what_is_no_blueprint(project: ProjectOnDisk, text: str, said: str) -> None:
    """
    A file of another shape is refused with its place, never with a traceback.
    """
    project.write("blueprints/web.yaml", text)
    assert any(said in line for line in project.problems())


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("verify: {http: {}}", "verify must be a list"),
        ("verify: [{htp: {}}]", "did you mean 'http'?"),
        ("verify: [{http: x}]", "http must be a map of settings"),
        ('verify: [{tcp: {port: "${outputs.idd}"}}]', "the module has no output 'idd'"),
        ('verify: [{tcp: {port: "${steps.a.outputs.id}"}}]', "pass it as an input of the step"),
        ('identity: {a.b: "${inputs.nope}"}', "there is no input 'nope'"),
        ('identity: {a.b: "${outputs.id}"}', "only `verify` sees"),
        ("identity: {bucket: x}", "is not a resource address"),
        ("identity: {terraform_data.: x}", "is not a resource address"),
        ("search: {data.aws_ami.x: {data: x, ids: i}}", "is not a resource address"),
        (r'compensate: {command: ["a\0"]}', "holds a NUL character"),
        ("search: {a.b: {data: x}}", "says `ids`"),
        ('search: {a.b: {data: x, ids: "ids[*"}}', "search.ids must be an attribute"),
        ('search: {a.b: {data: "x y", ids: ids}}', "search.data must be the type"),
        ('search: {a.b: {data: x, ids: i, provider: "a.b.c"}}', "search.provider must be a"),
        ('search: {a.b: {data: "${each.key}", ids: i}}', "search.data must be the type"),
        ('inputs: {x: "${each.key}"}', "are read for each instance"),
        ("retry: {attempts: 2}", "retry says `on`"),
        ("retry: {on: [x], attempts: 0}", "from 1 to 20"),
        ("retain: {reason: x, owner: y}", "retain says `review_by`"),
        ("retain: {reason: x, owner: y, review_by: soon}", "must be a date"),
        ("needs: [a]", "step 'a' needs itself"),
        ('inputs: {x: "${steps.a.outputs.id}"}', "a step cannot need itself"),
        ('inputs: {x: "${outputs.id}"}', "only `verify` sees"),
        ("owned_by: b", "is owned by 'b' but does not need it | add `needs: [b]`"),
        ('owned_by: ""', "owned_by must be text, not empty"),
        ("verify_absence: maybe", "must be `state` or `provider`"),
        ("inputs: [x]", "inputs must be a map"),
    ],
)
def test_what_is_wrong_in_a_step(project: ProjectOnDisk, step: str, said: str) -> None:
    """
    Each rule of a step's keys is held, and says what it wants.
    """
    project.blueprint(
        f"steps:\n  a: {{module: ../modules/plain, {step}}}\n  b: {{module: ../modules/plain}}\n"
    )
    assert any(said in line for line in project.problems())


def test_a_step_that_is_owned_by_itself_is_told_once(project: ProjectOnDisk) -> None:
    """
    It is not advised to need itself.
    """
    project.blueprint("steps: {a: {module: ../modules/plain, owned_by: a}}")
    (said,) = project.problems()
    assert "cannot be owned by itself" in said and "needs" not in said


def test_problems_of_other_environments_are_found_too(project: ProjectOnDisk) -> None:
    """
    What is wrong in an environment is found whichever environment is asked for.
    """
    project.blueprint(
        """
        inputs: {n: {type: number, default: 1}}
        environments:
          dev: {}
          prod: {inputs: {n: [1]}, steps: {a: {retry: {on: x}, colour: red}}}
        steps: {a: {module: ../modules/plain}}
        """
    )
    found = project.problems(environment="dev")
    assert [line.split(" | ")[0].split(": ", 1)[1] for line in found] == [
        "input 'n' must be a number, not a list",
        "retry.on must be a list, not text",
        "unknown key 'colour' in step 'a'",
    ]


def test_environments_must_be_chosen_where_they_are_declared(project: ProjectOnDisk) -> None:
    """
    Without ``-e``, and without one called default, loading lists the environments.
    """
    project.blueprint("environments: {dev: {}, prod: {}}\nsteps: {a: {module: ../modules/plain}}")
    assert "choose one with -e: dev, prod" in project.problems()[0]


def test_an_unknown_environment_is_an_error_with_a_suggestion(project: ProjectOnDisk) -> None:
    """
    ``-e`` must name what is declared.
    """
    project.blueprint("environments: {dev: {}, prod: {}}\nsteps: {a: {module: ../modules/plain}}")
    assert "did you mean 'prod'?" in project.problems(environment="prd")[0]


def test_extends_lays_environments_over_each_other(project: ProjectOnDisk) -> None:
    """
    An environment has what those it extends set, and its own over it: inputs one by one, files
    before the next environment, steps key by key.
    """
    project.write("blueprints/base.tfvars", 'a = "file"\nb = "file"\n')
    project.blueprint(
        """
        inputs: {a: {type: string}, b: {type: string}, c: {type: string, default: top}}
        environments:
          base: {inputs: {a: base, c: base}, inputs_from: [base.tfvars], protected: true}
          prod: {extends: base, inputs: {b: prod}, steps: {a: {inputs: {y: 2}, timeout: null}}}
        steps: {a: {module: ../modules/plain, inputs: {x: 1, y: 1}, timeout: 5s}}
        """
    )
    found = project.load(environment="prod")
    assert {k: (v.value, v.origin) for k, v in found.inputs.items()} == {
        "a": ("file", "blueprints/base.tfvars"),
        "b": ("prod", "environment prod"),
        "c": ("base", "environment base"),
    }
    assert {k: t.raw for k, t in found.steps["a"].inputs.items()} == {"x": 1, "y": 2}
    assert found.steps["a"].timeout is None
    assert found.protected


def test_a_malformed_reference_in_a_local_backend_is_told(project: ProjectOnDisk) -> None:
    """
    Settings of a local backend are checked also where its path is the one that is built in.
    """
    project.blueprint(
        """
        backend: {type: local, config: {workspace_dir: "${inputs.}"}}
        steps: {a: {module: ../modules/plain}}
        """
    )
    (problem,) = project.problems()
    assert "is not a reference" in problem


def test_a_backend_of_another_type_replaces_the_settings(project: ProjectOnDisk) -> None:
    """
    Settings of one backend type never end up in another's.
    """
    project.blueprint(
        """
        backend: {type: s3, config: {bucket: x}}
        environments: {dev: {backend: {type: gcs, config: {bucket: b, prefix: p}}}}
        steps: {a: {module: ../modules/plain}}
        """
    )
    assert project.load(environment="dev").steps["a"].backend.config.raw == {
        "bucket": "b",
        "prefix": "p",
    }


def test_module_yaml_gives_defaults_that_the_step_overrides(project: ProjectOnDisk) -> None:
    """
    ``module.yaml`` holds for every step of the module, key by key; null takes a default away.
    """
    project.write(
        "modules/plain/module.yaml",
        """
        verify: [{tcp: {host: a, port: 1}}]
        timeout: 1m
        refused_on: [Quota]
        """,
    )
    project.blueprint(
        """
        steps:
          a: {module: ../modules/plain}
          b: {module: ../modules/plain, timeout: 2m, verify: null}
        """
    )
    steps = project.load().steps
    assert (steps["a"].timeout, len(steps["a"].verify), steps["a"].refused_on) == (
        60,
        1,
        ("Quota",),
    )
    assert (steps["b"].timeout, len(steps["b"].verify), steps["b"].refused_on) == (
        120,
        0,
        ("Quota",),
    )


def test_how_absence_is_confirmed_is_said_from_general_to_special(project: ProjectOnDisk) -> None:
    """
    Blueprint, environment, module.yaml, step: the later beats the earlier, each for itself.
    """
    project.module("odd")
    project.write("modules/odd/module.yaml", "verify_absence: state\nabsence_timeout: 7m\n")
    project.blueprint(
        """
        verify_absence: state
        absence_timeout: 1m
        environments:
          default: {verify_absence: provider}
          slow: {absence_timeout: 2m}
        steps:
          general: {module: ../modules/plain}
          module: {module: ../modules/odd}
          step: {module: ../modules/odd, verify_absence: provider, absence_timeout: 8s}
        """
    )
    found = {
        environment: [
            (step.verify_absence, step.absence_timeout)
            for step in project.load(environment=environment).steps.values()
        ]
        for environment in ("default", "slow")
    }
    assert found == {
        "default": [("provider", 60.0), ("state", 420.0), ("provider", 8.0)],
        "slow": [("state", 120.0), ("state", 420.0), ("provider", 8.0)],
    }


def test_a_wrong_absence_timeout_is_told_at_its_place(project: ProjectOnDisk) -> None:
    """
    Wherever it stands.
    """
    project.blueprint(
        """
        absence_timeout: soon
        steps:
          a: {module: ../modules/plain, absence_timeout: 0}
        """
    )
    places = [problem.split(": ")[0] for problem in project.problems()]
    assert places == ["blueprints/web.yaml:3:18", "blueprints/web.yaml:5:50"]


def test_mistakes_in_module_yaml_name_that_file(project: ProjectOnDisk) -> None:
    """
    What is wrong in a ``module.yaml`` is reported at its place, once however many steps use it.
    """
    project.write("modules/plain/module.yaml", "timeot: 1m\ntimeout: x\n")
    project.blueprint("steps: {a: {module: ../modules/plain}, b: {module: ../modules/plain}}")
    assert [line.split(": ")[0] for line in project.problems()] == [
        "modules/plain/module.yaml:1:1",
        "modules/plain/module.yaml:2:10",
    ]


def test_text_stays_as_written_for_a_text_variable(project: ProjectOnDisk) -> None:
    """
    An unquoted version such as 1.10 reaches a variable of type string as it was written.
    """
    project.module("v", required={"release": "string", "tags": "map(string)"})
    project.blueprint("steps: {a: {module: ../modules/v, inputs: {release: 1.10, tags: {a: 010}}}}")
    inputs = project.load().steps["a"].inputs
    assert (inputs["release"].raw, inputs["tags"].raw) == ("1.10", {"a": "010"})


def test_an_input_that_does_not_fit_the_variable_is_an_error(project: ProjectOnDisk) -> None:
    """
    The value of an input is checked against the type of the variable that it is given to.
    """
    project.module("v", required={"n": "number"})
    project.blueprint(
        """
        inputs: {l: {type: list(string), default: [a]}}
        steps: {a: {module: ../modules/v, inputs: {n: "${inputs.l}"}}}
        """
    )
    assert project.problems() == [
        "blueprints/web.yaml:4:48: variable 'n' must be a number, not a list"
    ]


def test_two_blueprints_of_one_name_are_refused(project: ProjectOnDisk) -> None:
    """
    Two blueprints of one name would share their records: both files are named.
    """
    project.blueprint("steps: {a: {module: ../modules/plain}}")
    project.write("blueprints/sub/other.yaml", "version: 1\nname: web\nsteps: {}\n")
    found = project.problems("blueprints/web.yaml")
    assert found == [
        "blueprints/web.yaml:2:7: the blueprint blueprints/sub/other.yaml is called 'web' too"
        " | two of one name would share their records"
    ]


@pytest.mark.parametrize("wanted", ["web", "blueprints/web.yaml", "site"])
def test_a_blueprint_is_found_by_name_stem_or_path(project: ProjectOnDisk, wanted: str) -> None:
    """
    A blueprint is found by its own name, by its file's name, and by path.
    """
    project.blueprint("steps: {a: {module: ../modules/plain}}")
    project.write(
        "blueprints/site.yaml", "version: 1\nname: shop\nsteps: {a: {module: ../modules/plain}}"
    )
    assert project.load(wanted).blueprint == {"site": "shop"}.get(wanted, "web")


def test_an_unknown_blueprint_is_an_error_with_a_suggestion(project: ProjectOnDisk) -> None:
    """
    What is not there is named, with the closest that is.
    """
    project.blueprint("steps: {}")
    assert project.problems("wbe") == ["there is no blueprint 'wbe' | did you mean 'web'?"]


def test_a_blueprint_outside_of_the_project_is_refused(
    project: ProjectOnDisk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    Records name the blueprint relative to the project, so it must lie inside.
    """
    other = tmp_path_factory.mktemp("other") / "web.yaml"
    other.write_text("version: 1\nname: web\nsteps: {}\n")
    assert "is outside" in project.problems(str(other))[0]


def test_modules_outside_need_the_settings_permission(
    project: ProjectOnDisk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    A module may lie outside of the project only under a directory that the settings allow.
    """
    shared = tmp_path_factory.mktemp("shared")
    shutil.copytree(project.root / "modules" / "plain", shared / "m")
    project.blueprint(f"steps: {{a: {{module: {shared}/m}}}}")
    assert "module_roots" in project.problems()[0]
    allowed = Settings(project_dir=project.root, module_roots=(shared,))
    assert project.problems(settings=allowed) == []


def test_a_link_out_of_the_project_is_refused(
    project: ProjectOnDisk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    A symbolic link does not lead modules or input files out of the project.
    """
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.tfvars").write_text("")
    (project.root / "modules" / "link").symlink_to(outside)
    (project.root / "blueprints" / "x.tfvars").symlink_to(outside / "x.tfvars")
    project.blueprint(
        """
        environments: {default: {inputs_from: [x.tfvars]}}
        steps: {a: {module: ../modules/link}}
        """
    )
    assert [line.split(" | ")[0].split(": ")[1] for line in project.problems()] == [
        "the file 'x.tfvars' is outside of the project",
        "the module '../modules/link' is outside of the project",
    ]


def test_real_modules_are_read(project: ProjectOnDisk) -> None:
    """
    Without a reader given, modules are read from their configuration.
    """
    project.write("modules/real/main.tf", 'variable "a" {}\noutput "b" { value = 1 }\n')
    project.blueprint("steps: {a: {module: ../modules/real, inputs: {aa: 1}}}")
    with pytest.raises(Invalid) as caught:
        load_deployment(
            ProjectContext(project.root, Settings(project_dir=project.root), {}),
            BlueprintSelection("web"),
        )
    messages = [problem.message for problem in caught.value.problems]
    assert messages == [
        "step 'a' does not set 'a'",
        "the module of step 'a' has no variable 'aa'",
    ]


def test_the_outline_reads_no_module_and_asks_for_no_input(project: ProjectOnDisk) -> None:
    """
    Names, order, ownership and places are known although a module is missing and an input has no
    value.
    """
    project.blueprint(
        """
        inputs: {pw: {type: string, sensitive: true}}
        environments: {dev: {}, prod: {protected: true}}
        steps:
          b: {module: ../modules/gone, inputs: {x: "${steps.a.outputs.id}"}, owned_by: a}
          a: {module: ../modules/gone, inputs: {x: "${inputs.pw}"}}
        """
    )
    found = project.outline(environment="prod")
    assert found.graph.order == ("a", "b")
    assert (found.steps["b"].owned_by, found.steps["b"].module_ref) == ("a", "../modules/gone")
    assert found.protected
    assert found.operations == StoreLocation()


def test_the_outline_knows_the_inputs_that_place_the_store(project: ProjectOnDisk) -> None:
    """
    Where the backend depends on inputs, the outline looks at their values, and at no others.
    """
    project.blueprint(
        """
        inputs:
          bucket: {type: string, default: acme}
          other: {type: string, sensitive: true, from: {command: [pass, db]}}
        backend: {type: s3, config: {bucket: "${inputs.bucket}", key: k}}
        steps: {a: {module: ../modules/plain}}
        """
    )
    assert project.outline().operations.url == "s3://acme/orchestrator"
    assert project.commands == []


def test_checking_alone_asks_for_no_values(project: ProjectOnDisk) -> None:
    """
    Validation finds mistakes without values: nothing is asked for and no command runs.
    """
    project.blueprint(
        """
        inputs:
          a: {type: string}
          pw: {type: string, sensitive: true, from: {command: [pass, db]}}
        steps: {a: {module: ../modules/plain, inputs: {x: "${inputs.a}${inputs.pw}${env.NO}"}}}
        """
    )
    assert project.load(need=InputPolicy.CHECK_ONLY).inputs == {}
    assert project.commands == []


@pytest.mark.parametrize(
    "source",
    ["git::https://example.com/m.git//web?ref=v1", "https://example.com/m.zip", "git@a.example:m"],
)
def test_a_module_from_elsewhere_is_one_error_as_it_is_written(
    project: ProjectOnDisk, source: str
) -> None:
    """
    Modules are local directories: said once, with the way out.
    """
    project.blueprint(f'steps: {{a: {{module: "{source}"}}}}')

    told = project.problems()

    assert len(told) == 1 and f"the module '{source}' is not a local directory" in told[0]


def test_a_reference_that_needs_quotes_is_told_so(project: ProjectOnDisk) -> None:
    """
    Braces begin a mapping in YAML; a mistake elsewhere brings no such hint.
    """
    project.blueprint("steps: {a: {module: m, inputs: {x: ${inputs.x}}}}")
    unquoted = project.problems()
    project.blueprint('steps: {a: {module: m, inputs: {x: "${inputs.x}"}')
    unclosed = project.problems()

    assert any('quote references: "${...}"' in item for item in unquoted), unquoted
    assert not any("quote" in item for item in unclosed), unclosed
