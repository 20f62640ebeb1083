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
    Run the command line and exit with its code. All output is written by then and no thread is
    needed any more, so the interpreter is not finalized, which took a fifth of a `status`.

    Objects made during start-up stay, and looking for garbage among them took a tenth of its time:
    garbage collection starts with a command's work (`cli.running`), and never for a command that
    only reads records.
    """
    gc.disable()
    from orchestrator.cli.main import main as run_command_line

    code = run_command_line()
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
