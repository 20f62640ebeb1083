"""
The parts of a blueprint that the operator's trust file forbids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.domain.blueprint.blueprint import CommandHook, Deployment
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.errors import Refused
from orchestrator.loading.behaviour import Behaviour
from orchestrator.loading.hooks import RawHook
from orchestrator.loading.schema import RawBlueprint
from orchestrator.loading.sources import is_from
from orchestrator.trust import Trust


def check_behaviour(
    trust: Trust, behaviour: Behaviour, hooks: Iterable[RawHook], problems: Problems
) -> None:
    """
    Add a problem for each check and hook of a step that would run a program.
    """
    for spec, value in behaviour.checks:
        if spec.kind == "command":
            trust.check_command("verify.command", value.node.at, problems)
    for hook in hooks:
        if hook.argv is not None:
            trust.check_command(f"{hook.kind}.command", hook.argv.node.at, problems)


def check_inputs(trust: Trust, blueprint: RawBlueprint, problems: Problems) -> None:
    """
    Add a problem for each input whose value a program would give, in any environment.
    """
    for node in _values(blueprint):
        if is_from(node) and "command" in node.fields["from"].fields:
            at = node.fields["from"].fields["command"].at
            trust.check_command("from.command", at, problems)


def _values(blueprint: RawBlueprint) -> Iterator[Node]:
    yield from (item.default for item in blueprint.inputs.values() if item.default is not None)
    for environment in blueprint.environments.values():
        if environment.inputs is not None:
            yield from environment.inputs.fields.values()


def check_trusted(trust: Trust, deployment: Deployment) -> None:
    """
    Refused where a step would run a program, also one that is known only from records.
    """
    if trust.commands:
        return
    for step in deployment.steps.values():
        kinds = [f"verify.{check.kind}" for check in step.verify if check.kind == "command"]
        kinds += [
            f"{kind}.command"
            for kind, hook in (
                ("compensate", step.compensate), ("before_destroy", step.before_destroy)
            )
            if isinstance(hook, CommandHook)
        ]  # fmt: skip
        if kinds:
            what = f"{kinds[0]} of step {step.name!r}"
            raise Refused(
                "untrusted",
                trust.forbidden(what, "commands: false"),
                hint="take it out of the blueprint; who runs the tool may allow it",
            )
