"""
What plans of a blueprint may not do, and what drift is accepted.
"""

from __future__ import annotations

from msgspec import Struct


class Policy(Struct, frozen=True):
    """
    The rules of a blueprint in an environment; one that is not set forbids nothing.

    ``no_destroy`` are types and addresses, with ``*`` for anything, that are neither destroyed nor
    replaced nor forgotten; nothing at all of ``protected_steps`` is. ``additive_only``: nothing
    that exists is changed. ``max_destroys`` counts what a run destroys and replaces.
    ``required_tags`` are keys of the tags or labels of whatever has some; ``regions`` are those
    that objects may be in. ``rego`` are files and directories with rules of the Open Policy Agent,
    relative to the project.
    """

    no_destroy: tuple[str, ...] = ()
    protected_steps: tuple[str, ...] = ()
    additive_only: bool = False
    max_destroys: int | None = None
    required_tags: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    rego: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """
        Whether the policy forbids nothing.
        """
        return self == Policy()


class DriftRule(Struct, frozen=True):
    """
    Drift that is accepted, for a reason: of objects by type or address and of attributes by path,
    each with ``*`` for anything; up to and including the day ``until``, such as 2027-06-30.
    """

    address: str
    reason: str
    attribute: str = "*"
    until: str | None = None
