"""
A project on disk.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator.domain.blueprint.blueprint import (
    BlueprintSummary,
    Deployment,
)
from orchestrator.errors import Invalid
from orchestrator.loading.deployment import load_deployment
from orchestrator.loading.inputs import InputPolicy
from orchestrator.loading.summary import load_summary
from orchestrator.project import BlueprintSelection, ProjectContext, Settings


class ProjectOnDisk:
    """
    Writes blueprints and modules under ``root`` and loads them.

    ``commands`` are the argument vectors that loading ran; each prints "from-command".
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[Sequence[str]] = []
        (root / "blueprints").mkdir()
        self.module("plain", optional={"x": None, "y": None}, outputs=["id", "url"])

    def module(
        self,
        name: str,
        *,
        required: Mapping[str, str | None] | None = None,
        optional: Mapping[str, str | None] | None = None,
        sensitive: Iterable[str] = (),
        outputs: Iterable[str] = (),
    ) -> Path:
        """
        Write ``modules/<name>``: variables by type expression, outputs by name.
        """
        directory = self.root / "modules" / name
        directory.mkdir(parents=True)
        blocks = [f'output "{output}" {{\n  value = null\n}}' for output in outputs]
        for given, default in ((required or {}, ""), (optional or {}, "  default = null\n")):
            for variable, kind in given.items():
                lines = f"  type = {kind}\n" if kind else ""
                lines += "  sensitive = true\n" if variable in sensitive else ""
                blocks.append(f'variable "{variable}" {{\n{lines}{default}}}')
        (directory / "main.tf").write_text("\n".join(blocks) + "\n")
        return directory

    def write(self, path: str, text: str) -> Path:
        """
        Write a file, dedented.
        """
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
        return file

    def blueprint(self, text: str, *, name: str = "web") -> None:
        """
        Write ``blueprints/<name>.yaml`` with its first two lines said for you.
        """
        dedented = textwrap.dedent(text).lstrip("\n")
        self.write(f"blueprints/{name}.yaml", f"version: 1\nname: {name}\n{dedented}")

    def run(self, argv: Sequence[str]) -> str:
        self.commands.append(tuple(argv))
        return "from-command\n"

    def load(
        self,
        name: str = "web",
        *,
        environment: str | None = None,
        variables: Sequence[str] = (),
        input_files: Sequence[Path] = (),
        environ: Mapping[str, str] | None = None,
        need: InputPolicy = InputPolicy.REQUIRED,
        settings: Settings | None = None,
    ) -> Deployment:
        return load_deployment(
            self._context(environ or {}, settings),
            BlueprintSelection(name, environment, tuple(variables), tuple(input_files)),
            need,
            run_command=self.run,
        )

    def _context(
        self, environ: Mapping[str, str], settings: Settings | None = None
    ) -> ProjectContext:
        return ProjectContext(self.root, settings or Settings(project_dir=self.root), environ)

    def outline(self, name: str = "web", *, environment: str | None = None) -> BlueprintSummary:
        selection = BlueprintSelection(name, environment)
        return load_summary(self._context({}), selection, run_command=self.run)

    def problems(self, name: str = "web", **options: object) -> list[str]:
        """
        What loading complains of, one line each: place, message, and the hint after a bar.
        """
        try:
            self.load(name, **options)  # type: ignore[arg-type]
        except Invalid as exc:
            return [f"{item} | {item.hint}" if item.hint else str(item) for item in exc.problems]
        return []
