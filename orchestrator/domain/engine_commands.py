"""
Classifies engine commands for `exec`: read-only, changing provider state, or reserved for another
verb of this tool, which keeps a journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from orchestrator.domain.blueprint.blueprint import EngineKind
from orchestrator.errors import Refused, Usage

#: Commands that change nothing. What is in none of these tables counts as mutating.
READS = frozenset(
    {
        "graph", "modules", "output", "plan", "providers", "providers schema", "show",
        "state identities", "state list", "state pull", "state show", "validate", "version",
        "workspace list", "workspace show",
    }
)  # fmt: skip

#: Commands that are not run by hand, and what to do instead.
INSTEAD: Mapping[str, str] = {
    "apply": "`orchestrator apply` keeps a journal of it",
    "destroy": "`orchestrator destroy` keeps a journal of it",
    "test": "it creates and destroys objects that nothing records; run it elsewhere",
    "init": "the directory is initialised whenever that is needed",
    "console": "it needs a terminal; run it in the directory that `orchestrator status` shows",
    "login": "log in with the engine itself",
    "logout": "log out with the engine itself",
    "workspace new": "a target has one provider state; use an environment",
    "workspace select": "a target has one provider state; use an environment",
    "workspace delete": "a target has one provider state; use an environment",
}

#: Options by which a command would work on something else than the target as it is recorded.
_ELSEWHERE: Mapping[str, str] = {
    "-chdir": "it runs in the target's directory",
    "-state": "it works on the target's own provider state",
    "-state-out": "it works on the target's own provider state",
    "-var": "the recorded inputs are used",
    "-var-file": "the recorded inputs are used",
    "-out": "a plan to apply is written by `orchestrator plan --out`",
    "-generate-config-out": "it would write into the target's directory",
    "-force": "provider state of another lineage, or an older one, is not pushed",
}

#: Commands that print addresses, versions and schemas, and no values of the target.
_WITHOUT_VALUES = frozenset(
    {
        "force-unlock", "get", "graph", "modules", "providers", "providers lock",
        "providers mirror", "providers schema", "state list", "state mv", "state push",
        "state replace-provider", "state rm", "taint", "untaint", "validate", "version",
        "workspace list", "workspace show",
    }
)  # fmt: skip

_FAMILIES = ("metadata", "providers", "state", "workspace")

#: Commands that work with the values of a module's variables, whichever the engine.
_WITH_VALUES = frozenset({"apply", "import", "plan", "refresh"})
#: The commands that accept ``-var-file``, by kind of engine: OpenTofu's from 1.8 on, Terraform's
#: from 1.15 on. Without the variables that the configuration depends on they fail.
TAKE_VARIABLES: Mapping[EngineKind, frozenset[str]] = {
    "terraform": _WITH_VALUES | {
        "get", "graph", "init", "providers", "providers schema", "show", "state mv", "state pull",
        "state push", "state rm", "validate",
    },
    "tofu": _WITH_VALUES | {
        "console", "destroy", "force-unlock", "get", "graph", "init", "output", "providers",
        "providers lock", "providers mirror", "providers schema", "show", "state list", "state mv",
        "state pull", "state push", "state replace-provider", "state rm", "state show", "taint",
        "test", "untaint", "validate", "workspace delete", "workspace list", "workspace new",
        "workspace select",
    },
}  # fmt: skip


def verb_of(words: Sequence[str]) -> tuple[str, ...]:
    """
    Return the one or two words of a command's verb.

    >>> verb_of(["state", "mv", "a.b", "a.c"]), verb_of(["providers", "-no-color"])
    (('state', 'mv'), ('providers',))
    """
    family = words[0] in _FAMILIES and len(words) > 1 and not words[1].startswith("-")
    return tuple(words[: 2 if family else 1])


class EngineCommand(Struct, frozen=True):
    """
    A command to pass on: its verb in one or two words, and the rest.

    >>> EngineCommand.parse(["state", "mv", "a.b", "a.c"])
    EngineCommand(verb=('state', 'mv'), rest=('a.b', 'a.c'))
    """

    verb: tuple[str, ...]
    rest: tuple[str, ...]

    @classmethod
    def parse(cls, words: Sequence[str]) -> EngineCommand:
        """
        Return the command in ``words``. Raises Usage if there is none, Refused if it must not be
        run by hand.
        """
        if not words:
            raise Usage("no command for the engine", hint="put it after --, such as -- state list")
        verb = verb_of(words)
        command = cls(verb, tuple(words[len(verb) :]))
        if command.name in INSTEAD:
            raise Refused(
                "not_by_exec",
                f"`{command.name}` is not run by exec",
                hint=INSTEAD[command.name],
            )
        for word in words:
            option = word.partition("=")[0].replace("--", "-", 1)
            if option in _ELSEWHERE and not (option == "-force" and command.name != "state push"):
                raise Refused(
                    "not_by_exec",
                    f"{option} is not passed on by exec",
                    hint=_ELSEWHERE[option],
                )
        return command

    @property
    def name(self) -> str:
        return " ".join(self.verb)

    @property
    def mutates(self) -> bool:
        """
        Whether it may change provider state; true for unknown commands.
        """
        return self.name not in READS

    @property
    def takes_variables(self) -> bool:
        """
        Whether it uses the values of a module's variables, with any engine.
        """
        return self.name in _WITH_VALUES

    @property
    def prints_values(self) -> bool:
        """
        Whether its output may contain values of inputs, outputs or objects.
        """
        return self.name not in _WITHOUT_VALUES

    def words(self, *options: str) -> tuple[str, ...]:
        """
        Return the words, with additional options after the verb.
        """
        return (*self.verb, *options, *self.rest)
