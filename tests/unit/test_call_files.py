"""
What the files of an engine call tell: they may be damaged, and are never believed blindly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engine.process.call_files import AnswerFile, CallFiles
from orchestrator.ports.engine import CallSpec


@pytest.mark.parametrize("text", [b"", b"\xff", b"{", b"[1]", b"7", b'{"exit_code": 0}'])
def test_a_damaged_answer_is_none(tmp_path: Path, text: bytes) -> None:
    """
    It tells nothing of how the engine ended: what it was doing is in doubt, and no command fails.
    """
    files = CallFiles(CallSpec(directory=tmp_path, evidence=tmp_path, name="apply"))
    files.answer.write_bytes(b'{"exit_code": 0, "signal": null, "began": true}')
    assert files.read_answer() == AnswerFile(exit_code=0, signal=None, started=True)

    files.answer.write_bytes(text)

    assert files.read_answer() is None
