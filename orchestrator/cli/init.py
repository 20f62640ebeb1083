"""
``orchestrator init``.
"""

from __future__ import annotations

import click

from orchestrator.cli.invocation import Invocation

_FILES = {
    "orchestrator.yaml": """\
# Settings of the project. `orchestrator --help` tells what the commands are.
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


@click.command("init", short_help="Start a project.")
@click.pass_obj
def command(invocation: Invocation) -> int:
    """
    Start a project here: settings, one module, one blueprint, .gitignore. Existing files are kept.

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
