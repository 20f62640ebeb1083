"""
What each operation of a store costs: requests to an object store, and milliseconds on loopback.

    python -m benchmarks.stores [--rounds N] [--steps N]

SQLite, PostgreSQL (where it is installed) and S3 (moto). What requests cost is the same on the real
one, what they take is not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.bench import table
from orchestrator.domain.record.run_record import Lease
from orchestrator.domain.target import Target
from orchestrator.ports.store import OperationStore
from orchestrator.stores.object_clients import open_bucket
from orchestrator.stores.objects import ObjectsStore
from orchestrator.stores.postgres import PostgresStore
from orchestrator.stores.sqlite import SqliteStore
from tests.aws.proxy import Proxy, proxy_before
from tests.engine.postgres import postgres_server
from tests.fakes.entries import NETWORK, OWNER, claim, entry
from tests.servers import s3_server

Work = Callable[[OperationStore, int], object]


def operations(steps: int) -> dict[str, Work]:
    """
    What is measured, by name; each is given the store and the number of the round.
    """

    def fill(store: OperationStore, _: int) -> None:
        for number in range(steps):
            with suppress(Exception):  # filled by an earlier round
                store.append(entry(Target("wide", "prod", f"s{number}"), 1))

    return {
        "first append of a target": lambda store, n: store.append(
            entry(Target("web", "prod", f"t{n}"), 1)
        ),
        "append": lambda store, n: store.append(entry(NETWORK, n + 1)),
        "newest": lambda store, _: store.newest(NETWORK),
        "history of it": lambda store, _: store.history(NETWORK),
        f"(fill {steps} targets)": fill,
        f"records of {steps} targets": lambda store, _: store.records("wide", "prod"),
        "take a claim": lambda store, n: store.take_claim(claim("r", environment=f"e{n}")),
        "drop a claim": lambda store, n: store.drop_claim(claim("r", environment=f"e{n}")),
        "heartbeat": lambda store, _: store.put_lease(Lease(run_id="r", owner=OWNER)),
        "read a heartbeat": lambda store, _: store.lease("r"),
        "write a blob of 100 KB": lambda store, n: store.put_blob(f"b{n}", bytes(100_000)),
        "read it": lambda store, n: store.blob(f"b{n}"),
    }


@contextmanager
def stores(directory: Path) -> Iterator[dict[str, tuple[OperationStore, Proxy | None]]]:
    """
    The stores by name, and what counts the requests of one, all empty.
    """
    with ExitStack() as stack:
        found: dict[str, tuple[OperationStore, Proxy | None]] = {
            "sqlite": (SqliteStore(directory / "operations.db"), None)
        }
        with suppress(pytest.skip.Exception):
            server = stack.enter_context(postgres_server())
            found["postgres"] = (PostgresStore(server.url, project="acme"), None)
        s3 = stack.enter_context(s3_server())
        s3.make_bucket("acme")
        proxy = stack.enter_context(proxy_before(int(s3.endpoint.rpartition(":")[2])))
        config = {**s3.config, "endpoints": {"s3": proxy.url}}
        bucket = open_bucket("s3://acme/orchestrator", config, s3.environ)
        store = ObjectsStore(bucket.client, url=bucket.url, project="acme", now=bucket.now)
        found["s3"] = (store, proxy)
        yield found


def main() -> None:
    """
    Measure them all.
    """
    parser = argparse.ArgumentParser(description="Requests and times of the operation stores.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    times: dict[str, dict[str, float]] = {}
    requests: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as place,
        stores(Path(place)) as opened,
    ):
        for name, (store, proxy) in opened.items():
            for operation, work in operations(options.steps).items():
                rounds = 1 if operation.startswith("(") else options.rounds
                taken = []
                for number in range(rounds):
                    if proxy:
                        proxy.calls.clear()
                    began = time.perf_counter()
                    work(store, number)
                    taken.append((time.perf_counter() - began) * 1000)
                times.setdefault(operation, {})[name] = statistics.median(taken)
                if proxy:
                    counts = sorted(Counter(call.split("?")[0] for call in proxy.calls).items())
                    requests[operation] = ", ".join(f"{n} {call}" for call, n in counts)
    rows = [
        (
            operation,
            *(f"{by.get(name, float('nan')):.1f} ms" for name in opened),
            requests[operation],
        )
        for operation, by in times.items()
        if not operation.startswith("(")
    ]
    table(("operation", *opened, "requests of s3"), rows)


if __name__ == "__main__":
    main()
