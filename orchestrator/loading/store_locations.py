"""
Where the operation stores of blueprints lie: as ``operations.url`` says, else beside the provider
states.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from orchestrator.domain.blueprint.blueprint import InputValue
from orchestrator.domain.blueprint.references import Reference, Resolved, Template, Unresolvable
from orchestrator.domain.blueprint.store_location import StoreLocation, location_beside
from orchestrator.loading.blueprint_file import ReadBlueprint
from orchestrator.loading.raw_steps import RawBackend

#: Settings of backends that say where a state lies inside the bucket or database.
_OF_THE_STATE = ("key", "prefix", "workspace_key_prefix", "schema_name")
#: What an `operations.url` begins with that a backend block has the credentials for.
_SCHEMES = {"s3": "s3://", "gcs": "gs://", "azurerm": "az://"}


def store_backend(reading: ReadBlueprint) -> RawBackend:
    """
    The backend that decides where the operation store lies: that of the environment, where it is
    local the first other one of a step.
    """
    backends = (reading.backend, *(step.backend for step in reading.raw_steps.values()))
    return next((item for item in backends if item.type != "local"), reading.backend)


def inputs_of_location(reading: ReadBlueprint, url: str | None) -> frozenset[str]:
    """
    The names of the inputs that the location depends on.
    """
    backend = store_backend(reading)
    if not _needs_block(backend, url):
        return frozenset()
    used = _settings(backend).references
    return frozenset(item.names[0] for item in used if item.kind == "input")


def store_location(
    reading: ReadBlueprint, inputs: Mapping[str, InputValue], url: str | None
) -> StoreLocation:
    """
    The location of the operation store. ``url`` is what ``operations.url`` says, None where it says
    nothing. A backend block whose values are not known here tells no place.
    """
    backend = store_backend(reading)

    def look_up(reference: Reference) -> Resolved:
        match reference.kind:
            case "blueprint_name":
                return Resolved(reading.blueprint.name)
            case "environment":
                return Resolved(reading.effective.name)
            case "input" if reference.names[0] in inputs:
                return Resolved(inputs[reference.names[0]].value)
            case _:
                raise Unresolvable(f"${{{reference}}} has no value here")

    config = {}
    if _needs_block(backend, url):
        with suppress(Unresolvable):
            config = _settings(backend).resolve(look_up).value
    if url is None:
        return location_beside(backend.type, config)
    return StoreLocation(backend.type, url, config)


def _needs_block(backend: RawBackend, url: str | None) -> bool:
    scheme = _SCHEMES.get(backend.type)
    return url is None or (scheme is not None and url.startswith(scheme))


def _settings(backend: RawBackend) -> Template:
    """
    The configuration of a backend but for what tells one state from another.
    """
    raw = backend.config.template.raw
    settings = raw if isinstance(raw, Mapping) else {}
    return Template({key: item for key, item in settings.items() if key not in _OF_THE_STATE})
