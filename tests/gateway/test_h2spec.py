"""h2spec against the gRPC port: 146 cases of RFC 9113 and RFC 7541, the strict ones too, in clear and over TLS."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from devcluster import pins
from devcluster.certificates import Authority
from testkit.cluster.tools import tool

from .grpc_gateway import grpc_gateway
from .test_tls import installed

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(600)]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_h2spec_passes(*, encrypted: bool, tmp_path: Path) -> None:
    program, settings, flags = tool(pins.H2SPEC), dict[str, Any](), list[str]()
    if encrypted:
        authority = Authority.create(tmp_path / "authority")
        authority.issue("first", "first", hosts=["127.0.0.1"])
        files = installed(authority, "first", tmp_path)
        settings = {"tls_cert_file": files.certificate, "tls_private_key_file": files.private_key}
        flags = ["--tls", "--insecure"]
    async with grpc_gateway(grpc_connection_age_s=3000.0, **settings) as made:
        command = (program, "--strict", "--host=127.0.0.1", f"--port={made.server.port}", "--timeout=10", *flags)
        done = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output = (await done.communicate())[0].decode()
    assert "146 tests, 146 passed, 0 skipped, 0 failed" in output, output
