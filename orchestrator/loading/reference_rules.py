"""
What the templates of a blueprint may refer to, and what is known before it is resolved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE, Module
from orchestrator.domain.blueprint.references import (
    BadTemplate,
    Lookup,
    Reference,
    Resolved,
    Template,
    Unresolvable,
)
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.text import Json, did_you_mean


def template_of(node: Node, problems: Problems) -> Template:
    """
    Return the node as a template; malformed references become problems.
    """
    try:
        return Template(node.plain, node)
    except BadTemplate as exc:
        for issue in exc.issues:
            problems.add(issue.message, node.location(issue.path, issue.offset), issue.hint)
        return Template(None, node, broken=True)


class ReferenceRules(Struct, frozen=True):
    """
    The allowed references of templates at one kind of place, named ``what``.

    ``inputs`` are the names for ``${inputs.x}``, ``steps`` the steps with their modules (None:
    unknown module), ``outputs`` the module's own; None forbids the kind. ``itself`` is the step
    that the place is in.
    """

    what: str
    inputs: Collection[str] | None = None
    steps: Mapping[str, Module | None] | None = None
    outputs: Collection[str] | None = None
    env: bool = True
    step_names: bool = True
    sensitive: Collection[str] = field(default=())
    each_key: bool = False
    run_id: bool = False
    itself: str = ""

    def check(self, template: Template, problems: Problems) -> None:
        """
        Add a problem for each reference that is not allowed or names something that does not exist.
        """
        for use in template.uses:
            problem = self._problem(use.reference)
            if problem is not None:
                problems.add(problem[0], template.location(use), problem[1])

    def _problem(self, reference: Reference) -> tuple[str, str] | None:
        """
        Return what is wrong with a reference, and a hint.
        """
        name = reference.names[0] if reference.names else ""
        inputs, outputs, steps = self.inputs or (), self.outputs or (), self.steps or {}
        match reference.kind:
            case "input" if self.inputs is None:
                why = "inputs have no values yet there"
            case "input" if name in self.sensitive:
                why = "it is sensitive; give credentials by the environment of the engine"
            case "input":
                return _unless_known(name, inputs, f"there is no input {name!r}")
            case "own_output" if self.outputs is None:
                why = "only `verify` sees the step's own outputs"
            case "own_output":
                return _unless_known(name, outputs, f"the module has no output {name!r}")
            case "step_output" if self.steps is None:
                why = "pass it as an input of the step"
            case "step_output" if name not in steps:
                return _unless_known(name, steps, f"there is no step {name!r}")
            case "step_output" if name == self.itself:
                why = "a step cannot need itself"
            case "step_output":
                output, module = reference.names[1], steps[name]
                what = f"the module of step {name!r} has no output {output!r}"
                return _unless_known(output, module.outputs, what) if module else None
            case "env" if not self.env:
                why = f"declare an input and set {INPUT_VARIABLE}{name}"
            case "step_name" | "target_id" if not self.step_names:
                why = "it has no step"
            case "each_key" if not self.each_key:
                why = "only `identity` and `search` are read for each instance"
            case "run_id" if not self.run_id:
                why = "only `compensate` and `before_destroy` may differ from run to run"
            case _:
                return None
        return f"'${{{reference}}}' cannot be used in {self.what}", why


def _unless_known(name: str, known: Collection[str], message: str) -> tuple[str, str] | None:
    return None if name in known else (message, did_you_mean(name, known))


def known_values(
    blueprint: str,
    environment: str,
    *,
    step: str = "",
    inputs: Mapping[str, Json] = MappingProxyType({}),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Lookup:
    """
    Return a lookup of what is known before a deployment is resolved: names, and these values. It
    raises Unresolvable for anything else.
    """

    def look_up(reference: Reference) -> Resolved:
        name = reference.names[0] if reference.names else ""
        match reference.kind:
            case "blueprint_name":
                return Resolved(blueprint)
            case "environment":
                return Resolved(environment)
            case "step_name" if step:
                return Resolved(step)
            case "target_id" if step:
                # Any text that differs from target to target does.
                return Resolved(f"{blueprint}-{environment}-{step}")
            case "input" if name in inputs:
                return Resolved(inputs[name])
            case "env" if name in environ:
                return Resolved(environ[name], {(): f"env.{name}"})
            case _:
                raise Unresolvable(f"${{{reference}}} has no value here")

    return look_up
