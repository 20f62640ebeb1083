"""
One store and several processes: they race, and they are killed in the middle of what they do.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.domain.target import Target
from orchestrator.domain.values import replace
from tests.aws.proxy import Proxy
from tests.contract.clients import Place, once, take_turns, work
from tests.contract.stores import PLACES, shared_place
from tests.fakes.entries import NETWORK, claim, entry, lease
from tests.project import PATIENCE, REPOSITORY, eventually, finish
from tests.server import ForkedRun, tool_server


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """
    An empty place of each kind.
    """
    return shared_place(request, request.param, tmp_path)


def start(work: Callable[..., int], place: Place, *arguments: object) -> ForkedRun:
    """
    Start a client of the place in a process of its own.
    """
    return tool_server().start(
        f"{work.__module__}:{work.__name__}",
        [place.document, *arguments],
        environ=os.environ,
        directory=REPOSITORY,
        seconds=2 * PATIENCE,
    )


def killed_after(place: Place, lines: int, number: int, told: Path) -> list[str]:
    """
    What a client that works from ``number`` on has told, killed once it told so many lines.
    """
    told.write_text("")
    child = start(work, place, number, str(told))
    eventually(lambda: told.read_text().count("\n") >= lines, "it works", child)
    child.kill()
    finish(child)
    return [line for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("name", [name for name in PLACES if name != "sqlite"])
def test_two_projects_share_a_place(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    """
    Targets, claims, leases and blobs of the same names are apart, also where the name of one begins
    that of the other.
    """
    place = shared_place(request, name, tmp_path)
    projects = ["acme", "acme2", "acme/2"]
    stores = [replace(place, project=project).open() for project in projects]
    for number, (store, project) in enumerate(zip(stores, projects, strict=True), start=1):
        for sequence in range(1, number + 1):
            store.append(entry(sequence=sequence, entry_id=f"{project}-{sequence}"))
        assert store.take_claim(claim(f"run-{project}")) is None
        store.put_lease(lease(f"run-{number}"))
        store.put_blob("runs/r/run.json", project.encode())
        store.put_blob(f"runs/{number}", b"")

    for number, (store, project) in enumerate(zip(stores, projects, strict=True), start=1):
        assert [item.entry_id for item in store.records()] == [f"{project}-{number}"]
        assert len(store.history(NETWORK)) == number
        assert store.claim("web", "prod") == claim(f"run-{project}")
        assert [n for n in (1, 2, 3) if store.lease(f"run-{n}")] == [number]
        assert store.blob("runs/r/run.json") == project.encode()
        assert store.blobs("") == sorted(["runs/r/run.json", f"runs/{number}"])
        store.close()


def test_sixteen_writers_in_four_processes_take_turns(place: Place) -> None:
    """
    Each entry is of the one who was told that it is; none is lost, doubled or out of order, and a
    claim is never held by two.
    """
    processes = [start(take_turns, place, f"p{number}") for number in range(4)]
    written: dict[str, list[int]] = {}
    for process in processes:
        ended = finish(process)
        assert ended.code == 0, ended.err
        written |= ended.document
    store = place.open()
    found = [(item.sequence, item.entry_id) for item in reversed(store.history(NETWORK))]
    store.close()

    told = sorted((n, f"{name}-{n}") for name, numbers in written.items() for n in numbers)
    assert len(written) == 16
    assert found == told
    assert [number for number, _ in found] == [*range(1, 33)]


def test_what_was_acknowledged_survives_a_kill_of_the_client(place: Place, tmp_path: Path) -> None:
    """
    SIGKILL at any point, and again on what is left: what a call returned for is there, a blob is
    whole and one of the last two, no entry is missing between others; whoever comes next goes on.
    """
    chance = random.Random(str(place.url.partition(":")[0]))
    done = dict.fromkeys(("append", "claim", "lease", "blob", "key", "unclaim"), 0)
    appended = number = 0
    for _ in range(3):
        for line in killed_after(place, chance.randrange(1, 60), number, tmp_path / "done"):
            what, count = line.split()
            done[what] = number = int(count)
            appended += what == "append"
        number = max(done.values()) + 1

        store = place.open()
        target = Target("web", "prod", "t")
        sequences = [item.sequence for item in store.history(target)]
        held, beat = store.claim("web", "prod"), store.lease("run")
        blob = store.blob("runs/r/evidence.zip") or b""
        keys = [store.blob(f"key/{count}") for count in range(1, done["key"] + 1)]
        store.close()
        assert sequences == [*range(len(sequences), 0, -1)]
        assert appended <= len(sequences) <= appended + 1
        appended = len(sequences)
        assert held is None or held.run_id in {f"run-{n}" for n in range(number + 1)}
        if done["lease"]:
            assert beat is not None and done["lease"] <= beat.owner.pid <= number
        if done["blob"]:
            assert (
                len(blob) == 160_000 and len({blob[n : n + 8] for n in range(0, 160_000, 8)}) == 1
            )
            assert done["blob"] <= int(blob[:8]) <= number
        assert [key for key in keys if key] == [
            b"%d" % count for count, key in enumerate(keys, start=1) if key
        ]
        assert keys[-1:] in ([], [b"%d" % done["key"]])


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("operation", "nth"),
    [("append", 1), ("append", 2), ("claim", 1), ("lease", 1), ("blob", 1), ("key", 1)],
)
def test_a_client_killed_in_a_request_leaves_all_or_nothing(
    proxied: tuple[Place, Proxy], operation: str, nth: int, moment: str
) -> None:
    """
    With each request that writes on its way, not yet carried out or carried out and not answered:
    what is there is what was before or what was to be, and others go on from that.
    """
    place, proxy = proxied
    store = place.open()
    store.append(entry(sequence=1, entry_id="one"))
    reached = proxy.calls if moment == "before" else proxy.handled
    wanted = reached.count("PUT object") + nth
    proxy.arm("PUT object", "hang" if moment == "before" else "mute", nth=nth)
    child = start(once, place, operation)
    eventually(lambda: reached.count("PUT object") == wanted, "the request is made", child)
    child.kill()
    finish(child)
    done = (moment, nth) == ("after", 2 if operation == "append" else 1)

    store = place.open()
    match operation:
        case "append":
            store.append(entry(sequence=3 if done else 2, entry_id="next"))
            names = ["next", "killed", "one"] if done else ["next", "one"]
            assert [item.entry_id for item in store.history(NETWORK)] == names
        case "claim":
            held = store.claim("web", "prod")
            assert held == (claim("killed") if done else None)
            assert store.take_claim(claim("next"), replaces=held) is None
        case "lease":
            assert (store.lease("killed") is not None) is done
        case "blob":
            assert store.blob("runs/r/evidence.zip") == (bytes(100_000) if done else None)
        case _:
            assert store.create_blob("project-key", b"next") == (b"killed" if done else b"next")
