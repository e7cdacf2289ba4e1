"""Beam search: the best of all answers where it can look at all of them, and transformers' own where it cannot."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_server.engine.beams import BeamRules, BeamSearch, EarlyStopping
from slipway_server.engine.engine import Engine
from slipway_server.engine.request import FinishReason, Logprobs, Request, SamplingParams
from slipway_server.models.loader import load
from slipway_server.text.tokenizer import Tokenizer

from ..conftest import MODELS
from .test_equality import make_engine

WORDS, STOP, LONGEST = 3, 0, 4
Table = dict[tuple[int, ...], tuple[float, ...]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Log probabilities of each word after each beginning."""
    beginnings = [way for length in range(LONGEST) for way in product(range(1, WORDS), repeat=length)]
    weights = st.lists(st.floats(0.05, 1.0), min_size=WORDS, max_size=WORDS)
    return {way: tuple(torch.tensor(draw(weights)).log_softmax(-1).tolist()) for way in beginnings}


def told(row: tuple[float, ...], count: int) -> Logprobs:
    """As the sampler tells it: the chosen one, then the likeliest."""
    ranked = sorted(range(len(row)), key=lambda word: -row[word])[:count]
    tokens = (ranked[0], *ranked)
    return Logprobs(tokens, tuple(row[token] for token in tokens), 1)


@settings(deadline=None, max_examples=60)
@given(tables(), st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]))
def test_with_room_for_all_ways_the_best_one_is_found(table: Table, length_penalty: float) -> None:
    def total(way: tuple[int, ...]) -> float:
        return sum(table[way[:at]][word] for at, word in enumerate(way))

    ways = [way for length in range(1, LONGEST + 1) for way in product(range(1, WORDS), repeat=length)]
    answers = [way for way in ways if len(way) == LONGEST] + [(*way, STOP) for way in ways if len(way) < LONGEST]
    answers.append((STOP,))
    rules = BeamRules(WORDS**LONGEST, LONGEST, frozenset({STOP}), length_penalty, "never")
    search = BeamSearch(rules)
    while not search.done:
        search.advance([told(table[beam.tokens], rules.alternatives) for beam in search.running])
    exact = sorted((total(way) / len(way) ** length_penalty for way in answers), reverse=True)
    assert [beam.score(length_penalty) for beam in search.answers] == pytest.approx(exact)
    assert {beam.tokens for beam in search.answers} == set(answers)
    for beam in search.answers:
        assert beam.finish is (FinishReason.STOP if beam.tokens[-1] == STOP else FinishReason.LENGTH)


def test_what_ends_beyond_the_beams_is_no_answer_and_leaves_enough_to_go_on_with() -> None:
    search = BeamSearch(BeamRules(width=1, max_tokens=9, stop_token_ids=frozenset({7})))
    search.advance([Logprobs((1, 1, 7), (-0.1, -0.1, -2.0), 1)])
    assert ([beam.tokens for beam in search.running], search.answers, search.done) == ([(1,)], [], False)
    search.advance([Logprobs((7, 7, 2), (-0.1, -0.1, -2.0), 1)])
    assert [beam.tokens for beam in search.answers] == [(1, 7)] and search.done


# --- against transformers ---------------------------------------------------------------------------------------------

TEXTS = ["In the beginning", "And the king said unto him,", "Blessed are they that", "Now these are the names"]
NEW_TOKENS = 14


def answers_of(engine: Engine, prompt: tuple[int, ...], rules: BeamRules) -> list[tuple[int, ...]]:
    """By one request for each beam and step, as the HTTP process does it."""
    search = BeamSearch(rules)
    while not search.done:
        after: dict[str, Logprobs] = {}
        for number, beam in enumerate(search.running):
            params = SamplingParams(len(beam.tokens) + 1, temperature=0.0, logprobs=rules.alternatives)
            engine.submit(Request(f"b{number}", prompt, params, resumed=beam.tokens))
        while engine.scheduler.busy:
            after |= {event.id: event.logprobs for event in engine.step().events if event.logprobs}
        search.advance([after[f"b{number}"] for number in range(len(search.running))])
    return [beam.tokens for beam in search.answers]


def up_to_a_stop(tokens: list[int], stops: list[int]) -> tuple[int, ...]:
    """Without what fills up the rows of a batch."""
    end = next((at for at, token in enumerate(tokens, 1) if token in stops), len(tokens))
    return tuple(tokens[:end])


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2"])
@pytest.mark.parametrize(
    ("width", "length_penalty", "early_stopping"),
    [(2, 1.0, False), (4, 1.0, True), (4, 0.0, "never"), (3, 2.0, "never"), (5, -1.0, False)],
)
def test_answers_are_those_of_transformers(
    name: str, width: int, length_penalty: float, early_stopping: EarlyStopping
) -> None:
    torch.set_num_threads(1)
    model = load(MODELS / name, task="generate", dtype="float32", device="cpu")
    tokenizer = Tokenizer(MODELS / name)
    # Frequent ones, so that answers end at many lengths.
    stops = [tokenizer.encode_now(text, special_tokens=False)[-1] for text in (",", ".", ":")]
    rules = BeamRules(width, NEW_TOKENS, frozenset(stops), length_penalty, early_stopping)
    engine, lengths = make_engine(name), set()
    for text in TEXTS:
        prompt = tokenizer.encode_now(text * 8)
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=stops,
            pad_token_id=0,
        )
        ours = answers_of(engine, prompt, rules)
        lengths |= {len(answer) for answer in ours}
        assert ours == [up_to_a_stop(row, stops) for row in output[:, len(prompt) :].tolist()]
    assert len(lengths) > 1 or length_penalty > 1.0
    assert engine.scheduler.prefix_hits > 0
