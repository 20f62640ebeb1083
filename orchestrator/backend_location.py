"""
Backend configuration as Terraform reads it, and the address of the state.

An address identifies one provider state. It contains no credentials and no settings that may change
while the state stays where it is (region, locking, profile).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from orchestrator.domain.text import Json
from orchestrator.errors import Invalid, Problem


def render(backend_type: str, config: Mapping[str, Json], project_dir: Path) -> dict[str, Json]:
    """
    Return the configuration of the backend block. Paths of a local backend become absolute, because
    the engine runs in another directory. Raises Invalid if a setting is missing that the address
    needs.
    """
    location(backend_type, config, project_dir)
    rendered = dict(config)
    if backend_type == "local":
        for key in ("path", "workspace_dir"):
            if rendered.get(key):
                rendered[key] = str(_absolute(str(rendered[key]), project_dir))
    return rendered


def location(backend_type: str, config: Mapping[str, Json], project_dir: Path) -> str:
    """
    Return the address of the state, equal for all notations of the same place. Raises Invalid if
    there is none.

    >>> location("s3", {"bucket": "b", "key": "a/x.tfstate", "region": "eu-west-1"}, Path("/p"))
    's3://b/a/x.tfstate'
    """
    try:
        match backend_type:
            case "local":
                path = _absolute(_needed("local", config, "path"), project_dir)
                root = _absolute(".", project_dir)
                is_inside = path.is_relative_to(root)
                return (path.relative_to(root) if is_inside else path).as_posix()
            case "s3":
                endpoints = config.get("endpoints")
                custom = endpoints.get("s3") if isinstance(endpoints, Mapping) else None
                custom = custom or config.get("endpoint")
                suffix = f"?endpoint={_bare(str(custom))}" if custom else ""
                bucket, key = _needed("s3", config, "bucket"), _needed("s3", config, "key")
                return f"s3://{bucket}/{key}{suffix}"
            case "gcs":
                prefix = str(config.get("prefix") or "").strip("/")
                name = f"{prefix}/default.tfstate" if prefix else "default.tfstate"
                return f"gs://{_needed('gcs', config, 'bucket')}/{name}"
            case "azurerm":
                parts = ("storage_account_name", "container_name", "key")
                return "azurerm://" + "/".join(_needed("azurerm", config, part) for part in parts)
            case "pg":
                schema = str(config.get("schema_name") or "terraform_remote_state")
                return f"{_database(str(config.get('conn_str') or ''))}?schema={quote(schema)}"
            case "http":
                return _bare(_needed("http", config, "address"))
            case _:
                known, marks = _without_secrets(config), (",", ":")
                return f"{backend_type}:{json.dumps(known, sort_keys=True, separators=marks)}"
    except ValueError as exc:  # it may quote a password
        message = f'backend "{backend_type}": an address in its config is no URL'
        raise Invalid([Problem(message)]) from exc


def _absolute(path: str, project_root: Path) -> Path:
    return Path(os.path.normpath(project_root.absolute() / path))


def _needed(backend_type: str, config: Mapping[str, Json], key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise Invalid([Problem(f'backend "{backend_type}" needs `{key}` in its config')])
    if "\0" in value:
        raise Invalid([Problem(f'backend "{backend_type}": `{key}` holds a NUL character')])
    return value


_SECRET = re.compile(
    r"pass|secret|token|credential|(?:^|_)key(?:$|_data|_pem|_id)|access_key|auth|sas|private|signature",
    re.I,
)
#: Settings of other backends that look like secrets by their name and are addresses.
_NO_SECRETS = frozenset({"key", "secret_suffix"})


def _bare(url: str) -> str:
    """
    Return a URL without user, password, and parameters with names of secrets.
    """
    parts = urlsplit(url)
    if not parts.netloc:
        return url
    parameters = [
        (key, value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
        if not _SECRET.search(key)
    ]
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host}{parts.path}" + (
        f"?{urlencode(parameters)}" if parameters else ""
    )


_PAIR = re.compile(r"(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S*))")


def _database(conn_str: str) -> str:
    """
    Return the database of a connection string in either of libpq's two forms. Parts that it omits
    come from the environment and stay empty here.
    """
    if conn_str.startswith(("postgres://", "postgresql://")):
        parts = urlsplit(conn_str)
        user, _, host = parts.netloc.rpartition("@")
        parameters = dict(parse_qsl(parts.query))
        host = host or parameters.get("host", "")
        # Like libpq: without a name the database is the user's.
        name = parts.path.strip("/") or parameters.get("dbname") or user.partition(":")[0]
    else:
        parameters = {key: quoted or bare for key, quoted, bare in _PAIR.findall(conn_str)}
        port = parameters.get("port")
        host = parameters.get("host", "") + (f":{port}" if port else "")
        name = parameters.get("dbname") or parameters.get("user", "")
    host = host.lower().removesuffix(":5432")
    return f"postgres://{host}/{name}"


def _without_secrets(value: Json) -> Json:
    match value:
        case Mapping():
            return {
                name: _without_secrets(item)
                for name, item in value.items()
                if name in _NO_SECRETS or not _SECRET.search(name)
            }
        case list() | tuple():
            return [_without_secrets(item) for item in value]
        case str() if "://" in value:
            return _bare(value)
        case _:
            return value
