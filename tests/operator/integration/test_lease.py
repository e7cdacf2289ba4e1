"""The lease against a real API server, with clocks of the test's own."""

import asyncio

import pytest

from slipway_operator.kube.client import TIMEOUT_S, Client
from slipway_operator.kube.errors import Fenced
from slipway_operator.kube.lease import HELD_FOR, RENEW_EVERY, Lease, Terms
from slipway_operator.kube.resources import LEASES, MODEL_DEPLOYMENTS
from slipway_operator.settings import parse
from tests.support.settings import parsed

pytestmark = pytest.mark.integration

DURATION_S = 30.0


class Candidate:
    """An operator's lease, with its own clock and what it told."""

    def __init__(self, client, namespace, identity):
        self.now, self.told = 1000.0, []
        terms = Terms(namespace, "operator", identity, DURATION_S)
        self.lease = Lease(client, terms, self.told.append, lambda: self.now)

    async def asks(self):
        await self.lease.renew()
        return self.lease.held()


@pytest.fixture
def candidate(client, namespace):
    return lambda identity: Candidate(client, namespace, identity)


async def test_the_first_holds_it_and_the_second_waits_and_says_for_whom(candidate):
    first, second = candidate("a"), candidate("b")
    assert (await first.asks(), await second.asks()) == (True, False)
    assert (first.lease.check(), first.told, second.told) == (None, [True], [])
    assert "operator a holds the lease" in second.lease.check()


async def test_one_that_the_chart_made_is_taken(candidate, client, namespace):
    await client.create(LEASES, {"metadata": {"name": "operator", "namespace": namespace}})
    assert await candidate("a").asks()
    assert not await candidate("b").asks()


async def test_two_that_ask_at_the_same_time_get_one_lease(candidate):
    many = [candidate(f"operator-{number}") for number in range(6)]
    for _ in range(3):
        assert sum(await asyncio.gather(*(one.asks() for one in many))) == 1


async def test_a_holder_that_does_not_renew_stops_writing_long_before_another_takes_over(candidate):
    first, second = candidate("a"), candidate("b")
    await first.asks()
    await second.asks()
    first.now += DURATION_S * HELD_FOR - 0.1
    assert first.lease.held()
    first.now += 0.2
    assert not first.lease.held()
    second.now += DURATION_S - 0.1
    assert not await second.asks()
    second.now += 0.2
    assert await second.asks()
    assert not await first.asks()
    assert first.told == [True, False]


async def test_one_that_renews_is_never_taken_over_whatever_the_other_clock_says(candidate):
    first, second = candidate("a"), candidate("b")
    for _ in range(4):
        assert await first.asks()
        assert not await second.asks()
        first.now += DURATION_S * RENEW_EVERY
        second.now += DURATION_S * 0.9  # it runs far too fast


async def test_given_back_it_is_free_at_once_and_so_it_is_for_the_next_process_of_the_same_pod(candidate, client):
    first, second = candidate("a"), candidate("b")
    await first.asks()
    await first.lease.release()
    assert not first.lease.held()
    assert await second.asks()
    assert await candidate("b").asks()
    await first.lease.release()  # one that does not hold it takes nothing away
    assert not await candidate("c").asks()


async def test_the_lease_tells_kubectl_who_and_since_when(candidate, client, namespace):
    first, second = candidate("a"), candidate("b")
    await first.asks()
    await first.asks()
    acquired = (await client.get(LEASES, namespace, "operator"))["spec"]
    await first.lease.release()
    await second.asks()
    spec = (await client.get(LEASES, namespace, "operator"))["spec"]
    assert (acquired["holderIdentity"], acquired["leaseTransitions"], acquired["leaseDurationSeconds"]) == ("a", 0, 30)
    assert acquired["renewTime"] > acquired["acquireTime"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)


async def test_a_lease_that_may_not_be_had_is_explained(client, namespace):
    nowhere = Candidate(client, "no-such-namespace", "a")
    assert not await nowhere.asks()
    assert "no-such-namespace/operator cannot be renewed" in nowhere.lease.check()


async def test_without_the_lease_the_client_reads_and_writes_nothing(client, chat, namespace):
    held = True
    async with Client(client._api.configuration, may_write=lambda: held) as fenced:
        await fenced.patch(MODEL_DEPLOYMENTS, namespace, "chat", {"spec": {"replicas": 2}})
        held = False
        with pytest.raises(Fenced, match="another operator may hold the lease"):
            await fenced.patch(MODEL_DEPLOYMENTS, namespace, "chat", {"spec": {"replicas": 3}})
        assert (await fenced.get(MODEL_DEPLOYMENTS, namespace, "chat"))["spec"]["replicas"] == 2


def test_no_call_lasts_from_the_last_moment_of_one_holder_to_the_first_of_the_next():
    assert parsed(parse).settings.lease_s * (1 - HELD_FOR) > TIMEOUT_S
