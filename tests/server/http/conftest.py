"""Servers that several tests share."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.server.process import ServerProcess


@pytest.fixture(scope="session")
def server(tiny_v1: Path) -> Iterator[ServerProcess]:
    flags = ("--served-model-name", "chat", "--model-version", "v1", "--max-body-bytes", "200000")
    with ServerProcess(tiny_v1, *flags) as process:
        yield process.wait_ready()


@pytest.fixture(scope="session")
def embedder(encoder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(encoder, "--served-model-name", "minilm") as process:
        yield process.wait_ready()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client
