"""A gateway with a model behind it, and jobs processes that are started, killed and stopped."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from openai import AsyncOpenAI

from devcluster.ports import reserve_port
from slipway_contracts.passes import PassKeys
from slipway_gateway.identity.tenants import KnownTenant
from slipway_jobs.store.database import Database
from slipway_jobs.store.file_store import FileStore, NewFile
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import Gateway, gateway, upstream

KEY_A, KEY_B = tenants.make_key("k7Qm2a"), tenants.make_key("k7Qm2b")
TENANTS = (tenants.tenant("team-a", KEY_A), tenants.tenant("team-b", KEY_B))


@dataclass
class Model:
    """Answers chats, one after the other; it counts what it gets. `closed`: requests wait until it is set."""

    answers: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    statuses: dict[str, list[int]] = field(default_factory=dict)  # by prompt: of its first answers
    bodies: dict[str, bytes] = field(default_factory=dict)  # by prompt: of its responses
    pause_s: float = 0.0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    comes: dict[str, Callable[[], object]] = field(default_factory=dict)  # by prompt: what it does first

    def __post_init__(self) -> None:
        self.open.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["messages"][-1]["content"] if "messages" in body else json.dumps(body.get("input"))
        self.headers.append(dict(request.headers))
        self.waiting += 1
        try:
            await self.open.wait()
            self.comes.get(prompt, bool)()
            await asyncio.sleep(self.pause_s)
        finally:
            self.waiting -= 1
        self.answers[prompt] += 1
        if statuses := self.statuses.get(prompt):
            return web.json_response({"error": {"message": "no", "code": "no"}}, status=statuses.pop(0))
        if prompt in self.bodies:
            return web.Response(body=self.bodies[prompt], content_type="application/json")
        if "messages" not in body:
            return web.json_response({"prediction": prompt, "model_version": "r1"})
        choice = {"index": 0, "message": {"role": "assistant", "content": f"re: {prompt}"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


@dataclass
class JobsProcess:
    """One `slipway-jobs`."""

    settings: dict[str, str]
    log: Path
    process: asyncio.subprocess.Process | None = None
    admin_url: str = ""

    async def start(self) -> None:
        """Returns when it is ready."""
        arguments = [f"--{name}={value}" for name, value in self.settings.items()]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "slipway_jobs", *arguments, stderr=log, env=dict(os.environ)
            )
        self.admin_url = f"http://127.0.0.1:{self.settings['admin-port']}"
        async with aiohttp.ClientSession() as session:
            await until_async(lambda: self._is_ready(session), "the jobs process is ready")

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        assert self.process and self.process.returncode is None, self.log.read_text()[-3000:]
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{self.admin_url}/readyz") as response:
                return response.status == 200
        return False

    async def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()


@dataclass
class World:
    """`jobs`: the first one gets the requests of the gateway."""

    edge: Gateway
    model: Model
    jobs: list[JobsProcess]
    keys: PassKeys
    clients: dict[str, AsyncOpenAI]

    @property
    def client(self) -> AsyncOpenAI:
        return self.clients["team-a"]


def settings(database_url: str, keys_file: str, gateway_url: str, **changes: Any) -> dict[str, str]:
    given = {
        "database_url": database_url,
        "keys_file": keys_file,
        "gateway_url": gateway_url,
        "host": "127.0.0.1",
        "admin_host": "127.0.0.1",
        "port": reserve_port(),
        "admin_port": reserve_port(),
        "lease": 1,
        "log_level": "debug",
    }
    return {name.replace("_", "-"): str(value) for name, value in (given | changes).items()}


@contextlib.asynccontextmanager
async def world(
    database_url: str,
    keys_file: str,
    folder: Path,
    *,
    processes: int = 1,
    known: Iterable[KnownTenant] = TENANTS,
    batch_slots: int = 4,
    **changes: Any,
) -> AsyncIterator[World]:
    """`batch_slots`: of the gateway. `changes`: settings of the jobs processes."""
    model, port = Model(), reserve_port()
    listed = tuple(known)
    mode = "required" if listed else "off"
    options: dict[str, Any] = {
        "auth_mode": mode,
        "jobs_url": f"http://127.0.0.1:{port}",
        "tenant_keys_file": keys_file,
        "batch_slots": batch_slots,
    }
    async with (
        upstream(model.answer) as served,
        gateway(listed, tenants.PEPPER, **options) as edge,
        contextlib.AsyncExitStack() as stack,
    ):
        edge.route(("r1", 100, [served.url]))
        jobs = [
            JobsProcess(
                settings(database_url, keys_file, edge.url, **({"port": port} if n == 0 else {}), **changes),
                folder / f"jobs-{n}.log",
            )
            for n in range(processes)
        ]
        for one in jobs:
            await one.start()
            stack.push_async_callback(one.end)
        clients = {
            name: await stack.enter_async_context(
                AsyncOpenAI(base_url=f"{edge.url}/v1", api_key=key, max_retries=0, timeout=30)
            )
            for name, key in (("team-a", KEY_A), ("team-b", KEY_B))
        }
        model.open.set()
        yield World(edge, model, jobs, PassKeys(keys_file), clients)


async def store_file(database: Database, name: str, tenant: str = "t", data: Sequence[bytes] = (b"{}\n",)) -> None:
    """A file with these lines, as an upload makes it."""
    store, new = FileStore(database, 1 << 30), NewFile(name, tenant, 1000.0)
    await database.call(store.begin, new)
    await database.call(store.add, name, 0, data)
    await database.call(store.finish, new)


def chat(n: int, prompt: str = "", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt or f"prompt {n}"}]
    request = {"model": "chat", "messages": messages} | body
    return {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/chat/completions", "body": request}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def create(client: AsyncOpenAI, data: bytes, **options: Any) -> Any:
    """A batch of this file."""
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    given: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | options
    return await client.batches.create(input_file_id=file.id, **given)


async def ended(client: AsyncOpenAI, batch_id: str) -> Any:
    """The batch, when it has ended."""
    ends = ("completed", "failed", "expired", "cancelled")
    return await until_async(
        lambda: client.batches.retrieve(batch_id), "the batch ends", holds=lambda batch: batch.status in ends
    )


async def seen(here: "World", path: str, *statuses: str) -> dict[str, Any]:
    """What this path shows, when it has one of these statuses."""

    async def look() -> dict[str, Any]:
        found = await here.edge.client.get(here.edge.url + path, headers=tenants.bearer(KEY_A))
        shown: dict[str, Any] = await found.json()
        return shown

    return await until_async(look, f"{path} is {statuses}", holds=lambda shown: shown["status"] in statuses)


async def result(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id
    text = (await client.files.content(file_id)).text
    return [json.loads(line) for line in text.splitlines()]
