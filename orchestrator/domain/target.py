"""
Names of targets, and the patterns of all names.
"""

from __future__ import annotations

import re
from typing import Literal, cast

from msgspec import Struct

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_INSTANCE = re.compile(
    r'(?P<step>[a-z0-9][a-z0-9_-]{0,62})(?:\["(?P<key>[^"/\x00-\x1f]{1,200})"\])?'
)


#: What a step may declare besides its module: see `orchestrator.domain.blueprint.blueprint.Action`.
HookKind = Literal["compensate", "before_destroy"]
HOOK_KINDS: tuple[HookKind, ...] = ("compensate", "before_destroy")

_HOOK = re.compile(
    r'(?P<step>[a-z0-9][a-z0-9_-]{0,62})\["(?P<key>[^"]*)@(?P<kind>compensate|before_destroy)"\]'
)


def is_name(text: str) -> bool:
    """
    Return whether ``text`` is a valid name of a blueprint, environment, step or project.
    """
    return NAME.fullmatch(text) is not None


class Target(Struct, frozen=True, order=True):
    """
    A Terraform root module with its own state: the unit of operation state.

    >>> str(Target("web", "prod", "network"))
    'web/prod/network'
    >>> Target.parse("web/prod/network").step
    'network'
    """

    blueprint: str
    environment: str
    step: str

    def __str__(self) -> str:
        return f"{self.blueprint}/{self.environment}/{self.step}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """
        Return the target named by ``text``. Raises ValueError if it is none.
        """
        parts = text.split("/", 2)
        if len(parts) != 3 or not (is_name(parts[0]) and is_name(parts[1])):
            raise ValueError(f"{text!r} is not <blueprint>/<environment>/<step>")
        if _INSTANCE.fullmatch(parts[2]) is None:
            raise ValueError(f"{parts[2]!r} is not the name of a step")
        return cls(*parts)


def hook_kind(command: str | None) -> HookKind | None:
    """
    Return the hook kind of this name, None for any other name.
    """
    return next((kind for kind in HOOK_KINDS if kind == command), None)


def hook_step_name(step: str, kind: HookKind) -> str:
    """
    Return the name of a module hook as a step: an instance of its step with a key that no step can
    have.

    >>> hook_step_name("db", "compensate"), hook_step_name('db["eu"]', "compensate")
    ('db["@compensate"]', 'db["eu@compensate"]')
    """
    name, _, key = step.removesuffix('"]').partition('["')
    return f'{name}["{key}@{kind}"]'


def hook_of(name: str) -> tuple[str, HookKind] | None:
    """
    Return the step and hook kind of a hook step's name, None for a normal step.

    >>> hook_of('db["eu@compensate"]'), hook_of("db")
    (('db["eu"]', 'compensate'), None)
    """
    match = _HOOK.fullmatch(name)
    if match is None:
        return None
    step = f'{match["step"]}["{match["key"]}"]' if match["key"] else match["step"]
    return step, cast(HookKind, match["kind"])


def step_of(name: str) -> str:
    """
    Return the step that a name belongs to: itself, or the step whose hook it is.

    >>> step_of('db["@compensate"]'), step_of("db")
    ('db', 'db')
    """
    action = hook_of(name)
    return action[0] if action is not None else name


def shown_step(name: str) -> str:
    """
    Return a step's or hook step's name for messages.

    >>> shown_step('db["@compensate"]'), shown_step("db")
    ("compensate of step 'db'", "step 'db'")
    """
    action = hook_of(name)
    return f"step {name!r}" if action is None else f"{action[1]} of step {action[0]!r}"
