"""
Asking the provider, through the engine, for objects that a provider state knows: are they gone?

Each is asked for by itself, on a private copy of that state beside the configuration that it was
applied with (`Engine.isolated_state`), in one engine plan for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.app.services import Services
from orchestrator.app.steps.planned_step import write_variables
from orchestrator.app.steps.preparation import PreparedStep, call, call_spec, patiently
from orchestrator.app.steps.scratch_root import private_root
from orchestrator.domain.blueprint.inputs import StepInputs, digest
from orchestrator.domain.destroy.absence import (
    ABSENCE_TIMEOUT,
    AbsenceFinding,
    ObjectKey,
    answers,
    describe_remaining,
    has_remote_side,
    with_explanation,
)
from orchestrator.domain.events.events import PhaseStarted
from orchestrator.domain.provider_query.scope import Scope, differing, scope
from orchestrator.domain.record.journal import Journal
from orchestrator.domain.record.record import CheckedState, ObjectRef, SavedState
from orchestrator.errors import OrchestratorError
from orchestrator.ports.engine import CallResult, Plan
from orchestrator.ports.workdir import WorkDir

_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class SavedObjects:
    """
    Objects whose absence is to be confirmed, and the provider state that knows them; ``raw`` is
    None where that is not to be had.
    """

    saved: SavedState
    raw: bytes | None
    objects: tuple[ObjectRef, ...]


@dataclass(frozen=True, slots=True)
class QueryContext:
    """
    What it takes to ask: the step as it was applied and its inputs, None where they cannot be had,
    and ``why``. ``place`` is the directory of an attempt, for the evidence.
    """

    services: Services
    prepared: PreparedStep
    inputs: StepInputs | None
    place: Path
    why: str = ""

    @property
    def patience(self) -> float:
        """
        Seconds in which a delete may still be under way.
        """
        return self.prepared.step.absence_timeout or ABSENCE_TIMEOUT

    def scope(self, objects: Iterable[ObjectRef]) -> Scope:
        """
        Where the providers of these objects are asked now.
        """
        services = self.services
        return scope(
            {ref.provider for ref in objects},
            services.environ,
            self.prepared.configured,
            lambda value: digest(value, services.key),
        )


def confirm_absence(
    asker: QueryContext, wanted: Sequence[SavedObjects], *, patience: float
) -> tuple[AbsenceFinding, ...]:
    """
    What the provider says of each object. What it still has it is asked for again with growing
    pauses, for ``patience`` seconds; a signal ends that.
    """
    services, step = asker.services, asker.prepared.step.name
    found = {
        (item.saved, finding.key): finding
        for item in wanted
        for finding in unasked_findings([item])
    }
    if all(item.state == "gone" for item in found.values()):
        return tuple(found.values())
    services.sink.emit(PhaseStarted(at=services.clock.now(), step=step, phase="readback"))
    began, pause = services.clock.monotonic(), 1.0
    with contextlib.ExitStack() as stack:
        questions = [stack.enter_context(_question(asker, item)) for item in wanted]
        while True:
            for question in questions:
                found |= question.ask(found)
            waited = services.clock.monotonic() - began
            there = describe_remaining(found.values())
            if not there or waited >= patience or services.stop.stopping:
                break
            pause = max(1.0, min(pause, patience - waited))
            services.note(f"still there, asked for again in {pause:.0f} s: {there}", step=step)
            services.pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
    over: CheckedState = "terminating" if services.stop.stopping else "remaining"
    return tuple(
        with_explanation(replace(item, state=over) if item.state == "terminating" else item)
        for item in found.values()
    )


def unasked_findings(wanted: Iterable[SavedObjects]) -> tuple[AbsenceFinding, ...]:
    """
    What can be said of objects without asking: only those that live in provider state are gone.
    """
    return tuple(
        with_explanation(AbsenceFinding(ref, "requested", saved=item.saved))
        if has_remote_side(ref.provider)
        else AbsenceFinding(ref, "gone", "it existed in provider state only", item.saved)
        for item in wanted
        for ref in item.objects
    )


_Found = Mapping[tuple[SavedState, ObjectKey], AbsenceFinding]


@contextlib.contextmanager
def _question(asker: QueryContext, wanted: SavedObjects) -> Iterator[_Question]:
    services = asker.services
    place = services.files.inside(asker.place, f"absence-{services.ids.entry_id()[:8]}")
    with contextlib.ExitStack() as stack:
        root, why = None, ""
        if wanted.raw is None:
            why = f"the provider state from before is not here, but on {wanted.saved.host}"
        elif asker.inputs is None:
            why = asker.why
        elif moved := _moved(asker, wanted):
            why = f"this is not the scope it was destroyed in: {', '.join(moved)} differ"
        else:
            try:
                root = stack.enter_context(
                    private_root(services, asker.prepared, place, state=b"", extra={})
                )
            except OrchestratorError as exc:
                why = exc.message.splitlines()[0]
        yield _Question(asker, wanted, place, root, why)


def _moved(asker: QueryContext, wanted: SavedObjects) -> list[str]:
    """
    What makes this another scope than the one the objects were destroyed in.
    """
    providers = {ref.provider for ref in wanted.objects}
    return differing(wanted.saved.scope, asker.scope(wanted.objects), providers)


class _Question:
    """
    One saved provider state on its private root, asked as often as need be. Without a root nothing
    can be told, and ``why`` says why not.
    """

    def __init__(
        self, asker: QueryContext, wanted: SavedObjects, place: Path, root: WorkDir | None, why: str
    ) -> None:
        self._asker = asker
        self._wanted = wanted
        self._place = place
        self._root = root
        self._why = why
        self._count = 0

    def ask(self, found: _Found) -> dict[tuple[SavedState, ObjectKey], AbsenceFinding]:
        """
        What the provider says now of those objects that are not known to be gone.
        """
        saved = self._wanted.saved
        open_ = {
            key: item for (of, key), item in found.items() if of == saved and item.state != "gone"
        }
        told: Mapping[ObjectKey, tuple[CheckedState, str]] = {}
        why = self._why
        if self._root is not None and self._wanted.raw is not None and open_:
            try:
                told = self._answers(self._root, self._wanted.raw, open_.keys())
            except OrchestratorError as exc:
                why = exc.message.splitlines()[0]
        fresh = {}
        for key, item in open_.items():
            state, said = told.get(key, ("unknown", why or "the saved provider state lacks it"))
            if state == "unknown" and self._asker.services.stop.stopping:
                continue  # a signal cut it short: what was known before still is
            fresh[saved, key] = AbsenceFinding(item.ref, state, said, saved)
        return fresh

    def _answers(
        self, root: WorkDir, raw: bytes, keys: Collection[ObjectKey]
    ) -> dict[ObjectKey, tuple[CheckedState, str]]:
        asker, services, place = self._asker, self._asker.services, self._place
        assert asker.inputs is not None, "without inputs there is no root"
        state, names = services.engine.isolated_state(raw, keys)
        services.files.write(Path(root.location), state.decode())
        file, var_file = place / "asked.tfplan", place / "inputs.tfvars.json"
        self._count += 1
        inputs = asker.inputs

        def attempt(number: int) -> CallResult:
            write_variables(services, var_file, inputs, root.variables)
            name = f"ask-{self._count}-{number}"
            spec = call_spec(services, root, place, name, delete_after=(var_file,))
            request = Plan(out=file, mode="refresh-only", var_file=var_file)
            return call(services, request, spec, stop=services.stop)

        try:
            result = patiently(services, asker.prepared.step.name, "readback", attempt)
        finally:
            file.unlink(missing_ok=True)
        return answers(
            Journal.of(result.messages, whole=result.complete),
            names,
            ended_well=result.exit_code == 0,
            blind={
                item.configuration
                for item in names.values()
                if asker.prepared.snapshot.configuration_depends_on_resources(item.configuration)
            },
        )
