"""
What the masker finds, and what it leaves alone.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import threading
import unicodedata
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from orchestrator.domain.masking import MARK, Masker


def masker(*values: object) -> Masker:
    made = Masker()
    for value in values:
        made.add(value)
    return made


def _go_json(text: object) -> str:
    """
    As Go's encoding/json writes it.
    """
    plain = json.dumps(text, ensure_ascii=False)
    for character in "&<>\u2028\u2029":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return plain


SECRET = 's3c&<re>t "${x}" \\ ü/+?'

ENCODERS = {
    "raw": str,
    "python json": json.dumps,
    "utf-8 json": lambda text: json.dumps(text, ensure_ascii=False),
    "go json": _go_json,
    "json in go json": lambda text: _go_json(json.dumps(text)),
    "go json in go json": lambda text: _go_json(_go_json(text)),
    "hcl": lambda text: (
        '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("${", "$${") + '"'
    ),
    "url": lambda text: quote(text, safe=""),
    "url path": quote,
    "form": quote_plus,
    "lower-case url": lambda text: re.sub(
        "%..", lambda match: match[0].lower(), quote(text, safe="")
    ),
    "html": html.escape,
    "html as Go writes it": lambda text: html.escape(text).replace("&quot;", "&#34;"),
    "repr": repr,
    "shell": shlex.quote,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "url-safe base64": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS)
def test_a_value_is_found_in_every_encoding(encode: object) -> None:
    """
    A sensitive value is masked however an engine, a provider or a URL writes it.
    """
    assert callable(encode)
    text = f"before {encode(SECRET)} after"

    masked = masker(SECRET).mask(text)

    quotes = str.maketrans("", "", "\"'")
    expected = (f"before {MARK} after", f"before \\{MARK}\\ after")
    assert masked.translate(quotes) in expected


#: What a module or a provider puts around a value and then encodes.
WRAPPERS: dict[str, Callable[[str], str]] = {
    "json": lambda text: _go_json({"auths": {"auth": [text]}}),
    "dsn": lambda text: f"postgres://u:{quote(text, safe='')}@h/db",
    "base64": lambda text: base64.b64encode(f"u:{text}".encode()).decode(),
    "form": lambda text: f"a=1&p={quote_plus(text)}",
    "utf-16": lambda text: base64.b64encode(f"u:{text}".encode("utf-16")).decode(),
    "utf-16-be": lambda text: base64.b64encode(f"u:{text}".encode("utf-16-be")).decode(),
    "taken for utf-8": lambda text: text.encode("utf-16-le").decode("utf-8", "replace"),
    "composed": lambda text: unicodedata.normalize("NFC", text),
}


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=6, max_size=30),
    st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=3),
)
@example('p&<w"x\\y/1%z+ =', ["json", "base64"])
@example("p@ss word", ["dsn", "base64"])
@example("hunter2hunter2", ["base64", "json", "base64"])
@example("passwe\u0301rd", ["composed"])
@example('hun"ter & <2>', ["json", "json", "json"])
@example("correct horse", ["json", "utf-16", "json"])
@example("correct horse", ["taken for utf-8", "form"])
def test_a_value_is_found_within_what_was_encoded_again(secret: str, wrappers: list[str]) -> None:
    """
    As in the secret of a cluster: base64 of JSON that holds base64 of user and password. Accents
    are composed, as engines do it.
    """
    assume(len(secret.strip()) >= 6 and (secret.isascii() or "taken for utf-8" not in wrappers))
    text = secret
    for name in wrappers:
        text = WRAPPERS[name](text)
    masked = masker(secret).mask(f"before {text} after")
    assert MARK in masked and text not in masked
    assert secret not in masked.replace("\0", "")


def test_words_that_hold_no_secret_stay() -> None:
    """
    What only looks like base64 or a percent sign is left alone.
    """
    text = "arn:aws:s3:::bucket/some%20key 100%ab i-0abcdef0123456789 aGVsbG8gd29ybGQ="
    assert masker("correct-horse").mask(text) == text


@pytest.mark.parametrize("encode", [html.escape, shlex.quote, repr, json.dumps])
def test_a_value_with_both_quotes_is_found_as_well(encode: object) -> None:
    assert callable(encode)
    secret = """it's "5 o'clock" & <late>"""

    masked = masker(secret).mask(f"before {encode(secret)} after")

    assert "clock" not in masked


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "user1:"])
@pytest.mark.parametrize("after", ["", "x", "xy", ":more"])
def test_a_value_is_found_within_base64_at_every_alignment(before: str, after: str) -> None:
    """
    Base64 of "user:password" does not hold the base64 of the password; what it holds is masked.
    """
    secret = "correct-horse-battery"
    text = base64.b64encode(f"{before}{secret}{after}".encode()).decode()

    masked = masker(secret).mask(text)

    other = base64.b64encode(f"{before}{secret.upper()}{after}".encode()).decode()
    assert MARK in masked
    assert masked == masker(secret.upper()).mask(other), "no bit of the value is left"


@pytest.mark.parametrize("width", [64, 76])
@pytest.mark.parametrize("after", ["", "\n"])
def test_a_long_value_is_found_line_by_line_where_its_base64_is_wrapped(
    width: int, after: str
) -> None:
    """
    As `base64` and PEM print it, also where a line break was encoded with it.
    """
    secret = "token-" + "".join(map(str, range(60)))
    encoded = base64.b64encode(f"{secret}{after}".encode()).decode()
    lines = [encoded[n : n + width] for n in range(0, len(encoded), width)]
    left = [masker(secret).mask(line).removeprefix("(sensitive)") for line in lines]
    assert len(lines) > 1
    assert all(len(line) <= 5 for line in left), left  # of the last: too little, or not its own


def test_every_leaf_of_a_structure_is_sensitive() -> None:
    """
    Texts and numbers at any depth are masked; keys and booleans are not.
    """
    made = masker({"user": ["adalovelace", {"pin": 987654, "port": 12.5e3, "on": True}]})

    assert made.mask("user adalovelace pin 987654 port 12500 on true") == (
        f"user {MARK} pin {MARK} port {MARK} on true"
    )


def test_a_number_is_masked_only_as_a_number() -> None:
    """
    Digits within longer digits are another number.
    """
    assert masker(4321).mask("4321 x4321y 94321 43210 1.4321 -4321") == (
        f"{MARK} x{MARK}y 94321 43210 1.4321 -{MARK}"
    )


@pytest.mark.parametrize("value", ["abc", "", 123, True, None, 1.5, [], {}])
def test_short_values_are_not_masked(value: object) -> None:
    """
    From four characters or digits up: shorter ones would blank out everything.
    """
    text = "abc 123 True true null 1.5 [] {}"

    assert masker(value).mask(text) == text


def test_every_line_of_a_value_is_sensitive() -> None:
    """
    Text reaches us line by line, and indented: each line of four characters and more is masked.
    """
    made = masker("first line\n  second line\nend\r\n")

    assert made.mask("  first line") == f"  {MARK}"
    assert made.mask("+ second line") == f"+ {MARK}"
    assert made.mask("end") == "end"


def test_the_longest_value_wins() -> None:
    """
    Where one value begins another, nothing of the longer one remains.
    """
    assert masker("hunter22", "hunter22-extended").mask("hunter22-extended!") == f"{MARK}!"


def test_overlapping_values_leave_nothing() -> None:
    """
    Where values overlap in the text, the rest of the second does not remain.
    """
    assert masker("abcdef", "efghij").mask("<abcdefghij>") == f"<{MARK}>"


def test_masking_twice_changes_nothing() -> None:
    """
    A value that is part of the mark itself does not eat it.
    """
    made = masker("sens", "itive")
    once = made.mask("a sens b")

    assert (once, made.mask(once)) == (f"a {MARK} b", f"a {MARK} b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcdef0123456789abcd", f"Authorization: Bearer {MARK}"),
        ('{"Authorization":"Basic dXNlcjpwYXNz"}', f'{{"Authorization":"Basic {MARK}"}}'),
        ("bearer abcdef0123456789abcd.", f"bearer {MARK}"),
        ("key AKIAIOSFODNN7EXAMPLE!", f"key {MARK}!"),
        (
            'aws_secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"',
            f'aws_secret_access_key = "{MARK}"',
        ),
        ("AIzaSyA-1234567890abcdefghijklmnopqrstu", MARK),
        ("AccountKey=abcdefghijklmnop0123456789==;Endpoint", f"AccountKey={MARK};Endpoint"),
        ("https://x/b?sv=1&sig=abcdefghijklmnop%2B", f"https://x/b?sv=1&sig={MARK}"),
        ("postgres://ada:p@ss:w0rd@db:5432/x", f"postgres://ada:{MARK}@db:5432/x"),
        ("https://:pw@host/", f"https://:{MARK}@host/"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", MARK),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", MARK),
    ],
)
def test_secrets_are_found_by_their_shape(text: str, expected: str) -> None:
    """
    What nobody declared sensitive is masked where its shape gives it away, once.
    """
    masked = Masker().mask(text)

    assert masked == expected
    assert Masker().mask(masked) == expected


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"key:\n{KEY}\nend", f"key:\n{MARK}\nend"),
        (json.dumps({"key": KEY, "b": 1}), f'{{"key": "{MARK}", "b": 1}}'),
        (KEY[:50], MARK),
    ],
)
def test_private_keys_are_found_as_blocks(text: str, expected: str) -> None:
    """
    The whole block goes, also JSON-escaped, also where its end is cut off.
    """
    assert Masker().mask(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://user@host/path",
        "http://127.0.0.1:8080/a:b@c",
        "basic authentication",
        "-----BEGIN CERTIFICATE-----\nMIIabc\n-----END CERTIFICATE-----",
        "aws_instance.this: Creation complete after 10s [id=i-0123456789abcdef0]",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    """
    Nothing that only resembles a secret is masked.
    """
    assert Masker().mask(text) == text


def test_json_is_masked_leaf_by_leaf() -> None:
    """
    The structure stays; texts, keys and sensitive numbers are masked.
    """
    made = masker("hunter22", 98765)

    assert made.mask_json({"a": ["x hunter22", 98765, 1, None, True], "hunter22": 98765.0}) == {
        "a": [f"x {MARK}", MARK, 1, None, True],
        MARK: MARK,
    }


def test_a_value_added_later_is_masked_from_then_on() -> None:
    """
    Adding after masking takes effect at once.
    """
    made = masker("hunter22")
    made.mask("anything")

    made.add("hunter33")

    assert made.mask("hunter22 hunter33") == f"{MARK} {MARK}"


def test_threads_add_and_mask_at_once() -> None:
    """
    What a thread has added is masked in that thread, whatever the others do.
    """
    made = Masker()
    leaks: list[str] = []

    def work(thread: int) -> None:
        for number in range(30):
            value = f"value-{thread}-{number}."
            made.add(value)
            if value in made.mask(f"say {value}"):
                leaks.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert leaks == []


@given(secret=st.text(min_size=4, max_size=30), around=st.text(max_size=5))
def test_no_text_escapes(secret: str, around: str) -> None:
    """
    Any text of four characters and more is gone from raw, JSON, URL and base64 forms.
    """
    made = masker(secret)
    forms = [
        secret,
        json.dumps(secret)[1:-1],
        _go_json(secret)[1:-1],
        quote(secret, safe=""),
        base64.b64encode(secret.encode()).decode(),
    ]
    for form in forms:
        masked = made.mask(f"{around}{form}{around}")
        assert form not in masked or form in MARK


def test_a_text_that_was_masked_before_is_masked_anew_once_more_is_known() -> None:
    """
    What was remembered of a text does not outlive a secret that is learnt later.
    """
    made = masker("first-secret")
    before = made.mask("first-secret and second-secret")
    made.add("second-secret")
    assert before == f"{MARK} and second-secret"
    assert made.mask("first-secret and second-secret") == f"{MARK} and {MARK}"
