"""Clients of many kinds, unmodified, wait 40 s for the first token of a stream through the gateway."""

import asyncio
import json
import subprocess
from pathlib import Path

import psutil
import pytest

from testkit.until import until_async
from tests.gateway.harness import gateway
from tests.server.clients.environment import RUN_S, run_client
from tests.server.process import ServerProcess, post
from tests.support import npm
from tests.support.vllm import serving

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent
SILENCE_S = 40.0
IN_PYTHON = ("openai_python", "openai_responses", "langchain", "litellm")
IN_NODE = ("openai_node", "ai_sdk")


def run_in_node(client: str, url: str) -> str:
    folder = npm.installed(HERE / "node")
    command = [str(npm.programs() / "node"), str(folder / "with_silence.mjs"), client, url]
    done = subprocess.run(command, env=npm.environment(), capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.strip().splitlines()[-1]


async def read(clients: list[str], url: str, cwd: Path, engines: list[psutil.Process]) -> dict[str, str]:
    """The text that each client reads, while the engine stands still for SILENCE_S once all have sent their request."""
    await asyncio.to_thread(npm.installed, HERE / "node")
    async with gateway() as door:
        door.route(("r1", 100, [url]))
        for engine in engines:
            engine.suspend()
        try:
            tasks = [asyncio.create_task(asyncio.to_thread(run_by_name, name, door.url, cwd)) for name in clients]
            await until_async(lambda: door.edge.running == len(clients), "each client has sent its request", 120)
            await asyncio.sleep(SILENCE_S)
            assert not any(task.done() for task in tasks), "they wait"
        finally:
            for engine in engines:
                engine.resume()
        return dict(zip(clients, await asyncio.gather(*tasks), strict=True))


def run_by_name(client: str, url: str, cwd: Path) -> str:
    if client in IN_NODE:
        return str(json.loads(run_in_node(client, f"{url}/v1")))
    return str(json.loads(run_client(HERE / "with_silence.py", client, f"{url}/v1", cwd=cwd)))


def text_of(url: str) -> str:
    messages = [{"role": "user", "content": "And God made"}]
    chat = {"model": "chat", "messages": messages, "temperature": 0, "max_tokens": 12}
    return str(post(url + "/v1/chat/completions", chat)[2]["choices"][0]["message"]["content"])


async def test_clients_wait_forty_silent_seconds_for_the_first_token(server: ServerProcess, tmp_path: Path) -> None:
    """The server writes comments meanwhile, and the gateway adds ids."""
    clients = [*IN_PYTHON, *IN_NODE]
    found = await read(clients, server.url, tmp_path, [server.engine])
    assert found == dict.fromkeys(clients, text_of(server.url))


async def test_clients_wait_forty_silent_seconds_for_vllm(tmp_path: Path) -> None:
    """Which writes nothing meanwhile."""
    clients = [name for name in (*IN_PYTHON, *IN_NODE) if name != "openai_responses"]
    async with serving(tmp_path) as vllm:
        expected = await asyncio.to_thread(text_of, vllm.url)
        found = await read(clients, vllm.url, tmp_path, vllm.engines)
    assert found == dict.fromkeys(clients, expected)
