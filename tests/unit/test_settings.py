"""
What ``orchestrator.yaml`` says and where a project begins.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import Invalid
from orchestrator.project import Settings, read_settings


def problems(directory: Path) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read_settings(directory)
    return [f"{item} | {item.hint}" if item.hint else str(item) for item in caught.value.problems]


def test_without_a_file_the_defaults_hold_where_we_are(tmp_path: Path) -> None:
    """
    A directory without settings and blueprints is a project of its own, called "default".
    """
    assert read_settings(tmp_path) == Settings(project_dir=tmp_path, project="default")


def test_without_a_file_the_project_begins_where_blueprints_lie(tmp_path: Path) -> None:
    """
    Without settings the nearest directory upwards that holds ``blueprints/`` is the project.
    """
    inside = tmp_path / "blueprints" / "deep"
    inside.mkdir(parents=True)
    assert read_settings(inside).project_dir == tmp_path


def test_the_file_is_found_upwards_and_read(tmp_path: Path) -> None:
    """
    Every setting is read from the nearest file upwards, times in seconds and paths absolute.
    """
    (tmp_path / "shared").mkdir()
    root = tmp_path / "shop"
    (root / "a" / "b").mkdir(parents=True)
    (root / "orchestrator.yaml").write_text(
        "project: shop\noperations: {url: sqlite:///ops.db}\nengine: tofu\n"
        "allow_environment: [TF_WORKSPACE, TF_CLI_ARGS_plan]\nmodule_roots: [../shared]\n"
        "jobs: 7\ntimeout: 1h30m\ngrace: 90\nsettle_seconds: 0\ngogc: 100\n"
    )
    assert read_settings(root / "a" / "b") == Settings(
        project_dir=root,
        file=root / "orchestrator.yaml",
        project="shop",
        operations_url="sqlite:///ops.db",
        engine="tofu",
        allow_environment=frozenset({"TF_WORKSPACE", "TF_CLI_ARGS_plan"}),
        module_roots=(tmp_path / "shared",),
        jobs=7,
        timeout=5400.0,
        grace=90.0,
        settle_seconds=0.0,
        gogc=100,
    )


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """
    A settings file that says nothing marks the project and changes nothing else.
    """
    (tmp_path / "orchestrator.yaml").write_text("# nothing yet\n")
    assert read_settings(tmp_path) == Settings(tmp_path, file=tmp_path / "orchestrator.yaml")


def test_all_mistakes_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    """
    Each wrong setting is reported with file, line and column, and a hint where one helps.
    """
    (tmp_path / "orchestrator.yaml").write_text(
        "projct: a\nproject: Shop\njobs: 0\ntimeout: soon\noperations: {uri: x}\n"
        "allow_environment: [1, HOME]\nmodule_roots: [nowhere]\nengine: [a]\nsettle_seconds: true\n"
    )
    assert problems(tmp_path) == [
        "orchestrator.yaml:1:1: unknown key 'projct' in the settings | did you mean 'project'?",
        "orchestrator.yaml:2:10: project 'Shop' must match [a-z0-9][a-z0-9_-]{0,62}",
        "orchestrator.yaml:3:7: jobs must be a whole number from 1",
        "orchestrator.yaml:4:10: timeout: a duration is a number of seconds or a text such as "
        '"30s" or "1h30m"',
        "orchestrator.yaml:5:14: unknown key 'uri' in operations | did you mean 'url'?",
        "orchestrator.yaml:6:21: each entry of allow_environment must be text, not a number"
        " | put it in quotes",
        "orchestrator.yaml:6:24: 'HOME' needs no permission, or cannot be given one"
        " | only TF_WORKSPACE and TF_CLI_ARGS or TF_CLI_ARGS_<command> are refused",
        "orchestrator.yaml:7:16: 'nowhere' is not a directory",
        "orchestrator.yaml:8:9: engine must be text, not a list",
        "orchestrator.yaml:9:17: settle_seconds: a duration is a number of seconds or a text such "
        'as "30s" or "1h30m"',
    ]


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe", b"- 1", b"a: 1\na: 2"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    """
    What is no settings file is refused, never read as empty.
    """
    (tmp_path / "orchestrator.yaml").write_bytes(content)
    assert all(line.startswith("orchestrator.yaml") for line in problems(tmp_path))


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """
    ``-C`` must name a directory.
    """
    assert "is not a directory" in problems(tmp_path / "nowhere")[0]


def test_a_url_with_a_control_character_is_refused(tmp_path: Path) -> None:
    """
    No file and no host can have such a name.
    """
    (tmp_path / "orchestrator.yaml").write_text('operations: {url: "sqlite:a\\0b"}\n')
    with pytest.raises(Invalid, match="control character"):
        read_settings(tmp_path)
