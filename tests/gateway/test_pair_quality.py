"""The quality of pairs: texts are compared, and both servers score the tokens of stable's response."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.counters import MILLION, QualityCounts, zero
from slipway_contracts.twin_shadow import TwinShadow
from slipway_gateway.mirror.scoring import ScoredTokens, count_tokens
from testkit.until import until_async

from .harness import Gateway, Handler, answering
from .test_mirror import build_scoring_request, saying
from .test_twins import BODY, ask, counts, results, twins, until_results

SHADOW = TwinShadow("c", "s", 100, 1000, quality=True)
GREEDY = BODY | {"prompt": "Count: ", "temperature": 0}


def quality(gate: Gateway) -> dict[str, int]:
    return {name: count for name, count in counts(gate)["quality"].items() if count}


@pytest.mark.parametrize(
    ("canary", "stable", "found"),
    [
        (1, 1, {"compared": 1}),
        (2, 1, {"canary_flips": 2, "canary_only": 1, "compared": 1, "changed_millionths": MILLION}),
        (1, 3, {"twin_flips": 2, "twin_only": 1}),
        (2, 2, {"canary_flips": 2, "twin_flips": 2, "both": 1}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_twins_response_is_scored_by_both(
    canary: int, stable: int, found: dict[str, int], stream: bool
) -> None:
    legs = build_scoring_request(canary), build_scoring_request(stable)
    async with twins(*legs, SHADOW, mirror_compare_percentage=100) as (gate, tested, twin, served):
        await ask(gate, GREEDY | {"stream": stream})
        await until_results(gate, 1)
        assert quality(gate) == {"texts": 1, "scored": 1, "tokens": 2} | found
        assert counts(gate)["pairs"] == 1 and counts(gate)["open"] == 0
        assert [len(server.seen) for server in (tested, twin, served)] == [2, 2, 1]
        assert {request.headers["X-Slipway-Shadow"] for request in (*tested.seen, *twin.seen)} == {"1"}


async def test_texts_that_differ_are_counted_also_where_no_server_scores() -> None:
    async with twins(saying("c"), saying("s"), SHADOW, mirror_compare_percentage=100) as (gate, *_):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert quality(gate) == {"texts": 1, "differ": 1}


@pytest.mark.parametrize(
    ("shadow", "percentage"), [(TwinShadow("c", "s", 100, 1000), 100), (SHADOW, 0)], ids=["off", "none"]
)
async def test_without_a_wish_for_it_nothing_is_compared(shadow: TwinShadow, percentage: int) -> None:
    async with twins(saying("c"), saying("s"), shadow, mirror_compare_percentage=percentage) as (gate, canary, *_):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert quality(gate) == {} and len(canary.seen) == 1


@pytest.mark.parametrize("bad", [answering(500), saying("")])
async def test_of_a_pair_with_a_bad_leg_no_text_is_compared_and_a_bad_canary_leaves_no_pair_out(bad: Handler) -> None:
    for legs, found in (((bad, saying("s")), {"unscored": 1}), ((saying("s"), bad), {}), ((bad, bad), {})):
        async with twins(*legs, SHADOW, mirror_compare_percentage=100) as (gate, *_):
            await ask(gate, GREEDY)
            await until_results(gate, 1)
            assert quality(gate) == found and counts(gate)["pairs"] == 1


@pytest.mark.parametrize("fields", [{"input": "x"}, {"prompt": "x" * 5000}])
async def test_what_has_no_text_or_too_much_is_not_scored(fields: dict[str, Any]) -> None:
    path = "/v1/embeddings" if "input" in fields else "/v1/completions"
    async with twins(saying("c"), saying("c"), SHADOW, mirror_compare_percentage=100) as (gate, canary, *_):
        await ask(gate, {"model": "chat", "temperature": 0} | fields, path)
        await until_results(gate, 1)
        assert quality(gate) == ({} if "input" in fields else {"texts": 1}) and len(canary.seen) == 1


async def test_a_pair_that_canary_does_not_score_is_counted_as_such() -> None:
    async with twins(saying("one two"), build_scoring_request(1), SHADOW, mirror_compare_percentage=100) as (gate, *_):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert quality(gate) == {"texts": 1, "unscored": 1}


async def test_a_pair_that_the_twin_does_not_score_says_nothing_of_canary() -> None:
    async with twins(build_scoring_request(2), saying("one two"), SHADOW, mirror_compare_percentage=100) as (gate, *_):
        await ask(gate, GREEDY)
        await until_results(gate, 1)
        assert quality(gate) == {"texts": 1}


def score_of(ranks: Sequence[int], pieces: Sequence[str]) -> ScoredTokens:
    tokens = [
        {"7": {"logprob": -1.0, "rank": n, "decoded_token": piece}} for n, piece in zip(ranks, pieces, strict=True)
    ]
    body = json.dumps({"choices": [{"text": "", "prompt_logprobs": [None, *tokens]}]})
    found = count_tokens(body.encode(), ("one two three",))
    assert found
    return found


@pytest.mark.parametrize(
    ("canary", "twin", "lost"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1), 0),
        ((9, 2, 1, 1), (1, 1, 1, 1), 1),  # the first token is the prompt's
        ((1, 2, 2, 2), (9, 1, 5, 1), 2),  # the second word was drawn: stable does not choose it either
        ((1, 1, 1, 1), (1, 2, 2, 2), 0),
    ],
)
def test_only_tokens_that_the_twins_server_chooses_are_compared(
    canary: tuple[int, ...], twin: tuple[int, ...], lost: int
) -> None:
    pieces = ("Count: ", "one", " two", " three")
    assert score_of(twin, pieces).lost(score_of(canary, pieces)) == lost


@pytest.mark.parametrize("token", [{"rank": 1, "logprob": None}, {"rank": 0}, {"rank": -1}, {"rank": 10**20}])
def test_a_server_that_computes_nan_has_no_first_choices(token: dict[str, Any]) -> None:
    """JSON has no NaN: servers write null, with a rank for which no other token was above it, or none above at all."""
    body = json.dumps({"prompt_logprobs": [None, {"7": token | {"decoded_token": "one"}}]})
    found = count_tokens(body.encode(), ("one",))
    assert found and (found.count, found.flips, found.choices) == (1, 1, ())


def test_a_text_is_looked_for_at_the_end_alone() -> None:
    """A search in a megabyte takes the product of both lengths: a second, in which the gateway serves no client."""
    text = "one" * 1000

    def found(after: int) -> ScoredTokens | None:
        entry = {"7": {"rank": 1, "decoded_token": "x" * 100_000 + text + "y" * after}}
        return count_tokens(json.dumps({"prompt_logprobs": [entry]}).encode(), (text,))

    assert found(0) and found(2000) and found(3000) is None


def test_a_server_that_cuts_the_text_otherwise_does_not_choose_those_tokens() -> None:
    twin, canary = (
        score_of((1,) * 4, ("Count: ", "one", " two", " three")),
        score_of((1,) * 3, (": ", "one", " two three")),
    )
    assert (canary.count, canary.flips, twin.lost(canary)) == (2, 0, 2)


@pytest.mark.parametrize(("chosen", "changed", "found"), [(3, 1, 333_333), (3, 3, MILLION), (7, 0, 0), (0, 0, None)])
def test_each_response_has_one_vote_however_long_it_is(chosen: int, changed: int, found: int | None) -> None:
    counts = zero(QualityCounts)
    counts.count_choices(chosen, changed)
    assert (counts.compared, counts.changed_millionths) == ((0, 0) if found is None else (1, found))


async def test_a_response_beyond_the_limit_is_a_pair_without_texts() -> None:
    long = saying("one two three " * 30_000)
    async with twins(long, long, SHADOW, mirror_compare_percentage=100) as (gate, *_):
        await ask(gate, GREEDY | {"logit_bias": {"1": 1}})
        await until_results(gate, 1)
        assert quality(gate) == {} and counts(gate)["pairs"] == 1
        assert gate.budget.used_bytes == 0, "what was kept is given back"


async def test_a_pair_counts_before_its_score() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        if "prompt_logprobs" in await request.json():
            scored.append(request)
            await until_async(lambda: request.transport is None or request.transport.is_closing())
        return await saying("one two")(request)

    scored: list[web.Request] = []
    async with twins(slow, slow, SHADOW, mirror_compare_percentage=100) as (gate, *_):
        await ask(gate, GREEDY)
        await until_async(lambda: len(scored) == 2)
        assert (counts(gate)["pairs"], counts(gate)["open"]) == (1, 0) and results(gate) == {}
        assert quality(gate) == {"texts": 1, "open": 1}, "its tokens may be other ones until both servers scored them"
        await gate.edge.stop_mirroring()
        assert (counts(gate)["pairs"], counts(gate)["open"]) == (1, 0) and results(gate) == {"paired": 1}
        assert quality(gate) == {"texts": 1}


@pytest.mark.parametrize(
    ("tokens", "canary", "twin", "leg"),
    [
        (100, 1, 1, ""),
        (100, 2, 1, "canary_only"),
        (99, 1, 0, "canary_only"),
        (200, 0, 3, "twin_only"),
        (50, 1, 1, "both"),
    ],
)
def test_a_leg_is_bad_beyond_one_flip_in_a_hundred_tokens(tokens: int, canary: int, twin: int, leg: str) -> None:
    found = zero(QualityCounts)
    found.count_tokens(tokens, canary, twin)
    assert {name for name in ("canary_only", "twin_only", "both") if getattr(found, name)} == ({leg} if leg else set())
