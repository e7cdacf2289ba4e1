"""Dialogues of many turns over a rollout, while gateway, jobs process and database are killed.

Each answer of the engine depends on its whole context, so that a client which knows what it saw knows what must come.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from devcluster.ports import reserve_port
from testkit.until import until_async
from tests.gateway.harness import upstream
from tests.jobs.responses_engine import ResponsesEngine, answer_to
from tests.jobs.world import JobsProcess, settings
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration
DIALOGUES, TURNS = int(os.environ.get("DIALOGUES", "1000")), 10
FEW, FEW_TURNS = 30, 4  # in every run
AT_ONCE = 20
KILL_EACH_S = (1.0, 4.0)
_PATIENCE_S = 300.0


@dataclass
class GatewayProcess:
    """A gateway that is started again at the same port."""

    flags: list[str]
    log: Path
    url: str
    admin_url: str
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it is ready."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "slipway_gateway", *self.flags, stderr=log
            )
        async with aiohttp.ClientSession() as session:
            ready: bool = await until_async(lambda: self._is_ready(session), "the gateway is ready", within_s=120)
        assert ready

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        assert self.process and self.process.returncode is None, self.log.read_text()[-3000:]
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{self.admin_url}/readyz") as response:
                return response.status == 200
        return False

    async def end(self) -> None:
        assert self.process
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@dataclass
class Dialogue:
    """One client. `saw`: all items, as the engine gets them. `by_id`: it names the response before, no conversation."""

    name: str
    url: str
    session: aiohttp.ClientSession
    by_id: bool
    streams: bool
    turns: int = TURNS
    saw: list[dict[str, Any]] = field(default_factory=list)
    conversation: str = ""
    last: str = ""
    responses: list[str] = field(default_factory=list)  # ids, of a chain
    repeated: int = 0
    revisions: set[str] = field(default_factory=set)

    async def run(self) -> None:
        if not self.by_id:
            self.conversation = (await self._until_done(lambda: self._call("POST", "/v1/conversations", {})))["id"]
        for n in range(self.turns):
            await self._turn(n)

    async def _turn(self, n: int) -> None:
        text = f"{self.name}, turn {n}"
        question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        body: dict[str, Any] = {"model": "chat", "input": text, "stream": self.streams}
        body |= {"previous_response_id": self.last} if self.last else {}
        body |= {"conversation": self.conversation} if self.conversation else {}
        key = {"Idempotency-Key": f"{self.name}-{n}"}
        response = await self._until_done(lambda: self._call("POST", "/v1/responses", body, key))
        answer = response["output"][0]["content"][0]["text"]
        assert answer == answer_to([*self.saw, question]), f"{text}: the context was another one"
        self.saw += [question, response["output"][0]]
        self.last = response["id"] if self.by_id else ""
        self.responses.append(response["id"])

    async def _until_done(self, call: Callable[[], Awaitable[dict[str, Any] | None]]) -> dict[str, Any]:
        """What a client does that wants its turn stored: it sends a request again until that is so."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    found = await call()
                except (aiohttp.ClientError, OSError, ValueError):
                    found = None
                if found is not None:
                    return found
                self.repeated += 1
                await asyncio.sleep(0.2)

    async def _call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any] | None:
        async with self.session.request(method, self.url + path, json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status >= 500 or answer.status == 429:
                return None
            assert answer.status == 200, text
            self.revisions.add(answer.headers.get("X-Slipway-Revision", ""))
            if not (body or {}).get("stream"):
                found: dict[str, Any] = json.loads(text)
            else:
                ends = [line[6:] for line in text.splitlines() if line.startswith('data: {"type":"response.completed"')]
                if not ends:
                    return None
                found = json.loads(ends[0])["response"]
            return found if found.get("store", True) else None

    async def check(self) -> int:
        """Each item is stored once, in order. Returns how many there are."""
        if self.by_id:
            for place, response in enumerate(self.responses):
                await self._check_response(response, *self.saw[2 * place : 2 * place + 2])
            return len(self.saw)
        path = f"/v1/conversations/{self.conversation}/items?order=asc&limit=100"
        listed = await self._until_done(lambda: self._call("GET", path))
        assert [text_of(item) for item in listed["data"]] == [text_of(item) for item in self.saw]
        assert len({item["id"] for item in listed["data"]}) == len(self.saw)
        return len(self.saw)

    async def _check_response(self, name: str, question: dict[str, Any], answer: dict[str, Any]) -> None:
        """A response of a chain has its own items, and no others."""
        stored = await self._until_done(lambda: self._call("GET", f"/v1/responses/{name}"))
        assert stored["output"] == [answer]
        listed = await self._until_done(lambda: self._call("GET", f"/v1/responses/{name}/input_items"))
        assert [text_of(item) for item in listed["data"]] == [text_of(question)]


def text_of(item: dict[str, Any]) -> tuple[str, str]:
    return item["role"], item["content"][0]["text"]


def write_routes(path: Path, urls: list[str], *weights: int) -> None:
    backends = [
        {"revision": f"r{n}", "weight": weight, "endpoints": [url]}
        for n, (url, weight) in enumerate(zip(urls, weights, strict=True), 1)
    ]
    later = path.with_suffix(".new")
    later.write_text(yaml.safe_dump({"models": {"chat": {"salt": "1", "backends": backends}}}))
    later.replace(path)


@dataclass
class Fleet:
    """What is killed while clients go on. `kills`: how often each was."""

    gateway: GatewayProcess
    jobs: JobsProcess
    database: Postgres | None
    kills: Counter[str] = field(default_factory=Counter)
    is_over: bool = False

    async def disturb(self) -> None:
        """Kills one at a time, and starts it again, until it is over."""
        chance = random.Random(1)
        while not self.is_over:
            await asyncio.sleep(chance.uniform(*KILL_EACH_S))
            await self.kill(chance.choice(("gateway", "jobs", "database")))

    async def kill(self, what: str) -> None:
        """Kills it, and starts it again."""
        self.kills[what] += 1
        if what == "database":
            assert self.database, "SQLite is part of the jobs process"
            self.database.stop()
            await asyncio.to_thread(self.database.start)
            return
        killed = self.gateway if what == "gateway" else self.jobs
        await killed.end()
        await killed.start()


def fleet(database: Postgres | None, keys_file: str, folder: Path) -> Fleet:
    """`database`: None for SQLite."""
    port, admin_port = reserve_port(), reserve_port()
    url = f"http://127.0.0.1:{port}"
    database_url = database.url if database else f"sqlite:///{folder}/jobs.db"
    jobs = JobsProcess(settings(database_url, keys_file, url, conversations="on"), folder / "jobs.log")
    flags = [
        *("--host=127.0.0.1", "--admin-host=127.0.0.1", f"--port={port}", f"--admin-port={admin_port}"),
        *(f"--routes={folder / 'routes.yaml'}", "--conversations=on", f"--tenant-keys-file={keys_file}"),
        *(f"--jobs-url=http://127.0.0.1:{jobs.settings['port']}", "--max-client-percentage=100"),
    ]
    gateway = GatewayProcess(flags, folder / "gateway.log", url, f"http://127.0.0.1:{admin_port}")
    return Fleet(gateway, jobs, database)


async def talk(dialogues: list[Dialogue], roll_out: Callable[[int, int], None]) -> None:
    """Runs all dialogues, `AT_ONCE` at a time. `roll_out`: sets weights, once a part of them is done."""
    done, places = 0, asyncio.Semaphore(AT_ONCE)

    async def run(dialogue: Dialogue) -> None:
        nonlocal done
        async with places:
            await dialogue.run()
        done += 1

    def is_done(share: float) -> bool:
        return done >= share * len(dialogues)

    async with asyncio.TaskGroup() as group:
        for dialogue in dialogues:
            group.create_task(run(dialogue))
        for share, weights in ((0.2, (50, 50)), (0.5, (0, 100))):
            await until_async(partial(is_done, share), "they go on", 3000)
            roll_out(*weights)


@contextlib.asynccontextmanager
async def serving(
    disturbed: Fleet, folder: Path, dialogues: int, turns: int
) -> AsyncIterator[tuple[list[Dialogue], Callable[..., None]]]:
    """Clients of a fleet before two engines, each of a revision, and what sets the weights of these."""
    engines = (ResponsesEngine(), ResponsesEngine())
    async with upstream(engines[0].answer) as old, upstream(engines[1].answer) as new:

        def roll_out(*weights: int) -> None:
            write_routes(folder / "routes.yaml", [old.url, new.url], *weights)

        roll_out(100, 0)
        await asyncio.gather(disturbed.gateway.start(), disturbed.jobs.start())
        try:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
                url = disturbed.gateway.url
                made = [Dialogue(f"d{n}", url, session, n % 2 == 0, n % 4 < 2, turns) for n in range(dialogues)]
                yield made, roll_out
        finally:
            await disturbed.jobs.end()
            await disturbed.gateway.end()


@pytest.mark.extended
@pytest.mark.timeout(3600)
async def test_dialogues_outlive_a_rollout_with_kills(server: Postgres, keys_file: str, tmp_path: Path) -> None:
    disturbed = fleet(server, keys_file, tmp_path)
    async with serving(disturbed, tmp_path, DIALOGUES, TURNS) as (dialogues, roll_out):
        disturbing = asyncio.create_task(disturbed.disturb())
        try:
            await talk(dialogues, roll_out)
        finally:
            disturbed.is_over = True
            await disturbing
        items = sum([await dialogue.check() for dialogue in dialogues])
    assert items == DIALOGUES * TURNS * 2
    assert set().union(*(dialogue.revisions for dialogue in dialogues)) >= {"r1", "r2"}
    repeated = sum(dialogue.repeated for dialogue in dialogues)
    print(f"{DIALOGUES} dialogues, {items} items, kills {dict(disturbed.kills)}, {repeated} requests sent again")


@pytest.mark.parametrize("killed", ["gateway", "jobs"])
async def test_few_dialogues_outlive_a_rollout_with_a_kill(killed: str, keys_file: str, tmp_path: Path) -> None:
    """Of the gateway, or of the jobs process with SQLite in it, while all of them are in the middle of a turn."""
    disturbed = fleet(None, keys_file, tmp_path)
    async with serving(disturbed, tmp_path, FEW, FEW_TURNS) as (dialogues, roll_out):
        half = FEW * FEW_TURNS // 2

        async def disturb() -> None:
            await until_async(lambda: sum(len(one.responses) for one in dialogues) >= half, "half of the turns", 300)
            roll_out(0, 100)
            await disturbed.kill(killed)

        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(disturb())
            for dialogue in dialogues:
                group.create_task(dialogue.run())
        await disturbing
        items = sum([await dialogue.check() for dialogue in dialogues])
    assert items == FEW * FEW_TURNS * 2 and disturbed.kills == {killed: 1}
