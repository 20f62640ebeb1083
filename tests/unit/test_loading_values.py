"""
Where the values of inputs come from, and which wins.
"""

from __future__ import annotations

import os
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.errors import Invalid
from orchestrator.loading.inputs import InputPolicy, unread_variables
from orchestrator.loading.sources import CommandFailed, read_values, run_command
from orchestrator.loading.types import convert, parse_type
from tests.fakes.project import ProjectOnDisk

STEPS = 'steps: {a: {module: ../modules/plain, inputs: {x: "${inputs.a}"}}}\n'


def test_the_strongest_source_wins(project: ProjectOnDisk) -> None:
    """
    Default, environment, its files, input files, process environment, -i: each beats those before.
    """
    project.write("blueprints/e.yaml", "{c: efile, d: efile, e: efile, f: efile}\n")
    given = project.write("given.json", '{"d": "file", "e": "file", "f": "file"}')
    project.blueprint(
        "inputs: {a: {default: d}, b: {default: d}, c: {}, d: {}, e: {}, f: {}}\n"
        "environments: {default: {inputs: {b: env, c: env}, inputs_from: [e.yaml]}}\n" + STEPS
    )
    found = project.load(
        input_files=[given],
        environ={"ORCHESTRATOR_INPUT_e": "var", "ORCHESTRATOR_INPUT_F": "var"},
        variables=["f=cli"],
    ).inputs
    assert {name: (item.value, item.origin) for name, item in found.items()} == {
        "a": ("d", "blueprint default"),
        "b": ("env", "environment default"),
        "c": ("efile", "blueprints/e.yaml"),
        "d": ("file", "given.json"),
        "e": ("var", "environment variable ORCHESTRATOR_INPUT_e"),
        "f": ("cli", "command line"),
    }


def test_later_files_and_options_win_over_earlier_ones(project: ProjectOnDisk) -> None:
    """
    Of two of a kind the later one wins.
    """
    project.blueprint("inputs: {a: {}, b: {}}\n" + STEPS)
    files = [project.write("1.yaml", "{a: 1, b: 1}"), project.write("2.tfvars", "a = 2")]
    found = project.load(input_files=files, variables=["b=2", "b=3"]).inputs
    assert (found["a"].value, found["b"].value) == (2, 3)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "12", "12"),
        ("string", "", ""),
        ("string", "a: [b", "a: [b"),
        ("number", "12", 12),
        ("bool", "true", True),
        ("list(string)", '["a", "b"]', ["a", "b"]),
        ("list(string)", "[a, 1.10]", ["a", "1.1"]),
        ("map(number)", "{a: 1}", {"a": 1}),
        ("any", "12", 12),
        ("any", "[1]", [1]),
    ],
)
def test_text_is_read_by_the_declared_type(
    project: ProjectOnDisk, kind: str, text: str, value: object
) -> None:
    """
    -i and ORCHESTRATOR_INPUT_ take text as it is for strings, JSON or YAML for anything else.
    """
    project.blueprint(f'inputs: {{a: {{type: "{kind}"}}}}\n' + STEPS)
    assert project.load(variables=[f"a={text}"]).inputs["a"].value == value
    assert project.load(environ={"ORCHESTRATOR_INPUT_a": text}).inputs["a"].value == value


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (["a"], "-i: an input is given as NAME=VALUE"),
        (["aa=1"], "-i aa: there is no input 'aa' | did you mean 'a'?"),
        (["a=x"], "-i a: input 'a' must be a number, not text"),
        (["a="], "-i a: input 'a' must be a number, not empty | null is no value"),
        (["a=[s3cr3t"], "-i a: input 'a': the value is neither JSON nor YAML"),
        ([], "blueprints/web.yaml:3:10: input 'a' has no value"),
    ],
)
def test_wrong_options(project: ProjectOnDisk, variables: list[str], said: str) -> None:
    """
    A wrong -i is named as such, without its value; so is an input that has none.
    """
    project.blueprint("inputs: {a: {type: number}}\n" + STEPS)
    found = project.problems(variables=variables)
    assert any(line.startswith(said) for line in found)
    assert "s3cr3t" not in "".join(found)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("f.yaml", "x: 1", "f.yaml:1:1: there is no input 'x'"),
        ("f.tfvars", 'a = "1"\n\nx = 1', "f.tfvars:3:1: there is no input 'x'"),
        ("f.json", '{\n  "a": 1,\n  "x": 1}', "f.json:3:3: there is no input 'x'"),
        ("f.tfvars.json", '{"x": 1}', "f.tfvars.json:1:2: there is no input 'x'"),
        ("f.tfvars", "a = var.x", "f.tfvars:1:5: not valid: Variables not allowed"),
        ("f.tfvars", "a = \n", "f.tfvars:1:5: not valid: "),
        ("f.tfvars", "a = 1\0\nb = 2", "f.tfvars: holds a NUL character"),
        ("f.json", '{"a": 1,}', "f.json:1:9: not valid JSON"),
        ("f.json", '{"a": 1, "a": 2}', "f.json: not valid JSON: duplicate key 'a'"),
        ("f.json", '{"a": NaN}', "f.json: not valid JSON: NaN is no JSON"),
        ("f.json", '{"a": "\\ud800"}', "f.json: holds half a character"),
        ("f.json", "[1]", "f.json:1:1: must hold a map of inputs"),
        ("f.yaml", "a: 1\na: 2", "f.yaml:2:1: duplicate key 'a'"),
        ("f.yaml", "[1]", "f.yaml:1:1: must hold a map of inputs, not a list"),
        ("f.txt", "a=1", "f.txt: the name has no known ending"),
    ],
)
def test_wrong_input_files(project: ProjectOnDisk, name: str, text: str, said: str) -> None:
    """
    A mistake in an input file is reported with the file and, where the format tells, its place.
    """
    project.blueprint("inputs: {a: {}, b: {}}\n" + STEPS)
    file = project.write(name, text)
    found = project.problems(input_files=[file], variables=["a=1", "b=1"])
    assert any(line.startswith(said) for line in found)


def test_a_missing_input_file_is_an_error(project: ProjectOnDisk) -> None:
    """
    A file that is not there is named.
    """
    project.blueprint("inputs: {a: {default: 1}}\n" + STEPS)
    assert project.problems(input_files=[Path("no.yaml")]) == ["no.yaml: there is no such file"]


@pytest.mark.parametrize(
    ("source", "reference"),
    [
        ("from: {command: [pass, db]}", {"from": {"command": ["pass", "db"]}}),
        ("from: {env: PW}", {"from": {"env": "PW"}}),
        ('default: "${env.PW}"', {"from": {"env": "PW"}}),
    ],
)
def test_secrets_come_from_a_source_and_keep_its_name(
    project: ProjectOnDisk, source: str, reference: object
) -> None:
    """
    A sensitive value has its source as reference, and the value is that of the source.
    """
    project.blueprint(f"inputs: {{a: {{type: string, sensitive: true, {source}}}}}\n" + STEPS)
    item = project.load(environ={"PW": "from-command"}).inputs["a"]
    assert (item.value, item.sensitive, item.reference) == ("from-command", True, reference)


def test_a_secret_may_come_from_a_file_of_its_own(project: ProjectOnDisk) -> None:
    """
    ``from.file`` is the text of a file, without the newline at its end.
    """
    file = project.write("secrets/pw", "s3cret\n")
    project.blueprint(
        "inputs: {a: {type: string, sensitive: true, from: {file: ../secrets/pw}}}\n" + STEPS
    )
    assert project.load().inputs["a"].value == "s3cret"
    file.unlink()
    assert "there is no such file" in project.problems()[0]


@pytest.mark.parametrize("kind", ["option", "file", "environment"])
def test_any_other_secret_is_asked_for_again_by_its_variable(
    project: ProjectOnDisk, kind: str
) -> None:
    """
    A sensitive value given by -i, a file or ORCHESTRATOR_INPUT_ is referred to by that variable.
    """
    project.blueprint("inputs: {a: {type: string, sensitive: true}}\n" + STEPS)
    file = project.write("f.yaml", "a: s")
    match kind:
        case "option":
            item = project.load(variables=["a=s"]).inputs["a"]
        case "file":
            item = project.load(input_files=[file]).inputs["a"]
        case _:
            item = project.load(environ={"ORCHESTRATOR_INPUT_a": "s"}).inputs["a"]
    assert item.reference == {"from": {"env": "ORCHESTRATOR_INPUT_a"}}


def test_a_command_runs_only_if_its_value_is_needed(project: ProjectOnDisk) -> None:
    """
    A command does not run for a value that is overridden, or that nothing refers to.
    """
    project.blueprint(
        "inputs:\n"
        "  a: {type: string, sensitive: true, from: {command: [pass, a]}}\n"
        "  unused: {type: string, from: {command: [pass, unused]}}\n" + STEPS
    )
    project.load(variables=["a=x"])
    assert project.commands == []
    project.load()
    assert project.commands == [("pass", "a")]


def test_values_of_the_process_environment_are_sensitive(project: ProjectOnDisk) -> None:
    """
    An input that takes ``${env.X}`` or ``from.env`` is sensitive although it was not declared so.
    """
    project.blueprint('inputs: {a: {default: "x-${env.X}"}, b: {from: {env: X}}}\n' + STEPS)
    found = project.load(environ={"X": "1"}).inputs
    assert (found["a"].value, found["a"].sensitive) == ("x-1", True)
    assert (found["b"].value, found["b"].sensitive) == (1, True)


def test_a_variable_that_is_not_set_is_a_problem_only_where_it_is_needed(
    project: ProjectOnDisk,
) -> None:
    """
    ``${env.X}`` and ``from.env`` need the variable, at their place; without need the input is out.
    """
    project.blueprint(
        'inputs: {a: {default: "${env.X}"}, b: {from: {env: Y}}}\n'
        'steps: {a: {module: ../modules/plain, inputs: {x: "${env.Z}"}}}\n'
    )
    assert project.problems() == [
        "blueprints/web.yaml:3:24: the environment variable X is not set",
        "blueprints/web.yaml:3:52: the environment variable Y is not set",
        "blueprints/web.yaml:4:52: the environment variable Z is not set",
    ]
    assert project.load(need=InputPolicy.AVAILABLE).inputs == {}


@pytest.mark.parametrize(
    "value", ["hunter2", "[1]", "''", "'${environment}'", "{from: {cmd: [x]}}", "{from: x}"]
)
def test_a_sensitive_value_cannot_stand_in_a_blueprint(project: ProjectOnDisk, value: str) -> None:
    """
    Nothing written in a blueprint is the value of a sensitive input, in any environment.
    """
    project.blueprint(
        "inputs: {a: {type: string, sensitive: true}}\n"
        f"environments: {{default: {{}}, prod: {{inputs: {{a: {value}}}}}}}\n" + STEPS
    )
    found = project.problems(variables=["a=ok"])
    assert len(found) >= 1
    assert "hunter2" not in "".join(found)


def test_null_is_no_value_of_a_secret(project: ProjectOnDisk) -> None:
    """
    A sensitive input may be optional: its default is null.
    """
    project.blueprint("inputs: {a: {type: string, sensitive: true, default: null}}\n" + STEPS)
    assert project.load().inputs["a"].value is None


def test_a_secret_that_reaches_a_backend_by_its_value_is_refused(project: ProjectOnDisk) -> None:
    """
    An input that becomes sensitive by its source cannot stand in a backend either.
    """
    project.blueprint(
        'inputs: {a: {default: "${env.X}"}}\n'
        'backend: {type: s3, config: {key: "${inputs.a}"}}\n' + STEPS
    )
    assert project.problems(environ={"X": "1"}) == [
        "blueprints/web.yaml:4:36: '${inputs.a}' cannot be used in a backend"
        " | it is sensitive; give credentials by the environment of the engine"
    ]


def test_values_in_files_are_taken_literally(project: ProjectOnDisk) -> None:
    """
    Text from an input file is never read as a reference.
    """
    project.blueprint("inputs: {a: {}}\n" + STEPS)
    file = project.write("f.yaml", "a: ${env.HOME} $${x}")
    assert project.load(input_files=[file]).inputs["a"].value == "${env.HOME} $${x}"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; print('s3cret'); sys.exit(3)", "exit code 3"),
        ("import os; os.write(1, b'\\xff')", "not UTF-8"),
        ("while True: print('s3cret' * 999)", "printed more than 16 MiB"),
        ("import time; print('s3cret', flush=True); time.sleep(99)", "no answer within 1 s"),
        ("import os, time; os.close(1); time.sleep(99)", "no answer within 1 s"),
    ],
)
def test_a_failing_command_says_why_without_its_output(
    monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    """
    The error of a command names the exit code, that it does not end or prints without end, and
    never what was printed.
    """
    if "no answer" in why:
        monkeypatch.setattr("orchestrator.loading.sources.COMMAND_SECONDS", 1.0)
    with pytest.raises(CommandFailed, match=why) as caught:
        run_command([sys.executable, "-c", program])
    assert "s3cret" not in str(caught.value)


def test_a_command_runs_without_a_shell_and_without_stdin() -> None:
    """
    The argument vector is passed on as it is; reading stdin gives its end.
    """
    program = "import sys; print(sys.argv[1] + sys.stdin.read())"
    assert run_command([sys.executable, "-c", program, "$HOME; x"]) == "$HOME; x\n"


def test_a_command_is_not_given_the_values_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Law: secrets travel with values. Everything else of the environment reaches it.
    """
    monkeypatch.setenv("ORCHESTRATOR_INPUT_password", "s3cret")
    monkeypatch.setenv("VAULT_ADDR", "http://here")
    program = "import os; print(*(os.environ.get(name) for name in sys.argv[1:]))"
    names = ("ORCHESTRATOR_INPUT_password", "VAULT_ADDR")
    said = run_command([sys.executable, "-c", f"import sys; {program}", *names]).strip()
    assert said == "None http://here"


def test_a_command_that_is_not_there_is_a_clear_error(project: ProjectOnDisk) -> None:
    """
    A program that cannot be started is CommandFailed.
    """
    with pytest.raises(CommandFailed, match="cannot be started"):
        run_command([str(project.root / "nope")])


@pytest.mark.parametrize(
    "text",
    [
        "string",
        "list(map(number))",
        'object({a = string, b = optional(list(bool), []), "c d" = any})',
        "object({\n  a = string # the name\n  b = optional(object({x = number}), {x = 1})\n})",
        "tuple([string, number])",
        "list",
    ],
)
def test_types_as_terraform_writes_them(text: str) -> None:
    """
    Every form of type expression is understood, comments and defaults included.
    """
    assert parse_type(text).kind


@pytest.mark.parametrize("text", ["strng", "list(", "object({a})", "string)", "", "list(x)", "@"])
def test_what_is_no_type(text: str) -> None:
    """
    Anything else is a ValueError.
    """
    with pytest.raises(ValueError, match=r"."):
        parse_type(text)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (
            "object({a = string, b = optional(number)})",
            "{b: x}",
            ["has no attribute 'a'", "v.b must"],
        ),
        ("tuple([string])", "[a, b]", ["must have 1 entries, not 2"]),
        ("map(list(number))", "{k: [1, x]}", ["v.k[1] must be a number, not text"]),
        ("bool", "yes", ["v must be a bool, not text"]),
        ("number", "true", ["v must be a number, not a bool"]),
        ("string", "[a]", ["v must be text, not a list"]),
        ("set(string)", "{a: 1}", ["v must be a set, not a map"]),
    ],
)
def test_a_value_of_another_type_is_named_by_its_path(
    kind: str, text: str, said: list[str]
) -> None:
    """
    What does not fit is reported with its path and kind, never with its value.
    """
    problems = Problems()
    convert(parse_type(kind), parse_document(text, file="f"), problems, what="v")
    messages = [problem.message for problem in problems]
    assert len(messages) == len(said)
    assert all(part in message for part, message in zip(said, messages, strict=True))


def test_an_object_input_names_attributes_that_are_unknown(project: ProjectOnDisk) -> None:
    """
    A mistyped attribute of an object input is an error with a suggestion.
    """
    project.blueprint('inputs: {a: {type: "object({size = optional(number)})"}}\n' + STEPS)
    assert project.problems(variables=["a={siez: 1}"]) == [
        "-i a: input 'a' has no attribute 'siez' | did you mean 'size'?"
    ]


def test_read_values_reads_every_format(tmp_path: Path) -> None:
    """
    YAML, JSON and tfvars files with the same content give the same values.
    """
    (tmp_path / "a.yaml").write_text("a: {b: [1, true, null]}")
    (tmp_path / "a.json").write_text('{"a": {"b": [1, true, null]}}')
    (tmp_path / "a.tfvars").write_text("a = { b = [1, true, null] }")
    (tmp_path / "a.auto.tfvars.json").write_text('{"a": {"b": [1, true, null]}}')
    found = [read_values(path, shown=path.name)[0]["a"].plain for path in tmp_path.iterdir()]
    assert found == [{"b": [1, True, None]}] * 4


@pytest.mark.parametrize(
    "value",
    [
        "60*60", "1+1", "1-5", "1 -5", "!true", "true ? 1 : 2", "(3)", "-(1)", "1 == 1",
        '"a" != "b"',
        "[for a in [1] : a]", "{for a in [1] : a => a}", "[1, 2][0]", "{a = 1}.a", '["a"].*',
        '"${1+1}"', '"a${"b"}c"', '"%{if true}y%{endif}"', '"$$${1}"', "{(1) = 2}", '{"${1}" = 2}',
        "<<EOT\na${1}\nEOT", "<<-EOT\r\n  %{if true}a%{endif}\r\n  EOT", "[1,\n 2 * 3]",
    ],
)  # fmt: skip
def test_an_expression_in_a_tfvars_file_is_refused_with_its_place(
    tmp_path: Path, value: str
) -> None:
    """
    Terraform evaluates it: its text would be applied in place of what it means.
    """
    (tmp_path / "a.tfvars").write_text(f"a = 1\nb = {value}\n")
    with pytest.raises(Invalid, match=r"a\.tfvars:[23]:\d+: expressions and templates are not"):
        read_values(tmp_path / "a.tfvars", shown="a.tfvars")


def test_values_that_look_like_expressions_are_none(tmp_path: Path) -> None:
    """
    Comments, negative numbers, escaped templates, names with a dash, texts and heredocs.
    """
    text = """
        # 1 + 1 ${x}
        a-b = [-1, -2.5e-3, "for", "1+1", "$${x} %%{y} $5 100%"] // (x)
        c = { for-all = -1, "a b": null, d = <<-EOT
            [1][0] $${x} "q"
            EOT
        }
        /* ${x} */
    """
    (tmp_path / "a.tfvars").write_text(text)
    values, _ = read_values(tmp_path / "a.tfvars", shown="a.tfvars")
    assert values["a-b"].plain == [-1, -0.0025, "for", "1+1", "${x} %{y} $5 100%"]
    assert values["c"].plain == {"for-all": -1, "a b": None, "d": '[1][0] ${x} "q"\n'}


def test_an_unreadable_input_file_is_invalid(tmp_path: Path) -> None:
    """
    A directory, or bytes that are no text, is an error that names the file.
    """
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "b.yaml").write_bytes(b"\xff\xff")
    for name in ("d.yaml", "b.yaml"):
        with pytest.raises(Invalid, match=name):
            read_values(tmp_path / name, shown=name)


@pytest.mark.parametrize("depth", [61, 450, 990, 100_000])
@pytest.mark.parametrize("form", ["a.json", "a.tfvars"])
def test_no_depth_of_a_value_is_a_traceback(tmp_path: Path, form: str, depth: int) -> None:
    """
    A file in any format holds values as deep as YAML may, and tells of deeper ones.
    """
    for levels in (59, depth):
        nested = "[" * levels + "]" * levels
        text = f'{{"a": {nested}}}' if form == "a.json" else f"a = {nested}\n"
        (tmp_path / form).write_text(text)
        if levels == 59:
            read_values(tmp_path / form, shown=form)
    with pytest.raises(Invalid, match="nested too deeply"):
        read_values(tmp_path / form, shown=form)


def test_a_number_of_more_digits_than_are_read_is_told(tmp_path: Path) -> None:
    """
    In our words, without the number: it may be a secret.
    """
    (tmp_path / "a.json").write_text(f'{{"a": {"1" * 5000}}}')
    with pytest.raises(Invalid, match="would be rounded") as raised:
        read_values(tmp_path / "a.json", shown="a.json")
    assert "11" not in str(raised.value)


def test_what_stands_in_the_place_of_a_blueprint_is_told(project: ProjectOnDisk) -> None:
    """
    A device, a directory or a link in circles is not an unknown name.
    """
    place = project.root / "blueprints"
    os.mkfifo(place / "pipe.yaml")
    (place / "place.yaml").mkdir()
    (place / "circle.yaml").symlink_to("circle.yaml")
    for name in ("pipe", "place", "circle"):
        with pytest.raises(Invalid, match="is not a regular file"):
            project.load(f"blueprints/{name}.yaml")


@pytest.mark.parametrize("path", ["/etc/passwd", "../../outside", "/dev/zero", "link"])
def test_a_blueprint_reads_no_file_outside_of_its_project(
    project: ProjectOnDisk, path: str
) -> None:
    """
    Neither by its path nor by a link; who runs the tool may name one in an input file.
    """
    outside = project.root.parent / "outside"
    outside.write_text("secret")
    project.write("blueprints/x", "")
    (project.root / "blueprints/link").symlink_to(outside)
    declared = "inputs: {a: {from: {file: %s}}}\n"
    step = "steps: {s: {module: ../modules/plain, inputs: {x: '${inputs.a}'}}}"
    project.blueprint(declared % path + step)
    problems = project.problems()
    assert len(problems) >= 1
    assert "is outside of the project" in problems[0]

    project.blueprint("inputs: {a: {type: string}}\n" + step)
    given = project.write("given.yaml", f"a: {{from: {{file: {outside}}}}}")
    assert project.load(input_files=[given]).inputs["a"].value == "secret"


def test_a_step_that_an_environment_sets_to_null_is_refused(project: ProjectOnDisk) -> None:
    """
    It would read as if the step were left out there.
    """
    project.blueprint(
        """
        environments: {prod: {steps: {extra: null}}}
        steps: {extra: {module: ../modules/plain}}
        """
    )
    assert "step 'extra' is null" in project.problems(environment="prod")[0]


def test_inputs_that_are_no_map_are_one_mistake(project: ProjectOnDisk) -> None:
    """
    Which variables they would have set is not guessed.
    """
    project.module("needy", required=dict.fromkeys("abcdefgh"))
    project.blueprint('steps: {s: {module: ../modules/needy, inputs: "x"}}')
    assert project.problems() == ["blueprints/web.yaml:3:47: inputs must be a map, not text"]


def test_a_misspelt_variable_is_named() -> None:
    """
    Where its name is close to that of an input; one for another blueprint is none of ours.
    """
    environ = dict.fromkeys(
        ("ORCHESTRATOR_INPUT_pasword", "ORCHESTRATOR_INPUT_PASSWORD", "ORCHESTRATOR_INPUT_region"),
        "",
    )

    (said,) = unread_variables(environ, ["password", "size"])

    assert said.startswith("the environment variable ORCHESTRATOR_INPUT_pasword gives no input")
    assert "did you mean 'ORCHESTRATOR_INPUT_password'?" in said


ROUNDED = ("1e400", "-1e400", "12345678901234567890.123456789", "3.141592653589793238", "1e-400")


@pytest.mark.parametrize("number", ROUNDED)
@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("in.json", '{"a": "1e400 \\"1e400",\n "n": [1, %s]}', "in.json:2:11"),
        ("in.yaml", "a: '1e400'\nn: [1, %s]\n", "in.yaml:2:8"),
        ("in.tfvars", 'a = "1e400" # 1e400\nn = [1, %s]\n', "in.tfvars:2:9"),
        ("in.tfvars.json", '{"n": %s}', "in.tfvars.json:1:7"),
    ],
)
def test_a_number_that_would_be_rounded_is_refused_with_its_place(
    project: ProjectOnDisk, name: str, text: str, place: str, number: str
) -> None:
    """
    Engines keep more digits than we would: nothing is applied that nobody wrote.
    """
    project.blueprint("inputs: {a: {default: x}, n: {type: any}}\n" + STEPS)
    given = project.write(name, text % number)

    with pytest.raises(Invalid) as caught:
        project.load(input_files=[given])

    told = [item for item in caught.value.problems if "would be rounded" in item.message]
    assert [str(item.at) for item in told] == [place]
    assert number not in told[0].message


@pytest.mark.parametrize("kind", ["any", "number", "list(number)"])
@pytest.mark.parametrize("number", ROUNDED)
def test_a_number_that_would_be_rounded_is_refused_as_text_as_well(
    project: ProjectOnDisk, kind: str, number: str
) -> None:
    project.blueprint(f"inputs: {{n: {{type: {kind}}}}}\n" + STEPS)
    text = f"[{number}]" if kind.startswith("list") else number

    with pytest.raises(Invalid, match="would be rounded"):
        project.load(variables=[f"n={text}"])


@pytest.mark.parametrize("text", ["123456789012345678901234567890", "0.1", "1e22", "-1.50"])
def test_other_numbers_are_kept_as_they_are(project: ProjectOnDisk, text: str) -> None:
    project.blueprint("inputs: {a: {default: x}, n: {type: any}}\n" + STEPS)

    found = project.load(input_files=[project.write("in.json", f'{{"n": {text}}}')]).inputs

    assert Decimal(repr(found["n"].value)) == Decimal(text)
