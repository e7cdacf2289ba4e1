"""Two hundred prompts under everything at once: each answer is transformers' own, token for token."""

import random
from functools import cache

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.request import FinishReason, Request, SamplingParams
from slipway_server.models.loader import load
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS
from tests.server.engine.test_beam_answers import up_to_a_stop
from tests.server.engine.test_equality import TEXT, make_engine

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROMPTS, NEW_TOKENS = 200, 12
LENGTHS = (1, 2, 5, 9, 16, 24, 31, 32, 33, 40, 48, 57, 63, 64, 65, 80, 96, 97, 110, 128)  # of prompts, in tokens


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Twenty lengths around the borders of blocks, ten texts of each: those of one text begin alike."""
    ids = Tokenizer(MODELS / "tiny-v1").encode_now(TEXT)
    return tuple(ids[text * 23 : text * 23 + length] for length in LENGTHS for text in range(PROMPTS // len(LENGTHS)))


@cache
def stops(name: str) -> tuple[int, ...]:
    return checkpoint.read(MODELS / name).stop_token_ids


@cache
def expected(name: str) -> tuple[tuple[int, ...], ...]:
    """transformers' own greedy generate: prompts of one length at a time, so that nothing is padded."""
    model = load(MODELS / name, task="generate", dtype="float32", device="cpu")
    answers: list[tuple[int, ...]] = []
    for length in LENGTHS:
        ids = torch.tensor([prompt for prompt in prompts() if len(prompt) == length])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
        )
        answers += [up_to_a_stop(row, list(stops(name))) for row in output[:, length:].tolist()]
    return tuple(answers)


def greedy(name: str, index: int, resumed: int = 0) -> Request:
    params = SamplingParams(NEW_TOKENS, temperature=0.0, stop_token_ids=stops(name))
    known = expected(name)[index][:-1][:resumed]
    return Request(f"r{index}", prompts()[index], params, resumed=known)


class Storm:
    """Neighbours of every kind that come, and mostly leave before they are done."""

    def __init__(self, engine: EngineCore, chance: random.Random) -> None:
        self._engine, self._chance = engine, chance
        self._count = 0
        self._there: list[str] = []

    def blow(self) -> None:
        chance = self._chance
        for _ in range(chance.randrange(3)):
            self._count += 1
            self._there.append(f"s{self._count}")
            params = SamplingParams(
                chance.randrange(1, 40),
                temperature=chance.choice((0.0, 0.7, 1.5)),
                seed=self._count,
                logprobs=chance.choice((-1, 3)),
                top_k=chance.choice((0, 20)),
                repetition_penalty=chance.choice((1.0, 1.3)),
                prompt_logprobs=chance.choice((-1, -1, 0)),
            )
            # The same beginnings as those that are looked at: blocks are shared with who is cancelled.
            prompt = prompts()[chance.randrange(PROMPTS)]
            priority, tenant = chance.choice((0, 0, -1, 1000)), chance.choice(("", "", "other"))
            self._engine.submit(Request(self._there[-1], prompt, params, priority, tenant=tenant))
        while len(self._there) > 6 or (self._there and chance.random() < 0.2):
            self._engine.cancel(self._there.pop(chance.randrange(len(self._there))))

    def over(self) -> None:
        for name in self._there:
            self._engine.cancel(name)


def answers(
    engine: EngineCore, requests: list[Request], *, at_once: int, storm: Storm | None = None
) -> list[tuple[int, ...]]:
    """In the order of `requests`, of which `at_once` are in the engine at a time."""
    found = {request.id: list(request.resumed) for request in requests}
    ends: dict[str, int] = dict.fromkeys(found, 0)
    left, inside = list(requests), 0
    while left or inside:
        while left and inside < at_once:
            engine.submit(left.pop(0))
            inside += 1
        if storm:
            storm.blow()
        for event in engine.step().events:
            if event.id not in found:
                continue
            assert event.finish in (None, FinishReason.STOP, FinishReason.LENGTH), event
            found[event.id] += [] if event.token is None else [event.token]
            ends[event.id] += event.finish is not None
            inside -= event.finish is not None
    if storm:
        storm.over()
        engine.step()
    assert set(ends.values()) == {1}
    engine.scheduler.check()
    assert engine.scheduler.kv_usage == 0
    return [tuple(found[request.id]) for request in requests]


@pytest.mark.extended  # test_equality does the same with fifty
def test_two_hundred_answers_alone_and_with_known_beginnings() -> None:
    name = "tiny-v1"
    engine = make_engine(name, slots=1, step_tokens=64)
    requests = [greedy(name, index) for index in range(PROMPTS)]
    assert answers(engine, requests, at_once=1) == list(expected(name))
    assert engine.scheduler.prefix_hits > 0 and engine.scheduler.preemptions == 0


@pytest.mark.parametrize(("name", "seed"), [("tiny-v1", 1), pytest.param("tiny-v2", 2, marks=pytest.mark.extended)])
def test_two_hundred_answers_in_a_storm(name: str, seed: int) -> None:
    chance = random.Random(seed)
    # Small steps cut the prompts, few blocks and slots make some start over; some answers are taken up in their middle.
    limits = {"slots": 7, "step_tokens": chance.randrange(16, 48), "kv_tokens": 640}
    engine = make_engine(name, **limits)
    order = chance.sample(range(PROMPTS), PROMPTS)
    requests = [greedy(name, index, chance.choice((0, 0, 0, 1, 5))) for index in order]
    found = answers(engine, requests, at_once=14, storm=Storm(engine, chance))
    assert found == [expected(name)[index] for index in order]
    assert engine.scheduler.preemptions > 5 and engine.scheduler.prefix_hits > 100
