"""Clients that lose their stream and reconnect: they get the rest, and no token is computed twice."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import aiohttp
import pytest

from slipway_gateway.quotas.policy import Policy
from slipway_gateway.quotas.tenant import Limits
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import Gateway, gateway
from tests.server.process import ServerProcess

from .conftest import FLAGS, TINY
from .scissors import scissors

# A start imports torch: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TOKENS = 400
PATH = "/v1/completions"
BODY = {"model": "chat", "prompt": "In the beginning", "max_tokens": TOKENS, "seed": 7, "ignore_eos": True}
STREAM = BODY | {"stream": True, "stream_options": {"include_usage": True}}
RETURNS = {"X-Slipway-Resumable": "1"}


@pytest.fixture(scope="module")
def two() -> Iterator[list[ServerProcess]]:
    """The second one keeps two streams, and for two seconds."""
    with ExitStack() as stack:
        flags: tuple[tuple[str, ...], ...] = ((), ("--replay-window", "2", "--max-replay-streams", "2"))
        started = [stack.enter_context(ServerProcess(TINY, *FLAGS, *more)) for more in flags]
        yield [pod.wait_ready() for pod in started]


class Reader:
    """A client that takes events one by one: id and data of each."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    @classmethod
    async def ask(cls, gate: Gateway, last: str = "", **headers: str) -> "Reader":
        answer = await gate.post(STREAM, PATH, headers=headers | ({"Last-Event-ID": last} if last else {}))
        assert answer.status == 200, await answer.text()
        return cls(answer)

    async def take(self, events: int = 10**9) -> list[tuple[str, str]]:
        taken: list[tuple[str, str]] = []
        lines: dict[str, str] = {}
        while len(taken) < events and (line := await self._answer.content.readline()):
            if name := line.decode().strip():
                key, _, value = name.partition(": ")
                lines[key] = value
            elif "data" in lines:  # else a comment
                taken.append((lines.get("id", ""), lines["data"]))
                lines = {}
        return taken

    def leave(self) -> None:
        self._answer.close()


def bare(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without what differs between two streams of one request: their names, and which pod they are at."""
    compared = []
    for name, data in events:
        chunk = {} if data == "[DONE]" else json.loads(data)
        compared.append(
            (".".join(name.split(".")[2:4]), json.dumps({**chunk, "id": "", "created": 0}) if chunk else data)
        )
    return compared


def positions(events: list[tuple[str, str]]) -> list[int]:
    return [int(name.split(".")[2]) for name, _ in events if name]


class Meter:
    """What a pod computed since."""

    def __init__(self, pod: ServerProcess) -> None:
        self._pod = pod
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        names = {
            "generated": "vllm:generation_tokens_total{",
            "through_model": "vllm:iteration_tokens_total_sum{",
            "reused": "vllm:prefix_cache_hits_total{",
            "aborted": 'vllm:request_success_total{engine="0",finished_reason="abort"',
        }
        return {name: _read(self._pod, sample) for name, sample in names.items()}

    def since(self) -> dict[str, int]:
        return {name: int(value - self._before[name]) for name, value in self._now().items()}


def _read(pod: ServerProcess, sample: str) -> float:
    try:
        return pod.metric(sample)
    except AssertionError:  # a label that was not seen yet
        return 0.0


def came_back(pod: ServerProcess) -> dict[str, int]:
    sources = ("running", "ended", "stopped", "told", "repeated")
    counts = {name: int(pod.metric(f'slipway_replay_resumes_total{{source="{name}"}}')) for name in sources}
    return {name: count for name, count in counts.items() if count}


def rises(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name, count in after.items() if count > before.get(name, 0)}


async def test_cut_at_any_event_and_nothing_is_computed_twice(two: list[ServerProcess]) -> None:
    """Ten cuts of one stream each, some right after the other: the model runs as often as for one that is not cut."""
    chance, pod = random.Random(11), two[0]
    async with gateway() as one, gateway() as other:
        for gate in (one, other):
            gate.route(("rev", 100, [pod.url]))
        meter, before = Meter(pod), came_back(pod)
        whole = await (await Reader.ask(one)).take()
        cost = meter.since()
        assert cost["generated"] == TOKENS and positions(whole)[-1] == TOKENS + 1
        for _ in range(3):
            meter, received = Meter(pod), list[tuple[str, str]]()
            reader = await Reader.ask(one, **RETURNS)
            for _ in range(10):
                received += await reader.take(chance.randrange(1, 30))
                reader.leave()
                reader = await Reader.ask(chance.choice((one, other)), received[-1][0])
            received += await reader.take()
            assert bare(received) == bare(whole)
            assert len({json.loads(data)["id"] for _, data in received if data != "[DONE]"}) == 1
            assert meter.since() == cost, "the same tokens through the model, once"
        assert rises(before, came_back(pod)) in ({"running"}, {"running", "ended"})
        assert pod.metric("slipway_server_requests_in_flight") == 0


async def test_a_client_that_only_leaves_frees_its_slot_and_its_tokens_stay(two: list[ServerProcess]) -> None:
    pod = two[0]
    async with gateway() as one, gateway() as other:
        for gate in (one, other):
            gate.route(("rev", 100, [pod.url]))
        whole = await (await Reader.ask(one)).take()
        left = 'slipway_server_requests_total{outcome="cancelled"}'
        meter, before, count = Meter(pod), came_back(pod), pod.metric(left)
        reader = await Reader.ask(one)
        received = await reader.take(7)
        pod.engine.suspend()  # so that the answer is not over before its client is gone
        reader.leave()
        await until_async(lambda: pod.metric(left) == count + 1)
        pod.engine.resume()
        await until_async(lambda: pod.running() == 0)
        received += await (await Reader.ask(other, received[-1][0])).take()
        assert bare(received) == bare(whole)
        assert came_back(pod) == before | {"stopped": before.get("stopped", 0) + 1}
        spent = meter.since()
        assert (spent["generated"], spent["aborted"]) == (TOKENS, 1)


async def test_a_stream_goes_on_at_another_pod_after_one_prefill(two: list[ServerProcess]) -> None:
    """The pod is gone, and the client lost its connection as well: the gateway has the tokens still."""
    async with gateway() as gate:
        gate.route(("rev", 100, [two[0].url]))
        whole = await (await Reader.ask(gate)).take()
        reader = await Reader.ask(gate)
        received = await reader.take(50)
        reader.leave()
        await until_async(lambda: gate.outcomes().get("client_closed") == 1)
        gate.route(("rev", 100, [two[1].url]))
        meter, before = Meter(two[1]), came_back(two[1])
        received += await (await Reader.ask(gate, received[-1][0])).take()
        assert bare(received) == bare(whole)
        assert came_back(two[1]) == before | {"told": before.get("told", 0) + 1}
        assert meter.since()["generated"] <= TOKENS - positions(received)[49]


async def test_after_the_window_it_is_computed_once_more(two: list[ServerProcess]) -> None:
    pod = two[1]
    expired = 'slipway_replay_kept_total{end="expired"}'
    async with gateway() as one, gateway() as other:
        for gate in (one, other):
            gate.route(("rev", 100, [pod.url]))
        whole = await (await Reader.ask(one)).take()
        await until_async(
            lambda: pod.metric("slipway_replay_streams") == 0, 30
        )  # no window of another stream ends meanwhile
        before, count = came_back(pod), pod.metric(expired)
        reader = await Reader.ask(one, **RETURNS)
        received = await reader.take(5)
        reader.leave()
        await until_async(lambda: pod.metric(expired) > count)
        await until_async(lambda: pod.running() == 0)
        received += await (await Reader.ask(other, received[-1][0])).take()
        assert bare(received) == bare(whole)
        assert came_back(pod) == before | {"repeated": before.get("repeated", 0) + 1}


@pytest.mark.finding("F16")
async def test_a_finished_stream_that_is_computed_again_is_paid_for_again(two: list[ServerProcess]) -> None:
    """The pod generated 400 tokens for its last event, as often as the client came back, and charged none of them."""
    key = tenants.make_key()
    one = replace(tenants.tenant("team-a", key), policy=Policy(Limits(output_tokens_per_minute=1, burst_s=60_000_000)))
    async with gateway(tenants=[one], pepper=tenants.PEPPER, auth_mode="required") as gate:
        gate.route(("rev", 100, [two[1].url]))
        headers = tenants.bearer(key)

        async def spent() -> tuple[int, int]:
            await gate.ledger.flush()
            _, rows = await gate.ledger.usage(0, 1 << 30, "")
            quota, now_s = gate.admission.quotas.find("team-a"), asyncio.get_running_loop().time()
            assert quota is not None
            return sum(row["output_tokens"] for row in rows), round(quota.owed("output_tokens", now_s))

        events = await (await Reader.ask(gate, **headers)).take()
        assert (await spent())[0] == TOKENS
        last = events[-3][0]
        for count in (1, 2):
            # The buffer of the former return is gone.
            await until_async(lambda: two[1].metric("slipway_replay_streams") == 0, within_s=30)
            meter = Meter(two[1])
            await (await Reader.ask(gate, last, **headers)).take()
            assert meter.since()["generated"] == TOKENS
            billed, limited = await spent()
            assert billed == (1 + count) * TOKENS
            assert limited == pytest.approx(billed, abs=10), "one flows back each minute"
        meter = Meter(two[1])
        await (await Reader.ask(gate, last, **headers)).take()
        assert meter.since()["generated"] == 0
        billed, limited = await spent()
        assert billed == 3 * TOKENS
        assert limited == pytest.approx(billed, abs=10)


async def test_where_too_many_are_kept_the_oldest_goes(two: list[ServerProcess]) -> None:
    pod = two[1]
    evicted = 'slipway_replay_kept_total{end="evicted"}'
    async with gateway() as gate:
        gate.route(("rev", 100, [pod.url]))
        await until_async(lambda: pod.metric("slipway_replay_streams") == 0)
        readers = [await Reader.ask(gate, **RETURNS) for _ in range(3)]
        for reader in readers:
            await reader.take(3)
        count = pod.metric(evicted)
        for reader in readers:
            reader.leave()
        await until_async(lambda: pod.metric(evicted) == count + 1)
        await until_async(lambda: pod.metric("slipway_replay_streams") == 0)
        await until_async(lambda: pod.running() == 0)
        assert pod.metric("slipway_replay_bytes") == 0


async def test_a_gateway_leads_back_to_the_pod_that_holds_the_stream(two: list[ServerProcess]) -> None:
    async with gateway() as one, gateway() as other:
        for gate in (one, other):
            gate.route(("rev", 100, [pod.url for pod in two]))
        before = [came_back(pod) for pod in two]
        for _ in range(4):
            reader = await Reader.ask(one, **RETURNS)
            received = await reader.take(3)
            reader.leave()
            assert positions(received + await (await Reader.ask(other, received[-1][0])).take())[-1] == TOKENS + 1
        after = [came_back(pod) for pod in two]
        found = sum(last.get(name, 0) - first.get(name, 0) for first, last in zip(before, after, strict=True)
                    for name in ("running", "ended"))  # fmt: skip
        assert found == 4 and [pod.get("repeated") for pod in after] == [pod.get("repeated") for pod in before]


async def test_tokens_of_a_lost_pod_are_prefilled_by_the_next_one(two: list[ServerProcess]) -> None:
    async with scissors(two[0].url) as wire, gateway(resume_timeout_s=20) as gate:
        gate.route(("rev", 100, [two[1].url]))
        whole = await (await Reader.ask(gate)).take()
        wire.cuts = [60_000]
        gate.route(("rev", 100, [wire.url]))
        reader = await Reader.ask(gate)
        received = await reader.take(2)
        two[0].engine.suspend()  # so that it is not cut before there is another one
        gate.route(("rev", 100, [wire.url, two[1].url]))
        meter = Meter(two[1])
        two[0].engine.resume()
        received += await reader.take()
        assert wire.made == 1 and bare(received) == bare(whole)
        first = received[0][0].rpartition(".")[2]
        known = max(positions([event for event in received if event[0].endswith(first)]))
        assert 0 < known < TOKENS
        assert meter.since()["generated"] == TOKENS - known
