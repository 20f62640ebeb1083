"""
``python -m orchestrator`` and the console script.
"""

from __future__ import annotations

import atexit
import gc
import os
from typing import NoReturn


def main() -> NoReturn:
    """
    Run the command line and end with its exit code. What it had to say is written by then, and no
    thread of it works on: the interpreter is not taken apart, which took a fifth of a `status`.

    What start-up makes stays, and looking for garbage in it took a tenth of its time: that begins
    with a command's work (`cli.running`), and for one that only reads records not at all.
    """
    gc.disable()
    from orchestrator.cli.main import main as run_command_line

    code = run_command_line()
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
