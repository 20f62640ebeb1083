"""
A blueprint in an environment as far as reading commands need it: names, order, places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.domain.blueprint.blueprint import Deployment, Retain
from orchestrator.domain.blueprint.graph import Graph
from orchestrator.domain.blueprint.policy import Policy
from orchestrator.domain.blueprint.references import Template
from orchestrator.domain.blueprint.store_location import StoreLocation
from orchestrator.domain.target import Target
from orchestrator.errors import Location


@dataclass(frozen=True, slots=True)
class StepSummary:
    """
    A step without its module: what it is called, uses and needs, which actions it declares, and
    the provider configuration that the blueprint gives it, unresolved.
    """

    name: str
    module_ref: str
    needs: frozenset[str]
    owned_by: str | None = None
    retain: Retain | None = None
    compensate: bool = False
    before_destroy: bool = False
    providers: Mapping[str, Template] = field(default_factory=dict)
    at: Location | None = None


@dataclass(frozen=True, slots=True)
class BlueprintSummary:
    """
    What is known of a blueprint without reading modules or asking for values.

    ``environments`` are all that the blueprint declares, ("default",) if it declares none.
    ``called_in`` is the directory that a command must be called in by ``-C``; "" where it is the
    current one.
    """

    project: str
    blueprint: str
    environment: str
    environments: tuple[str, ...]
    project_dir: str
    path: str
    steps: Mapping[str, StepSummary]
    graph: Graph
    operations: StoreLocation = field(default_factory=StoreLocation)
    protected: bool = False
    policy: Policy = field(default_factory=Policy)
    moved_from: tuple[str, ...] = ()
    called_in: str = ""

    def target(self, step: str) -> Target:
        """
        The target of one of its steps.
        """
        return Target(self.blueprint, self.environment, step)


def summary_of(deployment: Deployment) -> BlueprintSummary:
    """
    What reading commands need of a deployment that is loaded.
    """
    steps = deployment.steps.values()
    return BlueprintSummary(
        project=deployment.project,
        blueprint=deployment.blueprint,
        environment=deployment.environment,
        environments=(deployment.environment,),
        project_dir=deployment.project_dir,
        path=deployment.path,
        steps={
            step.name: StepSummary(
                name=step.name,
                module_ref=step.module_ref,
                needs=step.needs,
                owned_by=step.owned_by,
                retain=step.retain,
                compensate=step.compensate is not None,
                before_destroy=step.before_destroy is not None,
                providers=step.providers,
                at=step.at,
            )
            for step in steps
        },
        graph=deployment.graph,
        operations=deployment.operations,
        protected=deployment.protected,
        policy=deployment.policy,
        moved_from=deployment.moved_from,
        called_in=deployment.called_in,
    )
