"""
Which requests runs of the tool make of an operation store in S3. Provider states lie in files, so
that all requests are for the store.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from tests.aws.proxy import Proxy, proxy_before
from tests.project import Ended, Project
from tests.servers import s3_server

_MODULE = """
    variable "name" {}
    resource "terraform_data" "this" { input = var.name }
    output "name" { value = terraform_data.this.output }
"""


class CountedProject(Project):
    """
    A project with a blueprint of steps that depend on nothing, and what counts its requests.
    """

    def __init__(self, root: Path, proxy: Proxy, *, steps: int, engine: str | None) -> None:
        super().__init__(root, engine=engine)
        self._proxy = proxy
        self._steps = steps
        self.write("modules/named/main.tf", _MODULE)
        self.write("orchestrator.yaml", "project: acme\n")

    @property
    def store_url(self) -> str:
        """
        Where its records lie.
        """
        return f"s3://acme/of-{self._steps}?use_path_style=true"

    def describe(self, name: str) -> None:
        """
        Write the blueprint; another ``name`` changes every step.
        """
        lines = [
            "version: 1",
            "name: shop",
            f"operations: {{url: '{self.store_url}'}}",
            "steps:",
            *(
                f"  s{number:04d}: {{module: ../modules/named, inputs: {{name: {name}}}}}"
                for number in range(self._steps)
            ),
        ]
        self.write("blueprints/shop.yaml", "\n".join(lines) + "\n")

    def requests(self, *arguments: str) -> Counter[str]:
        """
        The requests of one command, by method and by what they are about.
        """
        self._proxy.calls.clear()
        self._proxy.paths.clear()
        self.ended: Ended = self.ok(*arguments)
        calls = zip(self._proxy.calls, self._proxy.paths, strict=True)
        return Counter(f"{call.split()[0]} {_about(path)}" for call, path in calls)


def _about(path: str) -> str:
    """
    >>> _about("/acme/of-2/1/acme/heads/shop/default/s0001")
    'heads'
    >>> _about("/acme/of-2/1/acme/blobs/runs/R/evidence/s.zip"), _about("/acme?delete")
    ('runs/evidence', 'delete')
    >>> _about("/acme?list-type=2&prefix=of-2%2F1%2Facme%2Fheads%2Fshop%2F")
    'list heads'
    """
    listed = re.search("[?&]prefix=([^&]*)", path)
    name = unquote(listed[1] if listed else path).partition("/1/acme/")[2]
    kind, _, rest = name.partition("/")
    if kind == "blobs":
        kind, _, rest = rest.partition("/")
    if kind == "runs":
        kind += "/" + rest.split("/")[1]
    if listed:
        return f"list {kind}"
    return kind or path.partition("?")[2]


@contextmanager
def counted_projects(
    directory: Path, *sizes: int, engine: str | None = None
) -> Iterator[list[CountedProject]]:
    """
    Projects with so many steps each, all in one bucket.
    """
    with s3_server() as server, proxy_before(int(server.endpoint.rpartition(":")[2])) as proxy:
        server.make_bucket("acme")
        found = []
        for size in sizes:
            root = directory / f"of-{size}"
            project = CountedProject(root, proxy, steps=size, engine=engine)
            project.environ |= {
                **server.environ,
                "AWS_ENDPOINT_URL_S3": proxy.url,
                "AWS_REGION": "eu-west-1",
            }
            project.describe("one")
            found.append(project)
        yield found
