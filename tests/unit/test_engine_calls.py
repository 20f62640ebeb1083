"""
Engine calls that mutate nothing are tried again where that may help.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.app.services import Services
from orchestrator.app.steps.engine_calls import TRIES, patiently
from orchestrator.domain.events.events import StepRetried
from orchestrator.domain.record.record import Diagnostic
from orchestrator.domain.values import replace
from orchestrator.ports.engine import CallResult, CallSpec, Init
from orchestrator.ports.workdir import WorkDir
from tests.fakes.clock import SetStop
from tests.fakes.engine import FakeEngine
from tests.fakes.services import Premises

DONE = CallResult(0, (), complete=True)


@pytest.fixture
def there() -> Iterator[Premises]:
    found = Premises({"web": []})
    yield found
    found.close()


def failed(said: str) -> CallResult:
    return CallResult(1, (Diagnostic(summary=said),), complete=True)


class Answers(FakeEngine):
    """
    An engine whose calls end as was said.
    """

    def __init__(self, results: Iterator[CallResult]) -> None:
        self.results = results

    def call(self, *_: object, **__: object) -> CallResult:
        return next(self.results)

    def discard(self, spec: CallSpec) -> None:
        pass


def init(services: Services, there: Premises) -> CallResult:
    work_dir = WorkDir(services.root, "", "local", {}, init_needed=True)
    return patiently(services, "web", "init", Init(), work_dir, services.root, "init")


@pytest.mark.parametrize(
    ("results", "code", "told"),
    [
        ([DONE], 0, []),
        ([failed("read: connection reset"), DONE], 0, [(2, "read: connection reset")]),
        (
            [failed("503 Service Unavailable")] * TRIES,
            1,
            [(2, "503 Service Unavailable"), (3, "503 Service Unavailable")],
        ),
        ([failed("no such attribute")], 1, []),
    ],
)
def test_a_passing_error_is_waited_for_a_few_times(
    there: Premises, results: list[CallResult], code: int, told: list[tuple[int, str]]
) -> None:
    """
    Each new attempt is announced with the reason; what will not pass is not tried again.
    """
    left = iter(results)

    ended = init(replace(there.services, engine=Answers(left)), there)

    retries = [event for event in there.told.events if isinstance(event, StepRetried)]
    assert ended.exit_code == code
    assert [(event.attempt, event.reason) for event in retries] == told
    assert next(left, None) is None


def test_after_a_signal_nothing_is_tried_again(there: Premises) -> None:
    """
    Law: signals.
    """
    stopping = replace(there.services, stop=SetStop(after=1))
    left = iter([failed("connection reset"), DONE])
    assert init(replace(stopping, engine=Answers(left)), there).exit_code == 1
