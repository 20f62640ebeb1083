"""
Which engine wrote a provider state last, and when a program must be asked again where it works.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.domain.provider_state import last_writer
from orchestrator.domain.record.record import EngineRef
from orchestrator.engine.choose import may_differ_in
from orchestrator.engine.state import parse_state

TERRAFORM = EngineRef(kind="terraform", version="1.11.4")
TOFU = EngineRef(kind="tofu", version="1.12.6")


def engine(version: str | None, *providers: str) -> tuple[str, str]:
    """
    Who wrote a state that names this version and these providers; OpenTofu 1.12.6 is at work, and
    Terraform 1.11.4 is recorded.
    """
    resources = [
        {
            "mode": "managed",
            "type": "x",
            "name": f"n{n}",
            "provider": f'provider["{source}"]',
            "instances": [{"attributes": {"id": "i"}}],
        }
        for n, source in enumerate(providers)
    ]
    content = {"version": 4, "serial": 1, "lineage": "l", "resources": resources, "outputs": {}}
    told = {"terraform_version": version} if version else {}
    found = last_writer(parse_state(json.dumps(content | told).encode()), TOFU, TERRAFORM)
    assert found is not None
    return found.kind, found.version


@pytest.mark.parametrize(
    ("version", "providers", "expected"),
    [
        ("1.12.6", (), ("tofu", "1.12.6")),
        ("1.11.4", (), ("terraform", "1.11.4")),
        ("1.15.5", ("registry.terraform.io/a/b",), ("terraform", "1.15.5")),
        ("1.15.5", ("registry.opentofu.org/a/b",), ("tofu", "1.15.5")),
        ("1.15.5", ("terraform.io/builtin/terraform",), ("tofu", "1.15.5")),
        (None, (), ("tofu", "1.12.6")),
    ],
)
def test_the_state_says_who_wrote_it(
    version: str | None, providers: tuple[str, ...], expected: tuple[str, str]
) -> None:
    """
    Its version is that of an engine that is known, else its providers' addresses tell the kind.
    """
    assert engine(version, *providers) == expected


def test_a_program_that_may_be_another_one_elsewhere_is_asked_there(tmp_path: Path) -> None:
    """
    A script, a link to a version manager, and any program where another version file counts.
    """
    binary = tmp_path / "terraform"
    binary.write_bytes(b"\x7fELF")
    script = tmp_path / "tofu"
    script.write_text("#!/bin/sh\n")
    manager = tmp_path / "mise"
    manager.write_bytes(b"\x7fELF")
    link = tmp_path / "shims" / "terraform"
    link.parent.mkdir()
    link.symlink_to(manager)
    place = tmp_path / "project" / "deep"
    place.mkdir(parents=True)

    def may_differ(program: Path) -> bool:
        return may_differ_in(place, program, tmp_path)

    assert [may_differ(program) for program in (binary, script, link)] == [False, True, True]
    (tmp_path / ".tool-versions").write_text("terraform 1.11.4\n")
    assert not may_differ(binary), "the same file counts in both places"
    (tmp_path / "project" / ".terraform-version").write_text("1.11.4\n")
    assert may_differ(binary)
