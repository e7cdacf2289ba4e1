"""Exposures by aiokafka, in a process with that library: a batch whose connection breaks is stored once."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.engine.environments import uv
from devcluster.places import places
from devcluster.ports import reserve_port
from devcluster.tools import run

from .broker import broker

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
BATCHES = [[{"unit": "a", "arm": "x"}, {"unit": "b", "arm": "y"}], [{"unit": "c", "arm": "x"}]]


@pytest.fixture(scope="module")
def libraries() -> Path:
    """A folder with aiokafka, which is in no environment of this project: kept in the cache."""
    requirements = HERE / "requirements.txt"
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = places().cache / f"kafka-{key}"
    if not folder.exists():
        made = folder.with_name(f"{folder.name}.{os.getpid():x}.partial")
        install = [uv(), "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable]
        run([*install, "--target", str(made), "--requirement", str(requirements)], timeout=600)
        with contextlib.suppress(OSError):
            made.rename(folder)  # another process of this test run may have been faster
        shutil.rmtree(made, ignore_errors=True)
    return folder


async def written(libraries: Path, port: int, batches: list[list[dict[str, str]]]) -> str:
    """What the program prints."""
    program = [str(HERE / "write_lines.py"), str(libraries), f"127.0.0.1:{port}", "exposures"]
    piped: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), asyncio.subprocess.PIPE)
    process = await asyncio.create_subprocess_exec(sys.executable, *program, **piped)
    printed, _ = await process.communicate(json.dumps(batches).encode())
    assert process.returncode == 0
    return printed.decode()


async def test_exposures_are_keyed_by_unit_and_stored_once_where_a_connection_breaks(libraries: Path) -> None:
    async with broker("exposures", cuts=1) as kafka:
        assert await written(libraries, kafka.port, BATCHES) == ""
    stored = [(key.decode(), json.loads(value)) for key, value in kafka.messages]
    assert stored == [(line["unit"], line) for batch in BATCHES for line in batch]
    assert kafka.batches == 3, "one came twice"


async def test_exposures_that_no_broker_takes_are_lost_by_name(libraries: Path) -> None:
    assert "KafkaConnectionError" in await written(libraries, reserve_port(), BATCHES[:1])
