"""
Ask a url until it answers with the status wanted.

    probe.py JSON    with url, status, within (seconds)
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request


def status_of(url: str, timeout: float) -> int:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=timeout) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def main(argument: str) -> None:
    wanted = json.loads(argument)
    deadline = time.monotonic() + wanted["within"]
    while True:
        try:
            status = status_of(wanted["url"], max(1.0, deadline - time.monotonic()))
            found = f"answered {status}"
        except OSError as error:
            status, found = 0, f"does not answer: {getattr(error, 'reason', error)}"
        if status == wanted["status"]:
            sys.stdout.write(f"probe: {wanted['url']} {found}\n")
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"probe: {wanted['url']} {found}, wanted {wanted['status']}")
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
