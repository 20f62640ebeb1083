"""
One thing that a policy forbids of a plan.
"""

from __future__ import annotations

from typing import Literal

from orchestrator.domain.json_model import JsonModel
from orchestrator.domain.text import Word

Rule = Literal[
    "no_destroy",
    "protected_steps",
    "additive_only",
    "max_destroys",
    "required_tags",
    "regions",
    "rego",
]


class Violation(JsonModel):
    """
    An object, or with an empty address a step or run, of which a rule forbids what is planned, or
    warns. Without a step it is about the whole plan.
    """

    rule: Rule
    step: Word = ""
    address: Word = ""
    verdict: Literal["fail", "warn"] = "fail"
    message: str

    @property
    def text(self) -> str:
        """
        What is forbidden, in words.
        """
        return f"{self.address} {self.message} ({self.rule})".strip()
