"""Comparisons with real servers: one that is stable's copy differs in nothing, and another model in everything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.ports import reserve_port
from slipway_contracts.counters import MILLION
from slipway_contracts.twin_shadow import TwinLatency, TwinShadow
from testkit.until import until_async
from tests.server.process import ServerProcess

from .harness import Gateway, gateway
from .test_mirror import compared, mirroring, results
from .test_twins import counts, events, shadowing, until_results
from .test_twins import results as results_of_twins

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODELS = Path(__file__).parents[2] / "examples" / "models"
VERSES = ("And God said, Let there be light", "In the beginning", "And it came to pass in those days", "The king said")
FLAGS = ("--served-model-name", "chat", "--host", "0.0.0.0")
COMMON: dict[str, Any] = {"model": "chat", "max_tokens": 24}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    first, second = (ServerProcess(MODELS / name, *FLAGS) for name in ("tiny-v1", "tiny-v2"))
    with first, second:
        yield first.wait_ready(), second.wait_ready()


async def ask_all(gate: Gateway) -> None:
    """Completions and chats, streamed and whole, greedy and drawn."""
    count = 0
    for verse in VERSES:
        for temperature, stream in ((0, True), (0, False), (1.0, True), (0.7, False)):
            for path, prompt in (
                ("/v1/completions", {"prompt": verse}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": verse}]}),
            ):
                body = COMMON | prompt | {"temperature": temperature, "stream": stream}
                async with await gate.post(body, path) as answer:
                    assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, "s")
                    await answer.read()
                count += 1
                await until_async(lambda wanted=count: sum(results(gate).values()) == wanted)


async def test_a_copy_of_stable_differs_in_nothing_and_another_model_in_all(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    stable, other = servers
    # One process behind three names of this machine: to the gateway they are three pods.
    one, two, three = (stable.url.replace("127.0.0.1", name) for name in ("127.0.0.1", "localhost", "0.0.0.0"))
    for canary, differ in ((three, False), (other.url, True)):
        async with gateway(mirror_compare_percentage=100) as gate:
            gate.balancer.publish(mirroring([canary], [one, two]))
            await ask_all(gate)
            assert results(gate) == {"compared": 32}
            text, tokens = compared(gate), compared(gate, "tokens")
            assert text["pairs"] == 32 and tokens["pairs"] >= 28, "an answer without any text is not scored"
            assert text.get("second_only", 0) == text.get("both", 0) == 0
            if differ:
                # What was drawn is not every server's first choice: there stable's own flips are the floor.
                assert text["canary_only"] >= 28 and tokens["canary_only"] > 3 * tokens.get("second_only", 0)
            else:
                assert not {"canary_only", "second_only"} & {*text, *tokens}


async def test_twins_of_real_servers_differ_in_nothing_and_a_dead_canary_in_all(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    stable, _ = servers
    one, two, three = (stable.url.replace("127.0.0.1", name) for name in ("127.0.0.1", "localhost", "0.0.0.0"))
    absent = f"http://127.0.0.1:{reserve_port()}"
    for canary, legs in ((three, {}), (absent, {"bad": {"canary_only": 16}, "errors": {"canary_only": 16}})):
        async with gateway(mirror_compare_percentage=100) as gate:
            limits = (TwinLatency("ttft", 15), TwinLatency("itl", 10), TwinLatency("e2e", 15))
            shadow = TwinShadow("c", "s", 100, 1000, latencies=limits, quality=True)
            gate.balancer.publish(shadowing([canary], [one], shadow, baseline=[two]))
            for n, verse in enumerate(VERSES * 4):
                sampling = {"temperature": (0, 1.0)[n % 2], "stream": n % 4 < 2}
                async with await gate.post(COMMON | {"prompt": verse} | sampling, "/v1/completions") as answer:
                    assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, "s")
                    await answer.read()
                await until_results(gate, n + 1)
            assert results_of_twins(gate) == {"paired": 16} and counts(gate)["pairs"] == 16
            assert events(gate) == legs
            measured = {measure: times["pairs"] for measure, times in counts(gate)["latencies"].items()}
            assert measured == ({"ttft": 8, "itl": 8, "e2e": 16} if canary == three else {})
            found = counts(gate)["quality"]
            assert (found["texts"], found["differ"]) == ((16, 0) if canary == three else (0, 0))
            assert found["canary_only"] == found["twin_only"] == 0
            assert (found["scored"] >= 12 and found["tokens"] > 100) == (canary == three)
            # Half of the responses were drawn: what stable does not choose either is no token that canary lost.
            assert found["changed_millionths"] == 0 and (found["compared"] >= 12) == (canary == three)
            assert (found["unscored"] >= 12) == (canary == absent)


async def test_another_model_would_not_choose_the_tokens_of_its_twin(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    stable, other = servers
    one, two = (stable.url.replace("127.0.0.1", name) for name in ("127.0.0.1", "localhost"))
    async with gateway(mirror_compare_percentage=100) as gate:
        shadow = TwinShadow("c", "s", 100, 1000, quality=True)
        gate.balancer.publish(shadowing([other.url], [one], shadow, baseline=[two]))
        for n, verse in enumerate(VERSES):
            async with await gate.post(COMMON | {"prompt": verse, "temperature": 0}, "/v1/completions") as answer:
                await answer.read()
            await until_results(gate, n + 1)
        found = counts(gate)["quality"]
        assert found["scored"] >= 3 and found["canary_only"] == found["scored"], found
        assert found["changed_millionths"] > 0.05 * MILLION * found["compared"] > 0, found
        assert found["canary_flips"] > 5 * found["twin_flips"] and found["differ"] == found["texts"] == 4
