"""
A provider state that the engine could not save: kept, told first, and pushed or dismissed by name.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engine.state_server import state_server
from tests.project import Ended, Project

pytestmark = pytest.mark.engine


class Unsaved:
    """
    An apply whose state cannot be saved, the applies after it, and ways to settle it.
    """

    def __init__(self, root: Path, engine: str) -> None:
        self.project = project = Project(root, engine=engine)
        blueprint = project.fixture("refuses-state")
        with state_server() as address:
            project.environ["ORCHESTRATOR_INPUT_state_address"] = address
            refuse = ("-i", f"refuse_url={address}/breaks?refuse=500")
            steps = ("--step", "+breaks")
            self.failed = project.run("apply", blueprint, "--yes", "--json", *steps, *refuse)
            self.record = project.record("breaks")
            self.file = Path(self.failed.events[-1]["steps"][1]["directory"], "errored.tfstate")
            self.kept = self.file.read_bytes()
            self.text = project.run("status", blueprint).out
            self.blocked = project.run("apply", blueprint, "--yes", "--json", *steps)
            self.spared = project.run("destroy", blueprint, "--yes", "--json", *steps)
            self.entries = project.entries("breaks")
            self.kept_since = self.file.read_bytes()
            accept = f"{address}/breaks?refuse=0"
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(accept).close()
            self.unasked = project.run("reconcile", blueprint, "--json", *steps)
            self.early = self._settle("--adopt", "terraform_data.object=x")
            self.entries_before = project.entries("breaks")
            self.pushed = self._settle("--push-errored-state")
            self.entries_after = project.history("breaks")
            self.aside = self._aside()
            self.nothing = self._settle("--push-errored-state")
            self.foreign = self._settle("--push-errored-state", lineage="other", outputs={})
            held = project.record("breaks")["provider_state"]["lineage"]
            older = {"lineage": held, "serial": -1, "outputs": {}}
            self.outdated = self._settle("--push-errored-state", **older)
            self.dismissed = self._settle("--dismiss-errored-state", "it is old, ticket 7")
            self.aside_last = self._aside()
            self.last = project.run("apply", blueprint, "--yes", "--json", *steps)
            self.objects = project.record("breaks")["resources"]["inventory"]

    def _settle(self, *options: str, **changed: Any) -> Ended:
        """
        Reconcile the step, its unsaved state being the one that there was but for what is changed.
        """
        if changed:
            self.file.write_text(json.dumps(json.loads(self.kept) | changed))
        steps = ("--step", "breaks", "--yes", "--json")
        blueprint = "fixtures/refuses-state/blueprint.yaml"
        return self.project.run("reconcile", blueprint, *steps, *options)

    def _aside(self) -> Path:
        """
        Where the file of the last run is kept.
        """
        run = self.project.last_run()["run_id"]
        (found,) = self.project.own.glob(f"runs/{run}/steps/breaks/1/errored.tfstate")
        return found


@pytest.fixture(scope="module")
def unsaved(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Unsaved:
    return Unsaved(tmp_path_factory.mktemp("unsaved"), engine)


def test_a_state_that_could_not_be_saved_is_the_headline(unsaved: Unsaved) -> None:
    """
    Of all the engine's errors the one that matters comes first: the state is in this file.
    """
    row: dict[str, Any] = unsaved.failed.events[-1]["steps"][1]

    assert row["error"]["code"] == "errored_state"
    assert str(unsaved.file) in row["last_error"]
    assert unsaved.record["status"] == "error"
    assert "errored.tfstate" in unsaved.text


def test_an_unsaved_state_blocks_the_next_apply(unsaved: Unsaved) -> None:
    """
    The next apply starts nothing in that step until the file is pushed or put aside; it is kept
    byte for byte, and the record stays.
    """
    assert unsaved.blocked.code == 11
    assert str(unsaved.file) in unsaved.blocked.events[-1]["steps"][1]["last_error"]
    assert unsaved.kept_since == unsaved.kept
    assert len(unsaved.entries) == unsaved.record["sequence"]


def test_an_unsaved_state_blocks_a_destroy(unsaved: Unsaved) -> None:
    """
    From the state that was saved it would delete what that knows and lose the rest: exit 11, the
    record stays, and what the step needs is not taken away either.
    """
    before, breaks = unsaved.spared.events[-1]["steps"]

    assert unsaved.spared.code == 11, unsaved.spared.said
    assert "--step breaks --push-errored-state" in breaks["last_error"]
    assert before["status"] == "pending" and "held back by breaks" in before["reason"]
    assert len(unsaved.entries) == unsaved.record["sequence"]


def test_an_unsaved_state_names_the_command_that_saves_it(unsaved: Unsaved) -> None:
    """
    On the screen of the apply and of a reconcile that was not asked to; neither touches the file.
    """
    command = "--step breaks --push-errored-state"

    assert unsaved.unasked.code == 11
    assert command in unsaved.unasked.events[-1]["steps"][1]["last_error"]
    (note,) = (e for e in unsaved.failed.events if e["type"] == "note" and e["level"] == "error")
    assert str(unsaved.file) in note["message"]
    assert command in note["hint"]


def test_nothing_but_saving_it_is_offered(unsaved: Unsaved) -> None:
    """
    What that state holds may be the very object in doubt: neither adopting nor applying is offered.
    """
    offered = [item["command"].split()[1] for item in unsaved.failed.events[-1]["next"]]

    assert offered == ["reconcile", "recover"]
    assert "--push-errored-state" in unsaved.failed.events[-1]["next"][0]["command"]


def test_no_other_surgery_comes_before_the_unsaved_state(unsaved: Unsaved) -> None:
    """
    The provider state would move on, and the unsaved one would be older than it: refused as long as
    it waits.
    """
    assert unsaved.early.code == 11
    assert "errored.tfstate" in unsaved.early.events[-1]["steps"][0]["last_error"]
    assert unsaved.entries_before == unsaved.entries


def test_a_pushed_state_settles_the_doubts(unsaved: Unsaved) -> None:
    """
    Laws: intent first; only success makes ok.
    Pushed under the marker, the error stays and the object in doubt is in the state;
    then the reconcile makes it `ok`, and the next apply makes no second object. The file is kept
    with the run, for its owner only.
    """
    marker, restored, reconciled = unsaved.entries_after[-3:]

    assert unsaved.pushed.code == 0
    assert (marker["status"], marker["active_command"]) == ("running", "push")
    assert (restored["status"], restored["error"]["code"]) == ("error", "errored_state")
    assert [item["how"] for item in restored["settled"]] == ["in_state"]
    assert reconciled["status"] == "ok"
    assert unsaved.aside.read_bytes() == unsaved.kept
    assert unsaved.aside.stat().st_mode & 0o777 == 0o600
    assert unsaved.last.code == 0
    assert unsaved.last.statuses == {"before": "ok", "breaks": "ok"}
    assert unsaved.last.events[-1]["steps"][1]["created"] == []
    assert [item["address"] for item in unsaved.objects] == ["terraform_data.object"]


@pytest.mark.parametrize(
    ("which", "code"),
    [("foreign", "lineage"), ("outdated", "serial_back"), ("nothing", "no_errored_state")],
)
def test_a_state_that_does_not_belong_is_not_pushed(
    unsaved: Unsaved, which: str, code: str
) -> None:
    """
    Another lineage, an older serial, or no such file: refused by that name before the engine runs.
    """
    ended: Ended = getattr(unsaved, which)

    assert ended.code == 4
    if which == "nothing":
        assert "errored.tfstate" in ended.events[-1]["error"]
    else:
        assert ended.events[-1]["steps"][0]["error"]["code"] == code


def test_a_dismissed_state_is_kept_with_its_reason(unsaved: Unsaved) -> None:
    """
    It blocks nothing any more and is never deleted; the run says why.
    """
    assert unsaved.dismissed.code == 0
    assert json.loads(unsaved.aside_last.read_text())["serial"] == -1
    arguments = [
        json.loads(path.read_text())["arguments"].get("dismiss_errored_state")
        for path in unsaved.project.own.glob("runs/*/run.json")
    ]
    assert [text for text in arguments if text] == ["it is old, ticket 7"]
