"""
JSON-like values as YAML text that reads back as the same values, here and with YAML 1.1 readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from orchestrator.domain.text import Json


def to_yaml(values: Mapping[str, Json], *, header: str) -> str:
    """
    A map as a YAML document under a comment; text that could read as something else is quoted.

    >>> to_yaml({"cidr": "10.0.0.0/8", "port": 80, "code": "1e3"}, header="Inputs.")
    '# Inputs.\\ncidr: 10.0.0.0/8\\nport: 80\\ncode: "1e3"\\n'
    """
    import yaml

    dumper = _dumper()
    text = yaml.dump(dict(values), Dumper=dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"# {header}\n{text}"


@cache
def _dumper() -> type:
    import yaml

    from orchestrator.domain.blueprint.yaml_tree import plain_scalar

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        plain = isinstance(plain_scalar(text), str) and text.isprintable()
        style = None if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
        text = repr(value)
        if "." not in text:  # YAML 1.1 takes 1e+20 for text
            text = text.replace("e", ".0e")
        return dumper.represent_scalar("tag:yaml.org,2002:float", text)

    Dumper.add_representer(str, represent_text)
    Dumper.add_representer(float, represent_float)
    return Dumper
