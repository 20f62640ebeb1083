"""
A cloud for the AWS provider on this machine, the proxy before it, and the provider itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from fixtures.fakecloud import platform_name
from orchestrator.project import DEFAULT_GOGC
from tests.aws.proxy import Proxy, proxy_before
from tests.project import Project
from tests.servers import moto_server

#: Names the directory of a provider mirror: the one that holds ``registry.terraform.io``.
PROVIDERS = "ORCHESTRATOR_TEST_PROVIDERS"

#: What the cloud is told; it asks nobody.
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test-only", "AWS_SECRET_ACCESS_KEY": "test-only"}
_REGION = "eu-west-1"

_CLI_CONFIG = """
disable_checkpoint = true
provider_installation {{
  filesystem_mirror {{ path = "{mirror}" }}
}}
"""


def use_aws_provider(project: Project) -> None:
    """
    Have the project's engine find the AWS provider; a named skip where no mirror was named.
    """
    named = os.environ.get(PROVIDERS)
    if not named:
        pytest.skip(f"{PROVIDERS} names no provider mirror")
    assert Path(named, "registry.terraform.io/hashicorp/aws").is_dir(), f"not in {named}"
    cli_config = project.write("cli.tfrc", _CLI_CONFIG.format(mirror=named))
    project.environ["TF_CLI_CONFIG_FILE"] = str(cli_config)


@dataclass(frozen=True, slots=True)
class Aws:
    """
    The cloud as a test holds it: the proxy that providers talk to, and what is really there.
    """

    proxy: Proxy
    _port: int

    def client(self, service: str, *, region: str = _REGION) -> Any:
        """
        A client that asks the cloud itself, past the proxy.
        """
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=f"http://127.0.0.1:{self._port}",
            aws_access_key_id="test-only",
            aws_secret_access_key="test-only",
        )

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """
        ``base`` for an engine that takes the proxy for AWS, with nobody's own credentials.
        """
        kept = {k: v for k, v in base.items() if not k.startswith("AWS_")}
        return (
            kept
            | _CREDENTIALS
            | {
                "AWS_ENDPOINT_URL": self.proxy.url,
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        )

    def empty(self) -> None:
        """
        Let everything through, and let nothing be there.
        """
        self.proxy.disarm()
        self.proxy.calls.clear()
        address = f"http://127.0.0.1:{self._port}/moto-api/reset"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(urllib.request.Request(address, method="POST")).close()


@contextmanager
def aws_cloud() -> Iterator[Aws]:
    """
    An empty cloud; it ends with the context.
    """
    with moto_server() as port, proxy_before(port) as proxy:
        yield Aws(proxy, port)


@contextmanager
def attached_provider(aws: Aws) -> Iterator[str]:
    """
    The AWS provider as one process for many engine calls, as TF_REATTACH_PROVIDERS names it: each
    call that starts it anew spends seconds of its own. It holds one configuration at a time.
    """
    named = os.environ.get(PROVIDERS)
    if not named:
        pytest.skip(f"{PROVIDERS} names no provider mirror")
    found = Path(named).glob(f"registry.terraform.io/hashicorp/aws/*/{platform_name()}/*aws_v*")
    program = max((path for path in found if path.is_file()), default=None)
    assert program is not None, f"no unpacked AWS provider in {named}"
    provider = subprocess.Popen(
        [program, "-debug"],
        env=aws.environment(os.environ) | {"GOGC": str(DEFAULT_GOGC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert provider.stdout is not None
    try:
        for line in provider.stdout:
            variable, _, value = line.strip().partition("=")
            if variable == "TF_REATTACH_PROVIDERS":
                yield value.strip("'")
                return
        raise AssertionError("the AWS provider tells no address")
    finally:
        provider.kill()
        provider.wait()
        provider.stdout.close()


def configuration(region: str = _REGION, **more: object) -> dict[str, object]:
    """
    A configuration of the provider, as people write it but for what a cloud on this machine lacks.
    """
    return {"region": region, "s3_use_path_style": True, "skip_metadata_api_check": "true"} | more


class Shop(Project):
    """
    A project whose blueprint ``shop`` lives in such a cloud, with the modules of ``fixtures/aws``.
    ``provider`` is one that is there already.
    """

    def __init__(
        self, root: Path, aws: Aws, *, engine: str | None = None, provider: str | None = None
    ) -> None:
        super().__init__(root, engine=engine)
        self.environ = aws.environment(self.environ)
        if provider is not None:
            self.environ["TF_REATTACH_PROVIDERS"] = provider
        use_aws_provider(self)
        self.copy("fixtures/aws")
        self.write("orchestrator.yaml", "settle_seconds: 0\n")

    def blueprint(self, steps: str, *providers: dict[str, object]) -> None:
        """
        Write the blueprint with these steps and configurations of the AWS provider.
        """
        configured = json.dumps({"aws": providers})
        head = f"version: 1\nname: shop\nproviders: {configured}\n"
        self.write("blueprints/shop.yaml", head + textwrap.dedent(steps))
