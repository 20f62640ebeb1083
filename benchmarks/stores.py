"""
What each operation of a store costs, and what runs ask of one: requests to an object store, and
milliseconds on loopback.

    python -m benchmarks.stores [--rounds N] [--steps N] [--wide N] [--machines N --seconds N]

SQLite, PostgreSQL (where it is installed) and S3 (moto). What requests cost is the same on the real
one, what they take is not.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from benchmarks.bench import table
from orchestrator.domain.record.record import Source
from orchestrator.domain.record.run_record import Lease
from orchestrator.domain.target import Target
from orchestrator.ports.store import OperationStore
from orchestrator.stores.bucket import open_bucket
from orchestrator.stores.objects import ObjectsStore
from orchestrator.stores.postgres import PostgresStore
from orchestrator.stores.sqlite import SqliteStore
from tests.aws.proxy import Proxy, proxy_before
from tests.engine.postgres import postgres_server
from tests.fakes.entries import NETWORK, OWNER, claim, entry
from tests.servers import s3_server
from tests.store_requests import CountedProject, counted_projects

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
        store = ObjectsStore(bucket, project="acme")
        found["s3"] = (store, proxy)
        yield found


def print_requests_of_runs(directory: Path) -> None:
    """
    What each step adds to a run's requests, and what a run makes beside its steps, heartbeats left
    out.
    """
    rows = []
    with counted_projects(directory, 1, 5) as (one, five):
        for what, name, arguments in (
            ("first apply", "one", ("apply", "shop", "--yes")),
            ("apply without changes", "one", ("apply", "shop", "--yes")),
            ("apply with changes", "two", ("apply", "shop", "--yes")),
            ("plan", "two", ("plan", "shop")),
            ("status", "two", ("status", "shop")),
            ("destroy", "two", ("destroy", "shop", "--yes")),
        ):
            counts = []
            for project in (one, five):
                project.describe(name)
                counts.append(project.requests(*arguments))
                counts[-1].pop("PUT leases", None)
            step = Counter({k: n // 4 for k, n in (counts[1] - counts[0]).items() if n // 4})
            beside = counts[0] - step
            rows.append((what, _told(step), str(beside.total())))
    table(("command", "requests of each step", "beside them"), rows)


def print_status_of_many(directory: Path, steps: int) -> None:
    """
    How long `status` of so many steps takes, by the clock and in processor time of the tool: the
    stand-in for S3 answers one request after the other.
    """
    with s3_server() as server:
        server.make_bucket("acme")
        project = CountedProject(directory / "wide", Proxy(), steps=steps, engine=None)
        project.environ |= {
            **server.environ,
            "AWS_ENDPOINT_URL_S3": server.endpoint,
            "AWS_REGION": "eu-west-1",
        }
        project.describe("one")
        bucket = open_bucket(project.store_url, server.config, server.environ)
        store = ObjectsStore(bucket, project="acme")
        source = Source(blueprint_path="blueprints/shop.yaml")
        for number in range(steps):
            store.append(entry(Target("shop", "default", f"s{number:04d}"), 1, source=source))
        taken = []
        for _ in range(3):
            began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-m", "orchestrator", "-C", str(project.root), "status", "shop"],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **project.environ},
            )
            spent = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = spent.ru_utime + spent.ru_stime - cpu.ru_utime - cpu.ru_stime
            taken.append((time.perf_counter() - began, used))
    clock, used = min(taken)
    table(
        ("command", "by the clock", "its processor time"),
        [(f"status of {steps} steps on S3", f"{clock:.1f} s", f"{used:.1f} s")],
    )


_SHOP = """
version: 1
name: {name}
operations: {{url: "s3://acme/machines?use_path_style=true"}}
backend: {{type: local, config: {{path: "{states}/{name}.tfstate"}}}}
steps:
  a: {{module: ../modules/m, inputs: {{name: "{value}"}}}}
"""
_MODULE = 'variable "name" {}\nresource "terraform_data" "this" { input = var.name }\n'


def print_machines(directory: Path, machines: int, seconds: float) -> None:
    """
    What so many machines (processes, each with a state directory of its own) do in that time with
    one bucket, with a blueprint each and with one for all of them: every apply makes a change. An
    error where an entry is lost, doubled or out of order.
    """
    rows = []
    for what, names in (
        ("a blueprint each", [f"shop{number}" for number in range(machines)]),
        ("one for all", ["shop"] * machines),
    ):
        with s3_server() as server:
            server.make_bucket("acme")
            place = directory / names[0]
            environ = {**os.environ, **server.environ, "AWS_REGION": "eu-west-1"}
            environ["AWS_ENDPOINT_URL_S3"] = server.endpoint
            work = partial(_apply_for, place, environ, seconds)
            with ThreadPoolExecutor(machines) as pool:
                codes = sum(pool.map(work, range(machines), names), Counter())
            bucket = open_bucket("s3://acme/machines", server.config, server.environ)
            store = ObjectsStore(bucket, project="acme")
            histories = [store.history(Target(name, "default", "a")) for name in {*names}]
        entries = sum(map(len, histories))
        in_order = all(
            [record.sequence for record in entries] == [*range(len(entries), 0, -1)]
            for entries in histories
        )
        if not in_order or entries != 2 * codes[0] or codes.keys() - {0, 20}:
            raise SystemExit(f"{what}: {entries} entries after {dict(codes)} (exit code: applies)")
        rows.append((what, str(codes[0]), str(codes[20]), str(entries)))
    table((f"{machines} machines, {seconds:.0f} s", "applies", "told busy", "entries"), rows)


def _apply_for(
    directory: Path, environ: dict[str, str], seconds: float, number: int, name: str
) -> Counter[int]:
    """
    Apply one change after the other on one machine: how many ended with which exit code.
    """
    root = directory / f"machine{number}"
    for part in ("blueprints", "modules/m"):
        (root / part).mkdir(parents=True)
    (root / "modules/m/main.tf").write_text(_MODULE)
    (root / "orchestrator.yaml").write_text("project: acme\n")
    codes: Counter[int] = Counter()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = f"{number}-{codes.total()}"
        text = _SHOP.format(name=name, value=value, states=directory / "states")
        (root / "blueprints/shop.yaml").write_text(text)
        command = [sys.executable, "-m", "orchestrator", "-C", str(root)]
        done = subprocess.run(
            [*command, "apply", "blueprints/shop.yaml", "--yes"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        codes[done.returncode] += 1
    return codes


def _told(counts: Counter[str]) -> str:
    return f"{counts.total()}: " + ", ".join(f"{n} {call}" for call, n in sorted(counts.items()))


def main() -> None:
    """
    Measure them all.
    """
    parser = argparse.ArgumentParser(description="Requests and times of the operation stores.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--wide", type=int, default=1000, help="steps of the widest status")
    parser.add_argument("--machines", type=int, default=8, help="that work at once")
    parser.add_argument("--seconds", type=float, default=120, help="for which they work")
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
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as place:
        print_requests_of_runs(Path(place))
        print_status_of_many(Path(place), options.wide)
        if options.machines:
            print_machines(Path(place), options.machines, options.seconds)


if __name__ == "__main__":
    main()
