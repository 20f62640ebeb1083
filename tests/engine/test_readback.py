"""
Readback: the provider is asked for what a create may have left, in one plan that writes nothing.
"""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest

from tests.engine.readback_project import HEAVY, REQUIRED, Place
from tests.engine.watched_engine import kill_with_engine, watched
from tests.project import finish
from tests.terminal import Terminal

pytestmark = pytest.mark.engine


class Scene:
    """
    One apply in which every create but two loses its answer, one is refused and one's request was
    lost; then two readbacks, the first before the settling time is over.
    """

    def __init__(self, place: Place) -> None:
        self.place, cloud = place, place.cloud
        inputs = (
            "with: [this, misnamed, note, inner], servers: [one, two], "
            "buckets: [sound, never, refused]"
        )
        place.wants(inputs)
        for name in ("acme", "acme-inner", "two", "misnamed"):
            cloud.arm("create", name, "lost_answer")
        cloud.arm("create", "note", "error_after")
        cloud.arm("create", "never", "lost_request")
        cloud.arm("create", "refused", "error_before:QuotaExceeded")
        place.settle_after(600)
        self.apply = place.apply()
        self.doubts = {d["address"] for d in place.record["resources"]["in_doubt"]}
        self.before = cloud.objects()
        # Declared later: before a create, what exists under any id would be refused.
        place.wants(inputs, identity='"fakecloud_note.note[0]": note')
        self.early = place.reconcile()
        self.early_readbacks = place.readbacks
        place.settle_after(0)
        self.late = place.reconcile()
        self.readbacks = place.readbacks
        self.settled = place.settled
        self.after = cloud.objects()
        self.record = place.record


@pytest.fixture(scope="module")
def scene(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    place = Place(tmp_path_factory.mktemp("scene"), engine)
    with place.cloud.attached() as reattach:
        place.project.environ["TF_REATTACH_PROVIDERS"] = reattach
        return Scene(place)


def test_a_refused_create_is_not_asked_for(scene: Scene) -> None:
    """
    What the provider refused is not in doubt: nothing is asked of it.
    """
    assert scene.apply.code == 11
    assert 'fakecloud_bucket.many["refused"]' not in scene.doubts
    assert len(scene.doubts) == 6


def test_a_lost_answer_is_found_by_identity(scene: Scene) -> None:
    """
    An object whose create was carried out exists, under its import id, in child modules too.
    """
    for address, id_ in {
        "fakecloud_bucket.this[0]": "acme",
        "module.inner[0].fakecloud_bucket.deep": "acme-inner",
    }.items():
        found = scene.readbacks[address]
        assert (found["verdict"], found["method"], found["ids"]) == ("exists", "identity", [id_])


def test_a_search_finds_exactly_the_missing_instance(scene: Scene) -> None:
    """
    Of what a search lists, ids that provider state holds are no candidates.
    """
    (two,) = (item for item in scene.after if item.name == "two")
    found = scene.readbacks['fakecloud_server.found["two"]']
    assert (found["verdict"], found["method"], found["ids"]) == ("exists", "search", [two.id])


def test_a_name_where_the_provider_wants_an_id_is_never_absent(scene: Scene) -> None:
    """
    An identity that was never seen to be the id of an object proves nothing: unknown, although the
    provider says that there is no such object. It exists.
    """
    found = scene.readbacks["fakecloud_server.misnamed[0]"]
    assert (found["verdict"], found["ids"]) == ("unknown", [])
    assert "never been seen to be the id" in found["why"]
    assert "misnamed" in {item.name for item in scene.after}


def test_what_is_unknown_says_where_to_look(scene: Scene) -> None:
    """
    Time window and inputs stand beside it, for a person who looks in the provider's console.
    """
    look = scene.readbacks["fakecloud_server.misnamed[0]"]["look"]
    assert look["since"] <= look["until"]
    assert look["inputs"]["name"] == "acme"


def test_what_exists_under_any_id_is_a_candidate(scene: Scene) -> None:
    """
    The control: a type without a remote side is "found", so it is offered, and nothing more.
    """
    found = scene.readbacks["fakecloud_note.note[0]"]
    assert (found["verdict"], found["ids"]) == ("exists", ["note"])


def test_nothing_is_absent_before_the_settling_time(scene: Scene) -> None:
    """
    A request may still be under way: until then what is not found is unknown, and says for how
    long.
    """
    found = scene.early_readbacks['fakecloud_bucket.many["never"]']
    assert found["verdict"] == "unknown"
    assert "ask again in" in found["why"]


def test_a_proven_absence_settles_the_doubt(scene: Scene) -> None:
    """
    The same identity is the id of another instance, so a missing one was never made: settled, with
    the answer as evidence.
    """
    assert scene.settled == {'fakecloud_bucket.many["never"]': "absent"}
    (row,) = scene.record["settled"]
    assert row["doubt"]["readback"]["verdict"] == "absent"


def test_a_readback_changes_nothing_but_the_record(scene: Scene) -> None:
    """
    The cloud, provider state and working directory are as they were; of the private copy nothing
    is left.
    """
    assert scene.after == scene.before
    assert list(scene.place.project.own.rglob(".private-*")) == []
    assert scene.record["status"] == "error"
    assert (scene.early.code, scene.late.code) == (11, 11), scene.late.said


def test_what_was_found_is_offered_to_be_adopted(scene: Scene) -> None:
    """
    All that are proven ours by one command; the others are each named.
    """
    offered = [item["command"] for item in scene.late.events[-1]["next"]]
    assert any("--adopt-proven" in command for command in offered)
    assert any("--forget 'fakecloud_server.misnamed[0]'" in command for command in offered)


def test_another_object_than_the_one_found_is_not_adopted(place: Place) -> None:
    """
    A wrong id would leave what the provider was found to have to nobody: refused, the record as it
    was, until a person forgets what was found.
    """
    place.wants("buckets: [lone]")
    place.cloud.create_out_of_band("fakecloud_bucket", "stranger")
    place.cloud.arm("create", "lone", "lost_answer")
    place.apply()
    place.reconcile()
    before = place.project.entries("things")
    address = 'fakecloud_bucket.many["lone"]'

    refused = place.reconcile("--adopt", f"{address}=stranger", "--yes")

    assert refused.code == 4
    assert refused.events[-1]["steps"][0]["error"]["code"] == "not_the_one_found"
    assert place.project.entries("things") == before
    assert place.reconcile("--forget", address, "--yes", "--reason", "it is stranger").code == 0
    target = "asked/default/things"
    assert place.project.run("import", target, address, "stranger", "--yes").code == 0


def test_a_doubt_can_be_forgotten_although_all_else_has_vanished(place: Place) -> None:
    """
    No plan can be made without a reason for what vanished, and no apply while something is in
    doubt: what a person knows is recorded, nothing is asked, and then the apply goes on.
    """
    place.wants("buckets: [sound]")
    assert place.apply().code == 0
    place.wants("buckets: [sound, never, other]")
    for name in ("never", "other"):
        place.cloud.arm("create", name, "lost_request")
    place.apply()
    place.cloud.delete_out_of_band("sound")
    never, other = (f'fakecloud_bucket.many["{name}"]' for name in ("never", "other"))

    assert place.reconcile().code == 4
    assert place.reconcile("--forget", never, "--yes", "--reason", "I looked").code == 11
    assert place.readbacks == {other: None}
    assert place.reconcile("--forget", other, "--yes", "--reason", "I looked").code == 0

    gone = ("--accept-vanished", "I deleted it")
    assert place.project.run("apply", "asked", "--yes", *gone).code == 0


def test_an_identity_is_proven_by_an_object_of_before(place: Place) -> None:
    """
    A bucket that was there under the same identity, with the inputs of then, and is gone again
    proves it: a lost request is absent.
    """
    place.wants("with: [this]")
    assert place.apply().code == 0
    place.wants("with: []")
    assert place.apply().code == 0
    place.wants("with: [this]", name="beta")
    place.cloud.arm("create", "beta", "lost_request")
    assert place.apply().code == 11

    ended = place.reconcile()

    assert (ended.code, place.settled) == (0, {"fakecloud_bucket.this[0]": "absent"})
    assert place.record["status"] == "absent"


def test_a_search_that_never_found_one_proves_nothing(place: Place) -> None:
    """
    An empty search is unknown until it has been seen to find an object of the resource.
    """
    place.wants("servers: [lone]")
    place.cloud.arm("create", "lone", "lost_request")
    place.apply()

    assert place.reconcile().code == 11
    assert "never been seen to find" in place.readbacks['fakecloud_server.found["lone"]']["why"]


def test_a_search_that_finds_the_others_proves_an_absence(place: Place) -> None:
    """
    It finds the sibling that provider state holds, and not this one.
    """
    place.wants("servers: [one, two]")
    place.cloud.arm("create", "two", "lost_request")
    place.apply()

    assert place.reconcile().code == 0
    assert place.settled == {'fakecloud_server.found["two"]': "absent"}


def test_each_instance_is_searched_for_by_its_key(place: Place) -> None:
    """
    With a search of its own each is told from the others: one is there, one was never made, for
    the same search finds the one that provider state holds.
    """
    place.wants("servers: [sound, made, never]")
    blueprint = place.project.root / "blueprints/asked.yaml"
    text = blueprint.read_text().replace(
        "arguments: {tags", 'arguments: {name: "${each.key}", tags'
    )
    blueprint.write_text(text)
    place.cloud.arm("create", "made", "lost_answer")
    place.cloud.arm("create", "never", "lost_request")
    place.apply()

    place.reconcile()

    (made,) = (item.id for item in place.cloud.servers() if item.name == "made")
    assert place.readbacks['fakecloud_server.found["made"]']["ids"] == [made]
    assert place.settled == {'fakecloud_server.found["never"]': "absent"}


def test_what_another_blueprint_has_is_no_candidate(place: Place) -> None:
    """
    A search may be wide enough to find it; it is managed, so nothing is found that is missing.
    """
    place.wants("servers: [lone]")
    blueprint = place.project.root / "blueprints/asked.yaml"
    other = blueprint.read_text().replace("name: asked", "name: other")
    place.project.write("blueprints/other.yaml", other)
    place.project.ok("apply", "other", "--yes")
    place.cloud.arm("create", "lone", "lost_request")
    place.apply()

    place.reconcile()

    found = place.readbacks['fakecloud_server.found["lone"]']
    assert (found["verdict"], found["ids"]) == ("unknown", [])


def test_a_search_by_which_one_was_adopted_is_proven(place: Place) -> None:
    """
    It found a server whose answer was lost, which was then adopted; so when it finds none later,
    there is none.
    """
    place.wants("servers: [lone]")
    place.cloud.arm("create", "lone", "lost_answer")
    place.apply()
    assert place.adopt(place.reconcile()).code == 0
    place.wants("servers: []")
    assert place.apply("--accept-adopted", "it was made for a test").code == 0
    place.wants("servers: [lone]")
    place.cloud.arm("create", "lone", "lost_request")
    assert place.apply().code == 11

    assert place.reconcile().code == 0
    assert place.record["status"] == "absent"


def test_a_provider_configured_from_objects_proves_no_absence(place: Place) -> None:
    """
    While that object is to be made anew, the provider may ask another region than it created in.
    """
    main = place.project.root / "modules/things/main.tf"
    region = """
resource "terraform_data" "region" {
  input = "eu-1"
}

provider "fakecloud" {
  region = terraform_data.region.output
}
"""
    main.write_text(main.read_text() + region)
    place.wants("buckets: [sound]")
    assert place.apply().code == 0
    place.wants("buckets: [sound, never]")
    place.cloud.arm("create", "never", "lost_request")
    place.apply()

    assert place.reconcile().code == 11
    assert "queried elsewhere" in place.readbacks['fakecloud_bucket.many["never"]']["why"]


def test_a_provider_in_another_scope_proves_no_absence(tmp_path: Path, engine: str) -> None:
    """
    What may have been made in one region is not absent because another has no such thing. Asked in
    the region of then it is, also on a machine with another key.
    """
    place = Place(tmp_path, engine)
    place.project.environ["FAKECLOUD_REGION"] = "here-1"
    for wanted in ("with: [this]", "with: []"):
        place.wants(wanted)
        assert place.apply().code == 0
    place.wants("with: [this]")
    place.cloud.arm("create", "acme", "lost_request")
    assert place.apply().code == 11

    place.project.environ["FAKECLOUD_REGION"] = "there-2"
    assert place.reconcile().code == 11
    assert (
        "it was applied in (FAKECLOUD_REGION differ)"
        in place.readbacks["fakecloud_bucket.this[0]"]["why"]
    )

    place.project.environ["FAKECLOUD_REGION"] = "here-1"
    place.project.environ["ORCHESTRATOR_KEY"] = "ab" * 32
    assert place.reconcile().code == 0
    assert place.settled == {"fakecloud_bucket.this[0]": "absent"}


def test_a_signal_ends_a_readback(place: Place) -> None:
    """
    SIGINT while the provider is asked: exit 130, the record is as it was, nothing is left behind.
    """
    place.wants("with: [this]")
    place.cloud.arm("create", "acme", "lost_answer")
    place.apply()
    before = place.project.entries("things")
    place.cloud.arm("import", "acme", "slow")
    tool = place.project.start("reconcile", "asked", "--json")
    place.cloud.wait_for_call("import", "acme", nth=2)  # the first was before the create
    tool.send_signal(signal.SIGINT)

    assert finish(tool).code == 130
    assert place.project.entries("things") == before
    assert list(place.project.own.rglob(".private-*")) == []


def test_no_secret_of_a_readback_is_kept(place: Place) -> None:
    """
    Sensitive values of inputs and providers are asked with, and stand in no file and no record
    afterwards; of a provider's configuration the rest is told.
    """
    secret = "s3cret-Value"
    place.wants("servers: [lone], with: [misnamed]")
    blueprint = place.project.root / "blueprints/asked.yaml"
    text = blueprint.read_text().replace("inputs: {name: acme", 'inputs: {name: "${inputs.pw}"')
    text = text.replace("steps:", "inputs: {pw: {type: string, sensitive: true}}\nsteps:")
    providers = 'providers: {fakecloud: {region: eu-1, token: "${inputs.pw}"}}'
    blueprint.write_text(f"{text}    {providers}\n")
    place.project.environ["ORCHESTRATOR_INPUT_pw"] = secret
    for name in ("lone", "misnamed"):
        place.cloud.arm("create", name, "lost_answer")
    place.apply()

    ended = place.reconcile()

    found = place.readbacks['fakecloud_server.found["lone"]']
    look = place.readbacks["fakecloud_server.misnamed[0]"]["look"]
    assert (found["verdict"], found["method"]) == ("exists", "search")
    assert look["provider"] == {"region": "eu-1", "token": "(sensitive)"}
    assert secret not in ended.said
    state = place.project.own / "state"
    for file in place.project.own.rglob("*"):
        if file.is_file() and not file.is_relative_to(state):
            assert secret.encode() not in file.read_bytes(), file


def test_a_credential_written_out_in_a_blueprint_is_not_told(place: Place) -> None:
    """
    Where to look names region and alias of a provider, never what stands under the name of a
    credential, at any depth.
    """
    place.wants("with: [misnamed]")
    blueprint = place.project.root / "blueprints/asked.yaml"
    providers = 'providers: {fakecloud: [{region: eu-1, token: "written-out"}]}'
    blueprint.write_text(f"{blueprint.read_text().rstrip()}\n    {providers}\n")
    place.cloud.arm("create", "misnamed", "lost_answer")
    place.apply()

    ended = place.reconcile()

    look = place.readbacks["fakecloud_server.misnamed[0]"]["look"]
    assert "eu-1" in look["provider"]["fakecloud"]
    assert "written-out" not in ended.said + place.project.entries("things")[-1]


def test_a_provider_that_cannot_be_asked_leaves_it_unknown(place: Place) -> None:
    """
    An error while reading is no absence; its text is the reason.
    """
    place.wants("with: [this]")
    place.cloud.arm("create", "acme", "lost_answer")
    place.apply()
    place.cloud.arm("import", "acme", "read_error")

    assert place.reconcile().code == 11
    found = place.readbacks["fakecloud_bucket.this[0]"]
    assert found["verdict"] == "unknown"
    assert "InternalError" in found["why"]


def test_fifty_objects_are_read_back_in_one_plan(place: Place, tmp_path: Path) -> None:
    """
    A reconcile calls two engine processes that load provider schemas, however much is in doubt.
    """
    names = [f"b{number}" for number in range(50)]
    place.wants("buckets: [sound]")
    assert place.apply().code == 0
    place.wants(f"buckets: [sound, {', '.join(names)}]")
    place.cloud.arm("create", "*", "lost_answer", 50)
    engine = watched(place.project, tmp_path / "watched")
    place.apply()
    heavy = [len(engine.calls(verb)) for verb in HEAVY]

    place.reconcile()

    assert [len(engine.calls(verb)) for verb in HEAVY] == [heavy[0] + 2, *heavy[1:]]
    assert len(place.readbacks) == 50
    assert {found["verdict"] for found in place.readbacks.values()} == {"exists"}


def test_what_is_proven_ours_is_taken_over_by_one_plan_on_one_approval(
    place: Place, tmp_path: Path
) -> None:
    """
    It is what the screen recommends where several objects are; afterwards nothing is left to do.
    """
    place.wants("buckets: [one, two, three]")
    place.cloud.arm("create", "*", "lost_answer", 3)
    place.apply()
    place.reconcile()
    (advised,) = place.project.ok("recover", "asked", "--json").document["steps"]
    offered = next(a for a in advised["actions"] if a["action"] == advised["recommended"])
    engine = watched(place.project, tmp_path / "watched")

    words = shlex.split(offered["command"])[1:]
    del place.project.environ["TF_IN_AUTOMATION"]
    terminal = Terminal(place.project, *words)
    terminal.wait_for("things: import ")
    terminal.type("yes\n")

    assert "--adopt-proven" in words
    assert (terminal.finish(), terminal.shown.count("Continue?")) == (0, 1)
    assert "3 to import" in terminal.shown
    assert place.project.record("things")["resources"]["in_doubt"] == []
    assert (len(engine.calls("import")), len(engine.calls("apply"))) == (0, 1)
    again = place.project.ok("apply", "asked", "--yes", "--json")
    assert len(place.cloud.buckets()) == 3, again.said


def test_a_killed_readback_leaves_nothing_behind(place: Place) -> None:
    """
    The record stays as it was, and the private copy goes with the next run.
    """
    place.wants("with: [this]")
    place.cloud.arm("create", "acme", "lost_answer")
    place.apply()
    before = place.project.entries("things")
    place.cloud.arm("import", "acme", "slow")
    tool = place.project.start("reconcile", "asked", "--json")
    place.cloud.wait_for_call("import", "acme", nth=2)  # the first was before the create
    kill_with_engine(place.project, tool, "query-1-1")
    assert tool.returncode == -signal.SIGKILL
    assert place.project.entries("things") == before
    assert len(list(place.project.own.rglob(".private-*"))) == 1

    place.reconcile()

    assert place.readbacks["fakecloud_bucket.this[0]"]["verdict"] == "exists"
    assert list(place.project.own.rglob(".private-*")) == []


def test_a_provider_with_an_alias_is_asked_as_configured(tmp_path: Path, engine: str) -> None:
    """
    Import uses the configuration of the resource; a search the one that it names. In the default
    region there is neither.
    """
    place = Place(tmp_path, engine)
    main = place.project.root / "modules/things/main.tf"
    text = main.read_text()
    for name in ('"fakecloud_bucket" "this"', '"fakecloud_server" "found"'):
        text = text.replace(f"resource {name} {{", f"resource {name} {{\n  provider = fakecloud.eu")
    main.write_text(text)
    place.wants("with: [this], servers: [far]")
    blueprint = place.project.root / "blueprints/asked.yaml"
    blueprint.write_text(
        blueprint.read_text().replace("ids: ids", "ids: ids\n        provider: fakecloud.eu")
        + "    providers: {fakecloud: [{}, {alias: eu, region: eu-1}]}\n"
    )
    place.cloud.arm("create", "acme", "lost_answer")
    place.cloud.arm("create", "far", "lost_answer")
    place.apply()

    place.reconcile()

    found = place.readbacks
    (far,) = place.cloud.servers()
    assert found["fakecloud_bucket.this[0]"]["ids"] == ["acme"]
    assert found['fakecloud_server.found["far"]']["ids"] == [far.id]


ODD = """
variable "keys" {
  type = set(string)
}

resource "fakecloud_server" "odd" {
  name = "odd"
  tags = { mark = "a $${key} \\"q\\"" }
}

resource "fakecloud_bucket" "odd" {
  for_each = var.keys
  name     = each.key
}
"""
ODD_BLUEPRINT = """
    version: 1
    name: asked
    steps:
      things:
        module: ../modules/odd
        inputs: {keys: ['a.b["c"]$${d}', "x=y", "two\\nlines"]}
        identity: {module.inner.fakecloud_bucket.odd: "${each.key}"}
        search:
          module.inner.fakecloud_server.odd:
            data: fakecloud_servers
            arguments: {tags: {mark: 'a $${key} "q"'}}
            ids: ids
"""


def test_odd_names_are_asked_for_as_they_are(place: Place) -> None:
    """
    Quotes, dots, equals signs, a new line and what looks like a template, in keys, ids and
    arguments; and a provider that only a child module requires. What is offered adopts exactly
    these.
    """
    place.project.write(
        "modules/odd/main.tf",
        'variable "keys" {\n  type = set(string)\n}\n\n'
        'module "inner" {\n  source = "./inner"\n  keys   = var.keys\n}\n',
    )
    place.project.write("modules/odd/inner/main.tf", REQUIRED + ODD)
    place.project.write("blueprints/asked.yaml", ODD_BLUEPRINT)
    place.cloud.arm("create", "*", "lost_answer", 4)
    place.apply()
    asked = place.reconcile()
    assert {found["verdict"] for found in place.readbacks.values()} == {"exists"}

    place.adopt(asked)

    assert place.apply().code == 0
    assert sorted(item.name for item in place.cloud.objects()) == [
        'a.b["c"]${d}',
        "odd",
        "two\nlines",
        "x=y",
    ]
