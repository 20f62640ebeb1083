"""
The evidence of a step in a run as one blob: one request, however many engine calls there were.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

#: Bytes of all files of an archive together: one from a store is not believed about its size.
LIMIT = 256 * 1024**2
#: The same times in all archives: what is equal stays equal.
_TIME = (1980, 1, 1, 0, 0, 0)


def evidence_blob(run_id: str, step: str) -> str:
    """
    Name of the blob with what a step left in a run.
    """
    return f"runs/{run_id}/evidence/{step}.zip"


def pack_evidence(files: Mapping[str, bytes]) -> bytes:
    """
    Files by name as an archive; of the same files the same bytes.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _TIME)
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def unpack_evidence(data: bytes) -> dict[str, bytes]:
    """
    The files of an archive; ValueError where it is none, or holds more than `LIMIT`.

    >>> unpack_evidence(pack_evidence({"1/apply.log": b"done"}))
    {'1/apply.log': b'done'}
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > LIMIT:
                raise ValueError("it holds too much")
            if not all(entry.filename.partition("/")[0].isdecimal() for entry in entries):
                raise ValueError("it holds what no attempt left")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as exc:
        raise ValueError(str(exc)) from exc
