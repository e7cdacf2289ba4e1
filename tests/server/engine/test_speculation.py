"""Responses with drafts are those without them, to the token and the bit, whatever a request has."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.build import drafting_for
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.messages import Start
from slipway_server.engine.request import FinishReason, Request, RequestOutput, Sampled, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.drafting import Drafting, DraftLimits, LookupDrafting, verified
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.draws import Draws, draw_by, sample
from slipway_server.models.generator import load_generator
from tests.conftest import MODELS
from tests.server.engine.test_adapters import Engine as AdapterEngine
from tests.server.engine.test_adapters import decoder as decoder_for_adapters
from tests.server.engine.test_equality import make_engine, prompts
from tests.server.kernels.batches import needs_native

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LIMITS = DraftLimits(tokens=5, least=2, most=6)
CONTEXT = 512


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class EagerDrafting(LookupDrafting):
    """Drafts as if rows took no time, whatever this machine does beside."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        for tokens in (1, 9):
            self._fit.observe(tokens, tokens, 0.02)

    def observe_step(self, batch: object, seconds: float) -> None:
        pass


def draft_with(engine: EngineCore) -> Drafting:
    engine.scheduler.drafting = EagerDrafting()
    return engine.scheduler.drafting


def mixed(number: int, chance: random.Random) -> Request:
    """A request whose prompt often repeats itself, with any of the parameters that the engine knows."""
    prompt = prompts()[chance.randrange(10, 50)]
    if chance.random() < 0.7:
        prompt = (prompt * 3)[: chance.randrange(20, 150)]
    params = SamplingParams(
        chance.randrange(1, 40),
        temperature=chance.choice((0.0, 0.0, 0.3, 1.0)),
        top_p=chance.choice((1.0, 0.9)),
        top_k=chance.choice((0, 20)),
        min_p=chance.choice((0.0, 0.05)),
        seed=number,
        logprobs=chance.choice((-1, -1, 0, 3)),
        prompt_logprobs=chance.choice((-1, -1, 1)),
        repetition_penalty=chance.choice((1.0, 1.0, 1.1)),
        frequency_penalty=chance.choice((0.0, 0.0, 0.5)),
        presence_penalty=chance.choice((0.0, 0.0, 0.5)),
        min_tokens=chance.choice((0, 5)),
        logit_bias=chance.choice(((), ((5, 3.0), (17, -100.0)))),
        bad_words=chance.choice(((), ((3, 4), (9,)))),
        allowed_token_ids=chance.choice(((), (), tuple(range(40, 56)))),
        stop_token_ids=tuple(chance.sample(range(600), chance.choice((0, 40)))),
    )
    known = tuple(chance.sample(range(600), 3)) if params.max_tokens > 8 and chance.random() < 0.2 else ()
    return Request(f"r{number}", prompt, params, resumed=known, tenant=chance.choice(("", "other")))


def answers(engine: EngineCore, seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """What each of 40 requests gets, which join at random: tokens, ends and log probabilities."""
    chance = random.Random(seed)
    events: list[RequestOutput] = []
    for number in range(40):
        engine.submit(mixed(number, chance))
        for _ in range(chance.randrange(3)):
            events += engine.step().events
            engine.scheduler.check()
    return grouped(events + drained(engine))


def drained(engine: EngineCore) -> list[RequestOutput]:
    events: list[RequestOutput] = []
    while engine.scheduler.busy:
        events += engine.step().events
        engine.scheduler.check()
    assert engine.scheduler.kv_usage == 0
    return events


def grouped(events: list[RequestOutput]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for event in events:
        assert event.error is None or event.finish is FinishReason.INVALID, event
        if event.token is not None or event.finish:
            logprobs = event.logprobs.tokens if event.logprobs else ()
            found.setdefault(event.id, []).append((event.token, event.finish, logprobs))
    return found


@pytest.mark.parametrize(
    ("seed", "limits"),
    [
        pytest.param(1, {"slots": 8}, id="with room for all"),
        pytest.param(2, {"slots": 6, "step_tokens": 40, "kv_tokens": 512}, id="starting over"),
        pytest.param(3, {"slots": 1}, id="alone", marks=pytest.mark.extended),
        pytest.param(4, {"slots": 32, "step_tokens": 48}, id="joining in chunks", marks=pytest.mark.extended),
    ],
)
def test_whatever_a_request_has_its_response_is_the_same(seed: int, limits: dict[str, Any]) -> None:
    plain = answers(make_engine("tiny-v1", **limits), seed)
    engine = make_engine("tiny-v1", **limits)
    drafting = draft_with(engine)
    assert answers(engine, seed) == plain and len(plain) == 40
    assert drafting.accepted_tokens > 40 and drafting.draft_tokens > drafting.accepted_tokens
    assert (engine.scheduler.preemptions > 0) == ("kv_tokens" in limits)


@needs_native
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_with_the_c_kernels_they_are_the_same_to_the_bit(quantization: str) -> None:
    folder = MODELS / "tiny-v1"
    decoder = load_generator(
        folder, checkpoint.read_config(folder), dtype="bfloat16", quantization=quantization, device="cpu",
        context_tokens=CONTEXT, threads=1,
    )  # fmt: skip
    runner = DecoderRunner(decoder, slots=4, context_tokens=CONTEXT, blocks=64)
    found = []
    for drafting in (None, EagerDrafting()):
        config = SchedulerConfig(4, 64, 2048, prefix_cache=False)  # both write to the same blocks
        engine = EngineCore(Scheduler(config, hash_key=bytes(32), drafting=drafting), runner)
        for number in range(8):
            prompt = (prompts()[20 + number] * 3)[:90]
            params = SamplingParams(40, temperature=0.5 * (number % 2), seed=number, logprobs=2)
            engine.submit(Request(f"r{number}", prompt, params))
        found.append([(event.id, event.token, event.logprobs) for event in drained(engine)])
        assert drafting is None or drafting.accepted_tokens > 40
    plain, drafted = (sorted(each, key=lambda event: event[0]) for each in found)
    assert plain == drafted, "log probabilities are equal numbers, not near ones"


def test_each_row_has_its_adapter(tmp_path: Path) -> None:
    engine = AdapterEngine(tmp_path, decoder_for_adapters())
    digests = ["", *engine.load(0, 1, 2)]
    params = SamplingParams(30, temperature=0.0)
    prompt = prompts()[20] * 2
    requests = [Request(f"r{number}", prompt, params, adapter=digest) for number, digest in enumerate(digests)]
    plain = {name: [event.token for event in events] for name, events in engine.run(*requests).items()}
    drafting = draft_with(engine.core)
    assert {name: [event.token for event in events] for name, events in engine.run(*requests).items()} == plain
    assert drafting.accepted_tokens > 20 and len({*map(tuple, plain.values())}) > 1


# --- failures ---------------------------------------------------------------------------------------------------------


def repeating() -> list[Request]:
    params = SamplingParams(30, temperature=0.0)
    return [Request(f"r{number}", (prompts()[20 + number] * 3)[:80], params) for number in range(4)]


def run(engine: EngineCore) -> dict[str, list[tuple[Any, ...]]]:
    for request in repeating():
        engine.submit(request)
    return grouped(drained(engine))


def test_a_step_that_fails_by_its_drafts_costs_no_token() -> None:
    plain = run(make_engine("tiny-v1"))
    engine = make_engine("tiny-v1")
    drafting, runner, compute = draft_with(engine), engine._runner, engine._runner.run
    failures = []

    def fails(batch: Any) -> Any:
        if any(work.drafts and work.sequence.request.id == "r1" for work in batch):
            failures.append(len(batch))
            raise RuntimeError("a kernel failed")
        return compute(batch)

    runner.run = fails  # type: ignore[method-assign]
    assert run(engine) == plain
    assert 1 in failures and failures.count(1) == 1, "it drafts nothing more for this one"
    assert drafting.accepted_tokens > 20


def test_without_memory_for_drafts_a_step_is_computed_without_them() -> None:
    plain = run(make_engine("tiny-v1"))
    engine = make_engine("tiny-v1")
    draft_with(engine)
    runner, compute = engine._runner, engine._runner.run

    def starved(batch: Any) -> Any:
        if any(work.drafts for work in batch):
            raise torch.OutOfMemoryError
        return compute(batch)

    runner.run = starved  # type: ignore[method-assign]
    assert run(engine) == plain


def test_numbers_of_a_wrong_draft_that_are_not_finite_change_nothing() -> None:
    plain = run(make_engine("tiny-v1"))
    engine = make_engine("tiny-v1")
    draft_with(engine)
    runner: Any = engine._runner
    logits, spoiled = runner._logits, 0

    def spoiling(packed: Any, *more: Any) -> Any:
        nonlocal spoiled
        numbers = logits(packed, *more).clone()
        if len(packed.rows) > 1 and packed.rows[-2] >= packed.first[-1]:
            numbers[-1] = float("nan")  # of the last draft of the last sequence
            spoiled += 1
        return numbers

    runner._logits = spoiling
    assert run(engine) == plain
    assert spoiled and engine.scheduler.preemptions > 0


def test_a_model_that_computes_no_numbers_is_still_named() -> None:
    engine = make_engine("tiny-v1")
    draft_with(engine)
    runner: Any = engine._runner
    logits = runner._logits
    runner._logits = lambda packed, *more: logits(packed, *more) * float("nan")
    engine.submit(repeating()[0])
    assert [event.finish for event in drained(engine)] == [FinishReason.NON_FINITE]


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [20_000, pytest.param(100_000, marks=pytest.mark.extended)])
def test_with_drafts_two_tokens_have_the_distribution_that_they_have_without(draws: int) -> None:
    """A chi-square test over pairs of tokens, by the engine's own draws and its rule of acceptance."""
    size, temperature, draft = 6, 0.8, 2
    chance = torch.Generator().manual_seed(3)
    logits = torch.randn(size + 1, size, generator=chance) * 1.5  # after nothing, and after each first token
    exact = torch.softmax(logits.double() / temperature, dim=-1)
    packed = [draw_by(seed, temperature) for seed in range(draws)]

    def drawn(rows: torch.Tensor, position: int) -> list[int]:
        tokens: list[int] = sample(rows, Draws(packed, [position] * draws))[0].tolist()
        return tokens

    first = drawn(logits[0].repeat(draws, 1), 0)
    after_draft = drawn(logits[1 + draft].repeat(draws, 1), 1)
    results = [verified((draft,), (Sampled(one), Sampled(two))) for one, two in zip(first, after_draft, strict=True)]
    # Where the draft was rejected, the next step draws the second token after the first one.
    later = drawn(logits[1 + torch.tensor(first)], 1)
    counts = torch.zeros(size, size, dtype=torch.float64)
    for result, second in zip(results, later, strict=True):
        assert result.token is not None
        following = [row.token for row in result.following]
        counts[result.token, following[0] if following else second] += 1
    expected = exact[0][:, None] * exact[1:] * draws
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert statistic < 85.0, "chi-square with 35 degrees of freedom exceeds it once in 200,000"
    accepted = sum(bool(result.following) for result in results) / draws
    assert accepted == pytest.approx(exact[0, draft].item(), abs=0.02), "a draft is accepted with its own probability"


def test_speculation_is_off_by_itself_and_by_name() -> None:
    start = Start("m", "generate", "auto", "none", "cpu", 64, 1, 0, 0.0, 0)
    assert drafting_for(start) is None
    more: dict[str, Any] = {"num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    made = drafting_for(Start("m", "generate", "auto", "none", "cpu", 64, 1, 0, 0.0, 0, speculation="ngram", **more))
    assert made is not None and isinstance(made, LookupDrafting) and made._limits == DraftLimits(3, 2, 5)
