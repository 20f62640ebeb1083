"""
``orchestrator init`` and ``demo``: a project to start with.
"""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli import options
from orchestrator.cli.invocation import Invocation, is_interactive

_FILES = {
    "orchestrator.yaml": """\
# Settings of the project. `orchestrator --help` lists the commands.
project: {project}
""",
    "blueprints/hello.yaml": """\
version: 1
name: hello
inputs:
  greeting: {{type: string, default: Hello, description: What to say}}
steps:
  greet:
    module: ../modules/greeting
    inputs: {{text: "${{inputs.greeting}}"}}
""",
    "modules/greeting/main.tf": """\
variable "text" {{
  type        = string
  description = "What to say."
}}

resource "terraform_data" "greeting" {{
  input = var.text
}}

output "text" {{
  description = "What was said."
  value       = terraform_data.greeting.output
}}
""",
    ".gitignore": """\
.orchestrator/
.terraform/
*.tfstate
*.tfstate.*
""",
}


@click.command("init", short_help="Create a project.")
@click.pass_obj
def init_command(invocation: Invocation) -> int:
    """
    Create a project here: settings, one module, one blueprint, .gitignore. Existing files are kept.

    \b
    Example:
      orchestrator -C my-project init
      orchestrator -C my-project apply hello
    """
    import re

    from orchestrator.errors import Invalid, Location, Problem

    root = invocation.absolute()
    project = re.sub(r"[^a-z0-9_-]+", "-", root.name.lower()).strip("-_")[:63] or "default"
    created = 0
    for name, text in _FILES.items():
        file = root / name
        if file.exists():
            click.echo(f"kept     {name}")
            continue
        created += 1
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.format(project=project), encoding="utf-8")
        except OSError as exc:
            message = f"cannot be written: {exc.strerror}"
            raise Invalid([Problem(message, Location(name))]) from exc
        click.echo(f"created  {name}")
    click.echo("next: orchestrator apply hello" if created else "next: orchestrator status --all")
    return 0


@click.command("demo", short_help="Watch an apply fail and recover, on real modules.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the project of the demo is made and kept; a temporary one if not given.",
)
@options.engine
@click.option("--pause", is_flag=True, help="Wait for a key before each part.")
@click.pass_obj
def demo_command(
    invocation: Invocation, directory: Path | None, engine: str | None, pause: bool
) -> int:
    """
    Demonstrate a recovery on real Terraform modules without a cloud: an apply fails after it
    created a server, the server still responds, `status` says so, the next apply continues, destroy
    removes everything. Exits with 0 only if every step worked; in any case nothing is left running.

    \b
    Example:
      orchestrator demo
      orchestrator demo --engine embedded --directory ./demo
    """
    from orchestrator.demo import tell
    from orchestrator.errors import Usage

    if pause and not is_interactive():
        raise Usage("--pause waits for a key, and there is no terminal")
    where = invocation.absolute() / directory if directory is not None else None
    tell(directory=where, engine=engine, pause=pause)
    click.secho("\nThe demo worked; nothing is left running.", bold=True)
    return 0
