"""Who sends a request, and what tenants spent: as Rust has it and as Python does."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_gateway.fast_lane.tenants import compile_tenants
from slipway_gateway.identity.authenticate import RequestIdentity, authenticate
from slipway_gateway.identity.tenants import KnownTenant, build
from slipway_gateway.ledger.periods import day_begin, month_begin
from slipway_gateway.ledger.shared_spending import SharedSpending
from slipway_gateway.ledger.spending import Spending
from slipway_gateway.ledger.store import Spent
from slipway_gateway.quotas.policy import Budget, Policy, RequestBounds
from slipway_plane import NATIVE
from tests.gateway import tenants
from tests.plane.native import FEW, MILLION, SKIPPED, Pair, name_of, needs_plane, rust, twins

pytestmark = needs_plane

SEEDS = st.integers(0, 2**32)


def another_seed(_: int, random: Random) -> int:
    return random.randrange(2**40)


# -- models

NAMES = ("chat", "chat-2", "c", "", "team/chat", "team/", "other/chat", "*", "é/x")
PATTERNS = ("*", "chat", "cha*", "c**", "team/*", "team/chat", "tea*", "*/chat", "/", "", "é*", "te*/chat")


def compare_models(seed: int) -> None:
    random = Random(seed)
    patterns = tuple(random.choice(PATTERNS) for _ in range(random.randrange(4)))
    names = [random.choice(NAMES) for _ in range(2)]
    assert twins.may_use(list(patterns), names) == KnownTenant("t", patterns).may_use(names)


# -- keys

KEYS = tuple(tenants.make_key(id_) for id_ in ("k1First", "k2Other", "k1First"))
NOW_S = 1e9
CREDENTIALS = (
    *("Bearer {key}",) * 20,
    *("bearer {key}", "Bearer   {key} ", "BEARER {key}", "Bearer\t{key}", "Basic {key}", "{key}", ""),
    *(
        "Bearer",
        "Bearer ",
        "Bearer EMPTY",
        "Bearer sk-123",
        "Bearer {key}a",
        "Bearer a.b.c",
        "Bearer slw_",
        "Token {key}",
    ),
)


def random_tenant(random: Random, number: int) -> KnownTenant:
    keys = [
        tenants.entry(random.choice(KEYS), random.choice((*(None,) * 5, NOW_S - 1, NOW_S, NOW_S + 1)))
        for _ in range(random.choice((0, 2, 3)))
    ]
    if keys and random.random() < 0.2:
        keys[0] = replace(keys[0], hash=random.choice(("", "hmac-sha256:", keys[0].hash.upper(), keys[0].hash[:-1])))
    created = random.choice(("2026-01", "2026-02"))
    policy = Policy(bounds=RequestBounds(context=int(random.random() < 0.1)))
    return KnownTenant(f"t{number}", disabled=random.random() < 0.1, keys=tuple(keys), created=created, policy=policy)


def compare_identities(seed: int) -> None:
    """Where Rust finds a tenant Python finds the same one, and it finds each one that Python finds by a key, but for
    ids of keys that a tenant has whose requests have bounds."""
    assert NATIVE is not None
    random = Random(seed)
    pepper = random.choice((tenants.PEPPER, tenants.PEPPER, tenants.PEPPER, b""))
    table = build((random_tenant(random, number) for number in range(random.choice((1, 3, 4)))), pepper)
    listed = [
        ("Authorization", random.choice(CREDENTIALS).format(key=random.choice(KEYS)))
        for _ in range(random.choice((0, 1, 1, 1, 1, 1, 2)))
    ]
    compiled = compile_tenants(table, lambda policy: (policy.limits, policy.budget))
    given = [NATIVE.LaneTenant(**fields) for fields in compiled]
    found = rust(twins.identify, given, pepper, [(name, value.encode()) for name, value in listed], NOW_S)
    expected = authenticate(CIMultiDict(listed), table, NOW_S)
    bounded = {key.id for tenant in table.tenants.values() if tenant.policy.bounds.any for key in tenant.keys}
    is_known = isinstance(expected, RequestIdentity) and expected.key_id not in bounded
    known = (expected.name, expected.key_id) if is_known else SKIPPED
    assert found == known


# -- spending

HOURS = (494_000, 494_001, 494_024, 494_024 + 31 * 24, 0, -5)
AMOUNTS = (0, 1, 7, 10**9, 10**18, 10**24)


def random_budget(random: Random) -> Budget:
    return Budget(*(random.choice((None, 0, 8, 10**9, 10**18)) for _ in range(2)))


def compare_spending(seed: int) -> None:
    """A life of a ledger: costs that are expected and written, totals that are read, days and months that pass."""
    assert NATIVE is not None
    random = Random(seed)
    ours, theirs = Spending(), SharedSpending(NATIVE.Spending())
    both: tuple[Any, Any] = (ours, theirs)
    for _ in range(random.randint(1, 12)):
        tenant, hour, nano = random.choice("ab"), random.choice(HOURS), random.choice(AMOUNTS)
        budget, sign = random_budget(random), random.choice((1, 1, -1))
        match random.randrange(4):
            case 0:
                spent = {name: Spent(random.choice(AMOUNTS), random.choice(AMOUNTS)) for name in "ab"}
                for one in both:
                    one.read(spent, hour)
            case 1:
                for one in both:
                    one.written({tenant: nano}, hour)
            case 2:
                for one in both:
                    one.expect(tenant, sign * nano)
            case _:
                assert ours.begin(tenant, nano, budget, hour) == theirs.begin(tenant, nano, budget, hour)
        now = random.choice(HOURS)
        assert ours.of(tenant, now) == theirs.of(tenant, now)
        assert ours.own(tenant, now) == theirs.own(tenant, now)
        assert ours.exhausted(tenant, budget, now) == theirs.exhausted(tenant, budget, now)


def compare_periods(hour: int) -> None:
    assert twins.periods_of(hour) == (day_begin(hour), month_begin(hour))


PAIRS = [
    Pair("models", SEEDS, compare_models, another_seed),
    Pair("identities", SEEDS, compare_identities, another_seed),
    Pair("spending", SEEDS, compare_spending, another_seed),
    Pair(
        "periods",
        st.integers(-10_000, 3_000_000),
        compare_periods,
        lambda _, random: random.randrange(-10_000, 3_000_000),
    ),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_knows_tenants_as_python_does(pair: Pair) -> None:
    pair.run(FEW)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_a_million_tenants(pair: Pair) -> None:
    pair.run(MILLION)
