"""
The argv of each engine request. The only module that uses python-terraform, and only to format
arguments, not to run processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, assert_never

from orchestrator.domain.engine_commands import TAKE_VARIABLES, verb_of
from orchestrator.domain.provider_state import is_newer
from orchestrator.ports.engine import (
    Apply,
    Approve,
    Cancel,
    EngineInfo,
    Exec,
    Import,
    Init,
    Plan,
    PlanAndAsk,
    Program,
    Pull,
    Push,
    Request,
    ShowPlan,
    Unlock,
    Untaint,
)


def with_early_variables(info: EngineInfo, vector: Sequence[str], file: Path) -> list[str]:
    """
    Return the argv with ``-var-file`` for the variables that the engine needs to load the
    configuration; unchanged if the command does not load it or has a variable file already.

    >>> from orchestrator.ports.engine import EngineInfo
    >>> tofu = EngineInfo("tofu", "1.12.6", ("tofu",), "path", "")
    >>> with_early_variables(tofu, ["tofu", "state", "pull", "-no-color"], Path("v.json"))
    ['tofu', 'state', 'pull', '-var-file=v.json', '-no-color']
    """
    at = len(info.program)
    verb = verb_of(vector[at:])
    has_file = any(word.startswith("-var-file=") for word in vector)
    if not info.evaluates_early or has_file or " ".join(verb) not in TAKE_VARIABLES[info.kind]:
        return list(vector)
    at += len(verb)
    return [*vector[:at], f"-var-file={file}", *vector[at:]]


def argument_vector(info: EngineInfo, request: Request) -> list[str]:
    """
    Return the argv of an engine call. Values are passed in files, so that argv stays small and
    holds no secret.

    >>> from orchestrator.ports.engine import EngineInfo, Pull
    >>> argument_vector(EngineInfo("terraform", "1.11.4", ("/bin/tf",), "path", ""), Pull())
    ['/bin/tf', 'state', 'pull', '-no-color']
    """
    from python_terraform import IsFlagged, Terraform

    flag = {True: IsFlagged, False: None}
    positional: tuple[str, ...] = ()
    options: dict[str, Any] = {"no_color": IsFlagged}
    match request:
        case Init():
            command = "init"
            options |= {
                "input": False,
                "reconfigure": IsFlagged,
                "upgrade": flag[request.upgrade],
                "backend_config": request.backend_file,
            }
        case Plan():
            command = "plan"
            options |= {
                "json": IsFlagged,
                "input": False,
                "out": request.out,
                "destroy": flag[request.mode == "destroy"],
                "refresh_only": flag[request.mode == "refresh-only"],
                "refresh": None if request.refresh else False,
                "replace": list(request.replace),
                "target": list(request.targets),
                "detailed_exitcode": flag[request.detailed],
                "lock": None if request.lock else False,
            }
        case ShowPlan():
            command, positional = "show", (str(request.plan),)
            options |= {"json": IsFlagged}
        case Apply():
            command, positional = "apply", (str(request.plan),)
            forgets = info.kind == "tofu" and not is_newer("1.12.0", info.version)
            # Without it OpenTofu calls a destroy that forgets what it was told to a failure.
            options |= {
                "json": IsFlagged,
                "input": False,
                "suppress_forget_errors": flag[forgets],
            }
        case PlanAndAsk():
            # No -input=false: it has a question to ask. For variables TF_INPUT keeps it from that.
            command = "apply"
        case Approve() | Cancel():
            raise AssertionError("an answer starts no program")
        case Pull():
            command = "state pull"
        case Import():
            command, positional = "import", (request.address, request.id)
            options |= {"input": False}
        case Untaint():
            command, positional = "untaint", (request.address,)
        case Push():
            command, positional = "state push", (str(request.state),)
            options |= {"force": flag[request.force]}
        case Unlock():
            command, positional = "force-unlock", (request.lock_id,)
            options |= {"force": IsFlagged}
        case Exec():
            return [*info.program, *request.arguments]
        case Program():
            return list(request.argv)
        case _:
            assert_never(request)
    for shared in ("parallelism", "lock_timeout", "var_file"):
        options[shared] = getattr(request, shared, None)
    # Making a Terraform would read whatever terraform.tfstate lies in the current directory.
    builder = SimpleNamespace(terraform_bin_path=info.program[-1])
    vector = Terraform.generate_cmd_string(builder, command, *positional, **options)
    return [*info.program, *vector[1:]]
