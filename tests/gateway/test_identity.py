"""Who sends a request: keys, modes, models of a tenant, and what of it crosses to pods."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from multidict import CIMultiDict

from slipway_gateway.identity import api_keys
from slipway_gateway.identity.authenticate import AuthReason, AuthRefusal, RequestIdentity, authenticate
from slipway_gateway.identity.failures import FailureDelays
from slipway_gateway.identity.tenants import KnownTenant, UnreadableTenant, VerifiedKeys, build, parse
from slipway_gateway.routing.table import RevisionEndpoints, RouteTable
from slipway_gateway.routing.table import build as build_routes
from testkit.until import until_async

from .harness import Gateway, echo, gateway, table, upstream
from .tenants import PEPPER, bearer, entry, make_key, tenant

NOW = 1_800_000_000.0
KEY = make_key("k7Qm2x")
OTHER = make_key("other1")


def found(
    *authorization: str, tenants: tuple[KnownTenant, ...] = (), now: float = NOW
) -> RequestIdentity | AuthRefusal:
    headers = CIMultiDict([("Authorization", value) for value in authorization])
    return authenticate(headers, build(tenants or (tenant("team-a", KEY),), PEPPER), now)


def test_a_key_names_its_tenant() -> None:
    known = found(f"Bearer {KEY}")
    assert isinstance(known, RequestIdentity)
    assert (known.name, known.key_id, known.method) == ("team-a", "k7Qm2x", "key")
    assert isinstance(found(f"bearer  {KEY} "), RequestIdentity)  # the scheme is case-insensitive (RFC 9110)


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        ((), AuthReason.MISSING),
        (("",), AuthReason.FOREIGN),
        (("Bearer ",), AuthReason.MISSING),
        (("Bearer EMPTY",), AuthReason.MISSING),
        (("Bearer sk-of-another-service",), AuthReason.FOREIGN),
        ((f"Basic {KEY}",), AuthReason.FOREIGN),
        ((KEY,), AuthReason.FOREIGN),
        ((f"Bearer {OTHER}",), AuthReason.INVALID),
        ((f"Bearer {make_key('k7Qm2x')}",), AuthReason.INVALID),
        ((f"Bearer {KEY[:-1]}",), AuthReason.INVALID),
        ((f"Bearer {KEY}x",), AuthReason.INVALID),
        ((f"Bearer {KEY} {KEY}",), AuthReason.INVALID),
        (("Bearer slw_",), AuthReason.INVALID),
        (("Bearer slw_k7Qm2x_é",), AuthReason.INVALID),
        (("Bearer slw_' OR 1=1 --",), AuthReason.INVALID),
        (("Bearer slw_\udcff",), AuthReason.INVALID),
        ((f"Bearer {KEY}", f"Bearer {KEY}"), AuthReason.INVALID),
    ],
)
def test_other_credentials_name_nobody(authorization: tuple[str, ...], reason: AuthReason) -> None:
    assert found(*authorization) == AuthRefusal(reason)


def test_a_key_expires_at_its_second() -> None:
    expiring = KnownTenant("team-a", keys=(entry(KEY, expires_s=NOW),))
    assert isinstance(found(f"Bearer {KEY}", tenants=(expiring,), now=NOW - 0.001), RequestIdentity)
    assert found(f"Bearer {KEY}", tenants=(expiring,), now=NOW) == AuthRefusal(AuthReason.EXPIRED)


def test_a_key_that_was_verified_still_expires_and_the_next_table_knows_nothing_of_it() -> None:
    headers = CIMultiDict({"Authorization": f"Bearer {KEY}"})
    first = build((KnownTenant("team-a", keys=(entry(KEY, expires_s=NOW),)),), PEPPER)
    for _ in range(2):
        assert isinstance(authenticate(headers, first, NOW - 1), RequestIdentity)
    assert authenticate(headers, first, NOW) == AuthRefusal(AuthReason.EXPIRED)
    assert authenticate(headers, build((tenant("team-a", OTHER),), PEPPER), NOW - 1) == AuthRefusal(AuthReason.INVALID)
    assert authenticate(headers, build((tenant("team-a", KEY),), b"q" * 32), NOW) == AuthRefusal(AuthReason.INVALID)


def test_verified_keys_are_bounded_and_kept_by_a_hash_alone() -> None:
    verified, found = VerifiedKeys(most=2), (tenant("team-a", KEY), entry(KEY))
    keys = [make_key(f"k00000{n}") for n in range(3)]
    for key in keys:
        verified.add(key, found)
    assert [verified.find(key) for key in keys] == [None, found, found]
    assert not any(key.encode() in kept for key in keys for kept in verified.kept)


def test_two_keys_of_a_tenant_are_valid_at_once() -> None:
    both = (tenant("team-a", KEY, OTHER),)
    ids = [
        one.key_id for key in (KEY, OTHER) if isinstance(one := found(f"Bearer {key}", tenants=both), RequestIdentity)
    ]
    assert ids == ["k7Qm2x", "other1"]


def test_an_id_that_two_tenants_wrote_belongs_to_whoever_has_the_hash() -> None:
    twin = make_key("k7Qm2x")
    tenants = (tenant("team-a", KEY), tenant("team-b", twin))
    names = [
        one.name for key in (KEY, twin) if isinstance(one := found(f"Bearer {key}", tenants=tenants), RequestIdentity)
    ]
    assert names == ["team-a", "team-b"]


def test_without_a_pepper_no_key_is_judged() -> None:
    unpeppered = build([tenant("team-a", KEY)], b"")
    assert authenticate(CIMultiDict(bearer(KEY)), unpeppered, NOW) == AuthRefusal(AuthReason.NOT_READY)


def test_a_key_of_another_pepper_is_unknown() -> None:
    other = KnownTenant("team-a", keys=(entry(KEY, pepper=b"q" * 32),))
    assert found(f"Bearer {KEY}", tenants=(other,)) == AuthRefusal(AuthReason.INVALID)


def test_a_mistyped_key_is_found_by_its_checksum() -> None:
    assert api_keys.key_id(KEY) == "k7Qm2x"
    swapped = KEY.replace(KEY[15], "0" if KEY[15] != "0" else "1", 1)
    assert api_keys.key_id(swapped) == ""


@pytest.mark.parametrize(
    ("patterns", "names", "allowed"),
    [
        (("chat",), ("prod/chat", "chat"), True),
        (("prod/chat",), ("prod/chat", "chat"), True),
        (("prod/*",), ("prod/chat",), True),
        (("*",), ("prod/chat",), True),
        (("embed-*",), ("prod/e", "embed-small"), True),
        (("chat",), ("evil/chat",), False),  # the short name is another deployment's
        (("ch",), ("prod/chat", "chat"), False),
        (("embed-*",), ("embed-evil/chat",), False),
        (("prod/*",), ("production/chat",), False),
        (("Chat",), ("prod/chat", "chat"), False),
    ],
)
def test_models_of_a_tenant(patterns: tuple[str, ...], names: tuple[str, ...], allowed: bool) -> None:
    assert KnownTenant("a", patterns).may_use(names) is allowed


def test_a_tenant_is_read_from_its_object() -> None:
    key = {"id": "k7Qm2x", "hash": "hmac-sha256:" + "0" * 64, "expiresAt": "2027-01-15T08:00:00Z"}
    spec = {"models": ["chat"], "disabled": True, "auth": {"keys": [key]}, "later": 1}
    meta = {"name": "team-a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    parsed = parse({"metadata": meta, "spec": spec})
    assert (parsed.name, parsed.models, parsed.disabled, parsed.keys[0].expires_s) == ("team-a", ("chat",), True, NOW)


@pytest.mark.parametrize("spec", [None, {}, {"models": "chat"}, {"models": ["a"], "auth": {"keys": [{"id": 1}]}}])
def test_an_object_that_is_no_tenant_is_refused(spec: Any) -> None:
    with pytest.raises(UnreadableTenant, match="Tenant team-a"):
        parse({"metadata": {"name": "team-a"}, "spec": spec})


# -- at a gateway


def two_models(url: str) -> RouteTable:
    routes = [
        route for name in ("chat", "embed") for route in table(1, ("rev", 100, [url]), model=name).routes.values()
    ]
    return build_routes(routes, [RevisionEndpoints(route.name, "rev", (url,)) for route in routes])


async def status(gate: Gateway, key: str = "", model: str = "chat") -> int:
    async with await gate.post({"model": model}, headers=bearer(key) if key else {}) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("mode", "tenants", "expected"),
    [
        ("off", (tenant("a", KEY),), (200, 200, 200)),
        ("auto", (), (200, 200, 200)),
        ("auto", (tenant("a", KEY),), (401, 401, 200)),
        ("required", (), (401, 401, 401)),
        ("required", (tenant("a", KEY),), (401, 401, 200)),
        ("optional", (tenant("a", KEY),), (200, 200, 200)),
    ],
)
async def test_modes(mode: str, tenants: tuple[KnownTenant, ...], expected: tuple[int, ...]) -> None:
    async with upstream(echo) as server, gateway(tenants, PEPPER, auth_mode=mode) as gate:
        gate.route(("rev", 100, [server.url]))
        assert (await status(gate), await status(gate, "sk-foreign"), await status(gate, KEY)) == expected


async def test_optional_refuses_a_key_that_is_wrong() -> None:
    async with upstream(echo) as server, gateway((tenant("a", KEY),), PEPPER, auth_mode="optional") as gate:
        gate.route(("rev", 100, [server.url]))
        assert await status(gate, OTHER) == 401


@pytest.mark.parametrize(
    ("headers", "status", "code", "challenge"),
    [
        ({}, 401, "missing_api_key", 'Bearer realm="slipway"'),
        (bearer(OTHER), 401, "invalid_api_key", 'Bearer realm="slipway", error="invalid_token"'),
        (bearer("sk-foreign"), 401, "invalid_api_key", 'Bearer realm="slipway", error="invalid_token"'),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/models/chat", "/nowhere"])
async def test_refusals_have_the_shape_of_the_api(
    headers: dict[str, str], status: int, code: str, challenge: str, path: str
) -> None:
    async with gateway((tenant("a", KEY),), PEPPER) as gate:
        method = gate.client.post if path.endswith("completions") else gate.client.get
        async with method(gate.url + path, headers=headers, json={"model": "chat"}) as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (status, challenge)
            error = (await answer.json())["error"]
            assert (error["code"], error["type"], error["param"]) == (code, "invalid_request_error", None)
        assert gate.outcomes() == {"unauthenticated": 1}


async def test_a_disabled_tenant_is_refused_with_403() -> None:
    async with upstream(echo) as server, gateway((tenant("a", KEY, disabled=True),), PEPPER) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await status(gate, KEY) == 403
        assert gate.outcomes() == {"forbidden": 1} and not server.seen


async def test_a_model_of_others_does_not_exist() -> None:
    async with upstream(echo) as server, gateway((tenant("a", KEY, models=("chat",)),), PEPPER) as gate:
        gate.balancer.publish(two_models(server.url))
        answers = []
        for model in ("embed", "default/embed", "nothing"):
            async with await gate.post({"model": model}, headers=bearer(KEY)) as answer:
                answers.append((answer.status, (await answer.text()).replace(model, "MODEL")))
        assert answers[0][0] == 404 and len(set(answers)) == 1
        async with gate.client.get(gate.url + "/v1/models", headers=bearer(KEY)) as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["chat"]
        async with gate.client.get(gate.url + "/v1/models/embed", headers=bearer(KEY)) as answer:
            assert answer.status == 404
        assert await status(gate, KEY) == await status(gate, KEY, "default/chat") == 200


async def test_pods_get_the_tenant_and_never_the_key() -> None:
    second = make_key("second")
    async with upstream(echo) as server, gateway((tenant("a", KEY, second), tenant("b", OTHER)), PEPPER) as gate:
        (route,) = table(1, ("rev", 100, [server.url])).routes.values()
        route = replace(route, forward_headers=("authorization", "cookie"))
        gate.balancer.publish(build_routes([route], [RevisionEndpoints(route.name, "rev", (server.url,))]))
        for key in (KEY, second, OTHER):
            forged = {"X-Slipway-Tenant": "f" * 32, "X-Slipway-Tenant-Proof": "v1.a.1." + "0" * 64, "Cookie": "c=1"}
            async with await gate.post(headers=bearer(key) | forged) as answer:
                assert answer.status == 200
        names = [seen.headers["X-Slipway-Tenant"] for seen in server.seen]
        assert names[0] == names[1] != names[2] and "f" * 32 not in names
        sent = str([list(seen.headers.items()) for seen in server.seen])
        assert "slw_" not in sent and sent.count("c=1") == 3


async def test_keys_are_in_neither_logs_nor_metrics(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with gateway((tenant("a", KEY),), PEPPER) as gate:
        await status(gate, KEY)
        await status(gate, OTHER)
        page = gate.metrics.render().decode()
    assert KEY[11:54] not in page + caplog.text and OTHER[11:54] not in page + caplog.text
    assert 'slipway_gateway_authentications_total{method="key",result="invalid"} 1.0' in page


async def test_a_key_that_expires_on_an_open_connection_is_refused() -> None:
    expiring = KnownTenant("a", keys=(entry(KEY, expires_s=time.time() + 3600),))
    async with upstream(echo) as server, gateway((expiring,), PEPPER) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await status(gate, KEY) == 200
        gate.known.publish([KnownTenant("a", keys=(entry(KEY, expires_s=time.time() - 1),))])
        async with await gate.post(headers=bearer(KEY)) as answer:
            assert answer.status == 401 and (await answer.json())["error"]["code"] == "expired_api_key"


def test_refusals_of_one_source_come_later_and_later_and_never_after_two_seconds() -> None:
    delays = FailureDelays()
    waits = [delays.failed("a", NOW) for _ in range(100)]
    assert waits[:10] == [0.0] * 10 and waits[10] > 0 and waits == sorted(waits) and waits[-1] == 2.0
    assert delays.failed("b", NOW) == 0.0
    assert delays.failed("a", NOW + 20) == 0.0  # forgotten


def test_sources_are_bounded() -> None:
    delays = FailureDelays(max_sources=100)
    for number in range(10_000):
        delays.failed(str(number), NOW)
    assert len(delays) == 100


async def test_wrong_keys_delay_no_right_one_of_the_same_address() -> None:
    async with upstream(echo) as server, gateway((tenant("a", KEY),), PEPPER) as gate:
        gate.route(("rev", 100, [server.url]))
        wrong = [asyncio.create_task(status(gate, OTHER)) for _ in range(40)]
        await until_async(lambda: gate.outcomes().get("unauthenticated", 0) >= 10)
        assert await status(gate, KEY) == 200
        assert any(not task.done() for task in wrong)
        assert set(await asyncio.gather(*wrong)) == {401}
        assert gate.outcomes() == {"unauthenticated": 40, "ok": 1}


async def test_until_tenants_are_read_nothing_is_served() -> None:
    async with upstream(echo) as server, gateway(None, auth_mode="auto") as gate:
        gate.route(("rev", 100, [server.url]))
        assert await status(gate) == 503
