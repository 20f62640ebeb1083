"""
The cases of the field (FIELD.md) that recovery and destroy must hold, and where they are held.

| case | |
|---|---|
| 6 whose lock a cancelled job left | aws/test_s3_state, engine/test_locks, engine/test_ci_cancel |
| 7 the runner dies in the middle | engine/test_ci_cancel, engine/test_kill_matrix |
| 8 a state that could not be saved | engine/test_field_cases, engine/test_postgres |
| 9 the answer to a create is lost | aws/test_lost_answers, engine/test_kill_matrix |
| 11 outputs after a failed destroy | engine/test_contract_cases, engine/test_destroy_cases |
| 12 a conflict is not retried | engine/test_again_refused |
| 13 go on from the failure | engine/test_step_cases, engine/test_again |
| 14 a plan that became stale | aws/test_s3_state |
| 15 dependencies that are gone | engine/test_step_cases |
| 16 a failed first deploy | engine/test_field_cases |
| 17, 18 no mocks; order of a destroy | engine/test_step_cases |
| 19 a step that left the blueprint | engine/test_orphaned |
| 20 steps outside the selection | engine/test_step_cases |
"""

from __future__ import annotations

import re

from tests.project import REPOSITORY

_ROW = re.compile(r"^\| ([\d, ]+) [a-z].*\| (.+) \|$", re.MULTILINE)
_NAMED = re.compile(r"FIELD (\d+(?:(?:, | and )\d+)*)")


def test_every_case_is_held_where_the_table_says() -> None:
    """
    Each file of the table exists, and of the files of a case one names it in a test.
    """
    rows = _ROW.findall(__doc__ or "")
    missing = []
    for numbers, listed in rows:
        texts = [
            (REPOSITORY / f"tests/{name}.py").read_text("utf-8") for name in listed.split(", ")
        ]
        named = {
            number
            for text in texts
            for found in _NAMED.findall(text)
            for number in re.findall(r"\d+", found)
        }
        missing += [number for number in re.findall(r"\d+", numbers) if number not in named]

    assert len(rows) == 13
    assert missing == []
