"""What one request does to the engine stays with it (safety 1, 3, 4, 5): exceptions, memory, numbers not finite."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_process.model_folder import checkpoint
from slipway_server.engine.engine import FAILED, OUT_OF_MEMORY, EngineBroken, EngineCore, is_out_of_memory
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.request import (
    FinishReason,
    Request,
    RequestOutput,
    Sampled,
    SamplingParams,
    ScheduledSequence,
)
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.outputs import NO_TOKEN
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.kernels.api import BLOCK_TOKENS
from slipway_server.models.generator import load_generator
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS
from tests.server.engine.test_extremes import params
from tests.server.kernels.batches import why_not_native

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.attack_class(18), pytest.mark.finding(1)]

FOLDER = MODELS / "tiny-v1"
NEW_TOKENS, SLOTS = 12, 8


@cache
def text() -> tuple[int, ...]:
    return Tokenizer(FOLDER).encode_now((FOLDER / "README.md").read_text() * 3)


def make_engine(dtype: str = "float32") -> EngineCore:
    torch.set_num_threads(1)
    config = checkpoint.read_config(FOLDER)
    decoder = load_generator(
        FOLDER, config, dtype=dtype, quantization="none", device="cpu", context_tokens=512, threads=1
    )
    limits = SchedulerConfig(slots=SLOTS, step_tokens=256, kv_tokens=4096)
    runner = DecoderRunner(decoder, slots=SLOTS, context_tokens=512, blocks=4096 // BLOCK_TOKENS)
    return EngineCore(Scheduler(limits, hash_key=bytes(32)), runner, vocab_size=decoder.vocab_size)


def good(index: int) -> Request:
    return Request(f"good{index}", text()[index : index + 20 + index], SamplingParams(NEW_TOKENS, temperature=0.0))


@cache
def alone(dtype: str = "float32") -> dict[str, list[int | None]]:
    engine, answers = make_engine(dtype), {}
    for index in range(SLOTS):
        engine.submit(good(index))
        answers[f"good{index}"] = [event.token for event in drained(engine)]
    return answers


def drained(engine: EngineCore) -> list[RequestOutput]:
    events: list[RequestOutput] = []
    while engine.scheduler.busy or engine._refused:
        events += engine.step().events
    engine.scheduler.check()
    assert engine.scheduler.kv_usage == 0
    return events


def tokens_of(events: list[RequestOutput], name: str) -> list[int | None]:
    return [event.token for event in events if event.id == name and event.error is None]


def failing(engine: EngineCore, raises: Callable[[list[ScheduledSequence]], Exception | None]) -> None:
    """The runner raises what `raises` returns for a batch."""
    run = engine._runner.run

    def run_or_raise(batch: list[ScheduledSequence]) -> object:
        if (error := raises(batch)) is not None:
            raise error
        return run(batch)

    engine._runner.run = run_or_raise  # type: ignore[method-assign, assignment]


def names(batch: list[ScheduledSequence]) -> set[str]:
    return {work.sequence.request.id for work in batch}


@pytest.mark.parametrize("bad", [(3,), (0, 7), (0, 1, 2, 3, 4, 5, 6)])
def test_an_exception_ends_only_the_request_that_causes_it(bad: tuple[int, ...]) -> None:
    engine, guilty = make_engine(), {f"good{index}" for index in bad}
    failing(engine, lambda batch: IndexError("argmax()") if guilty & names(batch) else None)
    for index in range(SLOTS):
        engine.submit(good(index))
    step = engine.step()
    assert step.errors == len(bad)
    events = step.events + drained(engine)
    ends = [(event.id, event.finish, event.error) for event in events if event.error]
    assert sorted(ends) == sorted((name, FinishReason.ERROR, FAILED) for name in guilty)
    for index in set(range(SLOTS)) - set(bad):
        assert tokens_of(events, f"good{index}") == alone()[f"good{index}"]


def test_a_request_that_fails_during_its_answer_does_not_change_the_others() -> None:
    engine = make_engine()
    failing(
        engine,
        lambda batch: (
            ValueError("later") if any(w.end > 30 for w in batch if w.sequence.request.id == "good2") else None
        ),
    )
    for index in range(SLOTS):
        engine.submit(good(index))
    events = drained(engine)
    assert [event.id for event in events if event.error] == ["good2"]
    tokens = tokens_of(events, "good2")
    assert tokens and tokens == alone()["good2"][: len(tokens)]
    for index in set(range(SLOTS)) - {2}:
        assert tokens_of(events, f"good{index}") == alone()[f"good{index}"]


@pytest.mark.finding(5)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_a_step_without_memory_shrinks_and_no_request_ends(error: Exception) -> None:
    """Safety 5: out of memory on a CPU is a RuntimeError."""
    assert is_out_of_memory(error)
    engine, sizes = make_engine(), []
    large = Request("large", text()[:141], SamplingParams(4, temperature=0.0))
    engine.submit(large)
    expected = tokens_of(drained(engine), "large")
    engine = make_engine()

    def refuse(batch: list[ScheduledSequence]) -> Exception | None:
        sizes.append(sum(work.tokens for work in batch))
        return error if sizes[-1] > 40 else None

    failing(engine, refuse)
    engine.submit(large)
    for index in range(3):
        engine.submit(good(index))
    events = engine.step().events
    tries = len(sizes)
    events += drained(engine)
    assert tries > 2 and sizes[tries] <= 40, "the next step has less room"
    assert not [event for event in events if event.error]
    assert tokens_of(events, "large") == expected
    for index in range(3):
        assert tokens_of(events, f"good{index}") == alone()[f"good{index}"]


def test_a_request_without_memory_for_one_token_ends_alone() -> None:
    engine = make_engine()
    failing(engine, lambda batch: MemoryError() if any(w.sequence.request.id == "large" for w in batch) else None)
    engine.submit(Request("large", text()[:41], SamplingParams(4, temperature=0.0)))
    engine.submit(good(0))
    events = drained(engine)
    assert [(e.id, e.error) for e in events if e.error] == [("large", OUT_OF_MEMORY)]
    assert tokens_of(events, "good0") == alone()["good0"]


def test_the_kernels_report_that_a_cpu_has_no_memory() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**55, dtype=torch.int8)
    assert is_out_of_memory(refused.value)


def test_a_broken_engine_blames_no_request() -> None:
    """As after an illegal access on a GPU: the requests go on elsewhere, and another process takes this one's place."""
    engine = make_engine()
    failing(engine, lambda batch: RuntimeError("CUDA error: an illegal memory access was encountered"))
    for index in range(3):
        engine.submit(good(index))
    with pytest.raises(EngineBroken, match="illegal memory access"):
        engine.step()


def test_a_probe_changes_nothing() -> None:
    engine = make_engine()
    engine.submit(good(5))
    events: list[RequestOutput] = []
    while engine.scheduler.busy:
        engine._runner.probe()
        events += engine.step().events
    assert tokens_of(events, "good5") == alone()["good5"]


# --- what requests ask for --------------------------------------------------------------------------------------------


@pytest.mark.finding(3)
def test_token_ids_outside_the_vocabulary_never_reach_the_model() -> None:
    """Safety 3: such as Gemma 3's <image_soft_token>, the first id behind the embedding's rows."""
    engine = make_engine()
    size = engine._vocab_size
    assert size == checkpoint.read_config(FOLDER)["vocab_size"]
    plain = SamplingParams(4, temperature=0.0)
    engine.submit(Request("last", (size - 1,), plain))
    engine.submit(Request("beyond", (1, size), plain))
    engine.submit(Request("resumed", (1,), plain, resumed=(size,)))
    engine.submit(Request("negative", (-1,), plain))
    engine.submit(Request("rule", (1,), SamplingParams(4, allowed_token_ids=(size,))))
    events = drained(engine)
    refused = {event.id: event.error or "" for event in events if event.finish is FinishReason.INVALID}
    assert set(refused) == {"beyond", "resumed", "negative", "rule"}
    assert f"the model has ids below {size}" in refused["beyond"]
    assert len(tokens_of(events, "last")) == 4


def test_a_request_that_allows_no_token_ends_alone_with_a_reason() -> None:
    engine = make_engine()
    none = SamplingParams(9, top_p=0.9, allowed_token_ids=(5,), stop_token_ids=(5,), min_tokens=5)
    engine.submit(Request("none", text()[:9], none))
    engine.submit(good(4))
    events = drained(engine)
    assert [(e.id, e.finish, e.error) for e in events if e.error] == [("none", FinishReason.INVALID, NO_TOKEN)]
    assert tokens_of(events, "good4") == alone()["good4"]


@cache
def lasting() -> EngineCore:
    """One engine for many examples: what an example does to it, the next one meets."""
    return make_engine()


@settings(max_examples=25, deadline=None)
@given(st.lists(params, min_size=1, max_size=SLOTS - 1))
def test_no_parameters_of_any_size_disturb_an_engine(drawn: list[SamplingParams]) -> None:
    engine = lasting()
    for number, p in enumerate(drawn):
        short = replace(p, max_tokens=4, prompt_logprobs=-1)
        engine.submit(Request(f"odd{number}", text()[number : number + 9], short))
    engine.submit(good(2))
    events = drained(engine)
    ends = Counter(event.id for event in events if event.finish)
    assert ends == Counter([*(f"odd{number}" for number in range(len(drawn))), "good2"])
    known = {FinishReason.STOP, FinishReason.LENGTH, FinishReason.INVALID}
    assert {event.finish for event in events if event.finish} <= known
    assert tokens_of(events, "good2") == alone()["good2"]


# --- numbers that are not finite --------------------------------------------------------------------------------------

POISON = 7  # a token whose embedding becomes "not a number"


def poisoned(dtype: str) -> EngineCore:
    engine = make_engine(dtype)
    decoder = engine._runner._model  # type: ignore[attr-defined]
    embedding = decoder._embedding

    def with_poison(ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids).masked_fill((ids == POISON)[:, None], torch.nan)

    decoder._embedding = with_poison
    return engine


@pytest.mark.finding(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_non_finite_numbers_do_not_reach_sequences_that_share_a_prefix(dtype: str) -> None:
    """Safety 4: blocks that others read were zeroed under them. The C kernels, of bfloat16, are those that clear."""
    if dtype == "bfloat16" and (reason := why_not_native()):
        pytest.skip(reason)
    shared = tuple(token for token in text() if token != POISON)[:96]
    victim = Request("victim", (*shared, 11, 12), SamplingParams(NEW_TOKENS, temperature=0.0))
    calm = make_engine(dtype)
    calm.submit(victim)
    wanted = tokens_of(drained(calm), "victim")
    engine = poisoned(dtype)
    engine.submit(victim)
    events = engine.step().events + engine.step().events
    engine.submit(Request("nan", (*shared, POISON, 13), SamplingParams(NEW_TOKENS, temperature=0.0)))
    events += engine.step().events
    assert engine.scheduler.prefix_hits == 96, "they share blocks"
    events += drained(engine)
    assert [(e.id, e.finish) for e in events if e.error] == [("nan", FinishReason.NON_FINITE)]
    assert tokens_of(events, "victim") == wanted
    # Blocks that no sequence reads are cleared before their next use, and are not in the prefix cache.
    engine.submit(Request("again", victim.prompt, victim.sampling))
    assert tokens_of(drained(engine), "again") == wanted


def test_an_invalid_shared_block_is_cleared_after_its_last_reference_is_freed() -> None:
    scheduler = Scheduler(SchedulerConfig(4, 64, 400, block_tokens=4), hash_key=bytes(32))

    def complete(batch: list[ScheduledSequence], bad: str = "") -> None:
        scheduler.complete(batch, [Sampled(None if w.sequence.request.id == bad else 1) for w in batch if w.samples])

    scheduler.submit(Request("reader", tuple(range(9)), SamplingParams(9)))
    complete(scheduler.schedule())
    scheduler.submit(Request("nan", tuple(range(9)), SamplingParams(9)))
    batch = scheduler.schedule()
    shared = scheduler.running["reader"].block_table[:2]
    (own,) = scheduler.running["nan"].block_table[2:]
    assert scheduler.running["nan"].block_table[:2] == shared
    complete(batch, "nan")
    assert scheduler.block_manager.take_blocks_to_clear() == [own], (
        "blocks that another sequence reads stay as they are"
    )
    scheduler.submit(Request("late", tuple(range(9)), SamplingParams(9)))
    complete(scheduler.schedule())
    assert not set(scheduler.running["late"].block_table) & set(shared), "a new sequence must not reuse invalid blocks"
    assert scheduler.block_manager.take_blocks_to_clear() == []
    scheduler.cancel("reader")
    assert (
        sorted(scheduler.block_manager.take_blocks_to_clear()) == sorted(shared)
        and scheduler.block_manager.take_blocks_to_clear() == []
    )
    scheduler.check()
