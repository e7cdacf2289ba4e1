"""The lease against a real API server, with clocks of the test's own."""

import asyncio
import time

import pytest

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced
from slipway_operator.kube.lease import HELD_FOR, RENEW_EVERY, WRITE_FOR, Lease, LeaseTerms
from slipway_operator.kube.resources import LEASES, MODEL_DEPLOYMENTS
from testkit.world.pods import MERGE

pytestmark = pytest.mark.integration

DURATION_S = 30.0


class Candidate:
    """An operator's lease, with its own clock and the changes that it reported."""

    def __init__(self, client, namespace, identity):
        self.now, self.reported = 1000.0, []
        terms = LeaseTerms(namespace, "operator", identity, DURATION_S)
        self.lease = Lease(client, terms, self.reported.append, lambda: self.now)

    async def renews(self):
        await self.lease.renew()
        return self.lease.held()


@pytest.fixture
def candidate(client, namespace):
    return lambda identity: Candidate(client, namespace, identity)


async def test_second_candidate_waits_and_names_the_holder(candidate):
    first, second = candidate("a"), candidate("b")
    assert (await first.renews(), await second.renews()) == (True, False)
    assert (first.lease.check(), first.reported, second.reported) == (None, [True], [])
    assert "operator a holds the lease" in second.lease.check()


async def test_lease_without_a_holder_is_acquired(candidate, client, namespace):
    await client.create(LEASES, {"metadata": {"name": "operator", "namespace": namespace}})
    assert await candidate("a").renews()
    assert not await candidate("b").renews()


async def test_of_concurrent_candidates_one_gets_the_lease(candidate):
    many = [candidate(f"operator-{number}") for number in range(6)]
    for _ in range(3):
        assert sum(await asyncio.gather(*(one.renews() for one in many))) == 1


async def test_a_holder_that_does_not_renew_stops_writing_long_before_another_takes_over(candidate):
    first, second = candidate("a"), candidate("b")
    await first.renews()
    await second.renews()
    first.now += DURATION_S * HELD_FOR - 0.1
    assert first.lease.held()
    first.now += 0.2
    assert not first.lease.held()
    second.now += DURATION_S - 0.1
    assert not await second.renews()
    second.now += 0.2
    assert await second.renews()
    assert not await first.renews()
    assert first.reported == [True, False]


async def test_renewed_lease_is_never_taken_over_by_a_fast_clock(candidate):
    first, second = candidate("a"), candidate("b")
    for _ in range(4):
        assert await first.renews()
        assert not await second.renews()
        first.now += DURATION_S * RENEW_EVERY
        second.now += DURATION_S * 0.9  # it runs far too fast


async def test_released_lease_is_free_at_once_also_for_the_same_identity(candidate, client):
    first, second = candidate("a"), candidate("b")
    await first.renews()
    await first.lease.release()
    assert not first.lease.held()
    assert await second.renews()
    assert await candidate("b").renews()
    await first.lease.release()  # a release without the lease has no effect
    assert not await candidate("c").renews()


async def test_lease_shows_holder_and_times(candidate, client, namespace):
    first, second = candidate("a"), candidate("b")
    await first.renews()
    await first.renews()
    acquired = (await client.get(LEASES, namespace, "operator"))["spec"]
    await first.lease.release()
    await second.renews()
    spec = (await client.get(LEASES, namespace, "operator"))["spec"]
    assert (acquired["holderIdentity"], acquired["leaseTransitions"], acquired["leaseDurationSeconds"]) == ("a", 0, 30)
    assert acquired["renewTime"] > acquired["acquireTime"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)


async def test_lease_that_cannot_be_renewed_names_the_reason(client, namespace):
    nowhere = Candidate(client, "no-such-namespace", "a")
    assert not await nowhere.renews()
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
    assert HELD_FOR + WRITE_FOR < 1
    assert WRITE_FOR <= 0.25


async def test_one_that_waits_stands_by_as_long_as_it_sees_the_holder(candidate):
    first, second = candidate("a"), candidate("b")
    await first.renews()
    assert not second.lease.stands_by()
    await second.renews()
    assert second.lease.stands_by()
    second.now += DURATION_S + 0.1
    assert not second.lease.stands_by()
    assert not first.lease.stands_by()


async def test_a_lease_that_was_anothers_meanwhile_is_reported_lost_even_if_it_is_free_again(candidate):
    first, second = candidate("a"), candidate("b")
    await first.renews()
    first.now += DURATION_S * 2  # it was suspended
    second.now += DURATION_S
    await second.renews()
    second.now += DURATION_S * 1.1
    assert await second.renews()
    await second.lease.release()
    assert await first.renews()
    assert first.reported == [True, False, True]


async def test_a_write_has_a_deadline_at_the_api_server_too(client, chat, namespace):
    async with Client(client._api.configuration, write_timeout_s=2.5) as bounded:
        seen = []
        send = bounded._exchange

        async def watched(method, path, query, *rest):
            seen.append((method, query))
            return await send(method, path, query, *rest)

        bounded._exchange = watched
        await bounded.patch(MODEL_DEPLOYMENTS, namespace, "chat", {"spec": {"replicas": 2}})
        assert ("timeout", "2.5s") in seen[0][1]
        # The API server reads it: a deadline that is no duration is refused by name.
        with pytest.raises(ApiError, match="timeout"):
            await bounded.request("PATCH", MODEL_DEPLOYMENTS.path(namespace, "chat"), [("timeout", "soon")], {}, MERGE)


async def test_an_unanswered_write_is_waited_for_before_the_lease_is_released(client, chat, namespace):
    async with Client(client._api.configuration, write_timeout_s=3.0, attempts=1) as bounded:
        began = time.monotonic()

        async def lost(*_):
            raise TimeoutError

        await bounded.settle()
        assert time.monotonic() - began < 3.0
        bounded._exchange = lost
        with pytest.raises(ApiError):
            await bounded.patch(MODEL_DEPLOYMENTS, namespace, "chat", {"spec": {"replicas": 2}})
        await bounded.settle()
        assert time.monotonic() - began >= 3.0
