"""Who owns which model name: over any history at most one owner, sticky, and never a namespace that may not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.api.v1alpha1.status import Condition, Phase
from slipway_operator.model.cluster.names import (
    Claim,
    Grants,
    Standing,
    Wish,
    decode,
    encode,
    grants,
    is_name,
    owner_of_route,
    route_key,
    size_bytes,
)
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.planning.claims import (
    FULL,
    GRANTED,
    INVALID,
    MAX_BYTES,
    MAX_RELEASED,
    RESERVED,
    TAKEN,
    UNCLAIMED,
    ClaimRules,
    settle,
)
from slipway_operator.planning.conditions import table
from slipway_operator.planning.conditions.ownership import name_conflict
from tests.support.conditions import condition_facts
from tests.support.model_cluster import ModelCluster, healthy

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0
NAMESPACES, MODELS = ("a", "b", "c"), ("chat", "team-x", "team-y")


def wish(owner: str, name: str = "chat", age: int = 0) -> Wish:
    return Wish(owner, name, (START - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ"))


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


# --- one step ---------------------------------------------------------------------------------------------------------


def test_the_oldest_gets_a_free_name_and_keeps_it() -> None:
    """The first start after an upgrade: the deployment that serves the name gets the claim."""
    old, young = wish("z/late", age=5), wish("a/early")
    first = settle({}, [young, old], ClaimRules(DAY), START)
    assert first.claims == {"chat": Claim("z/late", START)}
    # A later one with an earlier time (a restored clock, a forged time) gets no name.
    older = wish("0/oldest", age=999)
    assert settle(first.claims, [young, old, older], ClaimRules(DAY), after(1)).claims == first.claims
    assert not first.standings["z/late"].lost
    assert first.standings["a/early"].reason == TAKEN
    assert "belongs to z/late" in first.standings["a/early"].message


def test_a_name_is_kept_for_its_namespace_until_the_retention_is_over() -> None:
    other = wish("b/chat")
    claims = {"chat": Claim("a/chat", START)}
    gone = settle(claims, [other], ClaimRules(DAY), after(10))
    assert gone.claims == {"chat": Claim("a/chat", START, after(10))}
    assert gone.standings["b/chat"].reason == RESERVED
    assert "until 2026-01-02T00:00:10Z" in gone.standings["b/chat"].message
    back = settle(gone.claims, [other, wish("a/chat")], ClaimRules(DAY), after(DAY))
    assert back.claims == claims
    heir = settle(gone.claims, [other, wish("a/chat-2")], ClaimRules(DAY), after(DAY))
    assert heir.claims == {"chat": Claim("a/chat-2", after(DAY))}
    over = settle(gone.claims, [other], ClaimRules(DAY), after(10 + DAY))
    assert over.claims == {"chat": Claim("b/chat", after(10 + DAY))}


def test_a_grant_moves_a_name_and_reserves_it() -> None:
    given_to_b, _ = grants([("b", "chat")])
    claims, both = {"chat": Claim("a/chat", START)}, [wish("a/chat", age=9), wish("b/chat")]
    moved = settle(claims, both, ClaimRules(DAY, given_to_b), after(1))
    assert moved.claims == {"chat": Claim("b/chat", after(1))}
    assert moved.standings["a/chat"].reason == GRANTED
    assert "granted to namespace b, and belongs to b/chat" in moved.standings["a/chat"].message
    unclaimed = settle(claims, both[:1], ClaimRules(DAY, given_to_b), after(1))
    assert unclaimed.claims == {} and unclaimed.standings["a/chat"].reason == GRANTED


@pytest.mark.attack_class(22)
@pytest.mark.parametrize("name", ["a/chat", "/chat", "chat/", "../chat", "", "x" * 129, "chat\n", " chat", "a\0b"])
def test_name_with_a_slash_has_no_owner(name: str) -> None:
    settled = settle({}, [wish("b/chat", name)], ClaimRules(DAY), START)
    assert settled.claims == {} and settled.standings["b/chat"].reason == INVALID


@pytest.mark.attack_class(22)
def test_creating_and_deleting_fills_nothing() -> None:
    """A namespace keeps few released names, and can take a quarter of the room at most."""
    claims: dict[str, Claim] = {}
    for n in range(3 * MAX_RELEASED):
        claims = settle(claims, [wish("b/x", f"squat-{n}")], ClaimRules(DAY), after(n)).claims
    released = [name for name, claim in claims.items() if claim.released_at]
    assert len(released) == MAX_RELEASED
    assert f"squat-{3 * MAX_RELEASED - 2}" in released  # the last ones

    many = [wish(f"b/chat-{n}", f"{n}-" + "x" * 120, age=1) for n in range(5000)]
    full = settle({}, [*many, wish("a/chat")], ClaimRules(DAY), START)
    assert sum(size_bytes(name, claim) for name, claim in full.claims.items()) <= MAX_BYTES
    assert full.claims["chat"].owner == "a/chat"
    assert {one.reason for one in full.standings.values()} == {"", FULL}
    assert len(encode(full.claims).encode()) <= MAX_BYTES


@pytest.mark.finding("F20")
@pytest.mark.attack_class(22)
def test_namespaces_with_long_names_leave_room_for_a_new_one() -> None:
    """Two took all of it."""
    claims: dict[str, Claim] = {}
    wishes: list[Wish] = []
    held: list[int] = []
    for number in range(8):  # each takes what it can before the next one comes
        wishes += [wish(f"hog-{number}/m-{n}", f"{number}-{n}-" + "x" * 110) for n in range(1100)]
        settled = settle(claims, wishes, ClaimRules(DAY), START)
        claims = settled.claims
        sizes = [size_bytes(name, claim) for name, claim in claims.items() if claim.namespace == f"hog-{number}"]
        held.append(sum(sizes))
    assert held[0] == pytest.approx(MAX_BYTES / 4, rel=0.01) and held == sorted(held, reverse=True)
    new = [wish(f"new/m-{n}", f"chat-{n}") for n in range(20)]
    settled = settle(claims, [*wishes, *new], ClaimRules(DAY), START)
    assert not any(settled.standings[one.owner].lost for one in new)
    lost = next(one for one in settled.standings.values() if one.lost)
    assert (lost.reason, lost.owner[:6]) == (FULL, "hog-0/")
    assert f"the names of namespace hog-0 have {held[0]} of the {MAX_BYTES} bytes of all names" in lost.message


def test_most_specific_grant_wins() -> None:
    found, problems = grants([("a", "team-*, chat")], [("b", "team-b*,team-b"), ("c", "team-b")])
    assert problems == []
    assert found.holders("team-x") == {"a"} and found.holders("team-box") == {"b"}
    assert found.holders("team-b") == {"b", "c"} and found.holders("other") is None
    assert Grants().holders("chat") is None
    everything, _ = grants([("a", "*")])
    assert everything.holders("anything") == {"a"}


@pytest.mark.parametrize("text", ["a/b", "team-**", "*x", "-x", "x y", "x" * 200])
def test_unreadable_grant_is_reported_and_ignored(text: str) -> None:
    found, (problem,) = grants([("a", f"chat,{text}")])
    assert set(found.namespaces) == {"chat"}
    assert "namespace a" in problem


def test_too_many_grants_of_a_namespace_are_reported() -> None:
    found, (problem,) = grants([("a", ",".join(f"m{n}" for n in range(99)))])
    assert len(found.namespaces) == 64 and "of 99" in problem


# --- any history ------------------------------------------------------------------------------------------------------

DEPLOYMENTS = [f"{namespace}/{name}" for namespace in NAMESPACES for name in ("one", "two")]
STEPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(DEPLOYMENTS), st.sampled_from(MODELS), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.sampled_from(DEPLOYMENTS)),
    st.tuples(st.just("grant"), st.sampled_from(NAMESPACES), st.sampled_from(("", "chat", "team-*", "team-x", "*"))),
    st.tuples(st.just("wait"), st.sampled_from((1, 50, 99, 100, 101, 500))),
)


class Story:
    """The history so far, and the claims after it."""

    def __init__(self) -> None:
        self.there: dict[str, Wish] = {}
        self.granted: dict[str, str] = {}
        self.claims: dict[str, Claim] = {}
        self.gone_s: dict[str, float] = {}  # since when a name's owner is gone
        self.now_s = 0.0

    def happens(self, step: tuple) -> None:
        match step:
            case ("create", owner, model, age):
                self.there.setdefault(owner, wish(owner, model, age))
            case ("delete", owner):
                self.there.pop(owner, None)
            case ("grant", namespace, pattern):
                self.granted[namespace] = pattern
            case ("wait", seconds):
                self.now_s += seconds

    def settle(self) -> None:
        rules = ClaimRules(100.0, grants(self.granted.items())[0])
        before, now = self.claims, after(self.now_s)
        settled = settle(decode(encode(before)), self.there.values(), rules, now)
        self.claims = settled.claims
        assert settle(self.claims, self.there.values(), rules, now).claims == self.claims
        assert all(rules.grants.allow(name, claim.namespace) for name, claim in self.claims.items())
        for owner, one in self.there.items():
            has = self.claims.get(one.name)
            assert settled.standings[owner].lost == (has is None or has.owner != owner)
            # Each deployment has a name that is free and that it may have.
            assert has is not None or not rules.grants.allow(one.name, one.namespace)
        for name, former in before.items():
            if rules.grants.allow(name, former.namespace):
                self.stays(name, former)
        self.gone_s = {name: since for name, since in self.gone_s.items() if name in self.claims}

    def stays(self, name: str, former: Claim) -> None:
        """Nobody took the name from an owner, nor from its namespace before the time was over."""
        if former.owner in self.there and self.there[former.owner].name == name:
            self.gone_s.pop(name, None)
            assert self.claims[name].owner == former.owner
        elif self.now_s - self.gone_s.setdefault(name, self.now_s) < 100:
            assert self.claims[name].namespace == former.namespace


@pytest.mark.attack_class(22)
@given(st.lists(STEPS, max_size=30))
def test_over_any_history_a_name_has_one_owner_who_keeps_it(steps: list[tuple]) -> None:
    """Creates, deletes, grants and time in any order, with a restart of the operator after each."""
    story = Story()
    for step in steps:
        story.happens(step)
        story.settle()


# --- what is written and reported -------------------------------------------------------------------------------------


def test_claims_are_read_as_they_are_written_and_fit_the_estimate() -> None:
    claims = {"b": Claim("ns/b", START), "a": Claim("ns/a", START, after(5))}
    text = encode(claims)
    assert decode(text) == claims and decode(encode({})) == {}
    assert (
        text.splitlines()[1]
        == '"a": {"owner":"ns/a","since":"2026-01-01T00:00:00Z","releasedAt":"2026-01-01T00:00:05Z"},'
    )
    assert len(text) <= sum(size_bytes(name, claim) for name, claim in claims.items()) + 8


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"owner": "x"}}', '{"a": {"owner": "x", "since": "y"}}'])
def test_other_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


@given(st.text(max_size=140))
def test_no_name_has_a_slash(text: str) -> None:
    assert not (is_name(text) and ("/" in text or not text.isascii() or len(text) > 128))


def test_condition_exists_during_a_conflict() -> None:
    def condition(standing: Standing | None, former: Condition | None = None) -> Condition | None:
        return name_conflict.condition(condition_facts(standing=standing), former)

    lost = condition(Standing("b/chat", "chat", TAKEN, "why"))
    assert lost == Condition("NameConflict", "True", TAKEN, "why", START)
    assert condition(None, lost) is lost and condition(None) is None  # not settled yet: the former condition stays
    assert condition(Standing("b/chat", "chat"), lost) is None
    unclear = condition(Standing("b/chat", "chat", UNCLAIMED, "why", known=False))
    assert unclear is not None and unclear.status == "Unknown"


def test_each_change_of_a_conflict_is_one_event() -> None:
    def changes(*found: Condition) -> list[tuple[str, str]]:
        return [(event.type, event.reason) for event in table.events(before, found)]

    def one(message: str) -> Condition:
        return Condition(name_conflict.name, "True", TAKEN, message, START)

    before: tuple[Condition, ...] = ()
    assert changes() == [] and changes(one("x")) == [("Warning", "NameConflict")]
    before = (one("x"),)
    assert changes(one("x")) == [] and changes(one("y")) == [("Warning", "NameConflict")]
    assert changes() == [("Normal", "NameClaimed")]


def test_a_conflict_that_is_unknown_for_a_moment_is_no_event() -> None:
    def reported(before: str, now: str) -> list[str]:
        found = [
            [Condition(name_conflict.name, status, TAKEN, status, START)] if status else [] for status in (before, now)
        ]
        return [event.reason for event in table.events(*found)]

    assert not reported("", "Unknown") and not reported("Unknown", "") and not reported("True", "Unknown")
    assert reported("Unknown", "True") == ["NameConflict"] and reported("True", "") == ["NameClaimed"]


# --- in the status of a ModelDeployment -------------------------------------------------------------------------------

LOST = Standing("b/chat", "chat", TAKEN, "clients reach this model as b/chat only: it belongs to a/chat")


class Town(ModelCluster):
    """A cluster in which names are kept."""

    standing: Standing | None = None

    def observed(self) -> Observed:
        return replace(super().observed(), standing=self.standing)


def settled(standing: Standing | None) -> Town:
    world = healthy()
    world.__class__ = Town
    assert isinstance(world, Town)
    world.events.clear()
    return run_with(world, standing)


def run_with(world: Town, standing: Standing | None) -> Town:
    world.standing = standing
    world.run(3)
    return world


def conflict_events(world: Town) -> list[str]:
    return [event.reason for event in world.events if event.reason in ("NameConflict", "NameClaimed")]


def ready(world: Town) -> str:
    return next(item.message for item in world.parsed().conditions if item.type == "Ready")


@pytest.mark.finding("S2")
def test_loser_of_a_name_is_degraded_and_gets_one_event() -> None:
    """S2: the loser was Healthy, and Ready was True."""
    world = settled(LOST)
    status = world.parsed()
    assert (status.phase, status.reason, status.model) == (Phase.DEGRADED, TAKEN, "b/chat")
    assert status.message.endswith(f"; {LOST.message}")
    assert ready(world) == "requests for b/chat are served"
    assert conflict_events(world) == ["NameConflict"]
    # A restarted operator without the claims changes nothing.
    before = world.obj()["status"]
    assert run_with(world, None).obj()["status"] == before and conflict_events(world) == ["NameConflict"]
    assert status.traffic and world.parsed().traffic == status.traffic  # pods and weights are not concerned
    status = run_with(world, Standing("b/chat", "chat")).parsed()
    assert (status.phase, status.reason, status.model) == (Phase.HEALTHY, None, "chat")
    assert not [item for item in status.conditions if item.type == name_conflict.name]
    assert conflict_events(world) == ["NameConflict", "NameClaimed"] and ready(world) == "requests are served"


def test_unknown_claims_are_no_outage() -> None:
    world = settled(Standing("b/chat", "chat", UNCLAIMED, "no right to", known=False))
    status = world.parsed()
    assert (status.phase, status.reason, status.model) == (Phase.HEALTHY, UNCLAIMED, "chat")
    (shown,) = [item for item in status.conditions if item.type == name_conflict.name]
    assert (shown.status, shown.message) == ("Unknown", "no right to")


def test_owner_of_its_name_has_no_condition() -> None:
    """No status changes at an upgrade: a thousand of them would be a thousand writes."""
    assert settled(Standing("b/chat", "chat")).obj()["status"] == settled(None).obj()["status"]


# --- ModelRoutes


def route_wish(route: str, name: str, age: int = 0) -> Wish:
    return Wish(owner_of_route(route), name, wish("x/x", name, age).created)


def test_within_a_namespace_a_route_has_the_name_and_the_deployment_yields_without_a_conflict() -> None:
    rules, now = ClaimRules(100.0), after(0)
    first = settle({}, [wish("a/chat", "chat")], rules, now)
    both = [wish("a/chat", "chat"), route_wish("a/front", "chat", 5), route_wish("a/front", "gpt", 5)]
    taken = settle(first.claims, both, rules, now)
    assert {name: claim.owner for name, claim in taken.claims.items()} == dict.fromkeys(
        ("chat", "gpt"), "ModelRoute/a/front"
    )
    assert taken.standings["a/chat"] == Standing("a/chat", "chat", yields=True)
    assert not taken.standings[route_key("ModelRoute/a/front", "gpt")].lost
    assert settle(decode(encode(taken.claims)), both, rules, now).claims == taken.claims
    back = settle(taken.claims, both[:1], rules, now)
    assert back.claims["chat"].owner == "a/chat" and back.standings["a/chat"] == Standing("a/chat", "chat")
    assert back.claims["gpt"].released_at == now, "no other namespace gets it for a while"


@pytest.mark.parametrize("route_first", [True, False])
def test_of_two_namespaces_the_first_claim_wins_whatever_kind_it_is(route_first: bool) -> None:
    wishes = [wish("b/chat", "chat", 5 * (not route_first)), route_wish("a/front", "chat", 5 * route_first)]
    settled = settle({}, wishes, ClaimRules(100.0), after(0))
    route = settled.standings[route_key("ModelRoute/a/front", "chat")]
    if route_first:
        assert not route.lost and settled.standings["b/chat"].reason == TAKEN
        assert "belongs to ModelRoute/a/front" in settled.standings["b/chat"].message
    else:
        assert route.reason == TAKEN and "belongs to b/chat; write another name" in route.message
    again = settle(settled.claims, wishes, ClaimRules(100.0), after(1))
    assert again.claims == settled.claims


def test_a_route_and_a_deployment_of_one_name_are_two_owners() -> None:
    settled = settle({}, [wish("a/chat", "one"), route_wish("a/chat", "two")], ClaimRules(100.0), after(0))
    assert {name: claim.owner for name, claim in settled.claims.items()} == {
        "one": "a/chat",
        "two": "ModelRoute/a/chat",
    }
    assert settled.claims["two"].namespace == "a"


def test_a_grant_decides_about_routes_too() -> None:
    rules = ClaimRules(100.0, grants([("b", "chat")])[0])
    settled = settle({}, [route_wish("a/front", "chat"), route_wish("b/front", "chat", 9)], rules, after(0))
    assert settled.claims["chat"].owner == "ModelRoute/b/front"
    assert settled.standings[route_key("ModelRoute/a/front", "chat")].reason == GRANTED
