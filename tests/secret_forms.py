"""
Searching everything that the tool leaves or prints for a secret, in every form.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import io
import json
import sqlite3
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

from tests.project import Ended, Project


def forms(text: str) -> Iterator[tuple[str, str]]:
    """
    The ways in which engines, providers and we print a text: whole, and line by line.
    """
    for part in {text, *(line.strip() for line in text.splitlines())}:
        go = json.dumps(part, ensure_ascii=False)[1:-1]
        for sign in "&<>":
            go = go.replace(sign, f"\\u{ord(sign):04x}")
        yield from {
            "raw": part,
            "json": json.dumps(part)[1:-1],
            "json as Go writes it": go,
            "json in json": json.dumps(go)[1:-1],
            "repr": repr(part)[1:-1],
            "html": html.escape(part),
            "url": quote(part, safe=""),
            "url with plus": quote_plus(part),
            "base64": base64.b64encode(part.encode()).decode().rstrip("="),
            "base64 for urls": base64.urlsafe_b64encode(part.encode()).decode().rstrip("="),
            "base64 after one": _within_base64(part, 1),
            "base64 after two": _within_base64(part, 2),
            "composed": unicodedata.normalize("NFC", part),
            "base64 of JSON": _within_base64(go, 0),
            "base64 of a URL": _within_base64(quote_plus(part), 2),
            "base64 of base64": _within_base64(_within_base64(part, 2)[2:-2], 1),
        }.items()


def _within_base64(part: str, before: int) -> str:
    """
    What every base64 of something with the part at this alignment holds.
    """
    encoded = base64.b64encode(b"x" * before + part.encode()).decode().rstrip("=")
    return encoded[before + 1 : -1]


def found_in(text: str, secrets: Mapping[str, str]) -> set[tuple[str, str]]:
    """
    Which secrets stand in a text, each with its form.
    """
    return {
        (name, form)
        for name, secret in secrets.items()
        for form, shown in forms(secret)
        if shown in text
    }


def named_by_the_law(path: Path, own: Path) -> bool:
    """
    Provider state, raw engine output and an errored state may hold secrets.
    """
    parts = path.relative_to(own).parts
    return parts[0] == "state" or "raw" in parts or path.name == "errored.tfstate"


def places(project: Project, *ended: Ended) -> dict[str, str]:
    """
    What the tool printed, and the content of its files but for those that the law names: archives
    unpacked, the rows of databases whole.
    """
    found = {"terminal": "\n".join(item.said for item in ended)}
    for path in project.own.rglob("*"):
        if path.is_file() and not named_by_the_law(path, project.own):
            name = str(path.relative_to(project.own))
            data = path.read_bytes()
            found[name] = _unpacked(data)
            if data.startswith(b"SQLite format 3"):
                found[f"{name}: rows"] = _rows(path)
    return found


def leaks(
    project: Project, secrets: Mapping[str, str], *ended: Ended
) -> dict[str, set[tuple[str, str]]]:
    """
    Which secrets are in which form where they must not be.
    """
    everywhere = places(project, *ended)
    return {
        place: found for place, text in everywhere.items() if (found := found_in(text, secrets))
    }


def _rows(database: Path) -> str:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        values = [
            value
            for table in tables
            for row in connection.execute(f'SELECT * FROM "{table}"')
            for value in row
        ]
    finally:
        connection.close()
    return "\n".join(
        _unpacked(value) if isinstance(value, bytes) else str(value) for value in values
    )


def _unpacked(data: bytes) -> str:
    """
    Bytes as text, with what a compressed file or an archive holds.
    """
    texts = [data.decode(errors="replace")]
    if data.startswith(b"\x1f\x8b"):
        texts.append(_unpacked(gzip.decompress(data)))
    elif data[:1] == b"\x78":
        with contextlib.suppress(zlib.error):
            texts.append(_unpacked(zlib.decompress(data)))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                content = archive.extractfile(member)
                texts.append(
                    member.name + (content.read().decode(errors="replace") if content else "")
                )
    return "\n".join(texts)
