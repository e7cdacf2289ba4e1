"""Beam search: the best of all answers where it can look at all of them."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_server.engine import beams
from slipway_server.engine.beams import BeamRules, BeamSearch
from slipway_server.engine.request import FinishReason, Logprobs

WORDS, STOP, LONGEST = 3, 0, 4
Table = dict[tuple[int, ...], tuple[float, ...]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Log probabilities of each word after each beginning."""
    beginnings = [way for length in range(LONGEST) for way in product(range(1, WORDS), repeat=length)]
    weights = st.lists(st.floats(0.05, 1.0), min_size=WORDS, max_size=WORDS)
    return {way: log_softmax(draw(weights)) for way in beginnings}


def log_softmax(weights: list[float]) -> tuple[float, ...]:
    whole = math.log(sum(map(math.exp, weights)))
    return tuple(weight - whole for weight in weights)


def logprobs_of(row: tuple[float, ...], count: int) -> Logprobs:
    """As the sampler returns them: the chosen token, then the likeliest ones."""
    ranked = sorted(range(len(row)), key=lambda word: -row[word])[:count]
    tokens = (ranked[0], *ranked)
    return Logprobs(tokens, tuple(row[token] for token in tokens), 1)


@settings(deadline=None, max_examples=60)
@given(tables(), st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]))
def test_a_search_wide_enough_finds_the_best_answer(table: Table, length_penalty: float) -> None:
    def total(way: tuple[int, ...]) -> float:
        return sum(table[way[:at]][word] for at, word in enumerate(way))

    ways = [way for length in range(1, LONGEST + 1) for way in product(range(1, WORDS), repeat=length)]
    answers = [way for way in ways if len(way) == LONGEST] + [(*way, STOP) for way in ways if len(way) < LONGEST]
    answers.append((STOP,))
    rules = BeamRules(WORDS**LONGEST, LONGEST, frozenset({STOP}), length_penalty, "never")
    search = BeamSearch(rules)
    while not search.done:
        search.advance([logprobs_of(table[beam.tokens], rules.alternatives) for beam in search.running])
    exact = sorted((total(way) / len(way) ** length_penalty for way in answers), reverse=True)
    assert [beam.score(length_penalty) for beam in search.answers] == pytest.approx(exact)
    assert {beam.tokens for beam in search.answers} == set(answers)
    for beam in search.answers:
        assert beam.finish is (FinishReason.STOP if beam.tokens[-1] == STOP else FinishReason.LENGTH)


def test_a_candidate_that_ends_below_the_beam_width_is_no_answer_and_is_replaced() -> None:
    search = BeamSearch(BeamRules(width=1, max_tokens=9, stop_token_ids=frozenset({7})))
    search.advance([Logprobs((1, 1, 7), (-0.1, -0.1, -2.0), 1)])
    assert ([beam.tokens for beam in search.running], search.answers, search.done) == ([(1,)], [], False)
    search.advance([Logprobs((7, 7, 2), (-0.1, -0.1, -2.0), 1)])
    assert [beam.tokens for beam in search.answers] == [(1, 7)] and search.done


def test_only_the_survivors_of_a_step_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each beam is a copy of its tokens: twenty long ones with all their candidates would hold up other requests."""
    search = BeamSearch(BeamRules(width=20, max_tokens=5000, stop_token_ids=frozenset({7, 8})))
    search.running = [beams.Beam((1,) * 100, -float(n)) for n in range(20)]
    built: list[tuple[int, ...]] = []

    def counted(tokens: tuple[int, ...] = (), *rest: Any) -> beams.Beam:
        built.append(tokens)
        return beam(tokens, *rest)

    beam = beams.Beam
    monkeypatch.setattr(beams, "Beam", counted)
    count = search.rules.alternatives
    search.advance([Logprobs((1, *range(count)), (0.0, *(-0.1 * n for n in range(count))), count)] * 20)
    assert len(built) == len(search.running) + len(search.answers) <= 40
