"""
Surgery on provider state: under the marker, never `ok` by itself, refused where it would do harm.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from fixtures.fakecloud import Cloud
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import Project, eventually, every_engine, finish
from tests.terminal import Terminal

pytestmark = pytest.mark.engine

STEP = "servers"
TEXT = """
    version: 1
    name: shop
    steps:
      servers:
        module: ../modules/server
        inputs: {name: web, names: [spare]}
"""
WEB = "fakecloud_server.this"
SPARE = 'fakecloud_server.more["spare"]'


@pytest.fixture
def project(project: Project) -> Project:
    project.write("blueprints/shop.yaml", TEXT)
    project.write("orchestrator.yaml", "settle_seconds: 0\n")
    return project


def ids(cloud: Cloud) -> dict[str | None, str]:
    return {server.name: server.id for server in cloud.servers()}


def lost_create(project: Project, cloud: Cloud) -> None:
    """
    An apply whose create of the spare server was done, and its answer lost.
    """
    cloud.arm("create", "spare", "lost_answer")
    assert project.run("apply", "shop", "--yes").code == 11


def adopting(object_id: str) -> tuple[str, ...]:
    """
    Take over what was found for the spare server, and close the doubt about it.
    """
    known = ("--forget", SPARE, "--reason", "there was no such server before")
    return "--adopt", f"{SPARE}={object_id}", *known


@every_engine
def test_an_object_in_doubt_is_adopted(project: Project, cloud: Cloud) -> None:
    """
    Laws: intent first; only success makes ok; not ours until proven.
    A marker with what is imported, then the status and error from before: nothing proves that this
    is the object in doubt, so a person closes that. Only the reconcile that follows, by an empty
    plan, makes `ok`. The next apply has nothing to do, and there is one object each; a destroy
    names what was adopted, and wants a reason.
    """
    lost_create(project, cloud)
    spare = ids(cloud)["spare"]

    ended = project.run("reconcile", "shop", "--yes", *adopting(spare))

    assert ended.code == 0, ended.said
    failed, marker, restored, reconciled = project.history(STEP)[1:]
    assert (marker["status"], marker["active_command"]) == ("running", "import")
    (planned,) = marker["resources"]["planned"]
    assert (planned["address"], planned["action"]) == (SPARE, "import")
    assert restored["status"] == "error"
    assert restored["error"] == failed["error"]
    assert [doubt["address"] for doubt in restored["resources"]["in_doubt"]] == [SPARE]
    assert [(a["address"], a["ownership"]) for a in restored["adopted"]] == [(SPARE, "found")]
    attempt = restored["last_attempt"]
    assert (attempt["command"], attempt["mutated"], attempt["error"]) == ("import", True, None)
    assert attempt["run_id"] == marker["run_id"]
    assert restored["provider_state"]["serial"] > failed["provider_state"]["serial"]
    assert reconciled["status"] == "ok"
    assert [(s["doubt"]["address"], s["how"]) for s in reconciled["settled"]] == [
        (SPARE, "forgotten")
    ]
    assert project.run("apply", "shop", "--yes", "--json").row["created"] == []
    assert sorted(filter(None, ids(cloud))) == ["spare", "web"]
    refused = project.run("destroy", "shop", "--yes")
    assert (refused.code, f"{SPARE} ({spare})" in refused.said) == (4, True), refused.said
    project.environ.pop("TF_IN_AUTOMATION", None)
    for typed, code in (("shop", 4), (STEP, 0)):
        terminal = Terminal(project, "destroy", "shop")
        terminal.wait_for(f"Type {STEP} to continue:")
        assert f"{SPARE} ({spare})" in terminal.shown
        terminal.type(f"{typed}\n")
        if not code:
            terminal.wait_for("[yes/no/all]")
            terminal.type("yes\n")
        assert len(ids(cloud)) == 2
        assert terminal.finish() == code, terminal.shown
    assert ids(cloud) == {}
    assert "typed at a terminal" in project.last_run()["arguments"]["accept_adopted"]


def test_beside_the_adoption_of_a_stranger_the_doubt_stays(project: Project, cloud: Cloud) -> None:
    """
    Law: not ours until proven.
    The one that was made is still looked for, and nothing renames or deletes the stranger: an apply
    is refused, and so is a destroy.
    """
    lost_create(project, cloud)
    stranger = cloud.create_out_of_band("fakecloud_server", "stranger").id

    adopted = project.run("reconcile", "shop", "--yes", "--adopt", f"{SPARE}={stranger}")
    record = project.record(STEP)

    assert adopted.code == 11, adopted.said
    assert [doubt["address"] for doubt in record["resources"]["in_doubt"]] == [SPARE]
    assert [(a["address"], a["id"]) for a in record["adopted"]] == [(SPARE, stranger)]
    assert project.run("apply", "shop", "--yes").code == 11
    assert project.run("destroy", "shop", "--yes").code == 4
    assert "stranger" in ids(cloud)


def test_an_adoption_that_is_recorded_already_is_not_done_again(
    project: Project, cloud: Cloud
) -> None:
    """
    The command that adopts it and closes its doubt goes on where the adoption alone was recorded;
    nothing is offered that would import it a second time.
    """
    lost_create(project, cloud)
    spare = ids(cloud)["spare"]
    adopted = project.run("reconcile", "shop", "--yes", "--json", "--adopt", f"{SPARE}={spare}")
    (doubt,) = project.record(STEP)["resources"]["in_doubt"]
    recovered = project.ok("recover", "shop", "--json").row

    closed = project.run("reconcile", "shop", "--yes", *adopting(spare))

    assert adopted.code == 11, adopted.said
    commands = [item["command"] for item in adopted.events[-1]["next"]]
    commands += [item["command"] for item in recovered["actions"] if item["command"]]
    assert any("--forget" in command for command in commands)
    assert not any("--adopt" in command for command in commands), commands
    assert f"{spare}, imported there, is not proven to be it" in doubt["why"]
    assert closed.code == 0, closed.said
    assert "is in the provider state already" in closed.said
    assert project.record(STEP)["status"] == "ok"


def test_the_plan_of_an_unproven_adoption_is_shown_before_it_is_approved(
    project: Project, cloud: Cloud
) -> None:
    """
    Law: not ours until proven.
    At a terminal: which object, that nothing proves it ours, and what an apply would do to it.
    """
    lost_create(project, cloud)
    before = project.entries(STEP)
    stranger = cloud.create_out_of_band("fakecloud_server", "stranger").id
    del project.environ["TF_IN_AUTOMATION"]

    terminal = Terminal(project, "reconcile", "shop", "--adopt", f"{SPARE}={stranger}")
    terminal.wait_for("nothing proves that it was made here, and an apply would replace it")
    terminal.type("no\n")

    assert terminal.finish() == 5
    assert project.entries(STEP) == before


BUCKET = "fakecloud_bucket.this"
ASSETS = """
    version: 1
    name: shop
    steps:
      assets:
        module: ../modules/assets
        inputs: {name: shop-assets}
        identity: {fakecloud_bucket.this: "${inputs.name}"}
"""
ASSETS_MODULE = """
    terraform {
      required_providers {
        fakecloud = { source = "test/fakecloud" }
      }
    }
    variable "name" { type = string }
    resource "fakecloud_bucket" "this" { name = var.name }
"""


def test_what_somebody_else_made_is_never_recommended_and_never_destroyed_unnamed(
    project: Project, cloud: Cloud
) -> None:
    """
    Law: not ours until proven.
    The provider said that the name is taken (the step had no `identity` yet, or it would have been
    looked for first): no screen recommends to adopt what has it. Adopted by a person's word it is
    kept as foreign, and a destroy names it and wants a reason.
    """
    project.write("modules/assets/main.tf", ASSETS_MODULE)
    lines = ASSETS.splitlines(keepends=True)
    project.write("blueprints/shop.yaml", "".join(x for x in lines if "identity:" not in x))
    theirs = cloud.create_out_of_band("fakecloud_bucket", "shop-assets").id

    applied = project.run("apply", "shop", "--yes")
    project.write("blueprints/shop.yaml", ASSETS)
    reconciled = project.run("reconcile", "shop")
    advised = project.ok("recover", "shop", "--json").document["steps"][0]
    offered = [item for item in advised["actions"] if item["action"] == advised["recommended"]]
    proven = project.run("reconcile", "shop", "--adopt-proven", "--yes")
    adopted = project.run(
        "reconcile", "shop", "--adopt", f"{BUCKET}={theirs}", "--forget", BUCKET,
        "--reason", "they gave it to us", "--yes",
    )  # fmt: skip
    record = project.record("assets")
    refused = project.run("destroy", "shop", "--yes")

    assert applied.code in (10, 11), applied.said
    assert not any("--adopt" in (item["command"] or "") for item in offered), offered
    assert "--adopt-proven" not in reconciled.said
    assert proven.code != 0 and adopted.code == 0, adopted.said
    assert [(a["id"], a["ownership"]) for a in record["adopted"]] == [(theirs, "foreign")]
    assert (refused.code, theirs in refused.said) == (4, True), refused.said
    assert [item.id for item in cloud.buckets()] == [theirs]
    project.ok("destroy", "shop", "--yes", "--accept-adopted", "they agree")


def test_it_is_not_done_without_approval(project: Project, cloud: Cloud) -> None:
    """
    It changes provider state: exit 5 without --yes where nobody can be asked, record untouched.
    """
    lost_create(project, cloud)
    before = project.entries(STEP)

    ended = project.run("reconcile", "shop", "--adopt", f"{SPARE}={ids(cloud)['spare']}")

    assert (ended.code, project.entries(STEP)) == (5, before)


def test_a_person_is_asked_in_so_many_words(project: Project, cloud: Cloud) -> None:
    """
    At a terminal: what would be done, with address and id; anything but yes means no, exit 5, and
    the record is untouched.
    """
    lost_create(project, cloud)
    before, spare = project.entries(STEP), ids(cloud)["spare"]
    del project.environ["TF_IN_AUTOMATION"]

    terminal = Terminal(project, "reconcile", "shop", "--adopt", f"{SPARE}={spare}")
    terminal.wait_for(f"{STEP}: import {spare} as {SPARE}; nothing proves")
    terminal.type("no\n")

    assert terminal.finish() == 5
    assert project.entries(STEP) == before


def test_a_protected_environment_is_named_first(project: Project) -> None:
    """
    As for an apply: --yes alone is exit 5; what changes only records needs no name.
    """
    protected = "    environments: {prod: {protected: true}}\n"
    project.write("blueprints/shop.yaml", TEXT + protected)
    project.copy("fixtures/fakecloud/modules/server")
    shutil.move(project.root / "fixtures/fakecloud/modules", project.root / "modules")
    where = ("shop", "-e", "prod", "--yes")

    for surgery in (("--untaint", WEB), ("--unlock", "1"), ("--push-errored-state",)):
        assert project.run("reconcile", *where, *surgery).code == 5
    assert project.run("import", f"shop/prod/{STEP}", WEB, "srv-1", "--yes").code == 5
    assert project.run("exec", f"shop/prod/{STEP}", "--yes", "--", "state", "rm", WEB).code == 5
    assert project.run("reconcile", *where).code == 0


def test_an_unproven_adoption_loads_provider_schemas_three_times(
    project: Project, cloud: Cloud, tmp_path: Path
) -> None:
    """
    The time budget: of the engine's calls only the import, the plan after it, and the one that is
    shown before it, because nothing proves whose the object is, start providers.
    """
    lost_create(project, cloud)
    engine = watched(project, tmp_path / "watched")

    project.ok("reconcile", "shop", "--yes", *adopting(ids(cloud)["spare"]))

    heavy = ("import", "plan", "apply", "init", "show", "validate", "refresh")
    assert [verb for verb in heavy for _ in engine.calls(verb)] == ["import", "plan", "plan"]


def test_an_engine_killed_in_an_import_is_settled(
    project: Project, cloud: Cloud, tmp_path: Path
) -> None:
    """
    Laws: only success makes ok; an outlived run is settled from evidence.
    Tool and engine are gone; the next command finds that nothing was imported, the
    error from before is back with the attempt beside it, and the adoption can be done again.
    """
    lost_create(project, cloud)
    before, adopt = project.record(STEP), adopting(ids(cloud)["spare"])
    engine = watched(project, tmp_path / "watched")
    engine.hold("import")
    tool = project.start("reconcile", "shop", "--yes", *adopt)
    engine.wait_until_held("import", tool)
    assert project.steps("shop")[STEP]["active_command"] == "import"
    kill_with_engine(project, tool, "apply")
    engine.release("import")

    ended = project.run("reconcile", "shop", "--yes", *adopt)

    assert ended.code == 0, ended.said
    marker, settled, *rest = project.history(STEP)[before["sequence"] :]
    assert (marker["status"], settled["status"]) == ("running", "error")
    assert settled["error"] == before["error"]
    attempt = settled["last_attempt"]
    assert (attempt["mutated"], attempt["error"]["code"]) == (False, "killed")
    assert [entry["status"] for entry in rest] == ["running", "error", "ok"]


def test_an_import_that_is_stopped_is_recorded(project: Project, cloud: Cloud) -> None:
    """
    Law: signals.
    The engine is told once and awaited; an import goes on to its end, and that is what is
    recorded. Nothing more is started: the error from before stands, exit 130.
    """
    lost_create(project, cloud)
    before, spare = project.record(STEP), ids(cloud)["spare"]
    cloud.arm("import", spare, "slow:0")  # in the plan that is shown
    cloud.arm("import", spare, "slow:3")
    tool = project.start("reconcile", "shop", "--yes", "--json", "--adopt", f"{SPARE}={spare}")
    eventually(lambda: len(cloud.calls("import")) == 2, "the import is under way", tool)
    tool.send_signal(signal.SIGINT)

    ended = finish(tool)

    record = project.record(STEP)
    assert ended.code == 130, ended.said
    assert (record["status"], record["error"]) == (before["status"], before["error"])
    assert [item["id"] for item in record["adopted"]] == [spare]
    assert record["last_attempt"]["error"] is None
    assert [e["status"] for e in project.history(STEP)[before["sequence"] :]] == [
        "running",
        "error",
    ]


def test_an_id_that_does_not_exist_adopts_nothing(project: Project, cloud: Cloud) -> None:
    """
    The engine says so; the failure is recorded beside the status from before, and the doubt stays.
    """
    lost_create(project, cloud)
    before = project.record(STEP)

    ended = project.run("reconcile", "shop", "--yes", "--json", "--adopt", f"{SPARE}=srv-none")

    after = project.record(STEP)
    assert ended.code == 11
    assert (after["status"], after["error"]) == (before["status"], before["error"])
    assert after["resources"]["in_doubt"] == before["resources"]["in_doubt"]
    attempt = after["last_attempt"]
    assert (attempt["mutated"], attempt["error"]["phase"]) == (False, "surgery")
    assert "non-existent" in attempt["error"]["summary"]
    assert ended.row["status"] == "error"


def test_the_object_of_another_address_is_not_adopted(project: Project, cloud: Cloud) -> None:
    """
    An id that the provider state manages already is refused before anything is marked.
    """
    lost_create(project, cloud)
    before = project.entries(STEP)

    ended = project.run(
        "reconcile", "shop", "--yes", "--json", "--adopt", f"{SPARE}={ids(cloud)['web']}"
    )

    assert ended.code == 4
    assert ended.row["error"]["code"] == "managed_already"
    assert project.entries(STEP) == before


def test_what_is_not_in_doubt_is_not_adopted(project: Project, cloud: Cloud) -> None:
    """
    Nor untainted where it is not tainted: input errors that name what could be, nothing recorded.
    """
    lost_create(project, cloud)
    before = project.entries(STEP)

    adopted = project.run("reconcile", "shop", "--yes", "--adopt", f"{WEB}=srv-1")
    untainted = project.run("reconcile", "shop", "--yes", "--untaint", WEB)
    malformed = project.run("reconcile", "shop", "--yes", "--adopt", "srv-1")

    assert (adopted.code, untainted.code, malformed.code) == (3, 3, 64)
    assert f"{WEB} is not in doubt" in adopted.said
    assert SPARE in adopted.said
    assert f"{WEB} is not tainted" in untainted.said
    assert "ADDRESS=ID" in malformed.said
    assert project.entries(STEP) == before


@every_engine
def test_a_tainted_object_that_is_sound_is_untainted(project: Project, cloud: Cloud) -> None:
    """
    Half made by the provider, whole in truth: untainted under the marker, the error stays, and the
    apply that makes it `ok` has only outputs to change: nothing is replaced.
    """
    cloud.arm("create", "spare", "error_after_partial")
    project.run("apply", "shop", "--yes")
    made = ids(cloud)

    ended = project.run("reconcile", "shop", "--yes", "--untaint", SPARE)

    assert ended.code == 0, ended.said
    _, marker, restored, last = project.history(STEP)[1:]
    assert (marker["status"], marker["active_command"]) == ("running", "untaint")
    assert (restored["status"], restored["resources"]["tainted"]) == ("error", [])
    assert last["status"] == "error"
    project.ok("apply", "shop", "--yes")
    assert project.record(STEP)["status"] == "ok"
    assert ids(cloud) == made


@every_engine
def test_an_import_comes_before_the_first_apply(project: Project, cloud: Cloud) -> None:
    """
    A step without a record that an object is imported into is `error`, unapplied, with exit 0: the
    command did what it was asked for. The next apply makes the rest, and it is `ok`.
    """
    found = cloud.create_out_of_band("fakecloud_server", "web", size="small").id
    ended = project.run("import", f"shop/default/{STEP}", WEB, found, "--yes", "--json")

    assert ended.code == 0, ended.said
    marker, record = project.history(STEP)
    assert (marker["status"], marker["active_command"]) == ("running", "import")
    assert (record["status"], record["failed_command"]) == ("error", "import")
    assert (record["error"]["code"], record["error"]["phase"]) == ("unapplied", "surgery")
    for screen in ("status", "recover"):
        assert "taken over, not applied yet, since just now" in project.run(screen, "shop").out
    assert [ref["id"] for ref in record["resources"]["inventory"]] == [found]

    applied = project.run("apply", "shop", "--yes", "--json")

    assert applied.row["created"] == [SPARE]
    assert project.record(STEP)["status"] == "ok"
    assert sorted(filter(None, ids(cloud))) == ["spare", "web"]
    assert ids(cloud)["web"] == found


def test_an_import_that_fails_leaves_nothing(project: Project, cloud: Cloud) -> None:
    """
    Into a step without a record: `absent`, as after an apply that began nothing (ADR 6), which is
    no success; into one that is ok: `ok`, with the attempt beside it. Exit 10 with the engine's own
    words.
    """
    target = f"shop/default/{STEP}"

    first = project.run("import", target, WEB, "srv-none", "--yes")

    assert first.code == 10
    assert "non-existent" in first.said
    assert project.record(STEP)["status"] == "absent"
    assert project.status("shop")["verdict"] == "error"
    assert project.run("status", "shop", "--expect", "destroyed").code == 4
    project.ok("apply", "shop", "--yes")

    second = project.run("import", target, 'fakecloud_server.more["new"]', "srv-none", "--yes")

    record = project.record(STEP)
    assert second.code == 10
    assert (record["status"], record["last_attempt"]["mutated"]) == ("ok", False)


# exec

TARGET = f"shop/default/{STEP}"


@pytest.fixture
def applied(project: Project, cloud: Cloud) -> Project:
    """
    The project with its step applied, a password among its inputs.
    """
    project.write(
        "blueprints/shop.yaml", TEXT.replace("[spare]", "[spare], password: Zq-hidden-77")
    )
    project.prepare("apply", "shop", "--yes")
    return project


@every_engine
def test_a_reading_command_of_the_engine_leaves_no_trace(applied: Project, cloud: Cloud) -> None:
    """
    Its output comes as it is, masked; what fails ends 10 with the engine's own words; no run, no
    entry.
    """
    before, runs = applied.entries(STEP), sorted(applied.own.glob("runs/*"))

    listed = applied.ok("exec", TARGET, "--", "state", "list")
    pulled = applied.ok("exec", TARGET, "--", "state", "pull")
    planned = applied.run("exec", TARGET, "--", "plan", "-detailed-exitcode")
    failed = applied.run("exec", TARGET, "--", "state", "show", "a.b")

    assert listed.out.splitlines() == [SPARE, WEB]
    assert '"password": "(sensitive)"' in pulled.out
    assert "Zq-hidden-77" not in pulled.said
    assert (planned.code, "No changes" in planned.out) == (0, True)
    assert (failed.code, failed.out) == (10, "")
    assert "No instance found" in failed.err
    assert (applied.entries(STEP), sorted(applied.own.glob("runs/*"))) == (before, runs)


def test_a_step_that_was_never_applied_can_be_looked_at(project: Project, cloud: Cloud) -> None:
    """
    With its module and inputs of today; what may change its provider state is refused: there is
    none.
    """
    planned = project.ok("exec", TARGET, "--", "plan")
    refused = project.run("exec", TARGET, "--yes", "--", "state", "rm", WEB)

    assert "2 to add" in planned.out
    assert refused.code == 4
    assert f"orchestrator import {TARGET}" in refused.out
    assert project.entries(STEP) == []


def test_secrets_in_the_words_of_a_command_are_not_kept(applied: Project, cloud: Cloud) -> None:
    """
    Law: secrets travel with values.
    Neither in the run record nor on screen.
    """
    secret = "Qx-secret-91"
    text = TEXT.replace(
        "    steps:", "    inputs: {key: {type: string, sensitive: true}}\n    steps:"
    )
    applied.write("blueprints/shop.yaml", text)
    applied.environ["ORCHESTRATOR_INPUT_key"] = secret

    ended = applied.run("exec", TARGET, "--yes", "--", "state", "rm", f'a.b["{secret}"]')

    kept = "".join(path.read_text() for path in applied.own.glob("runs/*/run.json"))
    assert ended.code == 10
    assert secret not in ended.said + kept + json.dumps(applied.history(STEP))


def test_a_mutating_command_of_the_engine_is_surgery(applied: Project, cloud: Cloud) -> None:
    """
    Law: intent first.
    Not without approval; then marker, output, and the status from before. What it took out
    of the provider state is still known, so that an apply asks before it makes it again (ADR 9).
    """
    unapproved = applied.run("exec", TARGET, "--", "state", "rm", SPARE)
    assert (unapproved.code, len(applied.entries(STEP))) == (5, 2)

    removed = applied.ok("exec", TARGET, "--yes", "--", "state", "rm", SPARE)

    assert "Successfully removed 1 resource" in removed.out
    marker, record = applied.history(STEP)[2:]
    assert (marker["status"], marker["active_command"]) == ("running", "exec")
    assert (record["status"], record["last_attempt"]["command"]) == ("ok", "exec")
    assert record["provider_state"]["serial"] > marker["provider_state"]["serial"]
    assert applied.last_run()["arguments"]["words"] == ["state", "rm", SPARE]
    again = applied.run("apply", "shop", "--yes")
    assert again.code == 11
    said = " ".join(again.said.split())
    assert f"in doubt: {SPARE} (it left the provider state" in said
    advice = applied.ok("recover", "shop", "--json").document["steps"]
    assert [row["situation"] for row in advice if row["step"] == STEP] == ["lost"]
    assert len(ids(cloud)) == 2


@pytest.mark.parametrize("how", ["put in its place", "imported"])
def test_what_came_into_the_state_without_us_is_not_destroyed_unnamed(
    applied: Project, cloud: Cloud, how: str
) -> None:
    """
    Law: not ours until proven.
    Somebody edited the provider state, or imported with the engine's own command: once the record
    knows, a destroy names the object, and wants a reason.
    """
    theirs = cloud.create_out_of_band("fakecloud_server", "theirs").id
    if how == "imported":
        applied.ok("exec", TARGET, "--yes", "--", "state", "rm", SPARE)
        applied.ok("exec", TARGET, "--yes", "--", "import", SPARE, theirs)
    else:
        state = applied.own / "state/shop/default/servers.tfstate"
        document = json.loads(state.read_text())
        changed = state.read_text().replace(ids(cloud)["spare"], theirs)
        state.write_text(changed.replace(f'"serial": {document["serial"]}', '"serial": 99'))
        assert applied.run("reconcile", "shop").code == 11

    refused = applied.run("destroy", "shop", "--yes")

    assert refused.code == 4, refused.said
    assert theirs in refused.said and "--accept-adopted" in refused.said
    assert len(cloud.servers()) == 3


def test_surgery_on_a_state_that_went_back_is_refused(applied: Project, cloud: Cloud) -> None:
    """
    Law: state moved without us.
    An older state was restored. Surgery would hide that behind a serial of its own; only
    reconcile takes it down. One that has moved on without us is told.
    """
    (state,) = applied.own.glob("state/**/servers.tfstate")
    content, before = json.loads(state.read_text()), applied.entries(STEP)
    remove = ("exec", TARGET, "--yes", "--", "state", "rm", SPARE)

    state.write_text(json.dumps(content | {"serial": content["serial"] - 1}))
    back = applied.run(*remove)
    untouched = applied.entries(STEP)
    state.write_text(json.dumps(content | {"serial": content["serial"] + 5}))
    on = applied.run(*remove)

    assert (back.code, untouched) == (4, before)
    assert "has gone back" in back.out
    assert on.code == 0
    assert "without this tool" in " ".join(on.out.split())


def test_a_mutating_command_that_fails_is_told_in_its_own_words(
    applied: Project, cloud: Cloud, tmp_path: Path
) -> None:
    """
    Exit 10; the status from before; the attempt holds what the engine said, and that it changed
    nothing.
    """
    stale = tmp_path / "stale.tfstate"
    (state,) = applied.own.glob("state/**/*.tfstate")
    stale.write_text(state.read_text().replace('"serial": ', '"serial": -'))

    ended = applied.run("exec", TARGET, "--yes", "--", "state", "push", str(stale))

    record = applied.record(STEP)
    assert ended.code == 10
    assert (record["status"], record["last_attempt"]["mutated"]) == ("ok", False)
    assert "serial" in record["last_attempt"]["error"]["summary"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["apply"], 4, "orchestrator apply"),
        (["destroy", "-auto-approve"], 4, "orchestrator destroy"),
        (["init", "-migrate-state"], 4, "initialised"),
        (["workspace", "select", "other"], 4, "one provider state"),
        (["plan", "-out=x"], 4, "orchestrator plan --out"),
        (["state", "rm", "-state=other", WEB], 4, "own provider state"),
        ([], 64, "-- state list"),
    ],
)
def test_what_is_not_run_by_exec_is_refused(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    """
    What keeps a journal, changes where the state is, or works on another one: refused with what to
    do instead, before anything is loaded.
    """
    ended = Project(tmp_path).run("exec", TARGET, "--", *words)

    assert ended.code == code
    assert said in ended.err


def test_what_was_shown_masked_is_not_pushed(
    applied: Project, cloud: Cloud, tmp_path: Path
) -> None:
    """
    A state that exec printed has lost its secrets: pushing it back is refused.
    """
    shown = tmp_path / "shown.tfstate"
    shown.write_text(applied.ok("exec", TARGET, "--", "state", "pull").out)
    before = applied.entries(STEP)

    ended = applied.run("exec", TARGET, "--yes", "--", "state", "push", str(shown))

    assert ended.code == 4
    assert "masked values" in ended.said
    assert applied.entries(STEP) == before
