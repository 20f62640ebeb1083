"""
The changes in a step's plan, for people: each object with its attributes before and after.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from orchestrator.domain.plan.changes import UNKNOWN, AttributeChange, ResourceChange
from orchestrator.domain.plan.differences import Marks, attribute_changes, json_document
from orchestrator.domain.record.objects import Action
from orchestrator.domain.record.record import SENSITIVE
from orchestrator.domain.text import Json, count
from orchestrator.views.formats import ACTIONS, diagnostic
from orchestrator.views.page import Page, Part, cells, cut

if TYPE_CHECKING:
    from orchestrator.domain.plan.changes import OutputValueChange, PlanChanges

#: Actions after which an object is gone: they come first, and are said in capitals.
LOSSES: Mapping[Action, str] = {"replace": "REPLACE", "delete": "DESTROY"}
_FIRST: tuple[Action, ...] = ("delete", "replace", "unknown", "forget")
_REASONS = {
    "replace_because_tainted": "it is tainted",
    "replace_because_cannot_update": "",  # the attributes that force it are named
    "replace_by_request": "requested",
    "replace_by_triggers": "replace_triggered_by",
    "delete_because_no_resource_config": "no longer in the module",
    "delete_because_no_module": "its module is no longer called",
    "delete_because_wrong_repetition": "count or for_each came or went",
    "delete_because_count_index": "count is lower",
    "delete_because_each_key": "its for_each key is gone",
    "delete_because_no_move_target": "moved to where nothing is",
    "read_because_config_unknown": "what it reads is not known yet",
    "read_because_dependency_pending": "what it depends on changes first",
    "read_because_check_nested": "for a check",
}
#: What is done to all of an object: its attributes are not marked one by one.
_WHOLE: tuple[Action, ...] = ("create", "delete", "forget", "read")
_MARKS = {"added": "+", "removed": "-", "changed": "~", "reordered": "~"}
_FROM_THE_TOP = re.compile(r"@@ -[01][ ,]")
_INLINE = 70  # columns that a value takes in a line, before it gets lines of its own
_LINES = 24  # of a difference that are shown without -v


def changed_inputs(page: Page, changes: PlanChanges, *, indent: int) -> None:
    """
    Add why the step would change: other inputs, another module.
    """
    if changes.module_changed:
        page.line(("module", "bold"), ": not the one of the last apply", indent=indent)
    for item in changes.inputs_changed:
        name: Part = (f"input {item.name}", "bold")
        old: Part = ("(last apply)", "dim")
        new: Part = (f"({item.source})", "dim")
        if item.sensitive and item.before is None and item.after is None:
            page.line(name, f": {SENSITIVE} changes ({item.source})", indent=indent, hang=4)
            continue
        change = AttributeChange(
            path=item.name, before=item.before, after=item.after, known=item.known
        )
        if _fits(page, change):
            before, after = _sides(page, change)
            page.line(name, f": {before} ", old, f" -> {after} ", new, indent=indent, hang=4)
        else:
            page.line(name, ": ", old, " -> ", new, indent=indent, hang=4)
            _parts(page, change, indent=indent + 2)


def _parts(page: Page, whole: AttributeChange, *, indent: int) -> None:
    """
    Add the differences within a value: elements of a structure, lines of a text.
    """
    if isinstance(whole.before, str) or isinstance(whole.after, str):
        _differing_lines(page, whole, indent=indent)
        return
    sides = ({whole.path: whole.before}, {whole.path: whole.after})
    parts = attribute_changes(*sides, before_marks=Marks(), after_marks=Marks())
    if [part.path for part in parts] == [whole.path]:
        _differing_lines(page, whole, indent=indent)
        return
    for part in parts:
        _value_change(page, part, _MARKS[part.change], indent=indent)


def changed_objects(page: Page, resources: Iterable[ResourceChange], *, indent: int) -> None:
    """
    Add each object with its action, deletions first.
    """
    order = sorted(resources, key=lambda item: item.action not in _FIRST)
    for item in order:
        if item.action == "read" and not page.paper.verbose:
            continue
        _object(page, item, indent=indent)


def drifted_objects(page: Page, drift: Iterable[ResourceChange], *, indent: int) -> None:
    """
    Add the objects that changed or vanished outside the engine.
    """
    shown = [item for item in drift if page.paper.verbose or not item.equivalent]
    if shown:
        page.line(("changed outside the engine", "warn"), ":", indent=indent)
    for item in shown:
        word = "vanished" if item.action == "delete" else "changed"
        page.line(("  ! ", "warn"), f"{item.address} {word}", indent=indent + 2, hang=6)
        if item.action != "delete":
            _attributes(page, item, indent=indent + 8)


def changed_outputs(page: Page, outputs: Iterable[OutputValueChange], *, indent: int) -> None:
    for item in outputs:
        kind = {"create": "added", "delete": "removed"}.get(item.action, "changed")
        change = AttributeChange.model_validate(
            {
                "path": item.name,
                "change": kind,
                "before": item.before,
                "after": item.after,
                "sensitive": item.sensitive,
                "known": item.known,
            }
        )
        mark = _MARKS[kind]
        if kind == "removed":  # nobody asks for its elements any more
            old, _ = _sides(page, change)
            page.line((f"{mark} ", _style(mark)), f"output {item.name}: {old}", indent=indent)
        elif _fits(page, change):
            _value_change(page, change, mark, kind="output ", indent=indent)
        else:
            page.line((f"{mark} ", _style(mark)), f"output {item.name}:", indent=indent)
            _parts(page, change, indent=indent + 2)


def warnings(page: Page, changes: PlanChanges, *, indent: int) -> None:
    """
    Add the engine's warnings and failed checks.
    """
    for item in changes.diagnostics:
        diagnostic(page, item, indent=indent, whole=True)
    shown = {item.detail for item in changes.diagnostics}
    for check in changes.checks:
        if check.status in ("fail", "error") and not shown.intersection(check.problems):
            problems = "; ".join(check.problems) or check.status
            page.line(("warning", "warn"), f": {check.address}: {problems}", indent=indent)


def cause(item: ResourceChange) -> str:
    """
    Return why the engine takes this action, in words; "" if there is nothing to say.
    """
    forced = dict.fromkeys(a.path for a in item.attributes if a.forces_replacement)
    if item.action == "replace" and (forced or item.replace_paths):
        return f"forced by {', '.join(forced or item.replace_paths)}"
    reason = item.reason or ""
    return _REASONS.get(reason, reason.replace("_", " "))


def _object(page: Page, item: ResourceChange, *, indent: int) -> None:
    symbol = "+/-" if item.create_first else ACTIONS[item.action].symbol
    notes = [
        cause(item) if item.action != "forget" else "forgotten: it stays alive",
        f"moved from {item.previous_address}" if item.previous_address else "",
        f"imported from {item.importing}" if item.importing else "",
        item.engine_word or "",
        "only its notation changes" if item.equivalent and item.action == "update" else "",
    ]
    text = "; ".join(filter(None, notes))
    loss = LOSSES.get(item.action)
    row: list[Part] = [(f"{symbol:>3} ", ACTIONS[item.action].style), item.named]
    if loss:
        row += ["  ", (loss, "bad")]
    if text:
        row.append(f" ({text})")
    page.line(*row, indent=indent, hang=6)
    if item.action not in ("delete", "forget") or page.paper.verbose:
        _attributes(page, item, indent=indent + 6)


def _attributes(page: Page, item: ResourceChange, *, indent: int) -> None:
    """
    Add the attributes. Those known only after apply stand in one line if they had no value before,
    or if the whole object is new.
    """
    verbose = page.paper.verbose
    unknown = []
    for change in item.attributes:
        computed = not change.known and item.action in ("create", "replace", "read")
        if computed and not change.forces_replacement:
            unknown.append(change.path)
        elif verbose or not change.equivalent:
            mark = "" if item.action in _WHOLE else _MARKS[change.change]
            _value_change(page, change, mark, indent=indent)
    if unknown:
        page.line((f"{UNKNOWN[1:-1]}: ", "dim"), ", ".join(unknown), indent=indent, hang=4)


def _value_change(
    page: Page, change: AttributeChange, mark: str, *, indent: int, kind: str = ""
) -> None:
    """
    Add a value before and after, in one line or as a line diff. ``kind`` says what has the value,
    if not an attribute.
    """
    forced: Part = ("  # forces the replacement" if change.forces_replacement else "", "bad")
    name = ((f"{mark} " if mark else "", _style(mark)), f"{kind}{change.path}: ")
    if not _fits(page, change):
        page.line(*name, forced, indent=indent, hang=4)
        _differing_lines(page, change, indent=indent + 2)
        return
    old, new = _sides(page, change)
    text = {"added": new, "removed": old}.get(change.change, f"{old} -> {new}")
    if change.change == "reordered":
        text += " (another order)"
    page.line(*name, text, forced, indent=indent, hang=4)


def _style(mark: str) -> str:
    return {"+": "good", "-": "bad"}.get(mark, "warn")


def _sides(page: Page, change: AttributeChange) -> tuple[str, str]:
    """
    Return the value before and after, each in one line. If the new value is known only after apply,
    the old one is truncated rather than shown as removed lines.
    """
    if change.sensitive:
        another = change.change == "changed"
        old, new = SENSITIVE, f"another {SENSITIVE} value" if another else SENSITIVE
    else:
        old, new = _inline(change.before), _inline(change.after)
    return cut(old, _room(page), page.glyph("...")), new if change.known else UNKNOWN


def _fits(page: Page, change: AttributeChange) -> bool:
    """
    Return whether a value is shown in one line, not as a line diff.
    """
    if change.sensitive or not change.known:
        return True
    sides = (change.before, change.after)
    return not _has_lines(change) and all(cells(_inline(side)) <= _room(page) for side in sides)


def _differing_lines(page: Page, change: AttributeChange, *, indent: int) -> None:
    lines = list(_difference(change))
    shown = lines if page.paper.verbose else lines[:_LINES]
    for line in shown:
        style = {"+": "good", "-": "bad"}.get(line[:1], "")
        page.line((line, style), indent=indent, hang=4)
    if len(lines) > len(shown):
        more = f"{page.glyph('...')} {count(len(lines) - len(shown), 'more line')}: -v shows them"
        page.line((more, "dim"), indent=indent)


def _room(page: Page) -> int:
    return _INLINE if not page.paper.verbose else 4 * _INLINE


def _has_lines(change: AttributeChange) -> bool:
    return any(
        isinstance(side, str)
        and ("\n" in side.strip() or (len(side) > _INLINE and json_document(side) is not None))
        for side in (change.before, change.after)
    )


def _difference(change: AttributeChange) -> Iterator[str]:
    """
    Yield the changed lines, marked with + and -, with their context.
    """
    old = _lines(change.before) if change.before is not None else []
    new = _lines(change.after) if change.after is not None else []
    for number, line in enumerate(difflib.unified_diff(old, new, n=2, lineterm="")):
        if number > 1:  # the names of two files
            if not line.startswith("@@"):
                yield f"{line[:1]} {line[1:]}"
            elif not _FROM_THE_TOP.match(line):
                yield "..."


def _lines(value: Json) -> list[str]:
    if isinstance(value, str):
        document = json_document(value)
        if document is None:
            return value.splitlines()
        value = document
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).splitlines()


def _inline(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
