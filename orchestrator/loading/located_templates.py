"""
Templates with their places, and the rules for what they may refer to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct, field

from orchestrator.domain.blueprint.blueprint import INPUT_VARIABLE, Module
from orchestrator.domain.blueprint.reference_syntax import Reference
from orchestrator.domain.blueprint.references import (
    BadTemplate,
    Lookup,
    Resolved,
    Template,
    Unresolvable,
    Use,
)
from orchestrator.domain.blueprint.yaml_tree import Node, Problems
from orchestrator.domain.text import Json, did_you_mean
from orchestrator.errors import Location


class LocatedTemplate(Struct, frozen=True):
    """
    A template and its node; ``broken`` if it could not be parsed.
    """

    template: Template
    node: Node
    broken: bool = False

    @property
    def literal(self) -> bool:
        """
        Whether it holds no references.
        """
        return not self.broken and not self.template.uses

    def location(self, use: Use) -> Location:
        return self.node.location(use.path, use.offset)


def locate(node: Node, problems: Problems) -> LocatedTemplate:
    """
    Return the node as a template; malformed references become problems and are dropped.
    """
    try:
        return LocatedTemplate(Template(node.plain), node)
    except BadTemplate as exc:
        for issue in exc.issues:
            problems.add(issue.message, node.location(issue.path, issue.offset), issue.hint)
        return LocatedTemplate(Template(None), node, broken=True)


class ReferenceRules(Struct, frozen=True):
    """
    The allowed references of templates at one kind of place, named ``what``.

    ``inputs`` are the names for ``${inputs.x}``, ``steps`` the steps with their modules (None:
    unknown module), ``outputs`` the module's own; None forbids the kind. ``each_key`` and
    ``run_id`` allow ``${each.key}`` and ``${run.id}``.
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

    def check(self, value: LocatedTemplate, problems: Problems) -> None:
        """
        Add a problem for each reference that is not allowed or names something that does not exist.
        """
        for use in value.template.uses:
            problem = self._problem(use.reference)
            if problem is not None:
                problems.add(problem[0], value.location(use), problem[1])

    def _problem(self, reference: Reference) -> tuple[str, str] | None:
        names = reference.names
        match reference.kind:
            case "input":
                return self._input(names[0], reference)
            case "step_output":
                return self._step_output(names[0], names[1], reference)
            case "own_output":
                if self.outputs is None:
                    return self._forbidden(reference, "only `verify` sees the step's own outputs")
                return _problem_unless_known(
                    names[0], self.outputs, f"the module has no output {names[0]!r}"
                )
            case "env":
                hint = f"declare an input and set {INPUT_VARIABLE}{names[0]}"
                return None if self.env else self._forbidden(reference, hint)
            case "step_name" | "target_id":
                return None if self.step_names else self._forbidden(reference, "it has no step")
            case "each_key":
                why = "only `identity` and `search` are read for each instance"
                return None if self.each_key else self._forbidden(reference, why)
            case "run_id":
                why = "only `compensate` and `before_destroy` may differ from run to run"
                return None if self.run_id else self._forbidden(reference, why)
            case "blueprint_name" | "environment":
                return None

    def _input(self, name: str, reference: Reference) -> tuple[str, str] | None:
        if self.inputs is None:
            return self._forbidden(reference, "inputs have no values yet there")
        if name in self.sensitive:
            return self._forbidden(
                reference, "it is sensitive; give credentials by the environment of the engine"
            )
        return _problem_unless_known(name, self.inputs, f"there is no input {name!r}")

    def _step_output(self, step: str, output: str, reference: Reference) -> tuple[str, str] | None:
        if self.steps is None:
            return self._forbidden(reference, "pass it as an input of the step")
        if step not in self.steps:
            return _problem_unless_known(step, self.steps, f"there is no step {step!r}")
        if step == self.itself:
            return self._forbidden(reference, "a step cannot need itself")
        module = self.steps[step]
        if module is None:
            return None
        what = f"the module of step {step!r} has no output {output!r}"
        return _problem_unless_known(output, module.outputs, what)

    def _forbidden(self, reference: Reference, why: str) -> tuple[str, str]:
        return f"'${{{reference}}}' cannot be used in {self.what}", why


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


def _problem_unless_known(
    name: str, known: Collection[str], message: str
) -> tuple[str, str] | None:
    return None if name in known else (message, did_you_mean(name, known))
