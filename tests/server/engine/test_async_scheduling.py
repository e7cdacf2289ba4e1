"""With async scheduling a step begins before the tokens of the one before are known: answers stay the same."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slipway_server.engine.build import schedules_ahead
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.request import FinishReason, Request, RequestOutput, SamplingParams, ScheduledSequence
from tests.server.engine.test_equality import make_engine
from tests.server.engine.test_stress import PROMPTS, Storm, answers, expected, greedy, prompts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def drain(engine: EngineCore) -> list[RequestOutput]:
    events: list[RequestOutput] = []
    while engine.scheduler.busy:
        events += engine.step().events
        engine.scheduler.check()
    assert engine.scheduler.kv_usage == 0
    return events


def tokens(events: list[RequestOutput]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        found.setdefault(event.id, []).extend([] if event.token is None else [event.token])
    return found


def drawing(number: int, chance: random.Random, **changes: Any) -> Request:
    """A request that needs nothing of its logits but a token."""
    params = SamplingParams(
        **{
            "max_tokens": chance.randrange(1, 24),
            "temperature": chance.choice((0.0, 0.7, 1.5)),
            "top_p": chance.choice((1.0, 0.9)),
            "top_k": chance.choice((0, 20)),
            "seed": number,
            "stop_token_ids": tuple(chance.sample(range(600), 60)),  # a tenth of the vocabulary: many stop early
            **changes,
        }
    )
    prompt = prompts()[chance.randrange(PROMPTS)]
    return Request(f"d{number}", prompt, params, chance.choice((0, 0, -1, 1000)), tenant=chance.choice(("", "other")))


def drawn_tokens(*, async_scheduling: bool, seed: int) -> tuple[EngineCore, dict[str, list[int]], set[FinishReason]]:
    """Of 60 requests that join at random, with too few blocks and slots for all of them."""
    chance = random.Random(seed)
    engine = make_engine("tiny-v1", async_scheduling=async_scheduling, slots=6, step_tokens=40, kv_tokens=512)
    events: list[RequestOutput] = []
    for number in range(60):
        engine.submit(drawing(number, chance))
        for _ in range(chance.randrange(3)):
            events += engine.step().events
            engine.scheduler.check()
    events += drain(engine)
    assert not [event for event in events if event.error]
    return engine, tokens(events), {event.finish for event in events if event.finish}


@pytest.mark.parametrize("seed", [1, 2])
def test_tokens_of_draws_are_those_without_it(seed: int) -> None:
    _, alone, _ = drawn_tokens(async_scheduling=False, seed=seed)
    engine, ahead, ends = drawn_tokens(async_scheduling=True, seed=seed)
    assert ahead == alone and len(ahead) == 60
    assert ends == {FinishReason.STOP, FinishReason.LENGTH}
    assert engine.scheduler.preemptions > 0


def test_greedy_answers_are_those_of_transformers_beside_requests_with_rules() -> None:
    """Log probabilities and penalties of neighbours, which come and go, make steps run alone in between."""
    chance = random.Random(3)
    engine = make_engine("tiny-v1", async_scheduling=True, slots=7, step_tokens=40, kv_tokens=640)
    order = chance.sample(range(PROMPTS), 60)
    requests = [greedy("tiny-v1", index, chance.choice((0, 0, 1, 1000))) for index in order]
    found = answers(engine, requests, at_once=10, storm=Storm(engine, chance))
    assert found == [expected("tiny-v1")[index] for index in order]
    assert engine.scheduler.preemptions > 0


class Spied:
    """In place of a runner: what is begun and read, in order. Fails where it is wanted to."""

    def __init__(self, engine: EngineCore) -> None:
        self.runner: Any = engine._runner
        self.order: list[str] = []
        self.fails_launch: Callable[[list[ScheduledSequence]], bool] = lambda batch: False
        self.fails_results: Callable[[list[ScheduledSequence]], bool] = lambda batch: False
        engine._launches = self
        self._begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def launch(self, batch: list[ScheduledSequence], after: Any = None) -> Any:
        if self.fails_launch(batch):
            raise torch.OutOfMemoryError("no memory")
        inner = self.runner.launch(batch, after and after.inner)
        self._begun += 1
        return _SpiedStep(self, inner, self._begun, batch)


class _SpiedStep:
    def __init__(self, spied: Spied, inner: Any, number: int, batch: list[ScheduledSequence]) -> None:
        self.inner, self._spied, self._number, self._batch = inner, spied, number, batch
        spied.order.append(f"begin {number}")

    def results(self) -> Any:
        self._spied.order.append(f"read {self._number}")
        if self._spied.fails_results(self._batch):
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self.inner.results()


def greedy_of(name: str, size: int, max_tokens: int = 12) -> Request:
    return Request(name, prompts()[PROMPTS - 1][:size], SamplingParams(max_tokens, temperature=0.0))


def alone(*requests: Request) -> dict[str, list[int]]:
    found = {}
    for request in requests:
        engine = make_engine("tiny-v1")
        engine.submit(request)
        found |= tokens(drain(engine))
    return found


def test_a_step_begins_before_the_one_before_is_read() -> None:
    engine = make_engine("tiny-v1", async_scheduling=True)
    spied = Spied(engine)
    engine.submit(greedy_of("a", 5, 4))
    drain(engine)
    assert spied.order == ["begin 1", "begin 2", "read 1", "begin 3", "read 2", "begin 4", "read 3", "read 4"]


def test_a_failed_step_is_computed_again_and_costs_no_token() -> None:
    requests = [greedy_of("a", 5), greedy_of("b", 40), greedy_of("c", 70)]
    engine = make_engine("tiny-v1", async_scheduling=True)
    spied = Spied(engine)
    chance = random.Random(4)
    spied.fails_results = lambda batch: chance.random() < 0.3
    spied.fails_launch = lambda batch: chance.random() < 0.3
    for request in requests:
        engine.submit(request)
    assert tokens(drain(engine)) == alone(*requests)


def test_a_request_that_fails_each_step_ends_alone() -> None:
    requests = [greedy_of("a", 5), greedy_of("b", 40)]
    engine = make_engine("tiny-v1", async_scheduling=True)
    spied = Spied(engine)
    run = spied.runner.run

    def poisoned(batch: list[ScheduledSequence]) -> bool:
        return any(scheduled.sequence.request.id == "poison" for scheduled in batch)

    def run_without(batch: list[ScheduledSequence]) -> Any:
        if poisoned(batch):
            raise RuntimeError("poison")
        return run(batch)

    spied.runner.run = run_without
    spied.fails_results = poisoned
    for request in (requests[0], greedy_of("poison", 20), requests[1]):
        engine.submit(request)
    events = drain(engine)
    assert [(event.id, event.finish) for event in events if event.error] == [("poison", FinishReason.ERROR)]
    found = tokens(events)
    assert found.pop("poison") == []
    assert found == alone(*requests)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_cancelled_and_late_requests_end_while_their_step_is_in_flight(steps: int) -> None:
    now_s = 0.0
    requests = [greedy_of("a", 5), greedy_of("b", 40)]
    engine = make_engine("tiny-v1", async_scheduling=True)
    engine._clock = lambda: now_s
    late = greedy_of("late", 30, 40)
    engine.submit(Request("late", late.prompt, late.sampling, timeout_s=5.0))
    engine.submit(greedy_of("gone", 20, 40))
    for request in requests:
        engine.submit(request)
    events = [event for _ in range(steps) for event in engine.step().events]
    engine.cancel("gone")
    now_s = 6.0
    before = len(events)
    events += drain(engine)
    assert [event.id for event in events[before:] if event.id in ("gone", "late")] == ["late"]
    assert [event.finish for event in events if event.id == "late"][-1] is FinishReason.DEADLINE
    found = tokens(events)
    assert {name: found[name] for name in ("a", "b")} == alone(*requests)


def test_when_all_were_cancelled_a_newcomer_is_not_disturbed_by_the_step_in_flight() -> None:
    engine = make_engine("tiny-v1", async_scheduling=True)
    engine.submit(greedy_of("gone", 40, 40))
    for _ in range(3):
        engine.step()
    engine.cancel("gone")
    assert not engine.scheduler.busy
    engine.submit(greedy_of("a", 40))
    assert tokens(drain(engine)) == alone(greedy_of("a", 40))


@pytest.mark.parametrize(
    ("setting", "replays", "ahead"),
    [("auto", True, True), ("auto", False, False), ("on", False, True), ("off", True, False)],
)
def test_by_itself_it_is_on_where_steps_can_be_replayed(setting: str, *, replays: bool, ahead: bool) -> None:
    assert schedules_ahead(setting, replays=replays) is ahead
