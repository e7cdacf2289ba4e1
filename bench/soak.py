"""A soak of the model server: is anything lost, left over or counted twice after minutes of the worst manners?

    python -m bench.soak --minutes 20          (or --seconds 60 for a short look)

Clients, more of them than the server has slots and places in its queue, send answers of every kind, leave at random
moments, and mix in bad bodies, prompts that do not fit and deadlines that cannot be kept. A first part of the time
warms up: what a server touches once and keeps (caches, pools, pages of the KV cache) is no leak. Then everything rests,
memory and file descriptors are looked at, the rest of the time runs, everything rests again, and they are looked at
once more. Exit status 0 means that every bar held; the report is build/reports/soak.json.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import click
from prometheus_client.parser import text_string_to_metric_families

from bench.fuzz.edges import SAMPLING
from devcluster.ports import reserve_port
from testkit.report import Bar, Json, report, write
from testkit.world.program import DidNotStart, Launch, Server, running

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL = REPOSITORY / "examples" / "models" / "tiny-v1"
CONTEXT_TOKENS, SLOTS, QUEUE, KV_TOKENS, BODY_BYTES = 512, 16, 16, 2048, 65536
CLIENTS = 40
WARM_SHARE, WARM_LEAST_S = 0.2, 15.0
REST_LOOKS = 60  # a second apart
# A look at a resting process: what the allocator keeps moves by some MiB, a leak of any kind grows with the minutes.
RSS_TOLERANCE_MIB, FD_TOLERANCE = 24.0, 0
WORDS = [
    "And",
    "it",
    "came",
    "to",
    "pass",
    "in",
    "those",
    "days",
    "that",
    "there",
    "went",
    "out",
    "a",
    "decree",
    "unto",
    "all",
    "the",
    "people",
    "of",
    "the",
    "land",
]
COMPLETED, INVALID, REFUSED, ERROR, LEFT_EARLY, LEFT_LATE, LOST = (
    "completed", "invalid", "refused", "error", "left before an answer", "left during an answer", "connection lost",
)  # fmt: skip


# --- the requests (pure) ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its bytes, when its client leaves, and the endings that are right for it."""

    kind: str
    path: str
    body: bytes
    leaves_after_s: float | None = None
    leaves_after_events: int | None = None
    right: frozenset[str] = frozenset({COMPLETED, REFUSED})


def draw(dice: random.Random) -> Ask:
    """Any request; half of them are left by their client or are wrong."""
    kind = dice.choices(("answer", "leave", "bad", "long", "late"), (50, 25, 12, 8, 5))[0]
    if kind == "bad":
        return _bad(dice)
    path, body = _answerable(dice)
    if kind == "long":
        body |= {"max_tokens": dice.choice((8, 10**6))} if dice.random() < 0.5 else {}
        body |= _prompt(path, _text(dice, CONTEXT_TOKENS + dice.randint(0, 2000)))
        return Ask(kind, path, _encoded(body), right=frozenset({INVALID}))
    if kind == "late":
        body["timeout"] = dice.uniform(0.001, 0.2)
        return Ask(kind, path, _encoded(body), right=frozenset({COMPLETED, REFUSED, ERROR}))
    ask = Ask(kind, path, _encoded(body))
    if kind == "answer":
        return ask
    left = ask.right | {LEFT_EARLY, LEFT_LATE}
    if dice.random() < 0.5:
        return replace(ask, leaves_after_s=dice.expovariate(3.0), right=left)
    return replace(ask, leaves_after_events=dice.randint(1, 30), right=left)


def _answerable(dice: random.Random) -> tuple[str, dict[str, Any]]:
    path = dice.choice(("/v1/completions", "/v1/chat/completions"))
    body: dict[str, Any] = {"model": "m", "max_tokens": dice.randint(1, 80), "stream": dice.random() < 0.7}
    body |= _prompt(path, _text(dice, dice.randint(1, 150)))
    body |= {"temperature": dice.choice((0, 0.7, 1.5)), "ignore_eos": dice.random() < 0.5, "seed": dice.randint(0, 9)}
    if dice.random() < 0.5:
        body |= {name: dice.choice(values) for name, values in SAMPLING.items() if dice.random() < 0.4}
    for chance, more in (
        (0.2, {"n": dice.randint(2, 3)}),
        (0.2, {"stop": ["the", "\n"]}),
        (0.2, {"top_p": 0.9, "top_k": 20}),
        (0.1, {"frequency_penalty": 0.5, "repetition_penalty": 1.2}),
        (0.1, {"priority": dice.randint(-5, 5)}),
    ):
        body |= more if dice.random() < chance else {}
    return path, body


def _bad(dice: random.Random) -> Ask:
    """Each is refused for a reason of its own, before the engine gets it."""
    path, body = _answerable(dice)
    wrong: list[tuple[str, bytes]] = [
        (path, b'{"model": "m", "prompt": '),
        (path, b""),
        (path, b"[1, 2]"),
        (path, _encoded(body | {"model": "no-such-model"})),
        (path, _encoded(body | {"temperature": -1})),
        (path, _encoded(body | {"max_tokens": 0})),
        (path, _encoded(body | {"n": "two"})),
        ("/v1/completions", _encoded({"model": "m", "prompt": [10**9]})),
        ("/v1/completions", _encoded({"model": "m", "prompt": ""})),
        ("/v1/completions", _encoded({"model": "m", "prompt": "x" * (BODY_BYTES + 1000)})),
        ("/v1/embeddings", _encoded({"model": "m", "input": "a"})),
        ("/v1/nothing", _encoded(body)),
    ]
    where, what = dice.choice(wrong)
    return Ask("bad", where, what, right=frozenset({INVALID}))


def _prompt(path: str, text: str) -> dict[str, Any]:
    return {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choices(WORDS, k=words))


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


# --- what was seen, and whether it is right (pure) --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """A resting server: its processes' memory and file descriptors, its gauges, its outcomes so far."""

    rss_mib: float = 0.0
    fds: int = 0
    busy: Mapping[str, float] = field(default_factory=dict)  # gauges that are 0 when nothing is left
    outcomes: Mapping[str, int] = field(default_factory=dict)
    preemptions: int = 0

    @property
    def rests(self) -> bool:
        return bool(self.busy) and not any(self.busy.values())


@dataclass(slots=True)
class Seen:
    """Endings as the clients saw them, and those that were not right."""

    endings: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    wrongs: int = 0

    def add(self, ask: Ask, ending: str, response: str) -> None:
        self.endings[ending] += 1
        self.kinds[ask.kind] += 1
        if ending not in ask.right:
            self.wrongs += 1
            self.wrong = [*self.wrong, f"{ask.kind} {ask.path}: {ending} {response}"][:20]


def bars(seen: Seen, first: Look, last: Look) -> list[Bar]:
    """What the clients know and what the server counted, held against each other.

    A client that leaves before any answer cannot know whether its request was read at all: so many, and no more, may
    be missing from the server's sum. It may as well have been refused or answered a moment before.
    """
    sent, counted = seen.endings.total(), sum(last.outcomes.values())
    missing, unread = sent - counted, seen.endings[LEFT_EARLY]
    growth, opened = round(last.rss_mib - first.rss_mib, 1), last.fds - first.fds
    left_over = {name: value for name, value in last.busy.items() if value}
    return [
        Bar("requests with an ending that is not theirs", seen.wrongs, "0", seen.wrongs == 0),
        Bar("requests in no counter", missing, f"0 to {unread}", 0 <= missing <= unread),
        *(_class_bar(seen, last, name) for name in (INVALID, REFUSED, ERROR, COMPLETED)),
        *(Bar(f"{name} at the end", value, "0", False) for name, value in left_over.items()),
        Bar("gauges that are not back to 0", len(left_over), "0", last.rests),
        Bar("growth of resident memory, MiB", growth, f"<= {RSS_TOLERANCE_MIB:.0f}", growth <= RSS_TOLERANCE_MIB),
        Bar("file descriptors more than before", opened, f"<= {FD_TOLERANCE}", opened <= FD_TOLERANCE),
        Bar("preemptions", last.preemptions, ">= 1", last.preemptions >= 1),
        Bar("refusals of a full queue", seen.endings[REFUSED], ">= 1", seen.endings[REFUSED] >= 1),
    ]


def _class_bar(seen: Seen, last: Look, name: str) -> Bar:
    """The server counted what clients saw, and at most those more whose clients had left."""
    known, counted = seen.endings[name], last.outcomes.get(name, 0)
    most = known + seen.endings[LEFT_EARLY] + seen.endings[LEFT_LATE]
    return Bar(f"counted as {name}", counted, f"{known} to {most}", known <= counted <= most)


# --- the run ----------------------------------------------------------------------------------------------------------


class Soak:
    """Clients against one server, and looks at it while it rests."""

    def __init__(self, server: Server, url: str, seed: int) -> None:
        self._server, self._url, self._seed = server, url, seed
        self.seen = Seen()

    async def run(self, seconds: float) -> tuple[Look, Look]:
        """The looks after the warm-up and at the end."""
        warm_s = max(WARM_LEAST_S, seconds * WARM_SHARE)
        await self._storm(warm_s, "warm-up")
        first = await self._rest()
        await self._storm(max(1.0, seconds - warm_s), "soak")
        return first, await self._rest()

    async def _storm(self, seconds: float, name: str) -> None:
        until = time.monotonic() + seconds
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=300)
        print(f"{time.strftime('%H:%M:%S')}  {name}: {seconds:.0f} s", flush=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            dice = [random.Random(f"{self._seed}-{name}-{number}") for number in range(CLIENTS)]
            clients = [asyncio.create_task(self._client(session, each, until)) for each in dice]
            while any(not client.done() for client in clients):
                await asyncio.wait(clients, timeout=30)
                print(f"{time.strftime('%H:%M:%S')}  {dict(self.seen.endings)}", flush=True)
            await asyncio.gather(*clients)

    async def _client(self, session: aiohttp.ClientSession, dice: random.Random, until: float) -> None:
        while time.monotonic() < until:
            ask = draw(dice)
            ending, response = await perform(session, self._url, ask)
            self.seen.add(ask, ending, response)
            if ending == REFUSED:
                await asyncio.sleep(dice.uniform(0.1, 1.0))

    async def _rest(self) -> Look:
        """Waits until nothing is left to do; the last look shows whether it never comes to rest."""
        for _ in range(REST_LOOKS):
            if (await self._look()).rests:
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(2.0)  # sockets that are closing are file descriptors still
        return await self._look()

    async def _look(self) -> Look:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.get(f"{self._url}/metrics") as reply,
        ):
            page = await reply.text()
        await asyncio.sleep(0.2)
        return replace(read(page), rss_mib=self._server.rss_mib(), fds=self._server.fds())


GAUGES = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "slipway_server_requests_in_flight",
)  # fmt: skip


def read(page: str) -> Look:
    """Gauges and counters of a metrics page."""
    busy: dict[str, float] = {}
    outcomes: dict[str, int] = {}
    preemptions = 0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in GAUGES:
                busy[sample.name] = sample.value
            elif sample.name == "slipway_server_requests_total":
                outcomes[sample.labels["outcome"]] = int(sample.value)
            elif sample.name == "vllm:num_preemptions_total":
                preemptions = int(sample.value)
    return Look(busy=busy, outcomes=outcomes, preemptions=preemptions)


async def perform(session: aiohttp.ClientSession, url: str, ask: Ask) -> tuple[str, str]:
    """How it ended for its client, and the response."""
    answered = False

    async def exchange() -> tuple[str, str]:
        nonlocal answered
        headers = {"Content-Type": "application/json"}
        async with session.post(url + ask.path, data=ask.body, headers=headers) as reply:
            answered = True
            if reply.status != 200:
                return _ending(reply.status), f"{reply.status} {(await reply.text())[:200]}"
            if reply.content_type != "text/event-stream":
                return COMPLETED, str(len(await reply.read()))
            return await _follow(reply, ask.leaves_after_events)

    try:
        async with asyncio.timeout(ask.leaves_after_s):
            return await exchange()
    except TimeoutError:
        return (LEFT_LATE if answered else LEFT_EARLY), ""
    except aiohttp.ClientError as error:
        return LOST, f"{type(error).__name__}: {error}"


def _ending(status: int) -> str:
    return REFUSED if status == 429 else INVALID if status < 500 else ERROR


async def _follow(reply: aiohttp.ClientResponse, leaves_after: int | None) -> tuple[str, str]:
    """A stream to its end, or as far as its client reads."""
    events, ending = 0, LOST
    async for line in reply.content:
        if line.startswith(b"data: [DONE]"):
            return (ERROR if ending == ERROR else COMPLETED), ""
        if line.startswith(b"data:"):
            events += 1
            ending = ERROR if b'"error"' in line[:20] else ending
        if leaves_after is not None and events >= leaves_after:
            reply.close()
            return LEFT_LATE, ""
    return LOST, f"the stream ended after {events} events without saying so"


def launch(port: int, probe_port: int, *, async_scheduling: bool = False) -> Launch:
    """A server that is small enough to be full all the time."""
    flags = {
        "model": MODEL, "served-model-name": "m", "dtype": "bfloat16", "host": "127.0.0.1", "port": port,
        "probe-port": probe_port, "max-num-seqs": SLOTS, "max-kv-tokens": KV_TOKENS, "max-queue-requests": QUEUE,
        "max-body-bytes": BODY_BYTES, "log-level": "WARNING",
        "async-scheduling": "on" if async_scheduling else "off",
    }  # fmt: skip
    command = [sys.executable, "-m", "slipway_server"]
    command += [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    paths = f"{REPOSITORY / 'server'}:{REPOSITORY}"
    return Launch(command, {"PYTHONPATH": paths}, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{probe_port}/readyz")


def as_json(seen: Seen, first: Look, last: Look, settings: Json) -> Json:
    """For build/reports/soak.json."""
    looks = (("after the warm-up", first), ("at the end", last))
    rows: list[Json] = [
        {"endings": dict(seen.endings), "kinds": dict(seen.kinds), "wrong": seen.wrong},
        *(
            {"look": name, "rss_mib": look.rss_mib, "fds": look.fds, "outcomes": dict(look.outcomes)}
            for name, look in looks
        ),
    ]
    return report("soak", rows, bars(seen, first, last), settings=settings)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=click.FloatRange(min=0.1), default=20.0, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=5.0), help="In place of minutes.")
@click.option("--seed", default=1, show_default=True, help="Of what clients do.")
@click.option("--async-scheduling", is_flag=True, help="The server gets this flag.")
def main(minutes: float, seconds: float | None, seed: int, *, async_scheduling: bool) -> None:
    """Minutes of random, broken and abandoned requests against our server; then all must be back to the start."""
    length_s = seconds or minutes * 60
    start = launch(reserve_port(), reserve_port(), async_scheduling=async_scheduling)
    log = REPOSITORY / "build" / "soak.log"
    try:
        with running(start, log, 120.0) as server:
            soak = Soak(server, start.url, seed)
            first, last = asyncio.run(soak.run(length_s))
    except DidNotStart as error:
        print(f"the server did not start: {error}")
        sys.exit(2)
    result = as_json(
        soak.seen,
        first,
        last,
        {"seconds": length_s, "seed": seed, "clients": CLIENTS, "async_scheduling": async_scheduling},
    )
    path = write(result)
    for wrong in soak.seen.wrong:
        print(f"wrong: {wrong}")
    print(f"at rest  {first.rss_mib:.1f} MiB, {first.fds} descriptors; at the end {last.rss_mib:.1f} MiB, {last.fds}")
    for bar in bars(soak.seen, first, last):
        print(bar)
    print(f"report   {path.relative_to(REPOSITORY)}")
    sys.exit(0 if all(bar["ok"] for bar in result["bars"]) else 1)


if __name__ == "__main__":
    main()
