"""A process beside a server that writes down how long each of its turns, each probe and each answer took.

    python -m testkit.load.watcher '{"probe_url": …, "pids": […], "url": …, "body": …}'

One line of JSON for each pause above REPORTED_S, and now and then one without, which shows how far it is. It ends when
its stdin is closed. `testkit.load.watch` starts it and reads the lines.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec

from testkit.world import proc

REPORTED_S = 0.01
MARK_S = 0.1  # between lines without a pause
TICK_S, PROBE_S = 0.001, 0.01
TIMEOUT_S = 120.0
RETRY_S = 0.05
IDLE, PROBE, ANSWERS = "idle", "probe", "answers"


class Observed(msgspec.Struct):
    """What is watched. `url`: of a small request, sent again and again; its response may come in many pieces.

    `body`: its JSON; "": it is a GET. `pids`: the processes that answer it, one after the other.
    """

    probe_url: str
    pids: list[int]
    url: str
    body: str = ""
    headers: dict[str, str] = {}


class Pause(msgspec.Struct):
    """From `start_s` to `end_s` of the machine's monotonic clock nothing came. `trouble`: it ended with an error.

    `waited_s`: of that time the processes waited for a core, which other programs had.
    """

    kind: str
    start_s: float
    end_s: float
    waited_s: float = 0.0
    trouble: str = ""


class Log:
    def __init__(self, kind: str, pids: Sequence[int] = ()) -> None:
        self._kind, self._pids = kind, pids
        self._last_s = self._marked_s = time.monotonic()
        self._waited_s = self._waited()

    def moved(self, trouble: str = "") -> None:
        """Something came, or ended."""
        now_s, waited_s = time.monotonic(), self._waited()
        if now_s - self._last_s > REPORTED_S or now_s - self._marked_s > MARK_S or trouble:
            pause = Pause(self._kind, self._last_s, now_s, waited_s - self._waited_s, trouble)
            print(msgspec.json.encode(pause).decode(), flush=True)
            self._marked_s = now_s
        self._last_s, self._waited_s = now_s, waited_s

    def begins(self) -> None:
        """What comes next is waited for from now on."""
        self._last_s, self._waited_s = time.monotonic(), self._waited()

    def _waited(self) -> float:
        return sum(map(proc.waited_s, self._pids))


async def _tick() -> None:
    log = Log(IDLE)
    while True:
        await asyncio.sleep(TICK_S)
        log.moved()


async def _repeat(log: Log, call: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        log.begins()
        try:
            await call()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.moved(f"{type(error).__name__}: {error}")
            await asyncio.sleep(RETRY_S)
        await asyncio.sleep(pause_s)


async def _watch(observed: Observed) -> None:
    probe, answers = Log(PROBE, observed.pids[:1]), Log(ANSWERS, observed.pids)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:

        async def ask_probe() -> None:
            async with session.get(observed.probe_url) as answer:
                await answer.read()
                probe.moved("" if answer.status == 200 else f"status {answer.status}")

        async def read_answer() -> None:
            headers = {"Content-Type": "application/json"} | observed.headers
            method, data = ("POST", observed.body) if observed.body else ("GET", None)
            async with session.request(method, observed.url, data=data, headers=headers) as answer:
                if answer.status != 200:
                    answers.moved(f"status {answer.status}: {(await answer.text())[:200]}")
                    return
                async for piece, _ in answer.content.iter_chunks():
                    answers.moved("an error in the stream" if b'"error"' in piece else "")

        pause_s = 0.0 if observed.body else PROBE_S  # a stream paces itself
        tasks = [
            asyncio.create_task(_tick()),
            asyncio.create_task(_repeat(probe, ask_probe, PROBE_S)),
            asyncio.create_task(_repeat(answers, read_answer, pause_s)),
        ]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_watch(msgspec.json.decode(sys.argv[1], type=Observed)))
