"""The recount of every request: 5,000 of them in each run, and that it would find a number that is wrong."""

import argparse
import copy
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from .native import needs_plane
from .recount.__main__ import bars, run
from .recount.client import Totals, whole_size
from .recount.compare import differences, totals
from .recount.mix import PAID, samples
from .recount.server import RESPONSES

REQUESTS = 5_000
KEYS = [("limited", "key-1"), ("free", "key-2")]


@pytest.mark.integration
@needs_plane
@pytest.mark.timeout(600)  # seconds, unless other work has the machine
async def test_of_five_thousand_requests_each_is_counted_once_and_again() -> None:
    options = argparse.Namespace(
        requests=REQUESTS, part=REQUESTS // 2, clients=2, connections=16, seed="test", quiet=True
    )
    parts = await run(options)
    assert not [str(bar) for bar in bars(parts, REQUESTS) if not bar.ok], [part.problems for part in parts]


def labels(model: str, code: str, revision: str = "r1", outcome: str = "ok") -> dict[str, str]:
    return {"model": model, "revision": revision, "code": code, "outcome": outcome}


def numbers() -> tuple[dict[str, Any], list[dict[str, int]], dict[str, Any]]:
    """What clients, servers and a gateway have when all is well."""
    clients = Totals(
        sent=Counter({f"{PAID}.ok": 3, f"{PAID}.404": 1}),
        received=Counter({f"{PAID}|r1|200": 3, f"{PAID}||404": 1}),
        tokens={"free|paid": [3, 21, 15]},
    )
    servers: list[dict[str, int]] = [{f"{PAID}.ok": 2}, {f"{PAID}.ok": 1, f"{PAID}.404": 1}, {}, {}, {}, {}, {}, {}]
    gateway: dict[str, Any] = {
        "metrics": {
            "requests_total": [[labels(PAID, "200"), 3.0], [labels(PAID, "404", outcome="upstream"), 1.0]],
            "recounts_total": [[{"result": "same"}, 2.0]],
        },
        "fast": 2,
        "looks": 2,
        "running": 0,
        "waiting_prompts": 0,
        "drained_s": 10.0,
        "ledger": [{"tenant": "free", "model": PAID, "input_tokens": 21, "output_tokens": 15}],
        "routes": {f"default/{model}": {"r1": {"requests": 4 * (model == PAID)}} for model in (PAID, "plain")},
    }
    seen = totals([dict(vars(clients))])
    return seen, servers, gateway


def test_equal_numbers_have_no_difference() -> None:
    assert differences(*numbers()) == []


WRONG: dict[str, Callable[[dict[str, Any], list[dict[str, int]], dict[str, Any]], None]] = {
    "a request that was counted twice": lambda _, __, gateway: gateway["metrics"]["requests_total"][0].__setitem__(
        1, 4
    ),
    "another status": lambda _, __, gateway: gateway["metrics"]["requests_total"][1][0].update(code="403"),
    "another revision": lambda _, __, gateway: gateway["metrics"]["requests_total"][0][0].update(revision="r2"),
    "another outcome": lambda _, __, gateway: gateway["metrics"]["requests_total"][0][0].update(outcome="cut"),
    "a recount that differs": lambda _, __, gateway: gateway["metrics"].update(
        recounts_total=[[{"result": "usage"}, 1.0]]
    ),
    "a request that was not counted again": lambda _, __, gateway: gateway.update(looks=1),
    "a prompt that waits for ever": lambda _, __, gateway: gateway.update(waiting_prompts=9),
    "a panic": lambda _, __, gateway: gateway["metrics"].update(plane_failures_total=[[{"kind": "panic"}, 1.0]]),
    "a place that was not given back": lambda _, __, gateway: gateway["metrics"].update(inflight=[[{}, 1.0]]),
    "a request that runs for ever": lambda _, __, gateway: gateway.update(running=1),
    "a response that a client did not get": lambda seen, _, __: seen["received"].update({f"{PAID}|r1|200": -1}),
    "a response that was cut": lambda seen, _, __: seen["cut"].update({PAID: 1}),
    "a request that was lost while the gateway served": lambda seen, _, __: seen["lost_s"].append(9.0),
    "a request that was sent twice": lambda _, servers, __: servers[0].update({f"{PAID}.ok": 3}),
    "a token that was not charged": lambda _, __, gateway: gateway["ledger"][0].update(output_tokens=14),
    "a client that left, of those who never do": lambda _, __, gateway: gateway["metrics"]["requests_total"].append(
        [labels(PAID, "499"), 1.0]
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_number_that_is_wrong_is_a_difference(what: str) -> None:
    wrong = copy.deepcopy(numbers())
    WRONG[what](*wrong)
    assert differences(*wrong) != []


def test_requests_of_all_kinds_are_sent_and_the_same_seed_has_the_same() -> None:
    made = samples(Random(5), 40_000, KEYS)
    assert made == samples(Random(5), 40_000, KEYS)
    kinds = Counter(sample.kind for sample in made)
    assert len(kinds) >= 30 and kinds["ok"] > 0.5 * len(made)
    assert {sample.payer for sample in made if sample.model == PAID} == {"free", "limited"}


@pytest.mark.parametrize("kind", sorted(set(RESPONSES[True]) - {"half", "reset", "broken-stream"}))
def test_a_client_finds_the_end_of_each_response_and_no_end_before(kind: str) -> None:
    response = RESPONSES[True][kind]
    assert whole_size(response) == whole_size(response + b"HTTP/1.1 200 OK") == len(response)
    assert not any(whole_size(response[:end]) for end in range(0, len(response), max(1, len(response) // 200)))
