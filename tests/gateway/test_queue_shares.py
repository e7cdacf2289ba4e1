"""Queues and memories of the gateway: a flood of one client, or of two, leaves a third its part."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from slipway_gateway.authentication.authenticator import MAX_WAITING as MAX_DELAYED
from slipway_gateway.authentication.authenticator import Authenticator
from slipway_gateway.authentication.issuers import IssuerKeys
from slipway_gateway.authentication.known_tenants import KnownTenants
from slipway_gateway.authentication.service_accounts import MAX_IN_FLIGHT
from slipway_gateway.feedback.memory import CLAIMED, FeedbackMemory
from slipway_gateway.forwarding.poison import DEATH, MAX_ANSWERED, MAX_SUSPECTS, Suspect, Suspects
from slipway_gateway.forwarding.resume_memory import ENTRY_BYTES, ResumeMemory
from slipway_gateway.limits.budget import MemoryBudget
from slipway_gateway.sharing import redis_counters
from slipway_gateway.sharing.redis_counters import RedisCounters
from slipway_gateway.telemetry.line_writer import QUEUE_FULL, LineWriter
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_gateway.wire.errors import RequestError
from testkit.until import until_async

from .ledger.test_writer import answered, ledger, value
from .ledger.test_writer import meter as meter_of
from .tenants import PEPPER
from .test_service_accounts import Reviews

pytestmark = pytest.mark.attack_class(15)

GREEDY = ("hog a", "hog b")


def test_tokens_of_broken_streams_stay_while_others_break_more() -> None:
    """The oldest left first, whose ever it was."""
    memory = ResumeMemory(20 * (ENTRY_BYTES + 1), 60.0, lambda: 0.0, MemoryBudget(1 << 30, 1 << 30, float))
    memory.keep(b"quiet", b"7", "quiet")
    for number in range(1000):
        memory.keep(b"%d" % number, b"1", GREEDY[number % 2])
    assert memory.find(b"quiet") == b"7" and memory.find(b"999") == b"1" and memory.find(b"0") == b""
    assert memory.size_bytes == 20 * (ENTRY_BYTES + 1)


def test_requests_that_need_room_take_it_from_who_has_most_there() -> None:
    budget = MemoryBudget(10 * (ENTRY_BYTES + 1), 1 << 30, float)
    memory = ResumeMemory(1 << 20, 60.0, float, budget)
    memory.keep(b"quiet", b"7", "quiet")
    for number in range(9):
        memory.keep(b"%d" % number, b"1", "hog")
    assert budget.open("client").grow(5 * ENTRY_BYTES) == ""
    assert memory.find(b"quiet") == b"7" and memory.find(b"0") == b""


def test_feedback_of_one_tenant_makes_none_of_another_count_twice() -> None:
    memory = FeedbackMemory(limit=100)
    assert memory.first("quiet", b"token", CLAIMED)
    for number in range(1000):
        assert memory.first(GREEDY[number % 2], b"%d" % number, CLAIMED)
    assert not memory.first("quiet", b"token", CLAIMED) and len(memory) == 100


def test_suspects_of_one_client_push_out_none_of_another() -> None:
    suspects = Suspects(lambda: 0.0)
    poison = Suspect("quiet", "/", b"poison")
    suspects.blame(poison, "u", DEATH, sent_s=1.0, on_trial=False)
    harmless = Suspect("quiet", "/", b"harmless")
    suspects.completed(harmless)
    for number in range(MAX_SUSPECTS + 100):
        one = Suspect(GREEDY[number % 2], "/", b"%d" % number)
        suspects.blame(one, f"u{number}", DEATH, sent_s=1.0, on_trial=False)
    for number in range(MAX_ANSWERED + 100):
        suspects.completed(Suspect(GREEDY[number % 2], "/", b"other %d" % number))
    assert suspects.blamed(poison) == DEATH and suspects.answered(harmless)


class Stuck:
    """A sink that takes its first batch when it may."""

    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()
        self.taken: list[bytes] = []

    def write(self, lines: Sequence[bytes]) -> None:
        self.entered.set()
        self.free.wait(60)
        self.taken += lines

    def close(self) -> None: ...


async def test_lines_of_two_clients_leave_room_for_one_of_a_third() -> None:
    dropped, sink = Counter[str](), Stuck()
    writer = LineWriter(
        sink, lambda reason, lines: dropped.update({reason: lines}), max_queued_bytes=6000, interval_s=0
    )
    writer.put("quiet", b"begins\n")
    await asyncio.to_thread(sink.entered.wait, 20)
    writer.put("quiet", b"before\n")
    for number in range(1000):
        writer.put(GREEDY[number % 2], b"0123456789\n")
    writer.put("quiet", b"after\n")
    assert dropped[QUEUE_FULL] > 0
    sink.free.set()
    await writer.close()
    assert sink.taken[:2] == [b"begins\n", b"before\n"] and sink.taken[-1] == b"after\n"


async def test_charges_of_two_tenants_leave_room_for_one_of_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.ledger.writer.MAX_WAITING", 60)
    async with ledger() as one:
        for number in range(100):
            running = meter_of(f"{number}", GREEDY[number % 2])
            one.open(running)
            one.close(answered(running))
        lost = value(one, "ledger_lost_total")
        running = meter_of("honest", "quiet")
        one.open(running)
        one.close(answered(running))
        assert value(one, "ledger_lost_total") == lost > 0


async def test_settlements_of_two_tenants_leave_room_for_one_of_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_counters, "MAX_WAITING", 60)
    counters = RedisCounters("redis://127.0.0.1:1", "x", 0.1, GatewayMetrics("test"))
    counters.begin("quiet", "first", sent=True)
    counters.settle("quiet", "first", {})
    for number in range(100):
        counters.begin(GREEDY[number % 2], str(number), sent=True)
        counters.settle(GREEDY[number % 2], str(number), {})
    counters.begin("quiet", "last", sent=True)
    counters.settle("quiet", "last", {})
    waiting = [id_ for name, id_, _ in counters._waiting if name == "quiet"]
    assert waiting == ["first", "last"] and len(counters._waiting) < 60
    await counters.close()


async def test_reviews_for_two_addresses_leave_room_for_one_of_a_third() -> None:
    reviews = Reviews()
    reviews.gate.clear()
    waiting = []
    for number in range(4 * MAX_IN_FLIGHT):
        reviews.now_s += 1.0
        waiting.append(asyncio.create_task(reviews.username(str(number), GREEDY[number % 2])))
        await asyncio.sleep(0)
    begun = len(reviews.calls)
    reviews.now_s += 1.0
    waiting.append(asyncio.create_task(reviews.username("honest", "quiet")))
    await until_async(lambda: len(reviews.calls) == begun + 1, "the third's review")
    assert begun < MAX_IN_FLIGHT and reviews.calls[-1] == "honest"
    reviews.gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await reviews.username("again", GREEDY[0]) == "", "places are given back"
    await reviews.tokens.close()


async def test_refusals_of_two_addresses_leave_room_for_one_of_a_third() -> None:
    """A full room refused all others with 429 at once, who had mistyped a key."""
    known = KnownTenants(lambda: PEPPER)
    made = Authenticator("required", known, GatewayMetrics("test"), IssuerKeys(float, ""), clock=lambda: 0.0)
    waiting = [
        asyncio.create_task(made._slow_down(source)) for _ in range(MAX_DELAYED) for source in (*GREEDY, *GREEDY)
    ]
    await asyncio.sleep(0)
    refused = [task for task in waiting if task.done() and isinstance(task.exception(), RequestError)]
    assert refused, "they have more refusals than their share of delays"
    for _ in range(12):
        await asyncio.wait_for(made._slow_down("quiet"), 30)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert made._waiting.used == 0
