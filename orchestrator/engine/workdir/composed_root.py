"""
Which modules can be composed with others into one root, and their lock files merged into one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from orchestrator.engine.workdir.snapshot import entries_of
from orchestrator.ports.workdir import Snapshot

#: A module called by another one is not at the root: these say where it is.
_PLACE = re.compile(r"\bpath\.(root|cwd|module)\b")
_FILE = (
    r"\b(?:file|fileexists|fileset|templatefile|file(?:base64|md5|sha1|sha256|sha512)"
    r"|filebase64sha(?:256|512))"
)
#: Where the place of a module only leads to a file whose content is read, it changes nothing.
_READS = re.compile(_FILE + r'\(\s*"?(?:\$\{)?\s*path\.module\b')
#: Any other path may be one from the directory that the engine works in.
_ELSEWHERE = re.compile(_FILE + r"\(|\babspath\(")
_LOCAL_MODULE = re.compile(r'\bsource\s*=\s*"\$\{path\.module\}')
_ONLY_AT_ROOT = re.compile(
    r"^\s*(import|encryption|ephemeral)\b[^\n{=]*\{"  # or as JSON has it
    r'|"(import|encryption|ephemeral)"\s*:\s*[\[{]',
    re.MULTILINE,
)
_PROVIDER = re.compile(r'^provider "([^"]+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
_VERSION = re.compile(r'^\s*version\s*=\s*"([^"]+)"', re.MULTILINE)
_HEADER = "# Made of the lock files of the steps.\n\n"


def not_composable(snapshot: Snapshot) -> str:
    """
    The reason why a module cannot be called by another one without changing its plan; "" where it
    can.
    """
    if any(variable.ephemeral for variable in snapshot.variables.values()):
        return "it has ephemeral variables"
    for entry in entries_of(snapshot):
        if not entry.path.endswith((".tf", ".tofu", ".tf.json", ".tofu.json")):
            continue
        text = entry.data.decode(errors="replace")
        rest = _READS.sub("", _LOCAL_MODULE.sub("", text))
        place = _PLACE.search(rest)
        if place:
            return f"{entry.path} uses {place[0]}"
        elsewhere = _ELSEWHERE.search(rest)
        if elsewhere:
            return f"{entry.path} may use {elsewhere[0]}...) with a path from its root"
        block = _ONLY_AT_ROOT.search(text)
        if block:
            return f"{entry.path} has an {block[1] or block[2]} block"
    return ""


def merged_lock_files(lock_files: Mapping[str, bytes]) -> tuple[bytes, frozenset[str]]:
    """
    One lock file for all, and the steps left out of it: a step whose lock file chooses another
    version of a provider than one before it.
    """
    blocks: dict[str, tuple[str, str]] = {}
    others = set()
    for step, content in lock_files.items():
        chosen = dict(_providers(content.decode(errors="replace")))
        if any(
            blocks.get(source, chosen_block)[0] != chosen_block[0]
            for source, chosen_block in chosen.items()
        ):
            others.add(step)
            continue
        blocks = {**chosen, **blocks}
    text = _HEADER + "\n\n".join(block for _, block in blocks.values()) + "\n"
    return text.encode(), frozenset(others)


def _providers(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for block in _PROVIDER.finditer(text):
        version = _VERSION.search(block[2])
        yield block[1], (version[1] if version else "", block[0])
