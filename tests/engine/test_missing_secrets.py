"""
A destroy once a secret that its target was applied with no longer exists.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.clouds import attached
from tests.project import Project

pytestmark = pytest.mark.engine

HEAD = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
"""
PLAIN = """
    variable "password" {
      type      = string
      sensitive = true
      validation {
        condition     = length(var.password) > 3
        error_message = "too short"
      }
    }
    variable "pin" {
      type      = number
      sensitive = true
    }
    resource "fakecloud_server" "this" {
      name     = "plain"
      password = "${var.password}-${var.pin}"
    }
"""
KEYED = """
    variable "token" {
      type      = string
      sensitive = true
    }
    locals { token = trimspace(var.token) }
    provider "fakecloud" {
      token = local.token
    }
    resource "fakecloud_server" "this" {
      name = "keyed"
    }
"""
BARE = 'resource "fakecloud_server" "this" {\n  name = "bare"\n}\n'
BLUEPRINT = """
    version: 1
    name: vault
    inputs:
      password: {type: string, sensitive: true, from: {command: [cat, vault/password]}}
      pin: {type: number, sensitive: true, from: {env: PIN}}
      token: {type: string, sensitive: true, from: {env: TOKEN}}
    steps:
      plain:
        module: ../modules/plain
        inputs: {password: "${inputs.password}", pin: "${inputs.pin}"}
      keyed:
        module: ../modules/keyed
        inputs: {token: "${inputs.token}"}
      bare:
        module: ../modules/bare
        providers: {fakecloud: {token: "${inputs.token}"}}
      archived:
        module: ../modules/plain
        inputs: {password: "${inputs.password}", pin: "${inputs.pin}"}
        before_destroy: {command: [echo, "${inputs.pin}"]}
"""


class Vault:
    """
    Steps that were given secrets, applied; then the vault is emptied.
    """

    def __init__(self, root: Path, cloud: Cloud, engine: str) -> None:
        self.cloud = cloud
        self.project = Project(root, engine=engine)
        for name, text in (("plain", PLAIN), ("keyed", KEYED), ("bare", BARE)):
            self.project.write(f"modules/{name}/head.tf", HEAD)
            self.project.write(f"modules/{name}/main.tf", text)
        self.project.write("blueprints/vault.yaml", BLUEPRINT)
        self.project.write("vault/password", "s3cr3t-of-old")

    def destroy(self, step: str, *names: str) -> tuple[int, str]:
        """
        Exit code and words of a destroy of one step without the secrets of these names.
        """
        options = [word for name in names for word in ("--unavailable-secret", name)]
        ended = self.project.run("destroy", "vault", "--step", step, "--yes", *options)
        return ended.code, " ".join(ended.said.split())


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Vault]:
    root = tmp_path_factory.mktemp("vault")
    cloud = Cloud(root / "cloud.db")
    found = Vault(root / "project", cloud, engine)
    with attached(found.project, cloud, root):
        given = {"PIN": "7245", "TOKEN": "t0k3n-of-old"}
        ended = found.project.run("apply", "vault", "--yes", environ=given)
        assert ended.code == 0, ended.said
        shutil.rmtree(found.project.root / "vault")
        yield found


def test_the_error_says_what_is_missing_and_how_to_go_on(vault: Vault) -> None:
    """
    A command that gives no secret any more does not keep the blueprint from being read: the step
    that needs it says which it is, why, and with what a destroy can do without.
    """
    before = vault.project.entries("plain")

    code, said = vault.destroy("plain")

    assert code == 3, said
    assert "the command 'cat' gave no value" in said
    assert "--unavailable-secret inputs.password" in said
    assert "--unavailable-secret inputs.pin" in said
    assert vault.project.entries("plain") == before


def test_a_name_that_nobody_was_given_is_refused(vault: Vault) -> None:
    """
    A slip in the name is told, with the one that was meant.
    """
    code, said = vault.destroy("plain", "inputs.pasword", "inputs.pin")

    assert (code, "did you mean 'inputs.password'" in said) == (3, True), said


@pytest.mark.parametrize(
    ("step", "name", "use"),
    [
        ("keyed", "inputs.token", "a provider configuration in the module of keyed"),
        ("bare", "inputs.token", "a provider configuration in the blueprint of bare"),
        ("archived", "inputs.pin", "before_destroy of archived"),
    ],
)
def test_a_secret_that_must_work_is_not_replaced(
    vault: Vault, step: str, name: str, use: str
) -> None:
    """
    Refused, `secret_needed`, where a provider configuration (through locals) or `before_destroy`
    uses it: nothing is touched.
    """
    before = vault.project.entries(step), vault.cloud.servers()

    code, said = vault.destroy(step, name)

    assert (code, f"{use} uses {name}" in said) == (4, True), said
    assert (vault.project.entries(step), vault.cloud.servers()) == before


def test_without_the_secret_the_step_is_destroyed(vault: Vault) -> None:
    """
    A placeholder of the variable's type stands for each; run and record name what was done without.
    Also where the module directory is gone: the snapshot is what was applied.
    """
    away = vault.project.root / "modules/plain"
    away.rename(vault.project.root / "modules/away")
    try:
        code, said = vault.destroy("plain", "inputs.password", "inputs.pin")
    finally:
        (vault.project.root / "modules/away").rename(away)

    record, names = vault.project.record("plain"), ["inputs.password", "inputs.pin"]
    assert (code, record["status"]) == (0, "destroyed"), said
    assert record["unavailable_secrets"] == names
    assert vault.project.last_run()["arguments"]["unavailable_secrets"] == names


def test_the_last_work_may_be_left_out_with_it(vault: Vault) -> None:
    """
    Where `before_destroy` is skipped with a reason, what only it needs can be missing.
    """
    ended = vault.project.run(
        *("destroy", "vault", "--step", "archived", "--yes", "--skip-before-destroy", "no vault"),
        *("--unavailable-secret", "inputs.password", "--unavailable-secret", "inputs.pin"),
    )

    assert (ended.code, vault.project.record("archived")["status"]) == (0, "destroyed"), ended.said
