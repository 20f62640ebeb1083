"""
``python -m orchestrator`` and the console script.
"""

from __future__ import annotations

import sys

from orchestrator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
