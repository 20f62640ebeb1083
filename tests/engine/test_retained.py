"""
Retained targets: a destroy leaves them alone and says so, an apply leaves them retained.
"""

from __future__ import annotations

import pytest

from tests.project import Project

pytestmark = pytest.mark.engine

#: ``other`` comes with a state place that a caller can get wrong.
BLUEPRINT = """
    version: 1
    name: shared
    inputs:
      place: {type: string, default: states}
      value: {type: string, default: one}
    steps:
      zone:
        module: ../fixtures/shared/object
        inputs: {name: zone, value: "${inputs.value}"}
        retain: {reason: shared zone, owner: net-team, review_by: 2027-06-30}
      other:
        module: ../fixtures/shared/object
        inputs: {name: other}
        backend:
          type: local
          config: {path: "${inputs.place}/other.tfstate"}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.copy("fixtures/shared")
    project.write("blueprints/shared.yaml", BLUEPRINT)
    project.prepare("apply", "shared", "--yes")
    return project


def test_the_plan_of_a_destroy_shows_what_is_kept(project: Project) -> None:
    """
    Unchanged, with the reason; only the other step would be deleted.
    """
    document = project.ok("plan", "shared", "--destroy", "--json").document

    rows = {row["step"]: row for row in document["steps"]}
    assert (rows["zone"]["status"], rows["other"]["status"]) == ("unchanged", "planned")
    assert rows["zone"]["reason"] == "retained: shared zone"


def test_nothing_is_retained_by_a_destroy_that_cannot_begin(project: Project) -> None:
    """
    The other step fails in preflight: no record is changed, the one to be retained is still `ok`.
    """
    before = project.entries("zone"), project.entries("other")

    ended = project.run("destroy", "shared", "--yes", "-i", "place=elsewhere")

    assert ended.code == 4, ended.said
    assert (project.entries("zone"), project.entries("other")) == before


def test_a_retained_step_outlives_destroys_and_applies(project: Project) -> None:
    """
    A destroy skips it and records `retained` with reason, owner and status from before; an apply
    that changes it leaves it `retained`, and so does one that changes nothing; both say why.
    """
    destroyed = project.run("destroy", "shared", "--yes", "--json")
    verdict = project.status("shared")["verdict"]
    retained = project.record("zone")
    for _ in ("it changes", "nothing does"):
        said = project.ok("apply", "shared", "--yes", "--step", "zone", "-i", "value=two").out
        assert "retained: shared zone (net-team" in said

    rows = {row["step"]: row for row in destroyed.events[-1]["steps"]}
    statuses = [entry["status"] for entry in project.history("zone")]
    assert destroyed.code == 0
    assert (rows["zone"]["status"], rows["zone"]["reason"]) == ("skipped", "retained: shared zone")
    assert verdict == "destroyed_with_retained"
    assert retained["retained"]["owner"] == "net-team"
    assert retained["retained"]["was"] == "ok"
    assert statuses == ["running", "ok", "retained", "running", "retained", "retained"]
    assert project.record("zone")["outputs"]["value"] == "two"


def test_a_retained_step_that_is_named_is_not_passed_over(project: Project) -> None:
    """
    By its name, also with what depends on it, a destroy is refused, whoever retains it: a person
    or, before any destroy, the blueprint alone. A pattern passes over it.
    """
    named = [project.run("destroy", "shared", "--yes", "-s", step) for step in ("zone", "zone+")]
    project.ok("destroy", "shared", "--yes", "--step", "z*")
    later = project.run("destroy", "shared", "--yes", "--step", "+zone")

    assert [ended.code for ended in (*named, later)] == [4, 4, 4]
    assert all("remove `retain` from the blueprint" in ended.said for ended in named)
    assert "orchestrator release shared --step zone" in later.said


def test_an_apply_does_not_destroy_what_is_retained(project: Project) -> None:
    """
    A replacement is refused until the step is released, by the plan as by the apply; where only the
    blueprint retains it, both say so. What changes in place goes on.
    """
    replacing = ("shared", "--step", "zone", "--replace", "terraform_data.object")
    expected = project.ok("plan", *replacing).said
    told = project.ok("apply", *replacing, "--yes").said
    project.ok("destroy", "shared", "--yes")
    alive = project.record("zone")["resources"]["inventory"]

    planned = project.run("plan", *replacing)
    refused = project.run("apply", *replacing, "--yes")
    unmoved = project.record("zone")["resources"]["inventory"]
    project.ok("apply", "shared", "--step", "zone", "-i", "value=two", "--yes")
    project.ok("release", "shared", "--step", "zone", "--reason", "moved")
    released = project.ok("apply", *replacing, "--yes").said

    for said in (expected, told, planned.said, refused.said, released):
        said = " ".join(said.split())
        assert "destroy terraform_data.object" in said and "shared zone (net-team" in said
    assert (planned.code, refused.code) == (4, 4)
    assert "orchestrator release shared --step zone" in refused.said
    assert unmoved == alive
    assert project.record("zone")["resources"]["inventory"] != alive


KEPT = ("--reason", "audit", "--owner", "ops-team", "--review-by")


def test_only_what_is_ok_can_be_retained(project: Project) -> None:
    """
    One of the named steps is destroyed: none is retained. Reason, owner and date are asked for, and
    a date that has passed is no date of review.
    """
    project.ok("destroy", "shared", "--yes", "--step", "other")
    before = project.entries("zone")

    refused = project.run("retain", "shared", "-s", "zone", "-s", "other", *KEPT, "2999-01-01")
    past = project.run("retain", "shared", "-s", "zone", *KEPT, "2001-01-01")
    lacking = project.run("retain", "shared", "-s", "zone", "--reason", "audit")
    no_date = project.run("retain", "shared", "-s", "zone", *KEPT, "soon")

    assert (refused.code, past.code, lacking.code, no_date.code) == (4, 3, 64, 64)
    assert "other is destroyed" in refused.said
    assert "has passed: 2001-01-01" in past.said
    assert project.entries("zone") == before


def test_what_a_person_retained_stays_until_it_is_released(project: Project) -> None:
    """
    `retain` keeps a step that the blueprint does not: it is shown with owner and date, no destroy
    touches it, and once released it goes like any other. `was` survives a new date of review.
    """
    project.ok("retain", "shared", "-s", "other", *KEPT, "2999-01-01")
    project.ok("retain", "shared", "-s", "other", *KEPT, "2999-12-31")
    kept = project.steps("shared")["other"]
    text = project.ok("status", "shared").out
    destroyed = project.ok("destroy", "shared", "--yes", "--json")
    strict = project.run("status", "shared", "--expect", "destroyed")
    allowing = project.run("status", "shared", "--expect", "destroyed", "--allow-retained")
    again = project.run("release", "shared", "-s", "other", "-s", "zone", "--reason", "moved")
    gone = project.ok("destroy", "shared", "--yes", "--json")

    rows = {row["step"]: row for row in destroyed.events[-1]["steps"]}
    later = {row["step"]: row["status"] for row in gone.events[-1]["steps"]}
    assert kept["status"] == "retained"
    assert kept["retained"] == {
        "reason": "audit", "owner": "ops-team", "review_by": "2999-12-31", "was": "ok",
    }  # fmt: skip
    assert "audit (ops-team, review by 2999-12-31)" in text
    assert (rows["other"]["status"], rows["other"]["reason"]) == ("skipped", "retained: audit")
    assert rows["other"]["retained"]["owner"] == "ops-team"
    assert (strict.code, allowing.code) == (4, 0), allowing.said
    assert again.code == 0, again.said
    assert "blueprints/shared.yaml:7:" in again.said, "the blueprint would retain the zone again"
    assert later == {"zone": "skipped", "other": "destroyed"}


def test_what_is_not_retained_is_not_released(project: Project) -> None:
    """
    `release` of an `ok` step is refused, and changes nothing.
    """
    before = project.entries("other")

    ended = project.run("release", "shared", "-s", "other", "--reason", "moved")

    assert ended.code == 4, ended.said
    assert "other is ok" in ended.said
    assert project.entries("other") == before


def test_a_retained_step_keeps_what_it_needs_and_overdue_reviews_are_told(
    project: Project,
) -> None:
    """
    A destroy says before anything is destroyed what stays for a retained step, and that the day of
    its review has passed; `status` shows it, and so long nobody may count it as reviewed.
    """
    old = BLUEPRINT.replace("2027-06-30", "2001-01-01").replace(
        "        inputs: {name: zone", "        needs: [other]\n        inputs: {name: zone"
    )
    project.write("blueprints/shared.yaml", old)

    destroyed = project.ok("destroy", "shared", "--yes", "--json")
    status = project.ok("status", "shared")
    expected = project.run("status", "shared", "--expect", "destroyed", "--allow-retained")

    notes = [e for e in destroyed.events if e["type"] == "note"]
    said = {note["step"]: note["message"] for note in notes if note["step"]}
    assert said["other"] == "stays: needed by zone, which is retained"
    assert said["zone"] == "its review was due on 2001-01-01 (net-team)"
    assert project.record("other")["status"] == "ok"
    assert project.steps("shared")["zone"]["review_overdue"] is True
    assert "its review was due on 2001-01-01: ask net-team" in status.out
    assert expected.code == 4
    assert "review was due" in expected.said


def test_the_report_of_a_destroy_tells_how_each_absence_is_known(project: Project) -> None:
    """
    `runs show` of a destroy says per target: gone, by which method and when, for which objects;
    kept, why and by whom; left, and what is alive of it; alive outside of the blueprint.
    """
    renamed = BLUEPRINT.replace("      other:", "      later:").replace("/other.tf", "/later.tf")
    project.write("blueprints/shared.yaml", renamed)
    run = project.ok("destroy", "shared", "--yes", "--json").events[-1]["run_id"]
    project.write("blueprints/shared.yaml", BLUEPRINT)
    again = project.ok("destroy", "shared", "--yes", "--json").events[-1]["run_id"]

    first = project.ok("runs", "show", run, "--json").document["teardown"]
    second = project.ok("runs", "show", again, "--json").document["teardown"]

    (kept,) = first["retained"]
    assert (kept["target"], kept["retained"]["owner"]) == ("shared/default/zone", "net-team")
    assert [ref["address"] for ref in kept["objects"]] == ["terraform_data.object"]
    assert [(item["step"], item["absence"]["method"]) for item in first["gone"]] == [
        ("later", "never_applied")
    ]
    assert (first["left"], first["orphaned"]) == ([], ["shared/default/other"])
    (gone,) = second["gone"]
    assert (gone["step"], gone["now"], gone["absence"]["method"]) == ("other", True, "provider")
    assert [found["state"] for found in gone["absence"]["checked"]] == ["gone"]
    assert "confirmed by the provider, 1 object" in project.ok("runs", "show", again).out


def test_what_the_blueprint_retains_follows_the_blueprint(project: Project) -> None:
    """
    A changed `retain` is recorded by the next apply or destroy, one that is gone is told with the
    way on; what a person said is not overruled, and the difference is told.
    """
    project.ok("destroy", "shared", "--yes")
    changed = BLUEPRINT.replace("shared zone", "zone of the shop").replace("2027", "2026")
    project.write("blueprints/shared.yaml", changed)

    applied = project.ok("apply", "shared", "--yes")
    held = project.record("zone")["retained"]
    line = "        retain: {reason: zone of the shop, owner: net-team, review_by: 2026-06-30}\n"
    project.write("blueprints/shared.yaml", changed.replace(line, ""))
    gone = project.ok("destroy", "shared", "--yes")

    assert "retained as the blueprint says now: zone of the shop" in applied.out, applied.out
    assert (held["reason"], held["review_by"]) == ("zone of the shop", "2026-06-30")
    assert "no longer says `retain`" in gone.out
    assert "orchestrator release shared --step zone" in gone.out
    assert project.record("zone")["status"] == "retained"

    said = ("--reason", "mine", "--owner", "me", "--review-by", "2099-01-01")
    project.ok("retain", "shared", "--step", "zone", *said)
    project.write("blueprints/shared.yaml", changed)
    told = project.ok("destroy", "shared", "--yes")
    assert "retained: mine (me, review by 2099-01-01)" in told.out, told.out
    assert project.record("zone")["retained"]["reason"] == "mine"


def test_a_protected_environment_is_named_to_retain_or_release(project: Project) -> None:
    """
    What decides how far a destroy goes needs the name of a protected environment.
    """
    protected = "environments: {default: {protected: true}}\n    inputs:"
    project.write("blueprints/shared.yaml", BLUEPRINT.replace("inputs:", protected, 1))
    said = ("--step", "other", "--reason", "x")
    keeping = ("--owner", "me", "--review-by", "2099-01-01")

    codes = [
        project.run("retain", "shared", *said, *keeping).code,
        project.run("retain", "shared", *said, *keeping, "--confirm", "default").code,
        project.run("release", "shared", *said).code,
        project.run("release", "shared", *said, "--confirm", "default").code,
    ]

    assert codes == [5, 0, 5, 0]
