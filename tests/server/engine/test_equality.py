"""The engine against transformers: the same tokens, alone, batched, and with neighbours that come and go."""

from functools import cache

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import FinishReason, Logprobs, Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.api import BLOCK_TOKENS
from slipway_server.models.generator import load_generator
from slipway_server.models.loader import load
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROMPTS, NEW_TOKENS = 50, 16
TEXT = (
    MODELS / "tiny-v1" / "README.md"
).read_text() + " And it came to pass in those days, that there went out a decree. " * 20


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    # The models are too small for two: waiting for each other would cost more than they compute.
    torch.set_num_threads(1)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Of 1 to 197 tokens, from the middle of a real text."""
    ids = Tokenizer(MODELS / "tiny-v1").encode_now(TEXT)
    return tuple(ids[i * 3 : i * 3 + 1 + i * 4] for i in range(PROMPTS))


@cache
def expected(name: str) -> tuple[tuple[int, ...], ...]:
    """transformers' own greedy generate, one prompt at a time, through its stock attention."""
    model = load(MODELS / name, task="generate", dtype="float32", device="cpu")
    answers = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
        )
        answers.append(tuple(output[0, len(prompt) :].tolist()))
    return tuple(answers)


def make_engine(name: str, *, async_scheduling: bool = False, **limits: int) -> EngineCore:
    folder = MODELS / name
    decoder = load_generator(
        folder,
        checkpoint.read_config(folder),
        dtype="float32",
        quantization="none",
        device="cpu",
        context_tokens=512,
        threads=1,
    )
    bounds = SchedulerConfig(**({"slots": 8, "step_tokens": 64, "kv_tokens": 4096} | limits))
    blocks = bounds.kv_tokens // BLOCK_TOKENS
    runner = DecoderRunner(decoder, slots=bounds.slots, context_tokens=512, blocks=blocks)
    launches = runner if async_scheduling else None
    return EngineCore(Scheduler(bounds, hash_key=bytes(32)), runner, vocab_size=decoder.vocab_size, launches=launches)


def greedy(index: int, name: str) -> Request:
    stops = checkpoint.read(MODELS / name).stop_token_ids
    return Request(f"r{index}", prompts()[index], SamplingParams(NEW_TOKENS, temperature=0.0, stop_token_ids=stops))


def run(engine: EngineCore, requests: list[Request], *, join_every: int = 0) -> dict[str, tuple[int, ...]]:
    """Submits all at once, or one more after every `join_every` steps."""
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    left = list(requests)
    steps = 0
    while left or engine.scheduler.busy:
        if left and (not join_every or steps % join_every == 0):
            for request in [left.pop(0)] if join_every else [left.pop(0) for _ in list(left)]:
                engine.submit(request)
        for event in engine.step().events:
            assert event.error is None
            if event.token is not None:
                answers[event.id].append(event.token)
        steps += 1
    engine.scheduler.check()
    return {name: tuple(tokens) for name, tokens in answers.items()}


ALONE, BATCHED = ({"slots": 1}, 0), ({"slots": 8}, 0)
JOINING, STARTING_OVER = ({"slots": 32, "step_tokens": 48}, 1), ({"slots": 8, "kv_tokens": 256}, 0)
MORE = pytest.mark.extended  # the other model does the same


@pytest.mark.parametrize(
    ("name", "limits", "join_every"),
    [
        pytest.param("tiny-v1", *ALONE, id="tiny-v1 alone"),
        pytest.param("tiny-v1", *BATCHED, id="tiny-v1 batched"),
        pytest.param("tiny-v1", *JOINING, id="tiny-v1 joining in chunks", marks=MORE),
        pytest.param("tiny-v1", *STARTING_OVER, id="tiny-v1 starting over", marks=MORE),
        pytest.param("tiny-v2", *ALONE, id="tiny-v2 alone"),
        pytest.param("tiny-v2", *BATCHED, id="tiny-v2 batched"),
        pytest.param("tiny-v2", *JOINING, id="tiny-v2 joining in chunks"),
        pytest.param("tiny-v2", *STARTING_OVER, id="tiny-v2 starting over"),
    ],
)
def test_greedy_tokens_equal_those_of_transformers(name: str, limits: dict[str, int], join_every: int) -> None:
    requests = [greedy(index, name) for index in range(PROMPTS)]
    engine = make_engine(name, **limits)
    answers = run(engine, requests, join_every=join_every)
    assert (engine.scheduler.preemptions > 0) == ("kv_tokens" in limits)
    assert [answers[f"r{index}"] for index in range(PROMPTS)] == list(expected(name))


def test_neighbours_that_leave_change_nothing() -> None:
    engine = make_engine("tiny-v1")
    for index in range(6):
        engine.submit(greedy(index + 20, "tiny-v1"))
    kept: list[int] = []
    for step in range(200):
        if step in (2, 5, 9):
            engine.cancel(f"r{20 + step % 5}")
        kept += [e.token for e in engine.step().events if e.id == "r25" and e.token is not None]
    assert tuple(kept) == expected("tiny-v1")[25]
    assert not engine.scheduler.busy and engine.scheduler.kv_usage == 0
    engine.scheduler.check()


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch() -> None:
    def sampled(index: int) -> Request:
        params = SamplingParams(NEW_TOKENS, temperature=0.9, top_p=0.95, top_k=50, seed=index)
        return Request(f"r{index}", prompts()[index], params)

    requests = [sampled(index) for index in range(0, PROMPTS, 5)]
    together = run(make_engine("tiny-v1"), requests, join_every=2)
    engine = make_engine("tiny-v1")
    assert {k: v for request in requests for k, v in run(engine, [request]).items()} == together
    assert len(set(together.values())) == len(together)


def test_a_stop_token_ends_the_answer_and_is_returned() -> None:
    engine = make_engine("tiny-v1")
    first = expected("tiny-v1")[30][3]
    engine.submit(Request("r", prompts()[30], SamplingParams(NEW_TOKENS, temperature=0.0, stop_token_ids=(first,))))
    events = [event for _ in range(30) for event in engine.step().events]
    assert events[-1].finish is FinishReason.STOP
    assert [event.token for event in events] == list(expected("tiny-v1")[30][: len(events)])


def test_prompt_log_probabilities_equal_those_of_transformers() -> None:
    model = load(MODELS / "tiny-v1", task="generate", dtype="float32", device="cpu")
    # Room for about two of them, so that some start over in the middle of their prompts and of their answers.
    engine = make_engine("tiny-v1", kv_tokens=448, step_tokens=48)
    logprobs: dict[str, list[Logprobs]] = {}
    for index in range(30, 42):
        params = SamplingParams(NEW_TOKENS, temperature=0.0, prompt_logprobs=index % 3)
        engine.submit(Request(f"r{index}", prompts()[index], params))
    while engine.scheduler.busy:
        for event in engine.step().events:
            assert event.error is None
            logprobs.setdefault(event.id, []).extend(event.prompt_logprobs)
    assert engine.scheduler.preemptions > 0
    for index in range(30, 42):
        ids = torch.tensor([prompts()[index]])
        with torch.inference_mode():
            exact = model(ids).logits[0, :-1].log_softmax(dim=-1)
        items = logprobs[f"r{index}"]
        assert tuple(item.tokens[0] for item in items) == prompts()[index][1:]
        own = exact.gather(1, ids[0, 1:, None])
        torch.testing.assert_close(torch.tensor([[item.values[0]] for item in items]), own, atol=1e-4, rtol=1e-4)
        assert sum(item.rank != rank for item, rank in zip(items, (exact > own).sum(-1) + 1, strict=True)) <= 1
        values, best = exact.topk(index % 3)
        assert [list(item.tokens[1:]) for item in items] == best.tolist()
        torch.testing.assert_close(
            torch.tensor([item.values[1:] for item in items]), values.reshape(len(items), -1), atol=1e-4, rtol=1e-4
        )


def test_without_memory_for_a_step_the_answers_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("tiny-v1", step_tokens=512)
    runner, run_batch = engine._runner, engine._runner.run

    def starved(batch):  # type: ignore[no-untyped-def]
        if any(work.tokens > 100 for work in batch):
            raise torch.OutOfMemoryError
        return run_batch(batch)

    monkeypatch.setattr(runner, "run", starved)
    engine.submit(greedy(5, "tiny-v1"))
    engine.submit(greedy(40, "tiny-v1"))
    steps = [engine.step() for _ in range(30)]
    events = [event for step in steps for event in step.events]
    assert not [event for event in events if event.error]
    assert sum(step.out_of_memory for step in steps) >= 2 and not sum(step.errors for step in steps)
    for number in (5, 40):
        tokens = tuple(e.token for e in events if e.id == f"r{number}" and e.token is not None)
        assert tokens == expected("tiny-v1")[number]


def test_a_request_that_can_never_run_ends_with_an_error() -> None:
    engine = make_engine("tiny-v1", kv_tokens=64)
    engine.submit(Request("r", prompts()[40], SamplingParams(NEW_TOKENS)))
    (event,) = engine.step().events
    assert event.finish is FinishReason.INVALID and "needs" in (event.error or "")
    assert engine.step().events == []
