"""
Provider state as it is pulled, and as saved plans hold it.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.provider_state import StateObject
from orchestrator.engine.state import (
    instance_key,
    isolated_state,
    local_state,
    parse_state,
    state_in_plan,
)

AWS = 'provider["registry.terraform.io/hashicorp/aws"]'


def state(*resources: dict[str, Any], **more: Any) -> bytes:
    return json.dumps(
        {"version": 4, "lineage": "l", "serial": 7, "outputs": {}, "resources": resources} | more
    ).encode()


def resource(*instances: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"mode": "managed", "type": "aws_instance", "name": "a", "provider": AWS}
    return head | {"instances": instances} | more


def test_objects_carry_address_provider_and_id() -> None:
    """
    Module path, keys, tainted and deposed instances, providers with aliases: all as recorded.
    """
    raw = state(
        resource(
            {"index_key": "x", "attributes": {"id": "i-1"}, "status": "tainted"},
            {"index_key": "x", "attributes": {"id": "i-0"}, "deposed": "d1"},
            module='module.m["k"]',
            provider=f"module.m.{AWS}.west",
        ),
        resource({"attributes": {"id": 5}}, name="b"),
    )

    objects = parse_state(raw).objects

    source, west = "registry.terraform.io/hashicorp/aws", f"module.m.{AWS}.west"
    address = 'module.m["k"].aws_instance.a["x"]'
    assert objects == (
        StateObject(address, "aws_instance", source, "i-1", tainted=True, configuration=west),
        StateObject(address, "aws_instance", source, "i-0", deposed="d1", configuration=west),
        StateObject("aws_instance.b", "aws_instance", source, None, configuration=AWS),
    )


def test_objects_set_apart_depend_on_nothing() -> None:
    """
    Each wanted object, a deposed one too, at an address and in an instance of its own, managed by
    the same provider configuration with the same attributes; nothing else is in that state.
    """
    old = {"index_key": "x", "attributes": {"id": "i-0"}, "deposed": "d1", "dependencies": ["b"]}
    raw = state(
        resource(
            {"index_key": "x", "attributes": {"id": "i-1", "size": 3}, "status": "tainted"},
            old,
            module='module.m["k"]',
            provider=f"module.m.{AWS}.west",
        ),
        resource({"attributes": {"id": "i-5"}}, name="b"),
        outputs={"o": {"value": "secret"}},
    )
    address = 'module.m["k"].aws_instance.a["x"]'

    told, names = isolated_state(b"Warning: x\n" + raw, {(address, "i-1"), (address, "i-0")})

    data = json.loads(told)
    assert (data["lineage"], data["outputs"]) == ("l", {})
    assert {name: item.id for name, item in names.items()} == {
        f"aws_instance.{found['name']}": found["instances"][0]["attributes"]["id"]
        for found in data["resources"]
    }
    assert [found["instances"] for found in data["resources"]] == [
        [{"attributes": {"id": "i-1", "size": 3}}],
        [{"attributes": {"id": "i-0"}}],
    ]
    assert {found["provider"] for found in data["resources"]} == {f"module.m.{AWS}.west"}
    assert not any("module" in found for found in data["resources"])


def test_data_sources_and_empty_resources_are_no_objects() -> None:
    """
    What Terraform only reads, and a resource without instances, is not there.
    """
    raw = state(resource(), resource({"attributes": {"id": "x"}}, mode="data"))

    assert parse_state(raw).objects == ()


@pytest.mark.parametrize("raw", [b"", b"\n", b"  \n"])
def test_nothing_is_a_state_that_was_never_written(raw: bytes) -> None:
    """
    An empty pull, as of a 0-byte state file, is no error.
    """
    assert (parse_state(raw).lineage, parse_state(raw).serial) == (None, 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"<html>",
        b"{}",
        b"[]",
        b'{"version": 5}',
        b'{"version": 4}',
        b'{"version": 4, "lin',
        b"\xff",
    ],
)
def test_what_is_no_state_is_never_an_empty_one(raw: bytes) -> None:
    """
    Anything else than a state of version 4 is an error.
    """
    with pytest.raises(ValueError, match=r".+"):
        parse_state(raw)


def plan(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("_", "-"), data)
    return path


def test_a_plan_binds_the_state_before_the_refresh(tmp_path: Path) -> None:
    """
    Objects are those before the refresh; lineage and serial stand with the refreshed state.
    """
    before = state(resource({"attributes": {"id": "i-1"}}), lineage="", serial=0)
    path = plan(tmp_path / "p", tfstate=state(), tfstate_prev=before)

    found = state_in_plan(path)

    assert found is not None
    assert (found.lineage, found.serial) == ("l", 7)
    assert found.addresses == {"aws_instance.a"}


def test_a_plan_of_another_format_tells_nothing(tmp_path: Path) -> None:
    """
    A missing, damaged, encrypted or newer plan file gives None, never an empty state.
    """
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"encrypted")
    newer = plan(tmp_path / "newer", tfstate=state(version=9), tfstate_prev=state(version=9))
    partial = plan(tmp_path / "partial", tfstate=state())

    found = [state_in_plan(p) for p in (tmp_path / "missing", foreign, newer, partial)]

    assert found == [None] * 4


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        (None, ""),
        (3, "[3]"),
        ("", '[""]'),
        ("a b", '["a b"]'),
        ('q"\\', '["q\\"\\\\"]'),
        ("${x} $x %{y", '["$${x} $x %%{y"]'),
        ("\n\r\t\x01", '["\\n\\r\\t\\u0001"]'),
        ("é\u2028\U000e0001", '["é\\u2028\\U000e0001"]'),
    ],
)
def test_keys_are_quoted_like_terraform(key: int | str | None, printed: str) -> None:
    """
    Instance keys read as in the engine's own addresses.
    """
    assert instance_key(key) == printed


def test_the_sensitive_values_of_objects_are_known() -> None:
    """
    By the paths that the state calls sensitive: through maps and lists; one that leads nowhere adds
    no secret.
    """
    attributes = {"password": "hunter22", "tags": {"token": "abcd1234"}, "keys": ["k-0", "k-1"]}
    paths = [
        [{"type": "get_attr", "value": "password"}],
        [
            {"type": "get_attr", "value": "tags"},
            {"type": "index", "value": {"value": "token", "type": "string"}},
        ],
        [
            {"type": "get_attr", "value": "keys"},
            {"type": "index", "value": {"value": 1, "type": "number"}},
        ],
        [{"type": "get_attr", "value": "gone"}],
    ]
    instance = {"attributes": attributes, "sensitive_attributes": paths}
    resource = {
        "mode": "managed",
        "type": "t",
        "name": "n",
        "provider": "p",
        "instances": [instance],
    }
    raw = {"version": 4, "serial": 1, "lineage": "l", "resources": [resource]}

    found = parse_state(json.dumps(raw).encode())

    assert found.secrets == ("hunter22", "abcd1234", "k-1")


def recorded(case: str) -> dict[str, Any]:
    place = Path(__file__).parent.parent / "recordings" / "opentofu" / f"{case}.json"
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def test_providers_may_stand_at_instances() -> None:
    """
    OpenTofu's provider blocks with ``for_each``: each instance has its own configuration.
    """
    raw = json.dumps(recorded("provider-for-each")["state"]).encode()
    source = "registry.opentofu.org/test/fakecloud"
    (found,) = parse_state(raw).objects
    assert (found.provider, found.configuration) == (source, f'provider["{source}"].by["eu"]')


def test_an_isolated_instance_keeps_its_own_provider() -> None:
    """
    It is asked for by the configuration that manages it, wherever the state names that.
    """
    raw = json.dumps(recorded("provider-for-each")["state"]).encode()
    (found,) = parse_state(raw).objects
    alone, _ = isolated_state(raw, [(found.address, found.id)])
    (again,) = parse_state(alone).objects
    assert again.configuration == found.configuration


def test_an_object_without_a_provider_is_an_error_that_names_it() -> None:
    """
    A form of state that is not known is said to be that, with the address that has it.
    """
    odd = resource({"index_key": 3, "attributes": {"id": "i-1"}})
    del odd["provider"]
    with pytest.raises(ValueError, match=r"unknown form of provider state: aws_instance\.a\[3\]"):
        parse_state(state(odd))


@pytest.mark.parametrize("lacking", ["mode", "instances", "type"])
def test_a_resource_in_an_unknown_form_is_named(lacking: str) -> None:
    """
    As far as it has a name; what is missing is told, and never as an error of Python's.
    """
    odd = resource({"attributes": {"id": "i-1"}}, module="module.m")
    del odd[lacking]
    with pytest.raises(ValueError, match=r"unknown form of provider state: module\.m.*\.a") as told:
        parse_state(state(odd))
    assert lacking in str(told.value)
    assert "KeyError" not in str(told.value)


def test_objects_of_an_unknown_mode_are_not_dropped() -> None:
    """
    What a newer engine keeps beside resources and data is there, whatever it is.
    """
    other = resource({"attributes": {"id": "i-1"}}, mode="novel")
    (found,) = parse_state(state(other)).objects
    assert (found.address, found.id) == ("novel.aws_instance.a", "i-1")


STATE = b'{"version": 4, "serial": 3, "lineage": "l", "outputs": {}, "resources": []}'


def initialised(directory: Path, backend: str = "local", state: bytes | None = STATE) -> Path:
    """
    A working directory as ``init`` leaves it, with a state beside it.
    """
    (directory / ".terraform").mkdir(parents=True)
    note = {"backend": {"type": backend, "config": {"path": "../there.tfstate"}}}
    (directory / ".terraform/terraform.tfstate").write_text(json.dumps(note))
    if state is not None:
        (directory.parent / "there.tfstate").write_bytes(state)
    return directory


def test_a_local_state_is_read_without_an_engine(tmp_path: Path) -> None:
    """
    One that was never written is nothing, as ``state pull`` prints it.
    """
    assert local_state(initialised(tmp_path / "a" / "root"), {}) == parse_state(STATE)
    assert local_state(initialised(tmp_path / "b" / "root", state=None), {}) == parse_state(b"")


@pytest.mark.parametrize(
    "state", [b"{", b'{"encrypted_data": "x", "encryption_version": "v0"}', b'{"version": 3}']
)
def test_what_is_no_clear_state_is_for_the_engine(tmp_path: Path, state: bytes) -> None:
    assert local_state(initialised(tmp_path / "root", state=state), {}) is None


def test_other_backends_and_workspaces_are_for_the_engine(tmp_path: Path) -> None:
    assert local_state(initialised(tmp_path / "s3" / "root", "s3"), {}) is None
    root = initialised(tmp_path / "local" / "root")
    assert local_state(root, {"TF_WORKSPACE": "blue"}) is None
    (root / ".terraform/environment").write_text("blue")
    assert local_state(root, {}) is None
    assert local_state(tmp_path, {}) is None
