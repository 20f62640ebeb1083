"""
Write the first data of a server, and take it away again.

    seed.py check JSON     fails unless the right server answers
    seed.py admin JSON     sets the administrator, with the password in ADMIN_PASSWORD
    seed.py items JSON     writes all items
    seed.py fail JSON      writes the first item, then fails
    seed.py remove JSON    removes administrator and items; nothing to do if the server is gone

JSON has url, server_id, admin_user, items.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any, NoReturn
from urllib.parse import quote

Seed = dict[str, Any]


def say(message: str) -> None:
    sys.stdout.write(f"bootstrap: {message}\n")


def fail(message: str) -> NoReturn:
    raise SystemExit(f"bootstrap: {message}")


def ask(method: str, url: str, body: object = None) -> Any:
    """One request, without any proxy; errors never quote the body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=10) as response:
        text = response.read()
    return json.loads(text) if text else None


def check(seed: Seed) -> None:
    if ask("GET", f"{seed['url']}/healthz")["id"] != seed["server_id"]:
        fail(f"another server answers on {seed['url']}")


def admin(seed: Seed) -> None:
    account = {"user": seed["admin_user"], "password": os.environ["ADMIN_PASSWORD"]}
    ask("PUT", f"{seed['url']}/admin", account)


def items(seed: Seed) -> None:
    for key, value in sorted(seed["items"].items()):
        ask("PUT", f"{seed['url']}/items/{quote(key, safe='')}", value)
        say(f"wrote {key}")


def fail_half_way(seed: Seed) -> None:
    first = dict(sorted(seed["items"].items())[:1])
    items({**seed, "items": first})
    fail(f"told to fail after {len(first)} of {len(seed['items'])} items")


def remove(seed: Seed) -> None:
    try:
        running = ask("GET", f"{seed['url']}/healthz")["id"]
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ConnectionRefusedError):
            raise
        say("the server is gone, and its data with it")
        return
    if running != seed["server_id"]:
        say("another server answers there; its data is left alone")
        return
    for key in seed["items"]:
        ask("DELETE", f"{seed['url']}/items/{quote(key, safe='')}")
    ask("DELETE", f"{seed['url']}/admin")


VERBS = {"check": check, "admin": admin, "items": items, "fail": fail_half_way, "remove": remove}

if __name__ == "__main__":
    try:
        VERBS[sys.argv[1]](json.loads(sys.argv[2]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"{json.loads(sys.argv[2])['url']}: {error}")
