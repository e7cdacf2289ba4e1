"""Sessions as units of the judge, and what one client adds to them (safety 18 and 27)."""

import random

import pytest

from slipway_gateway.judging import units
from slipway_gateway.judging.units import Units
from slipway_gateway.routing.split import choose
from slipway_gateway.wire.request_fields import ALONE

pytestmark = pytest.mark.finding(18, 27)

WEIGHTS = {"canary": 5, "stable": 95}


def side(key: str, weights: dict[str, int] = WEIGHTS) -> str:
    chosen = choose(list(weights.values()), "salt", key)
    assert chosen is not None
    return list(weights)[chosen]


def send(made: Units, client: str, sessions: list[str], now_s: float = 0.0, only: str = "") -> dict[str, int]:
    """How many new units a client adds by one request of each session; `only`: of those on this side."""
    added = dict.fromkeys(WEIGHTS, 0)
    for session in sessions:
        revision = side(session)
        if not only or revision == only:
            added[revision] += made.assign(revision, session, client, now_s)[0]
    return added


def sessions(client: str, number: int) -> list[str]:
    return [f"session:{client}-{n}" for n in range(number)]


def test_a_session_is_one_unit_however_often_it_comes() -> None:
    made = Units(WEIGHTS, 0.0)
    assert made.assign("canary", "session:a", "me", 0.0) == (True, True)
    assert [made.assign("canary", "session:a", "me", 0.0) for _ in range(3)] == [(False, True)] * 3
    assert [made.first_end("session:a") for _ in range(3)] == [True, False, False]
    assert [made.first("session:a", "errors") for _ in range(3)] == [True, False, False]


def test_a_request_without_a_session_is_a_unit_each_time() -> None:
    made = Units(WEIGHTS, 0.0)
    key = f"{ALONE}same id"
    assert [made.assign("stable", key, "me", 0.0) for _ in range(3)] == [(True, True)] * 3
    assert made.first_end(key) and made.first_end(key)


def test_a_client_that_is_the_only_one_has_no_bound() -> None:
    made = Units(WEIGHTS, 0.0)
    added = send(made, "me", sessions("me", 20_000))
    assert sum(added.values()) == 20_000


def test_a_flood_of_one_client_is_at_most_half_of_all_units() -> None:
    made = Units(WEIGHTS, 0.0)
    others = sum(sum(send(made, f"c{n}", sessions(f"c{n}", 100)).values()) for n in range(10))
    assert others == 1000, "no honest client is bounded"
    flood = send(made, "flood", sessions("flood", 50_000))
    assert sum(flood.values()) == 1000


def test_a_large_client_beside_a_small_one_counts_by_the_second() -> None:
    """A handful of requests of a developer must not stop a rollout that one application carries."""
    made = Units(WEIGHTS, 0.0)
    send(made, "developer", sessions("developer", 5))
    counted = sum(sum(send(made, "app", sessions(f"app{s}", 50), now_s=float(s)).values()) for s in range(600))
    assert counted > 0.9 * units.FREE_UNITS_PER_S * 600


@pytest.mark.parametrize("weights", [{"canary": w, "stable": 100 - w} for w in (1, 5, 25, 50, 75)])
def test_units_of_a_client_at_one_revision_are_bounded(weights: dict[str, int]) -> None:
    """Responses name their revision, so every client can find sessions of one revision: that must gain it nothing."""
    for endpoint in weights:
        if weights[endpoint] > 50:
            continue
        made = Units(weights, 0.0)
        added = sum(made.assign(endpoint, f"session:{n}", "me", 0.0)[0] for n in range(20_000))
        assert added <= 50, f"{endpoint} by {weights}"


def test_chance_alone_is_never_taken_for_choice() -> None:
    """Clients whose sessions the salt splits lose no unit: else they would count less on one side than on the other."""
    dice = random.Random(1)
    lost = 0
    for weight in (1, 5, 25, 50):
        weights = {"canary": weight, "stable": 100 - weight}
        for _ in range(50):
            made = Units(weights, 0.0)
            revisions = ["canary" if dice.random() * 100 < weight else "stable" for _ in range(2000)]
            lost += sum(not made.assign(r, f"session:{n}", "me", 0.0)[0] for n, r in enumerate(revisions))
    assert lost <= 40, f"{lost} of 400,000"


def test_a_bounded_client_loses_units_of_both_revisions_equally() -> None:
    """Thinning by side would make the comparison itself wrong."""
    made = Units(WEIGHTS, 0.0)
    for n in range(10):
        send(made, f"c{n}", sessions(f"c{n}", 2000))
    added = send(made, "big", sessions("big", 100_000))
    share = added["canary"] / sum(added.values())
    assert sum(added.values()) == 20_000 and 0.045 < share < 0.055


def test_sessions_and_clients_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_SESSIONS", 100)
    monkeypatch.setattr(units, "MAX_CLIENTS", 10)
    made = Units({"stable": 100}, 0.0)
    for n in range(1000):
        made.assign("stable", f"session:{n}", f"client {n}", 0.0)
    assert len(made._sessions) == len(made._oldest_first) == 100 and len(made._clients) == 10
    assert made.assign("stable", "session:0", "client 0", 0.0) == (True, True), "it was forgotten"
