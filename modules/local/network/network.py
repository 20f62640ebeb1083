"""
Keep a network as a file in its directory.

    network.py create JSON    writes the file
    network.py delete JSON    removes it, and the directory if nothing else is in it
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any


def create(network: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = file.with_suffix(".tmp")
    half.write_text(json.dumps(network, indent=2, sort_keys=True) + "\n")
    half.replace(file)


def delete(file: Path) -> None:
    file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it, or it is gone
        file.parent.rmdir()


def main(verb: str, argument: str) -> None:
    network = json.loads(argument)
    file = Path(network["directory"]) / f"network-{network['name']}.json"
    if verb == "create":
        create(network, file)
    else:
        delete(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
