"""
OpenTofu's early evaluation: module sources, backend and encryption may depend on variables, without
which no command can load the configuration. Which they are, and which commands are given them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.blueprint.blueprint import EngineKind
from orchestrator.domain.engine_commands import TAKE_VARIABLES, verb_of
from orchestrator.engine.arguments import argument_vector, with_early_variables
from orchestrator.engine.workdir.snapshot import entries_of, pack, unpack
from orchestrator.loading.modules import read_module
from orchestrator.ports.engine import (
    Apply,
    EngineInfo,
    Exec,
    Import,
    Init,
    Plan,
    Pull,
    Push,
    Request,
    ShowPlan,
    Unlock,
    Untaint,
)

RECORDINGS = Path(__file__).parent.parent / "recordings" / "opentofu"
FILE = Path("/e/early.json")
INFO = {
    "terraform": EngineInfo("terraform", "1.11.4", ("/bin/terraform",), "path", ""),
    "tofu": EngineInfo("tofu", "1.12.6", ("/bin/tofu",), "path", ""),
}


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def early(root: Path, text: str, engine: EngineKind = "tofu") -> tuple[str, ...]:
    put(root, {"m/main.tf": text})
    return read_module(root / "m", shown="m", engine=engine).early_variables


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('module "k" {\n  source = "./sub/${var.which}"\n}\n', ("which",)),
        ('variable "which" {\n  const = true\n}\n', ("which",)),
        ('locals {\n  w = var.which\n}\nmodule "k" {\n  source = "./${local.w}"\n}\n', ("which",)),
        (
            'module "k" {\n  source = "a/b/c"\n  version = var.v\n  size = var.size\n}\n',
            ("v",),
        ),
        ('terraform {\n  backend "s3" {\n    key = "${var.env}/x"\n  }\n}\n', ("env",)),
        (
            'terraform {\n  encryption {\n    key_provider "pbkdf2" "k" {\n'
            "      passphrase = var.pass\n    }\n  }\n}\n",
            ("pass",),
        ),
        (
            'provider "x" {\n  for_each = var.regions\n  alias = "by"\n  token = var.t\n}\n',
            ("regions",),
        ),
        ('resource "x_y" "z" {\n  size = var.size\n}\n', ()),
    ],
    ids=[
        "source",
        "constant",
        "local",
        "elsewhere",
        "backend",
        "encryption",
        "provider",
        "resource",
    ],
)
def test_what_is_evaluated_early_is_known_from_the_module(
    tmp_path: Path, text: str, names: tuple[str, ...]
) -> None:
    """
    Every expression that OpenTofu evaluates before it loads the rest counts, through locals.
    """
    assert early(tmp_path, text) == names


@pytest.mark.parametrize(("engine", "passed"), [("tofu", ("size", "w")), ("terraform", ())])
def test_what_modules_from_elsewhere_are_given_is_known(
    tmp_path: Path, engine: EngineKind, passed: tuple[str, ...]
) -> None:
    """
    Their own sources may depend on it, with OpenTofu; a local module that passes it on counts too.
    """
    put(tmp_path, {"c/main.tf": 'module "d" {\n  source = "a/b/c"\n  x = var.w\n}\n'})
    calls = (
        'module "k" {\n  source = "a/b/c"\n  size = var.size\n}\n'
        'module "c" {\n  source = "../c"\n  w = var.w\n  z = var.z\n}\n'
    )
    put(tmp_path, {"m/main.tf": calls})
    module = read_module(tmp_path / "m", shown="m", engine=engine)
    assert (module.early_variables, module.passed_elsewhere) == ((), passed)
    assert unpack(pack(module).archive).early_variables == passed


def test_a_local_module_passes_on_what_its_own_sources_need(tmp_path: Path) -> None:
    """
    What it is given for that counts, what it is given besides does not.
    """
    put(tmp_path, {"c/main.tf": 'variable "w" {}\nmodule "d" {\n  source = "./${var.w}"\n}\n'})
    call = 'module "c" {\n  source = "../c"\n  w = var.which\n  size = var.size\n}\n'
    assert early(tmp_path, call) == ("which",)


def test_json_syntax_counts_alike(tmp_path: Path) -> None:
    """
    Encryption and sources in .tf.json files.
    """
    encryption = {"key_provider": {"pbkdf2": {"k": {"passphrase": "${var.pass}"}}}}
    content = {
        "terraform": {"encryption": encryption},
        "module": {"k": {"source": "./sub/${var.which}"}},
    }
    put(tmp_path, {"m/main.tf.json": json.dumps(content), "m/sub/x/main.tf": "\n"})
    module = read_module(tmp_path / "m", shown="m", engine="tofu")
    assert module.early_variables == ("pass", "which")


def test_encryption_is_made_of_the_locals_that_it_names(tmp_path: Path) -> None:
    """
    Another key there is another encryption, also where a module's block reads as before.
    """
    block = 'terraform {\n  encryption {\n    key_provider "aws_kms" "k" {\n' + (
        "      kms_key_id = local.key\n    }\n  }\n}\n"
    )
    given = [
        'locals {\n  key = local.own\n  own = "a"\n  x = 1\n}\n',
        'locals {\n  key = local.own\n  own = "b"\n  x = 1\n}\n',
        'locals {\n  key = local.own\n  own = "b"\n  x = 2\n}\n',
    ]
    put(tmp_path, {f"{n}/main.tf": block + text for n, text in enumerate(given)})
    first, second, third = (
        read_module(tmp_path / str(n), shown="m", engine="tofu").encryption for n in range(3)
    )
    assert first != second == third


def test_a_variable_source_takes_along_what_it_may_choose(tmp_path: Path) -> None:
    """
    The directory in which the variable chooses is copied whole, and the stored snapshot knows the
    variables.
    """
    put(tmp_path, {"kinds/x/main.tf": "\n", "kinds/y/main.tf": "\n"})
    put(tmp_path, {"m/main.tf": 'module "k" {\n  source = "../kinds/${var.which}"\n}\n'})
    packed = pack(read_module(tmp_path / "m", shown="m", engine="tofu"))
    assert {entry.path for entry in entries_of(packed)} >= {"kinds/x/main.tf", "kinds/y/main.tf"}
    assert unpack(packed.archive).early_variables == ("which",)


REQUESTS: list[Request] = [
    Init(),
    ShowPlan(FILE),
    Apply(Path("p")),
    Pull(),
    Untaint("a.b"),
    Push(Path("s")),
    Unlock("id"),
    Exec(("state", "list")),
    Exec(("output", "-json")),
    Exec(("providers", "schema", "-json")),
    Exec(("workspace", "list")),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda item: type(item).__name__)
def test_every_command_that_loads_the_configuration_gets_them(request_: Request) -> None:
    """
    OpenTofu in a file, after the verb; Terraform's arguments stay as they are.
    """
    assert not INFO["terraform"].evaluates_early
    for kind, info in INFO.items():
        plain = argument_vector(info, request_)
        given = with_early_variables(info, plain, FILE)
        at = 1 + len(verb_of(plain[1:]))
        wanted = [*plain[:at], f"-var-file={FILE}", *plain[at:]] if kind == "tofu" else plain
        assert given == wanted


@pytest.mark.parametrize(
    "request_",
    [
        Plan(out=Path("p"), var_file=Path("v")),
        Import("a.b", "i", Path("v")),
        Exec(("version",)),
        Exec(("fmt", "-check")),
        Exec(("workspace", "show")),
    ],
    ids=lambda item: type(item).__name__,
)
def test_a_call_that_has_them_or_needs_none_stays_as_it_is(request_: Request) -> None:
    """
    One variable file is enough, and one that a command does not accept would make it fail.
    """
    plain = argument_vector(INFO["tofu"], request_)
    assert with_early_variables(INFO["tofu"], plain, FILE) == plain


@pytest.mark.parametrize("request_", [Init(), ShowPlan(FILE), Pull(), Push(Path("s"))])
def test_terraform_gets_them_from_the_version_on_that_needs_them(request_: Request) -> None:
    """
    Where its own commands take a file of variables.
    """
    info = EngineInfo("terraform", "1.15.0", ("/bin/terraform",), "path", "")
    given = with_early_variables(info, argument_vector(info, request_), FILE)
    assert f"-var-file={FILE}" in given
    untaint = argument_vector(info, Untaint("a.b"))
    assert with_early_variables(info, untaint, FILE) == untaint


def test_the_table_of_commands_is_what_was_recorded() -> None:
    """
    Each command that OpenTofu was seen to fail without the variables, or to accept a file of them
    with, is one that gets the file.
    """
    calls: list[dict[str, Any]] = json.loads((RECORDINGS / "early-evaluation.json").read_text())[
        "calls"
    ]
    failed = {" ".join(verb_of(call["argv"][1:])) for call in calls if _misses_variables(call)}
    accepted = {
        " ".join(verb_of(call["argv"][1:]))
        for call in calls
        if any(word.startswith("-var-file=") for word in call["argv"])
    }
    assert failed == {"init", "state pull", "show", "providers schema", "validate"}
    assert failed < accepted <= TAKE_VARIABLES["tofu"]


def _misses_variables(call: dict[str, Any]) -> bool:
    return (
        call["exit"] != 0 and "var.which which is not available" in call["stdout"] + call["stderr"]
    )
