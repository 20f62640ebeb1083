"""
The permissions that an operator gives a project's own files, in the file named by
``ORCHESTRATOR_TRUST``.

```yaml
trust:
  commands: false                  # the tool runs no program that the project names
  stores: ["s3://acme/operations"] # besides those in the project
  module_roots: [/srv/modules]     # besides those in the project
```

What it does not mention is not restricted. It is not part of the project, so that a merge request
cannot change it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from orchestrator.domain.blueprint.yaml_tree import Problems, parse_document
from orchestrator.errors import Invalid, Location, Problem
from orchestrator.local_files import read_text

VARIABLE = "ORCHESTRATOR_TRUST"

_KEYS = ("commands", "stores", "module_roots")
_FILE_URL = r"(?i)(?:sqlite:(?://)?)?(?P<path>(?![a-z][a-z0-9+.-]+:).+)"


class Trust(Struct, frozen=True):
    """
    The permissions of a project's files. ``stores`` and ``module_roots`` are None if not
    restricted; ``file`` names the file for messages.
    """

    file: str = ""
    commands: bool = True
    stores: tuple[str, ...] | None = None
    module_roots: tuple[Path, ...] | None = None

    def check_command(self, what: str, at: Location | None, problems: Problems) -> None:
        """
        Add a problem if ``what`` would run a program that the project names.
        """
        if not self.commands:
            problems.add(self.forbidden(what, "commands: false"), at)

    def check_store(self, url: str, root: Path, at: Location | None, problems: Problems) -> None:
        """
        Add a problem if the project in ``root`` may not use a store.
        """
        if not self.allows_store(url, root):
            hint = f"it allows {', '.join(self.stores or ()) or 'none outside of the project'}"
            shown = re.sub(r"//[^/@]*@", "//", url)
            problems.add(self.forbidden(f"the operation store {shown}", "stores"), at, hint)

    def allows_store(self, url: str | None, root: Path) -> bool:
        """
        Return whether the store is listed, below a listed one, or in the project.
        """
        if self.stores is None or url is None or url == "memory:":
            return True
        if any(url == each or url.startswith(each.rstrip("/") + "/") for each in self.stores):
            return ".." not in url.split("/")
        match = re.fullmatch(_FILE_URL, url)
        return match is not None and _is_below(root / match["path"], root)

    def check_module_root(
        self, directory: Path, root: Path, at: Location, problems: Problems
    ) -> None:
        """
        Add a problem if the project in ``root`` may not use modules of a directory.
        """
        if self.module_roots is None:
            return
        if not any(_is_below(directory, each) for each in (root, *self.module_roots)):
            what = f"the module root {str(directory)!r}"
            problems.add(self.forbidden(what, "module_roots"), at)

    def forbidden(self, what: str, setting: str) -> str:
        return f"{what} is forbidden by the trust file {self.file} ({setting})"


def read_trust(environ: Mapping[str, str], root: Path) -> Trust:
    """
    Return the content of the file in ``ORCHESTRATOR_TRUST``; without that variable everything is
    allowed.

    Raises Invalid with every problem of the file, also if it does not exist or lies in the project
    in ``root``: nothing forbidden may be allowed by mistake.
    """
    name = environ.get(VARIABLE)
    if name is None:
        return Trust()
    at = Location(VARIABLE)
    path = Path(os.path.realpath(name)) if name and "\0" not in name else None
    if path is None:
        raise Invalid([Problem("the trust file has no name", at, "unset it, or name the file")])
    if _is_below(path, root):
        hint = "keep it where nobody who changes the project can change it"
        raise Invalid([Problem(f"the trust file {name} is in the project", at, hint)])
    text, problems = read_text(path, shown=f"trust file {name}"), Problems()
    document = problems.fields(parse_document(text, file=name), ("trust",), what="the trust file")
    if "trust" not in document:
        problems.add("the trust file says nothing under `trust`", Location(name))
    fields = problems.fields(document["trust"], _KEYS, what="trust") if document else {}
    commands, stores = fields.get("commands"), fields.get("stores")
    roots = fields.get("module_roots")
    allowed = problems.texts(roots, what="trust.module_roots") if roots else ()
    trust = Trust(
        file=name,
        commands=problems.flag(commands, what="trust.commands") if commands else True,
        stores=problems.texts(stores, what="trust.stores") if stores else None,
        module_roots=tuple(path.parent / each for each in allowed) if roots else None,
    )
    problems.check()
    return trust


def _is_below(path: Path, root: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
