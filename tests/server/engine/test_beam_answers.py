"""Beam search against transformers: the same answers where not all of them can be looked at."""

import pytest
import torch

from slipway_server.engine.beams import BeamRules, BeamSearch, EarlyStopping
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.request import Logprobs, Request, SamplingParams
from slipway_server.models.loader import load
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS
from tests.server.engine.test_equality import make_engine

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TEXTS = ["In the beginning", "And the king said unto him,", "Blessed are they that", "Now these are the names"]
NEW_TOKENS = 14


def answers_of(engine: EngineCore, prompt: tuple[int, ...], rules: BeamRules) -> list[tuple[int, ...]]:
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


@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2"])
@pytest.mark.parametrize(
    ("width", "length_penalty", "early_stopping"),
    [(2, 1.0, False), (4, 1.0, True), (4, 0.0, "never"), (3, 2.0, "never"), (5, -1.0, False)],
)
def test_answers_equal_those_of_transformers(
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
