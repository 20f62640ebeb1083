"""
Taking secrets out of text before anyone sees it.

`Masker` replaces every value it was told of, in the encodings in which engines and providers print
them, and what looks like a secret by its shape. What it cannot do:

- find a value it was not told of, unless its shape gives it away;
- mask a value of fewer than four characters, a boolean, or a number of fewer than four digits;
- see a value that is encoded more than three times, cut, wrapped (but for its own base64 in lines
  of 64 or 76 characters), reversed, hashed, encrypted or compressed, or in another encoding than
  those of `_forms`; as UTF-16 it is seen where its characters stand beside NULs, so not where all
  of the text is beyond Latin-1;
- see a value that is spread over several calls of `mask`: a value of several lines is therefore
  masked line by line, but a private key it was not told of only where its block comes in one text.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import string
import threading
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache, partial

from orchestrator.domain.text import Json

MARK = "(sensitive)"

_SHORT = 200  # characters of a text that is remembered
SHORTEST = 4  # characters of a text, digits of a number
_SHORTEST_WITHIN_BASE64 = 6
_BASE64_SIGNS = frozenset(string.ascii_letters + string.digits + "+/-_")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")

#: Words that may be encoded text, and how often one within the other is looked into.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_PERCENT = re.compile(r"[^\s\"'<>%]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
_NUL = re.compile(r"\x00|\\u0000|\\x00")
_HEX = re.compile(rb"%([0-9A-Fa-f]{2})")
_DEEPEST = 3

_STRUCTURE = re.compile(r'\s*[\[{"]')

#: Secrets by their shape, each after words of which one is in every text that holds it (looking
#: for a word is a hundred times as fast, and most are never compiled). The group ``keep`` is what
#: stays readable before it.
_SHAPES = tuple(
    (tuple(words.split()), pattern)
    for words, pattern in (
        (
            "PRIVATE",
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
            r".*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
        ),
        ("://", r"(?P<keep>://[^\s/:@\"'<>\\]*:)[^\s/\"'<>\\]+(?=@)"),
        ("earer EARER", r"(?P<keep>\b(?:[Bb]earer|BEARER)\s+)[A-Za-z0-9._~+/=-]{16,}"),
        (
            "uthorization UTHORIZATION",
            r"(?P<keep>\b(?:[Aa]uthorization|AUTHORIZATION)[\"'\\]*\s*[:=]\s*[\"'\\]*"
            r"(?:[Bb]asic|[Bb]earer|[Tt]oken)\s+)[^\s\"'\\,]+",
        ),
        ("AKIA ASIA", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        (
            "ccess CCESS ession ESSION",
            r"(?P<keep>\b(?i:aws_?secret_?access_?key|secret_?access_?key|aws_?session_?token)"
            r"[\"'\\]*\s*[:=]\s*[\"'\\]*)[A-Za-z0-9/+=]{16,}",
        ),
        ("AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
        ("ya29.", r"\bya29\.[0-9A-Za-z_-]{20,}"),
        (
            "AccountKey SharedAccess",
            r"(?P<keep>\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=)"
            r"[A-Za-z0-9%/+=&-]{16,}",
        ),
        ("sig=", r"(?P<keep>[?&]sig=)[A-Za-z0-9%/+=_-]{16,}"),
        (
            "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
            r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
        ),
        ("glpat- gldt- glrt- glcbt- glptt- glft-", r"\bgl(?:pat|dt|rt|cbt|ptt|ft)-[\w.-]{20,}"),
        ("xox xapp-", r"\b(?:xox[abeprs]|xapp)-[A-Za-z0-9-]{10,}"),
        ("hvs. hvb. hvr.", r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}"),
        ("sk_live_ rk_live_", r"\b[sr]k_live_[A-Za-z0-9]{16,}"),
        ("npm_", r"\bnpm_[A-Za-z0-9]{36}"),
        ("SG.", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
        ("AGE-SECRET-KEY-", r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}"),
        ("eyJ", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    )
)


class Masker:
    """
    What is sensitive, and text without it. Threads may add and mask at the same time.

    >>> masker = Masker()
    >>> masker.add({"password": "s3cr&t"})
    >>> masker.mask('{"url": "http://x/?p=s3cr%26t", "json": "s3cr\\\\u0026t"}')
    '{"url": "http://x/?p=(sensitive)", "json": "(sensitive)"}'
    """

    def __init__(self, secrets: Iterable[Json] = ()) -> None:
        self._lock = threading.Lock()
        self._texts: set[str] = set()
        self._within_base64: set[str] = set()
        self._numbers: set[str] = set()
        self._mask: Callable[[str], str] | None = None
        for value in secrets:
            self.add(value)

    def add(self, value: Json) -> None:
        """
        Treat every leaf of ``value`` as sensitive from now on, also if a text contains JSON; object
        keys are not.
        """
        texts, numbers = _leaves(value)
        parts = {part for text in texts for part in _parts(text)}
        forms = {form for part in parts for form in _forms(part)}
        pieces = {piece for part in parts for piece in _base64(_data(part))}
        with self._lock:
            if forms <= self._texts and numbers <= self._numbers:
                return
            self._texts |= forms
            self._within_base64 |= pieces
            self._numbers |= numbers
            self._mask = None

    def mask(self, text: str) -> str:
        """
        Return ``text`` with everything sensitive replaced by ``(sensitive)``. Masking is
        idempotent.
        """
        return (self._mask or self._compiled())(text)

    def mask_json(self, value: Json) -> Json:
        """
        Return a copy of ``value`` with texts, keys and sensitive numbers masked.
        """
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {self.mask_json(key): self.mask_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_json(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            with self._lock:
                return value if self._numbers.isdisjoint(_digits(value)) else MARK
        return value

    def hides(self, value: Json) -> bool:
        """
        Return whether the value contains something sensitive, or was already masked.
        """
        return self.mask_json(value) != value or MARK in json.dumps(value, default=str)

    def _compiled(self) -> Callable[[str], str]:
        """
        Return the current masking function. It caches short texts: names, addresses and messages
        recur.
        """
        with self._lock:
            if self._mask is None:
                numbers = rf"(?<![0-9.])(?:{_either(self._numbers)})(?![0-9])"
                choices = [re.escape(MARK), _either(self._texts), numbers if self._numbers else ""]
                # A lookahead, so that values that overlap are all found.
                pattern = re.compile(f"(?=({'|'.join(filter(None, choices))}))")
                leaves = self._texts or self._numbers
                of_any = (
                    partial(_masked, pattern, self._within_base64) if leaves else _without_shapes
                )
                of_short = lru_cache(4096)(of_any)
                self._mask = lambda text: (of_short if len(text) <= _SHORT else of_any)(text)
            return self._mask


def _masked(pattern: re.Pattern[str], within_base64: Collection[str], text: str) -> str:
    holds = partial(_holds, pattern, within_base64)
    if "\0" in text or "00" in text:  # UTF-16 that was taken for UTF-8
        narrow = _NUL.sub("", text)
        text = narrow if narrow != text and holds(narrow) else text
    # First, for nobody can decode a word of which a part has been taken out.
    text = _BASE64.sub(partial(_hidden, _from_base64, holds), text)
    pieces, end = [], 0
    for first, last in _spans(pattern, within_base64, text):
        pieces += [text[end:first], MARK]
        end = last
    masked = "".join([*pieces, text[end:]])
    if "%" in masked:
        masked = _PERCENT.sub(partial(_hidden, _from_percent, holds), masked)
    return _without_shapes(masked)


def _without_shapes(text: str) -> str:
    for words, shape in _SHAPES:
        if any(word in text for word in words):
            text = re.sub(shape, _marked, text, flags=re.DOTALL)
    return text


def _hidden(decode: Callable[[str], str], holds: Callable[[str], bool], word: re.Match[str]) -> str:
    return MARK if holds(decode(word[0])) else word[0]


def _holds(
    pattern: re.Pattern[str], within_base64: Collection[str], text: str, depth: int = 1
) -> bool:
    """
    Return whether a text contains something sensitive, also in nested encodings.
    """
    if not text:
        return False
    if "\0" in text:  # UTF-16 that was taken for UTF-8
        text += "\n" + text.replace("\0", "")
    return bool(_spans(pattern, within_base64, text)) or (
        depth < _DEEPEST
        and any(
            _holds(pattern, within_base64, decode(word), depth + 1)
            for encoded, decode in ((_BASE64, _from_base64), (_PERCENT, _from_percent))
            for word in encoded.findall(text)
        )
    )


def _from_base64(word: str) -> str:
    """
    Return the text that a word encodes in base64, also as UTF-16 in either byte order; empty if it
    is none, as nearly every word.
    """
    signs = word.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        data = binascii.a2b_base64(f"{signs}==")
        if b"\0" not in data:
            return data.decode()
    except ValueError:
        return ""
    codecs = ("utf-8", "utf-16-le", "utf-16-be")
    return "\n".join(data.decode(codec, errors="replace") for codec in codecs)


def _from_percent(word: str) -> str:
    data = _HEX.sub(lambda digits: bytes([int(digits[1], 16)]), _data(word.replace("+", " ")))
    return data.decode(errors="replace")


def _spans(
    pattern: re.Pattern[str], within_base64: Collection[str], text: str
) -> list[tuple[int, int]]:
    """
    Return the ranges to replace, in order; overlapping values are merged, existing marks skipped.
    The characters next to a base64 match hold bits of the value, too.
    """
    spans: list[tuple[int, int]] = []
    marked = 0
    for match in pattern.finditer(text):
        first, last = match.span(1)
        if match[1] == MARK:
            marked = last
        elif first >= marked:
            if match[1] in within_base64:
                first -= text[first - 1 : first] in _BASE64_SIGNS
                last += text[last : last + 1] in _BASE64_SIGNS
            if spans and first < spans[-1][1]:
                first, before = spans.pop()
                last = max(last, before)
            spans.append((first, last))
    return spans


def _marked(match: re.Match[str]) -> str:
    return (match.groupdict().get("keep") or "") + MARK


def _either(words: Iterable[str], depth: int = 0) -> str:
    """
    Return a pattern for the longest match of the words. It branches on the first characters,
    because ``re`` tries one alternative after the other.
    """
    remaining = sorted(words, key=len, reverse=True)
    if len(remaining) <= 1 or depth == SHORTEST:
        return "|".join(map(re.escape, remaining))
    branches: dict[str, list[str]] = {}
    for word in remaining:
        branches.setdefault(word[0], []).append(word[1:])
    return "|".join(
        f"{re.escape(first)}(?:{_either(rests, depth + 1)})" for first, rests in branches.items()
    )


def _leaves(value: Json) -> tuple[set[str], set[str]]:
    """
    Return the texts and the numbers, as text, in a value.
    """
    texts: set[str] = set()
    numbers: set[str] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.add(item)
            waiting.append(json_within(item))
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, int | float) and not isinstance(item, bool):
            numbers |= {d for d in _digits(item) if sum(c.isdigit() for c in d) >= SHORTEST}
    return texts, numbers


def json_within(text: str) -> Json:
    """
    Return the JSON value in a text, None if it is neither a structure nor a text.
    """
    if not _STRUCTURE.match(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _digits(number: float) -> set[str]:
    """
    Return a number as JSON and Terraform print it, without its sign.
    """
    texts = {json.dumps(number).lstrip("-")}
    if isinstance(number, float) and number.is_integer():
        texts.add(str(abs(int(number))))
    return texts


def _parts(text: str) -> Iterator[str]:
    """
    Yield the parts of a text that are sensitive by themselves: the whole, and every line, with and
    without indentation.
    """
    for part in (text, *text.splitlines()):
        for variant in {part, part.strip(), unicodedata.normalize("NFC", part)}:  # as engines do
            if len(variant) >= SHORTEST:
                yield variant


def _forms(text: str) -> set[str]:
    """
    Return a text in all encodings that are searched: also JSON in JSON in JSON, as engines print
    values from providers and ``jsonencode``.
    """
    data = _data(text)
    quoted = _json(text)
    once = {text, _hcl(text), *_quoted(text), *quoted, *_percent(data), *_base64(data)}
    thrice = (item for twice in map(_json, quoted) for item in map(_json, twice))
    return once.union(_wrapped(data), *map(_json, once), *map(_quoted, quoted), *thrice)


def _data(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _json(text: str) -> set[str]:
    """
    Return the text inside a JSON string, as Python and Go write it.
    """
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    go = plain
    for character in "&<>\u2028\u2029":
        go = go.replace(character, f"\\u{ord(character):04x}")
    return {
        plain,
        go,
        go.replace("\\b", "\\u0008").replace("\\f", "\\u000c"),
        json.dumps(text)[1:-1],
    }


def _hcl(text: str) -> str:
    """
    Return the text inside a quoted HCL string.
    """
    for character, escaped in (
        ("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"),
        ("${", "$${"), ("%{", "%%{"),
    ):  # fmt: skip
        text = text.replace(character, escaped)
    return text


def _quoted(text: str) -> set[str]:
    """
    Return the text in HTML as Python and Go escape it, in single quotes of a shell, and as a Python
    repr.
    """
    import html  # here: reading commands mask nothing

    python = html.escape(text)
    return {
        python,
        html.escape(text, quote=False),
        python.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
        text.replace("'", "'\"'\"'"),
        repr(text)[1:-1],
    }


def _percent(data: bytes) -> set[str]:
    """
    Return the text percent-encoded for URLs and forms, with the safe characters of Python,
    JavaScript and Go.
    """
    forms = set()
    for safe in (b"", b"/", b"!*'()", b"$&+:=@"):
        for escape in ("%{:02X}", "%{:02x}"):
            plain = _UNRESERVED.union(safe)
            quoted = "".join(chr(c) if c in plain else escape.format(c) for c in data)
            forms |= {quoted, quoted.replace("%20", "+")}
    return forms


def _base64(data: bytes) -> set[str]:
    """
    Return the text as base64, standard and URL-safe, with and without padding, at each offset
    within longer data.
    """
    forms = set()
    for before, skipped in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(before) + data).decode()
        core = encoded[skipped : (before + len(data)) * 8 // 6]
        if len(core) >= _SHORTEST_WITHIN_BASE64:
            forms.add(core)
        if before == 0:
            forms |= {encoded, encoded.rstrip("=")}
    return forms | {form.translate(str.maketrans("+/", "-_")) for form in forms}


def _wrapped(data: bytes) -> Iterator[str]:
    """
    Yield the lines of wrapped base64, as in PEM and MIME; the last characters may depend on what
    follows.
    """
    encoded = base64.b64encode(data).decode()[: len(data) * 8 // 6]
    for width in (64, 76):
        for start in range(0, len(encoded), width):
            line = encoded[start : start + width]
            if len(line) >= _SHORTEST_WITHIN_BASE64:
                yield line
