"""Tenants get tokens by their weights, whatever they send."""

import pytest

from slipway_server.engine.request import Request, Sampled, SamplingParams
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.fairness import Fairness
from slipway_server.engine.scheduling.scheduler import AGEING_S, Scheduler

WEIGHTS = {"one": 1.0, "two": 2.0, "four": 4.0}


def test_a_tenant_that_was_idle_starts_level_without_credit() -> None:
    fairness = Fairness()
    fairness.enter("busy")
    fairness.charge("busy", 1.0, prompt=100)
    fairness.enter("new")
    assert fairness.served("new") == fairness.served("busy") == 100
    fairness.leave("new")
    fairness.charge("busy", 1.0, output=50)
    fairness.enter("new")
    assert fairness.served("new") == 200 and fairness.least(["busy", "new"]) == "busy"


def test_a_newcomer_is_not_served_before_a_tenant_that_was_alone() -> None:
    fairness = Fairness()
    for tenant in ("first", "last"):
        fairness.enter(tenant)
        fairness.charge(tenant, 1.0, prompt=100)
        fairness.leave(tenant)
    fairness.enter("new")
    fairness.enter("last")
    assert fairness.served("new") == fairness.served("last") == 200


def test_a_backlog_of_a_new_tenant_is_served_in_turns_with_one_that_was_served_alone() -> None:
    scheduler = Scheduler(
        SchedulerConfig(slots=1, step_tokens=64, kv_tokens=256, block_tokens=8, prefix_cache=False), hash_key=bytes(32)
    )

    def send(name: str, tenant: str, first: int) -> None:
        scheduler.submit(Request(name, tuple(range(first, first + 8)), SamplingParams(4), tenant=tenant))

    def run() -> list[str]:
        ended = []
        while scheduler.busy:
            batch = scheduler.schedule()
            events = scheduler.complete(batch, [Sampled(1) for work in batch if work.samples])
            ended += [event.id for event in events if event.finish]
        return ended

    for number in range(50):
        send(f"a{number}", "old", 10 * number)
        run()
    for number in range(20):
        send(f"b{number}", "new", 1000 + 10 * number)
    send("single", "old", 5000)
    assert run().index("single") <= 2


@pytest.mark.parametrize("step_s", [0.0, AGEING_S / 20])
def test_shares_follow_the_weights_when_one_tenant_sends_ten_times_as_much(step_s: float) -> None:
    """Tokens in a window in which all three always have work waiting; "one" floods, and its requests wait for long."""
    scheduler = Scheduler(
        SchedulerConfig(slots=4, step_tokens=32, kv_tokens=4096, block_tokens=8, prefix_cache=False), hash_key=bytes(32)
    )
    served = dict.fromkeys(WEIGHTS, 0)
    sent, now_s = 0, 0.0

    def send(tenant: str) -> None:
        nonlocal sent
        sent += 1
        prompt = tuple(range(sent, sent + 12))
        request = Request(f"{tenant}-{sent}", prompt, SamplingParams(6), tenant=tenant, weight=WEIGHTS[tenant])
        scheduler.submit(request, now_s)

    for _ in range(200):
        send("one")
    for tenant in ("two", "four"):
        for _ in range(20):
            send(tenant)
    for _ in range(900):
        now_s += step_s
        batch = scheduler.schedule(now_s)
        for work in batch:
            served[work.sequence.request.tenant] += work.tokens
        for event in scheduler.complete(batch, [Sampled(1) for work in batch if work.samples]):
            if event.finish:
                send(event.id.partition("-")[0])
    total = sum(served.values())
    shares = {tenant: 7 * tokens / total for tenant, tokens in served.items()}
    assert all(abs(share - WEIGHTS[tenant]) / WEIGHTS[tenant] < 0.05 for tenant, share in shares.items()), shares
