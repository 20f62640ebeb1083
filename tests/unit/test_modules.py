from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.domain.blueprint.blueprint import (
    Constraint,
    Module,
    Output,
    ProtectedResource,
    ProviderDependencies,
    Variable,
)
from orchestrator.errors import Invalid, Location
from orchestrator.loading.modules import read_module, split_reference


def put(root: Path, **files: str) -> Path:
    """
    Write .tf files, "__" in a name standing for "/"; returns the root.
    """
    for name, text in files.items():
        write(root / (name.replace("__", "/") + ".tf"), text)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def problems(directory: Path, *, shown: str = "m", package: Path | None = None) -> list[str]:
    """
    What read_module has to say against the module.
    """
    with pytest.raises(Invalid) as caught:
        read_module(directory, shown=shown, package=package)
    return [str(problem) for problem in caught.value.problems]


def read(directory: Path) -> Module:
    return read_module(directory, shown="m")


def test_variables(tmp_path: Path) -> None:
    """
    A variable is required unless it has a default, be it null; its type is the expression's text.
    """
    put(
        tmp_path,
        main="""
# variable "commented" {}
variable "plain" {}
variable "typed" {
  type = map(object({
    a = string # a comment
    b = optional(number, 3)
  }))
  default   = null
  sensitive = true
  nullable  = false
}
variable one_line { type = string }
variable "token" {
  type      = string
  ephemeral = true
  default   = <<-EOT
    variable "inner" {}
    ${upper("}")} /* not a comment
  EOT
  validation {
    condition     = can(regex("^[{(]", var.token)) # " {
    error_message = "got ${"a ${var.token} }"} \\" {"
  }
}
""",
    )
    a, b, c, d = (Location("m/main.tf", line, 1) for line in (3, 4, 13, 14))
    variables = read(tmp_path).variables
    typed = variables["typed"]
    assert re.sub(r"\s+", " ", typed.type or "") == (
        "map(object({ a = string b = optional(number, 3) }))"
    )
    assert list(variables.values()) == [
        Variable("plain", at=a),
        Variable("typed", typed.type, False, True, nullable=False, at=b),
        Variable("one_line", "string", at=c),
        Variable("token", "string", False, ephemeral=True, at=d),
    ]


def test_settings(tmp_path: Path) -> None:
    """
    Outputs, versions, provider sources, provider blocks and backend are read where they stand.
    """
    put(
        tmp_path,
        a="""
terraform {
  required_version = ">= 1.6, < 2.0"
  required_providers {
    aws    = { source = "hashicorp/aws", configuration_aliases = [aws.east] }
    acme   = {
      # source = "old/acme"
      version = "~> 2"
      source  = "corp/acme"
    }
    random = "~> 3.0"
  }
}
terraform {
  backend "s3" {
    key = "x"
  }
}
provider "aws" {}
provider "aws" {
  alias = "east"
}
""",
        b='output "id" {\n  value = 1\n}\n  output "pw" {\n  value = 2\n  sensitive = true\n}\n',
    )
    module = read(tmp_path)
    assert module.required_versions == (Constraint(">= 1.6, < 2.0", Location("m/a.tf", 3, 3)),)
    assert module.provider_sources == {
        "aws": "hashicorp/aws",
        "acme": "corp/acme",
        "random": "hashicorp/random",
    }
    assert module.provider_blocks == ("aws",)
    assert module.backend == "s3"
    assert module.outputs == {
        "id": Output("id", sensitive=False, at=Location("m/b.tf", 1, 1)),
        "pw": Output("pw", sensitive=True, at=Location("m/b.tf", 4, 3)),
    }


def test_json_syntax(tmp_path: Path) -> None:
    """
    A .tf.json file says the same as a .tf file, with line and column.
    """
    write(
        tmp_path / "main.tf.json",
        """{
  "terraform": {
    "required_version": ">= 1.6",
    "required_providers": {"acme": {"source": "corp/acme"}},
    "cloud": {"organization": "o"}
  },
  "variable": {
    "a": {"type": "list(string)", "default": []},
    "b": [{"sensitive": true}]
  },
  "output": [{"o": {"value": "${var.a}", "sensitive": "true"}}],
  "provider": {"acme": [{}, {"alias": "x"}]},
  "resource": {"null_resource": {"x": {}}}
}
""",
    )
    module = read(tmp_path)
    assert module.variables == {
        "a": Variable("a", "list(string)", False, at=Location("m/main.tf.json", 8, 5)),
        "b": Variable("b", sensitive=True, at=Location("m/main.tf.json", 9, 5)),
    }
    assert module.outputs["o"] == Output("o", True, at=Location("m/main.tf.json", 11, 15))
    assert module.required_versions[0].at == Location("m/main.tf.json", 3, 5)
    assert (module.backend, module.provider_blocks) == ("cloud", ("acme",))
    assert module.provider_uses == {"acme": "corp/acme", "null": "hashicorp/null"}


def test_override_files(tmp_path: Path) -> None:
    """
    An override file changes arguments of what is declared elsewhere, and declares nothing.
    """
    put(
        tmp_path,
        main='variable "a" {\n  type = string\n}\nterraform {\n  required_version = ">= 1"\n}\n',
        x_override='variable "a" {\n  default = 1\n}\nterraform {\n  required_version = "1.6"\n}\n',
    )
    module = read(tmp_path)
    assert module.variables["a"] == Variable("a", "string", False, at=Location("m/main.tf", 1, 1))
    assert [constraint.text for constraint in module.required_versions] == ["1.6"]
    write(tmp_path / "override.tf", 'output "o" {\n  value = 1\n}\n')
    assert problems(tmp_path) == ['m/override.tf:1:1: there is no output "o" to override']


def test_local_modules(tmp_path: Path) -> None:
    """
    Modules called by relative path are found transitively, with their required versions.
    """
    version = 'terraform {\n  required_version = ">= 1.9"\n}\n'
    put(
        tmp_path,
        web__main='module "a" {\n  source = "../shared"\n}\nmodule "b" {\n  source = "./sub"\n}\n',
        web__sub__main='resource "fakecloud_server" "x" {}\n',
        shared__main='module "deep" {\n  source = "../deep/"\n}\n',
        deep__main=version,
    )
    module = read_module(tmp_path / "web", shown="../modules/web")
    assert module.directory == str(tmp_path / "web")
    assert module.local_modules == tuple(
        str(tmp_path / name) for name in ("deep", "shared", "web/sub")
    )
    assert module.required_versions == (
        Constraint(">= 1.9", Location("../modules/deep/main.tf", 2, 3)),
    )
    assert module.provider_uses == {"fakecloud": "hashicorp/fakecloud"}


def test_providers_in_use(tmp_path: Path) -> None:
    """
    Providers in use are those declared, named or implied anywhere in the tree; a module from
    elsewhere makes them unknowable.
    """
    put(
        tmp_path,
        main="""
resource "terraform_data" "x" {}
resource "google_thing" "x" {
  provider = google-beta.eu
}
data "aws_ami" "x" {}
module "child" {
  source    = "./child"
  providers = { acme = acme.east }
}
""",
        child__main="""terraform {
  required_providers {
    acme = { source = "corp/acme" }
  }
}
""",
    )
    assert read(tmp_path).provider_uses == {
        "acme": "corp/acme",
        "aws": "hashicorp/aws",
        "google-beta": "hashicorp/google-beta",
    }
    put(tmp_path, more='module "vpc" {\n  source = "terraform-aws-modules/vpc/aws"\n}\n')
    assert read(tmp_path).provider_uses is None


def test_what_provider_configurations_are_made_from(tmp_path: Path) -> None:
    """
    Variables are followed through locals, data sources and modules; a managed object or a module
    on the way is told. Of each alias for itself.
    """
    put(
        tmp_path,
        main="""
provider "plain" {
  region = var.region
  nested {
    token = "x-${local.token}"
  }
}
provider "plain" {
  alias = "other"
  url   = data.lookup.where.url
}
provider "grown" {
  host = cluster.this.endpoint
}
provider "called" {
  host = module.child.host
}
locals {
  token  = upper(local.inner)
  inner  = var.token
  unused = var.unused
}
data "lookup" "where" { name = var.name }
resource "cluster" "this" { size = var.size }
module "child" {
  source = "./child"
  text   = var.text
}
variable "region" {}
variable "token" {}
variable "name" {}
variable "size" {}
variable "text" {}
variable "unused" {}
""",
        child__main='output "host" { value = 1 }',
    )
    assert read(tmp_path).provider_reach == {
        "plain": ProviderDependencies(frozenset({"region", "token"})),
        "plain.other": ProviderDependencies(frozenset({"name"})),
        "grown": ProviderDependencies(frozenset({"size"}), managed_objects=True),
        "called": ProviderDependencies(frozenset({"text"}), managed_objects=True),
    }


def test_a_provider_that_a_local_module_configures_may_be_made_from_anything(
    tmp_path: Path,
) -> None:
    """
    What the module gives to it is not followed: everything is named.
    """
    put(
        tmp_path,
        main='variable "a" {}\nmodule "child" { source = "./child" }',
        child__main='provider "inner" {}',
    )
    assert read(tmp_path).provider_reach == {
        "module.inner": ProviderDependencies(frozenset({"a"}), managed_objects=True)
    }


def test_protected_resources(tmp_path: Path) -> None:
    """
    Every resource with `prevent_destroy`, by the address that each call of its module gives it, and
    where that is said, relative to the module; override files and JSON syntax count.
    """
    put(
        tmp_path,
        main="""
resource "db" "kept" {
  lifecycle {
    prevent_destroy = true
  }
}
resource "db" "free" {
  lifecycle {
    prevent_destroy = false
  }
}
resource "db" "freed" {
  lifecycle {
    prevent_destroy = true
  }
}
module "one" { source = "./child" }
module "two" {
  source   = "./child"
  for_each = toset(["k"])
}
""",
        b_override='resource "db" "freed" {\n  lifecycle {\n    prevent_destroy = false\n  }\n}',
        child__main='resource "disk" "this" {\n  lifecycle {\n    prevent_destroy = true\n  }\n}',
    )
    write(
        tmp_path / "more.tf.json",
        '{"resource": {"db": {"json": {"lifecycle": {"prevent_destroy": true}}}}}',
    )
    assert {item.address: item.at.file for item in read(tmp_path).protected} == {
        "db.kept": "main.tf",
        "db.json": "more.tf.json",
        "module.one.disk.this": "child/main.tf",
        "module.two.disk.this": "child/main.tf",
    }
    (kept,) = (item for item in read(tmp_path).protected if item.address == "db.kept")
    assert kept == ProtectedResource("db.kept", Location("main.tf", 4, 5))


def test_what_is_moved_is_protected_where_it_comes_from(tmp_path: Path) -> None:
    """
    A destroy before the apply that moves it finds it there; moves may follow one another, also into
    and inside called modules.
    """
    put(
        tmp_path,
        main="""
resource "db" "kept" {
  lifecycle {
    prevent_destroy = true
  }
}
module "new" { source = "./child" }
moved {
  from = db.older[0]
  to   = db.old
}
moved {
  from = db.old
  to   = db.kept
}
moved {
  from = module.former["k"]
  to   = module.new
}
moved {
  from = disk.root
  to   = module.new.disk.this
}
moved {
  from = db.keeping
  to   = db.kept_not
}
""",
        child__main='resource "disk" "this" {\n  lifecycle {\n    prevent_destroy = true\n  }\n}\n'
        "moved {\n  from = disk.that\n  to = disk.this\n}\n",
    )
    assert sorted(item.address for item in read(tmp_path).protected) == [
        "db.kept",
        "db.old",
        "db.older",
        "disk.root",
        "module.former.disk.that",
        "module.former.disk.this",
        "module.new.disk.that",
        "module.new.disk.this",
    ]


def test_call_circle(tmp_path: Path) -> None:
    """
    A module that calls itself, over however many others, is named with the circle.
    """
    put(
        tmp_path,
        a__main='module "b" {\n  source = "../b"\n}\n',
        b__main='module "a" {\n  source = "../a"\n}\n',
    )
    assert problems(tmp_path / "a", shown="a") == [
        "b/main.tf:2:3: a module calls itself: a -> b -> a"
    ]


def test_missing_local_module(tmp_path: Path) -> None:
    """
    A call of a directory that is not there, or holds no configuration, is reported at the call.
    """
    put(
        tmp_path,
        main='module "x" {\n  source = "../nothing"\n}\nmodule "y" {\n  source = "./empty"\n}\n',
    )
    (tmp_path / "empty").mkdir()
    assert problems(tmp_path) == [
        "m/main.tf:2:3: there is no module directory nothing",
        "m/main.tf:5:3: m/empty holds no .tf files: it is not a module",
    ]


def test_no_module(tmp_path: Path) -> None:
    """
    What is no directory with configuration is refused by the name the user gave it.
    """
    assert problems(tmp_path) == ["m: m holds no .tf files: it is not a module"]
    assert problems(tmp_path / "x") == ["m: there is no module directory m"]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (b'variable "x" {\n  type = \n}\n', "m/main.tf:2:10: Invalid expression; "),
        (b'variable "x" {\n', "m/main.tf:1:14: Unclosed configuration block; "),
        (b'variable "x" {\n a = 1\n a = 2\n}\n', "m/main.tf:3:2: Attribute redefined; "),
        (b"variable {\n}\n", "m/main.tf:1:1: a variable block has 1 name before its brace"),
        (
            b'locals {}\n  variable "count" {}\n',
            'm/main.tf:2:3: a variable cannot be named "count"',
        ),
        (b'variable "providers" {}\n', 'm/main.tf:1:1: a variable cannot be named "providers"'),
        (b'output "9x" {}\n', 'm/main.tf:1:1: "9x" is no name: '),
        (b'resource "a" "b c" {}\n', 'm/main.tf:1:1: "b c" is no name: '),
        (b'variable "x" {}\nvariable "x" {}\n', 'm/main.tf:2:1: variable "x" was declared before'),
        (b"locals {}\n\xff\n", "m/main.tf:2:1: not UTF-8 text"),
        (b"locals {}\n\0 }}} \n", "m/main.tf:2:1: holds a NUL character"),
    ],
)
def test_broken(tmp_path: Path, text: bytes, start: str) -> None:
    """
    Broken configuration is reported with file, line and column.
    """
    (tmp_path / "main.tf").write_bytes(text)
    assert problems(tmp_path)[0].startswith(start)


def test_broken_json(tmp_path: Path) -> None:
    """
    Broken JSON is reported with file, line and column, beside the problems of other files.
    """
    write(tmp_path / "a.tf.json", '{\n  "variable": {,}\n}\n')
    put(tmp_path, b="x = [\n")
    first, second, *_ = problems(tmp_path)
    assert first.startswith("m/a.tf.json:2:16: not valid JSON: ")
    assert second.startswith("m/b.tf:")


def test_files_outside(tmp_path: Path) -> None:
    """
    A file that will not be copied is reported where it is named, with the reference that would
    take it along; one in a local module is fine.
    """
    modules = tmp_path / "infra/modules"
    put(
        modules,
        web__main="""module "shared" {
  source = "../shared"
}
locals {
  ok       = file("${path.module}/../shared/x.tpl")
  inside   = file("${path.module}/a/../b")
  outside  = file("${path.module}/../files/x.sh")
  root     = "a ${ path.root }/../../y/z"
  relative = templatefile("../z.tpl", {})
  # comment  = file("${path.module}/../files/x.sh")
  script   = <<EOT
    ${path.module}/../run
EOT
}
""",
        shared__main='locals {\n  x = file("${path.module}/../web/x")\n}\n',
    )
    found = problems(modules / "web", shown="infra/modules/web")
    where = [text.split(" names a file outside")[0] for text in found]
    assert where == [
        'infra/modules/web/main.tf:7:19: "${path.module}/../files/x.sh"',
        'infra/modules/web/main.tf:8:14: "a ${ path.root }/../../y/z"',
        'infra/modules/web/main.tf:9:27: "../z.tpl"',
        'infra/modules/web/main.tf:12:1: "${path.module}/../run"',
    ]
    assert '"infra/modules//web"' in found[0]
    assert '"infra//modules/web"' in found[1]


def test_package(tmp_path: Path) -> None:
    """
    For ``dir//sub`` the module is ``dir/sub``, and may reach for anything in ``dir``.
    """
    put(tmp_path, infra__web__main='locals {\n  x = file("${path.module}/../x.sh")\n}\n')
    directory, package = split_reference(f"{tmp_path}/infra//web")
    assert package is not None
    module = read_module(Path(directory), shown="m", package=Path(package))
    assert (module.directory, module.package) == (
        str(tmp_path / "infra/web"),
        str(tmp_path / "infra"),
    )
    with pytest.raises(Invalid):
        read_module(Path(directory), shown="m")


def test_unrelated_files_are_passed_over(tmp_path: Path) -> None:
    """
    What Terraform does not load is not read: hidden files, editors' files, other directories.
    """
    put(tmp_path, main="", sub__broken="}}}")
    for name in (".hidden.tf", "#main.tf", "main.tf~", "main.tf.bak"):
        write(tmp_path / name, "}}}")
    write(tmp_path / ".terraform/modules/x/main.tf", "}}}")
    assert read(tmp_path).variables == {}


def test_unreadable_file(tmp_path: Path) -> None:
    """
    A file that cannot be read is a problem of that file, not a traceback.
    """
    (tmp_path / "main.tf").symlink_to("nowhere")
    assert problems(tmp_path) == ["m/main.tf: cannot be read: No such file or directory"]
