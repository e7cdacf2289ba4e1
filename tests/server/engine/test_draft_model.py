"""Responses with a draft model are those without it, to the token, whatever a request has and whatever fails."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_process.model_folder import checkpoint
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.draft_model import DraftModel, SameVocabulary
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.draft_cache import DraftCache
from slipway_server.engine.scheduling.model_drafting import CATCH_UP_TOKENS, ModelDrafting
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.api import Batch
from slipway_server.models.generator import load_generator
from tests.conftest import MODELS
from tests.server.engine.test_adapters import Engine as AdapterEngine
from tests.server.engine.test_adapters import decoder as decoder_for_adapters
from tests.server.engine.test_equality import make_engine, prompts
from tests.server.engine.test_speculation import answers, drained, grouped
from tests.server.kernels.batches import needs_native

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CONTEXT, MOST = 512, 4
TARGET, DRAFT = "tiny-v2", "tiny-v1"  # of one tokenizer


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class EagerDrafting(ModelDrafting):
    """Drafts as if neither passes nor rows took time, whatever this machine does beside."""

    def __init__(self, cache: DraftCache) -> None:
        super().__init__(MOST, cache, CONTEXT)
        for tokens in (1, 9):
            self._fit.observe(tokens, tokens, 0.02)
            self._passes.observe(tokens, tokens, 1e-6)

    def observe_step(self, batch: object, seconds: float) -> None:
        pass

    def observe_passes(self, passes: object) -> None:
        pass


@cache
def draft_decoder(dtype: str = "float32") -> Any:
    folder = MODELS / DRAFT
    return load_generator(
        folder, checkpoint.read_config(folder), dtype=dtype, quantization="none", device="cpu",
        context_tokens=CONTEXT, threads=1,
    )  # fmt: skip


def draft_with(engine: EngineCore, decoder: Any = None, *, vocab_size: int = 2048) -> EagerDrafting:
    """Gives an engine the draft model; its cache is written over by each engine that has it."""
    model = decoder or draft_decoder()
    scheduler = engine.scheduler
    cache = DraftCache(scheduler.block_manager)
    limits = scheduler.limits
    runner = DecoderRunner(
        SameVocabulary(model, 2048),
        slots=limits.slots,
        context_tokens=CONTEXT,
        blocks=scheduler.block_manager.num_blocks,
    )
    scheduler.drafting = drafting = EagerDrafting(cache)
    engine._drafter = DraftModel(runner, cache, vocab_size=vocab_size)
    return drafting


@pytest.mark.parametrize(
    ("seed", "limits"),
    [
        pytest.param(1, {"slots": 8}, id="with room for all"),
        pytest.param(2, {"slots": 6, "step_tokens": 40, "kv_tokens": 512}, id="starting over"),
        pytest.param(3, {"slots": 8, "prefix_cache": False}, id="without a prefix cache", marks=pytest.mark.extended),
        pytest.param(4, {"slots": 32, "step_tokens": 48}, id="joining in chunks", marks=pytest.mark.extended),
    ],
)
def test_whatever_a_request_has_its_response_is_the_same(seed: int, limits: dict[str, Any]) -> None:
    plain = answers(make_engine(TARGET, **limits), seed)
    engine = make_engine(TARGET, **limits)
    drafting = draft_with(engine)
    assert answers(engine, seed) == plain and len(plain) == 40
    assert (
        drafting.accepted_tokens > (10 if "step_tokens" in limits else 40)
        and drafting.draft_tokens > drafting.accepted_tokens
    )
    assert (engine.scheduler.preemptions > 0) == ("kv_tokens" in limits)
    assert drafting._acceptance == {} and drafting.cache._ahead == {}, "nothing is kept of what ended"


@needs_native
def test_with_the_c_kernels_they_are_the_same_to_the_bit() -> None:
    folder = MODELS / TARGET
    decoder = load_generator(
        folder, checkpoint.read_config(folder), dtype="bfloat16", quantization="none", device="cpu",
        context_tokens=CONTEXT, threads=1,
    )  # fmt: skip
    runner = DecoderRunner(decoder, slots=4, context_tokens=CONTEXT, blocks=64)
    found = []
    for drafts in (False, True):
        config = SchedulerConfig(4, 64, 2048, prefix_cache=False)  # both write to the same blocks
        engine = EngineCore(Scheduler(config, hash_key=bytes(32)), runner)
        drafting = draft_with(engine, draft_decoder("bfloat16")) if drafts else None
        for number in range(6):
            params = SamplingParams(30, temperature=0.5 * (number % 2), seed=number, logprobs=2)
            engine.submit(Request(f"r{number}", prompts()[20 + number], params))
        found.append([(event.id, event.token, event.logprobs) for event in drained(engine)])
        assert drafting is None or drafting.accepted_tokens > 20
    plain, drafted = (sorted(each, key=lambda event: event[0]) for each in found)
    assert plain == drafted, "log probabilities are equal numbers, not near ones"


def test_each_row_has_its_adapter(tmp_path: Path) -> None:
    engine = AdapterEngine(tmp_path, decoder_for_adapters())
    digests = ["", *engine.load(0, 1, 2)]
    params = SamplingParams(30, temperature=0.0)
    requests = [Request(f"r{number}", prompts()[20], params, adapter=digest) for number, digest in enumerate(digests)]
    plain = {name: [event.token for event in events] for name, events in engine.run(*requests).items()}
    drafting = draft_with(engine.core)
    assert {name: [event.token for event in events] for name, events in engine.run(*requests).items()} == plain
    assert drafting.accepted_tokens > 20 and len({*map(tuple, plain.values())}) > 1


# --- what the draft model's cache has ---------------------------------------------------------------------------------


def request(name: str, prompt: tuple[int, ...], tokens: int = 24, **more: Any) -> Request:
    return Request(name, prompt, SamplingParams(tokens, **({"temperature": 0.0} | more)))


def run(engine: EngineCore, *requests: Request) -> dict[str, list[tuple[Any, ...]]]:
    for each in requests:
        engine.submit(each)
    return grouped(drained(engine))


def test_a_model_that_drafts_for_itself_is_right_after_prefix_hits_preemptions_and_long_prompts() -> None:
    """Wrong keys and values in its cache would be wrong drafts; the responses would still be right."""
    engine = make_engine(TARGET, kv_tokens=768, slots=4)
    drafting = draft_with(engine, make_engine(TARGET)._runner._model)  # type: ignore[attr-defined]
    long = (prompts()[49] * 2)[: CATCH_UP_TOKENS + 40]
    for prompt in (long, prompts()[45], long, prompts()[45]):
        run(engine, request("a", prompt), request("b", prompt[:60], temperature=0.7, seed=3))
    hits = engine.scheduler.prefix_hits
    run(engine, *(request(f"r{number}", prompts()[30 + number], 100) for number in range(4)))
    assert hits > CATCH_UP_TOKENS and engine.scheduler.preemptions > 0
    assert drafting.draft_tokens > 200 and drafting.accepted_tokens >= 0.98 * drafting.draft_tokens


def test_drafts_are_what_the_draft_model_continues_the_sequence_with() -> None:
    engine = make_engine(TARGET)
    draft_with(engine)
    drafter: Any = engine._drafter
    compute, seen = drafter.draft, []

    def noted(batch: Any) -> Any:
        drafted = compute(batch)
        sequences = {work.sequence.request.id: work.sequence for work in batch}
        seen.extend((sequences[name].tokens(0, 9999), tokens) for name, tokens in drafted.tokens.items())
        return drafted

    drafter.draft = noted
    run(engine, *(request(f"r{number}", prompts()[20 + number]) for number in range(3)))
    assert len(seen) > 20
    fresh = make_engine(DRAFT, prefix_cache=False)
    for known, drafts in seen[::4]:
        (continued,) = run(fresh, request("r", tuple(known), len(drafts))).values()
        assert [token for token, *_ in continued] == list(drafts)


# --- failures ---------------------------------------------------------------------------------------------------------


def some_requests() -> list[Request]:
    return [request(f"r{number}", prompts()[20 + number]) for number in range(4)]


@cache
def plain_responses() -> dict[str, list[tuple[Any, ...]]]:
    return run(make_engine(TARGET), *some_requests())


@pytest.mark.parametrize("error", [RuntimeError("a kernel failed"), torch.OutOfMemoryError()], ids=["error", "memory"])
def test_a_pass_that_fails_costs_no_token_and_its_requests_draft_no_more(error: Exception) -> None:
    engine = make_engine(TARGET)
    drafting = draft_with(engine)
    drafter: Any = engine._drafter
    compute, failures = drafter._runner.run, []

    def fails(batch: Any) -> Any:
        if any(work.sequence.request.id == "r1" for work in batch):
            failures.append(len(batch))
            raise error
        return compute(batch)

    drafter._runner.run = fails
    assert run(engine, *some_requests()) == plain_responses()
    assert len(failures) == 1
    run(engine, request("later", prompts()[20]))
    assert drafting.accepted_tokens > 4, "other requests draft as before"


def test_drafts_that_are_no_numbers_are_left_out_and_leave_nothing_behind() -> None:
    engine = make_engine(TARGET)
    drafting = draft_with(engine)
    drafter: Any = engine._drafter
    logits = drafter._runner._logits
    drafter._runner._logits = lambda packed, *more: logits(packed, *more) * float("nan")
    assert run(engine, *some_requests()) == plain_responses()
    assert drafting.drafts == 0 and not drafting.cache._filled.any()


def test_a_step_that_fails_by_its_drafts_costs_no_token() -> None:
    engine = make_engine(TARGET)
    draft_with(engine)
    runner: Any = engine._runner
    compute = runner.run

    def starved(batch: Any) -> Any:
        if any(work.drafts for work in batch):
            raise torch.OutOfMemoryError
        return compute(batch)

    runner.run = starved
    assert run(engine, *some_requests()) == plain_responses()


def test_a_request_that_is_cancelled_changes_no_other_one() -> None:
    engine = make_engine(TARGET)
    drafting = draft_with(engine)
    for each in (*some_requests(), request("gone", prompts()[30], 200)):
        engine.submit(each)
    events = []
    while engine.scheduler.busy:
        events += engine.step().events
        if drafting.drafts > 4:
            engine.cancel("gone")
        engine.scheduler.check()
    found = grouped([event for event in events if event.id != "gone"])
    assert found == plain_responses() and drafting.accepted_tokens > 10
    assert drafting._acceptance == {} and drafting.cache._ahead == {}


# --- vocabularies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2000, 2048, 2064])
def test_a_draft_model_may_have_another_number_of_embeddings(columns: int) -> None:
    class Padded:
        kernels = draft_decoder().kernels

        def logits(self, batch: Batch) -> torch.Tensor:
            assert int(batch.ids.max()) < columns, "kernels index memory by them"
            logits: torch.Tensor = draft_decoder().logits(batch)
            return torch.nn.functional.pad(logits, (0, columns - 2048), value=9.0)

    engine = make_engine(TARGET)
    drafting = draft_with(engine, Padded(), vocab_size=columns)
    last = request("last", (*prompts()[20], 2047))  # in the prompt: the draft model with fewer does not know it
    plain = run(make_engine(TARGET), last)
    assert run(engine, *some_requests(), last) == plain_responses() | plain
    assert drafting.accepted_tokens > 10
