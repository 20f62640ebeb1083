"""
Plans to show: every kind of change that one can hold.
"""

from __future__ import annotations

import json

from orchestrator.domain.documents.plan import PlanCounts, PlanDocument, PlannedStep
from orchestrator.domain.plan.changes import (
    AttributeChange,
    CheckResult,
    InputChange,
    OutputValueChange,
    PlanChanges,
    PlanDiagnostic,
    ResourceChange,
)
from orchestrator.domain.plan.differences import Marks, attribute_changes
from orchestrator.domain.record.objects import PlannedAction
from orchestrator.domain.record.record import Diagnostic, Fault
from orchestrator.domain.record.run_record import NextCommand
from orchestrator.domain.text import Json
from tests.fakes.read_context import outline


def attributes(
    before: Json, after: Json, *forces: str, **marks: Json
) -> tuple[AttributeChange, ...]:
    """
    What differs; ``marks`` are those of the value after.
    """
    return attribute_changes(
        before,
        after,
        before_marks=Marks(marks.get("sensitive", False)),
        after_marks=Marks(marks.get("sensitive", False), marks.get("unknown", False)),
        replace_paths=[[name] for name in forces],
    )


def resource(address: str, action: str, **fields: object) -> ResourceChange:
    kind, _, name = address.partition(".")
    return ResourceChange.model_validate(
        {
            "address": address,
            "type": kind,
            "name": name.partition("[")[0],
            "action": action,
            **fields,
        }
    )


_STATEMENT = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::shop/*"}
_POLICY = json.dumps({"Version": "2012-10-17", "Statement": [_STATEMENT]})
_WIDER = json.dumps({"Version": "2012-10-17", "Statement": [{**_STATEMENT, "Action": ["s3:*"]}]})
_RULE = {"from_port": 443, "to_port": 443, "cidr_blocks": ["10.0.0.0/8"], "description": "in"}
_SCRIPT = "#!/bin/sh\nset -e\ninstall nginx\nsystemctl start nginx\n"

RESOURCES = (
    resource(
        "aws_vpc.main",
        "update",
        attributes=attributes(
            {"tags": {"Name": "main", "Old": "1"}, "enable_dns": True, "tags_all": None},
            {"tags": {"Name": "prod", "Cost center": "42"}, "enable_dns": True, "tags_all": {}},
        ),
    ),
    resource(
        'aws_subnet.this["eu-west-1a"]',
        "replace",
        index="eu-west-1a",
        reason="replace_because_cannot_update",
        replace_paths=("cidr_block",),
        attributes=attributes(
            {"cidr_block": "10.8.0.0/24", "id": "subnet-1", "arn": "arn:1"},
            {"cidr_block": "10.9.0.0/24"},
            "cidr_block",
            unknown={"id": True, "arn": True},
        ),
    ),
    resource(
        "aws_instance.old",
        "delete",
        reason="delete_because_no_resource_config",
        attributes=attributes({"id": "i-1", "ami": "ami-1"}, None),
    ),
    resource(
        "aws_instance.web",
        "replace",
        create_first=True,
        reason="replace_because_tainted",
        attributes=attributes({"id": "i-2"}, {}, unknown={"id": True}),
    ),
    resource(
        "aws_security_group.web",
        "update",
        attributes=attributes(
            {"ingress": [_RULE, {**_RULE, "from_port": 80, "to_port": 80}]},
            {
                "ingress": [
                    {**_RULE, "from_port": 8080, "to_port": 8080},
                    {**_RULE, "cidr_blocks": ["10.0.0.0/8", "10.8.0.0/16"]},
                    {"from_port": 22, "to_port": 22, "cidr_blocks": [], "description": None},
                ]
            },
        ),
    ),
    resource(
        "aws_iam_policy.read",
        "update",
        attributes=attributes({"policy": _POLICY}, {"policy": _WIDER}),
    ),
    resource(
        "aws_launch_template.web",
        "update",
        attributes=attributes(
            {"user_data": _SCRIPT, "password": "one", "key": "k"},
            {"user_data": _SCRIPT.replace("nginx", "caddy", 1), "password": "two", "key": "k"},
            sensitive={"password": True},
        ),
    ),
    resource(
        "aws_ecs_task.web",
        "update",
        attributes=attributes({"definition": '{"a": 1, "b": 2}'}, {"definition": '{"b":2,"a":1}'}),
    ),
    resource("aws_eip.new", "noop", previous_address="aws_eip.former"),
    resource("aws_s3_bucket.logs", "import", importing="acme-logs"),
    resource("aws_s3_bucket.kept", "forget", attributes=attributes({"id": "kept"}, None)),
    resource(
        "terraform_data.boot",
        "update",
        attributes=attributes(
            {"input": _SCRIPT, "output": _SCRIPT},
            {"input": _SCRIPT.replace("set -e\n", "")},
            unknown={"output": True},
        ),
    ),
    resource("aws_instance.gone", "delete", deposed="1a2b3c4d"),
    resource(
        "aws_db.main",
        "create",
        attributes=attributes(
            None,
            {"name": "main", "password": "x", "disks": [{"size": 8, "type": "gp3"}], "tags": None},
            sensitive={"password": True},
            unknown={"id": True, "disks": [{"volume": True}]},
        ),
    ),
    resource("data.aws_ami.web", "read", reason="read_because_dependency_pending"),
)
CHANGES = PlanChanges(
    resources=RESOURCES,
    drift=(
        resource("aws_flow_log.main", "delete"),
        resource(
            "aws_vpc.main",
            "update",
            attributes=attributes({"tags": {"Name": "main"}}, {"tags": {"Name": "by hand"}}),
        ),
        resource("aws_eip.new", "update", attributes=attributes({"tags": None}, {"tags": {}})),
    ),
    outputs_changed=(
        OutputValueChange(name="vpc_id", before="vpc-1", known=False),
        OutputValueChange(name="cidr", before="10.8.0.0/16", after="10.9.0.0/16"),
        OutputValueChange(name="key", sensitive=True),
        OutputValueChange(name="old", action="delete", before=1),
        OutputValueChange(name="rules", before=[_RULE], after=[_RULE, {"from_port": 22}]),
    ),
    inputs_changed=(
        InputChange(name="suffix", before="assets2", after="assets", source="blueprint default"),
        InputChange(
            name="boot",
            before=_SCRIPT,
            after=_SCRIPT.replace("set -e\n", ""),
            source="blueprint",
        ),
        InputChange(
            name="rules", before=[_RULE], after=[_RULE, {"from_port": 22}], source="-i at the call"
        ),
        InputChange(name="token", sensitive=True, source="environment variable TOKEN"),
    ),
    module_changed=True,
    checks=(
        CheckResult(address="check.health", status="fail", problems=("it is not healthy",)),
        CheckResult(address="check.size", status="pass"),
    ),
    diagnostics=(
        PlanDiagnostic(
            severity="warning",
            summary="Argument is deprecated",
            detail="Use enable_dns_support instead.",
            file="modules/network/main.tf",
            line=21,
            address="aws_vpc.main",
        ),
    ),
)
_NETWORK = {
    "step": "network",
    "target": "web/prod/network",
    "status": "planned",
    "counts": PlanCounts.of_actions(item.action for item in RESOURCES),
    "actions": tuple(
        PlannedAction(
            address=item.address, action=item.action, previous_address=item.previous_address
        )
        for item in RESOURCES
        if item.action != "read"
    ),
    "outputs": ("vpc_id", "cidr", "key", "old"),
    "drifted": (PlannedAction(address="aws_flow_log.main", action="delete"),),
    "inputs": {"cidr": "10.8.0.0/16", "key": "(sensitive)"},
}


def plan(**values: object) -> PlanDocument:
    """
    A plan in which every status occurs.
    """
    shown = {name: getattr(CHANGES, name) for name in PlanChanges.model_fields}
    document = PlanDocument.of_steps(
        outline(),
        (
            PlannedStep.model_validate({**_NETWORK, **shown, **values}),
            PlannedStep(step="assets", target="web/prod/assets", status="unchanged"),
            PlannedStep(
                step="compute",
                target="web/prod/compute",
                status="deferred",
                method="deferred",
                reason="needs outputs that network does not have yet",
                waits_for=("network",),
            ),
            PlannedStep(
                step="dns",
                target="web/prod/dns",
                status="failed",
                error=Fault(
                    code="engine_failed",
                    phase="plan",
                    summary="Invalid index",
                    diagnostics=(
                        Diagnostic(
                            summary="Invalid index", detail="No such element.", at="main.tf:7"
                        ),
                    ),
                ),
            ),
        ),
        command="apply",
    )
    command = "orchestrator apply web -e prod --plan approval.json"
    offered = NextCommand(command=command, why="does it")
    return document.model_copy(update={"out": "approval.json", "next": (offered,)})


def without_values() -> PlanDocument:
    """
    The same where nobody has read the values.
    """
    return plan(**PlanChanges().model_dump())
