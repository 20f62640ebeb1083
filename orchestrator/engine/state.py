"""
Provider state as ``state pull`` prints it, and as a saved plan contains it.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.domain.provider_state import PulledState, StateObject, StateOutput, state_document
from orchestrator.local_files import read_regular

_NEVER_WRITTEN = PulledState(lineage=None, serial=0, objects=(), outputs={})
_FORMAT = 4
_PROVIDER = re.compile(r'provider\["([^"]+)"\]')
#: What ties an instance to its address, its successor and other instances.
_BOUND = ("index_key", "deposed", "status", "dependencies", "create_before_destroy")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def parse_state(raw: bytes) -> PulledState:
    """
    Return the state in ``raw``. Raises ValueError if it is no state, or not of format version 4.

    White space alone is a state that was never written. Text before and after the first JSON object
    is ignored: engines print warnings there.
    """
    if not raw.strip():
        return _NEVER_WRITTEN
    data = state_document(raw)
    try:
        if data["version"] != _FORMAT:
            raise ValueError(f"state of version {data['version']}; this program reads {_FORMAT}")
        resources = data.get("resources") or ()
        return PulledState(
            lineage=data["lineage"] or None,
            serial=int(data["serial"]),
            objects=tuple(item for _, _, item in _instances(resources)),
            outputs={
                name: StateOutput(output.get("value"), bool(output.get("sensitive")))
                for name, output in (data.get("outputs") or {}).items()
            },
            secrets=tuple(_secrets(resources)),
            attributes=tuple(
                instance.get("attributes")
                for resource in resources
                for instance in resource["instances"]
            ),
            raw=raw,
            engine_version=data.get("terraform_version"),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a provider state: {exc!r}") from exc


def local_state(directory: Path, environment: Mapping[str, str]) -> PulledState | None:
    """
    Return the provider state of a working directory whose state is a local file. None if it is not,
    or is encrypted: then the engine must be called.
    """
    if environment.get("TF_WORKSPACE", "default") != "default":
        return None
    notes = directory / ".terraform"
    try:
        if (notes / "environment").exists():  # the name of a workspace
            return None
        backend = json.loads(read_regular(notes / "terraform.tfstate"))["backend"]
        if backend["type"] != "local" or not backend["config"]["path"]:
            return None
        return parse_state(read_regular(directory / backend["config"]["path"]))
    except FileNotFoundError as exc:
        return None if Path(exc.filename).parent == notes else _NEVER_WRITTEN
    except (OSError, ValueError, LookupError, TypeError):
        return None


def state_in_plan(plan: Path, *, refreshed: bool = False) -> PulledState | None:
    """
    Return the provider state that a saved plan was made from, or that state ``refreshed``; None if
    the file cannot be read (encrypted, or of another format).
    """
    try:
        with zipfile.ZipFile(plan) as archive:
            after = archive.read("tfstate")
            if refreshed:
                return parse_state(after)
            before = json.loads(archive.read("tfstate-prev"))
        # Only the refreshed one has lineage and serial.
        owner = json.loads(after)
        bound = before | {"lineage": owner["lineage"], "serial": owner["serial"]}
        return parse_state(json.dumps(bound).encode())
    except (OSError, zipfile.BadZipFile, RuntimeError, KeyError, TypeError, ValueError):
        return None


def emptied_state(state: PulledState) -> str:
    """
    Return a state without objects, with the same lineage and the next serial, as text.
    """
    content = {
        "version": _FORMAT,
        "serial": state.serial + 1,
        "lineage": state.lineage or "",
        "outputs": {},
        "resources": [],
    }
    return json.dumps(content, indent=2) + "\n"


def instance_key(key: int | str | None) -> str:
    """
    Return the key of an instance as the engine prints it in addresses.

    >>> instance_key(0), instance_key('a"b'), instance_key("${x}"), instance_key(None)
    ('[0]', '["a\\\\"b"]', '["$${x}"]', '')
    """
    if key is None:
        return ""
    if not isinstance(key, str):
        return f"[{key}]"
    quoted = ""
    for at, char in enumerate(key):
        code = ord(char)
        if char in _ESCAPES:
            quoted += _ESCAPES[char]
        elif char in "$%" and key[at + 1 : at + 2] == "{":
            quoted += char * 2
        elif char.isprintable():
            quoted += char
        else:
            quoted += f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return f'["{quoted}"]'


def isolated_state(
    raw: bytes, wanted: Collection[tuple[str, str | None]]
) -> tuple[bytes, dict[str, StateObject]]:
    """
    Return a state that holds only the ``wanted`` objects (address, id), each at a new address
    without configuration, and the object for each of these addresses. Raises ValueError as
    `parse_state` does.

    So each object is refreshed independently: a configuration that refers to a lost object would be
    an error, and the objects after it would not be read. A deposed object becomes a current one,
    because plans do not report drift of deposed objects.
    """
    parse_state(raw)
    data: dict[str, Any] = state_document(raw)
    names: dict[str, StateObject] = {}
    resources = []
    for resource, instance, item in _instances(data.get("resources") or ()):
        if item.key not in wanted:
            continue
        name = f"orchestrator_absence_{len(names)}"
        names[f"{item.type}.{name}"] = item
        alone = {key: value for key, value in instance.items() if key not in _BOUND}
        shared = {"provider": resource["provider"]} if "provider" in resource else {}
        resources.append(
            {
                "mode": "managed",
                "type": item.type,
                "name": name,
                **shared,
                "instances": [alone],
            }
        )
    data |= {"resources": resources, "outputs": {}, "check_results": None}
    return json.dumps(data).encode(), names


def _instances(resources: Any) -> Iterator[tuple[Any, Any, StateObject]]:
    """
    Yield the managed instances, each with its resource and instance as in the state. Raises
    ValueError if one has an unknown form.
    """
    for resource in resources:
        try:
            if resource["mode"] == "data":
                continue
            instances = [
                (resource, item, _object(resource, item)) for item in resource["instances"]
            ]
        except (KeyError, TypeError, AttributeError) as exc:
            fields = resource if isinstance(resource, dict) else {}
            label = ".".join(str(fields[k]) for k in ("module", "type", "name") if fields.get(k))
            message = f"unknown form of provider state: {label or 'a resource'} ({exc})"
            raise ValueError(message) from exc
        yield from instances


def _object(resource: Any, instance: Any) -> StateObject:
    """
    Return the object of an instance. OpenTofu stores the provider per instance if a provider block
    has ``for_each``. An unknown mode is put into the address, as for data sources.
    """
    module = f"{resource['module']}." if resource.get("module") else ""
    if resource["mode"] != "managed":
        module += f"{resource['mode']}."
    key = instance_key(instance.get("index_key"))
    address = f"{module}{resource['type']}.{resource['name']}{key}"
    configuration = instance.get("provider") or resource.get("provider")
    if not isinstance(configuration, str):
        raise ValueError(f"unknown form of provider state: {address} has no provider")
    source = _PROVIDER.search(configuration)
    identifier = (instance.get("attributes") or {}).get("id")
    return StateObject(
        address=address,
        type=resource["type"],
        provider=source[1] if source else configuration,
        id=identifier if isinstance(identifier, str) else None,
        tainted=instance.get("status") == "tainted",
        deposed=instance.get("deposed"),
        configuration=configuration,
    )


def _secrets(resources: Any) -> Iterator[Any]:
    """
    Yield the values that instances mark as sensitive; a path that leads nowhere is ignored.
    """
    for resource in resources:
        for instance in resource["instances"]:
            for path in instance.get("sensitive_attributes") or ():
                value = instance.get("attributes")
                for step in path:
                    key = step["value"]
                    key = key["value"] if isinstance(key, dict) else key
                    try:
                        value = value[int(key) if isinstance(value, list) else key]
                    except (KeyError, IndexError, TypeError, ValueError):
                        value = None
                if value is not None:
                    yield value
