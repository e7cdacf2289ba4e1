"""Processor time of one choice: the look-up of a prompt's blocks and the costs of all endpoints."""

import random
import statistics
import time
from dataclasses import dataclass

from slipway_gateway.balancing.endpoint_picker import LeastLoad
from slipway_gateway.balancing.prefix_affinity import PrefixRouting
from slipway_gateway.balancing.prefix_index import MAX_BLOCKS
from slipway_gateway.balancing.prompt_blocks import PromptBlocks, blocks_of
from slipway_gateway.routing.table import Route, RouteTable

PROMPT_BYTES = 24_000  # some 6,000 tokens
_ROUNDS, _CHOICES = 15, 200


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds: of a choice, of the blocks of a prompt, and of a choice without prefixes."""

    pods: int
    choice_us: float
    blocks_us: float
    least_us: float


def measure(pods: int) -> Cost:
    """With prompts of which two of three endpoints have seen the beginning."""
    draw = random.Random(0)
    urls = tuple(f"http://10.0.{n // 250}.{n % 250}:8000" for n in range(pods))
    route = Route("default/chat", "uid", "chat", prefix_affinity=True)
    routing = PrefixRouting(MAX_BLOCKS)
    routing.follow(RouteTable({route.name: route}, endpoints={(route.name, "r"): urls}))
    texts = [draw.randbytes(PROMPT_BYTES) for _ in range(8)]
    prompts = [blocks_of([text]) for text in texts]
    for number, url in enumerate(urls):
        if number % 3:
            prompt = prompts[number % len(prompts)]
            routing.begin(PromptBlocks(prompt.hashes[: 20 + number % 60], prompt.size), url)
    least = LeastLoad({url: draw.randrange(20) for url in urls})

    def choose(prompt: PromptBlocks) -> None:
        routing.picker(prompt, least).pick(urls, "key")

    return Cost(
        pods,
        _us(lambda n: choose(prompts[n % 8])),
        _us(lambda n: blocks_of([texts[n % 8]])),
        _us(lambda n: least.pick(urls, "key")),
    )


def _us(work) -> float:  # type: ignore[no-untyped-def]
    """Median over rounds of the mean of many calls."""
    rounds = []
    for _ in range(_ROUNDS):
        began_s = time.thread_time()
        for n in range(_CHOICES):
            work(n)
        rounds.append((time.thread_time() - began_s) / _CHOICES * 1e6)
    return statistics.median(rounds)
