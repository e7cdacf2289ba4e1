"""Each kind of wrong credentials: refused in OpenAI's shape, and as fast whichever part of a key is wrong."""

import base64
import contextlib
import itertools
import json
import random
import ssl
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from multidict import CIMultiDict

from devcluster.certificates import Authority
from slipway_gateway.identity.authenticate import AuthRefusal, authenticate
from slipway_gateway.identity.tenants import KnownTenant, TrustedIssuer, build

from .harness import Gateway, echo, gateway, upstream
from .tenants import PEPPER, bearer, entry, make_key

KEY, DISABLED, EXPIRED, REVOKED = (make_key(name) for name in ("known1", "stops1", "ended1", "leaves"))
AUDIENCE, KID = "slipway", "k1"
BODY = {"model": "chat", "messages": []}
# Refusals of one address that are not delayed yet.
FREE = 8
MISSING, INVALID, EXPIRY = "missing_api_key", "invalid_api_key", "expired_api_key"
# Six standard deviations of one comparison of 250 with 250 times.
SAMPLES, MOST_APART = 250, 0.15


@dataclass
class Issuer:
    """An OIDC issuer with one key."""

    url: str
    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/jwks"})
        key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key()))
        return web.json_response({"keys": [key | {"kid": KID, "alg": "ES256"}]})

    def token(self, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        known = {"iss": self.url, "sub": "app", "aud": AUDIENCE, "exp": time.time() + 600} | claims
        kept = {name: value for name, value in known.items() if value is not None}
        return jwt.encode(kept, self.private if key is None else key, algorithm, headers={"kid": KID})


@contextlib.asynccontextmanager
async def issuing(authority: Authority) -> AsyncIterator[Issuer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.path("issuer.crt"), authority.path("issuer.key"))
    made = Issuer("")
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        made.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "authority")
    made.issue("issuer", "issuer", hosts=["127.0.0.1"])
    return made


def listed(issuer_url: str = "https://127.0.0.1:1") -> tuple[KnownTenant, ...]:
    """Without the tenant of the key that was revoked."""

    def trusting(subject: str) -> tuple[TrustedIssuer, ...]:
        return (TrustedIssuer(issuer_url, (AUDIENCE,), {"sub": subject}),)

    return (
        KnownTenant("team-a", keys=(entry(KEY), entry(EXPIRED, expires_s=time.time() - 1)), issuers=trusting("app")),
        KnownTenant("stopped", keys=(entry(DISABLED),), issuers=trusting("stopped"), disabled=True),
    )


Failure = tuple[str, list[tuple[str, str]], int, str]


def of_keys() -> list[Failure]:
    """What is wrong, the headers, and the status and code of the refusal."""
    swapped = KEY[:20] + ("0" if KEY[20] != "0" else "1") + KEY[21:]
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    wrong = {
        "empty": "",
        "another scheme": f"Basic {basic}",
        "the key as another scheme's": f"Basic {KEY}",
        "Digest": 'Digest username="a", response="b"',
        "no scheme": KEY,
        "a key of OpenAI": "Bearer sk-proj-abcdefghijklmnopqrstuvwxyz",
        "the prefix alone": "Bearer slw_",
        "an unknown id": f"Bearer {make_key('absent')}",
        "a wrong secret": f"Bearer {make_key('known1')}",
        "a wrong secret of a disabled tenant": f"Bearer {make_key('stops1')}",
        "a revoked key": f"Bearer {REVOKED}",
        "cut short": f"Bearer {KEY[:-1]}",
        "too long": f"Bearer {KEY}x",
        "mistyped": f"Bearer {swapped}",
        "in capitals": f"Bearer {KEY.upper()}",
        "twice": f"Bearer {KEY} {KEY}",
        "a list": f"Bearer {KEY}, Bearer {KEY}",
        "quoted": f'Bearer "{KEY}"',
        "of another release": f"Bearer {make_key('other1')}",
        "SQL": "Bearer slw_' OR 1=1 --",
        "no ASCII": "Bearer slw_known1_é",
        "7,000 characters": f"Bearer slw_known1_{'a' * 7000}",
        "a token of three letters": "Bearer a.b.c",
    }
    placeholders = {"nothing": None, "a scheme alone": "Bearer", "EMPTY": "Bearer EMPTY", "none": "Bearer none"}
    elsewhere = {name: [(name, KEY)] for name in ("X-API-Key", "api-key", "Proxy-Authorization")}
    return [
        *((name, [("Authorization", value)], 401, INVALID) for name, value in wrong.items()),
        *((name, [("Authorization", text)] if text else [], 401, MISSING) for name, text in placeholders.items()),
        *((f"in {name}", headers, 401, MISSING) for name, headers in elsewhere.items()),
        ("two headers", [("Authorization", f"Bearer {KEY}")] * 2, 401, INVALID),
        ("two headers, one wrong", [("Authorization", f"Bearer {make_key()}"), *bearer(KEY).items()], 401, INVALID),
        ("expired", [*bearer(EXPIRED).items()], 401, EXPIRY),
        ("disabled", [*bearer(DISABLED).items()], 403, "tenant_disabled"),
    ]


def of_tokens(issuer: Issuer) -> list[Failure]:
    good = issuer.token()
    head, body, mark = good.split(".")
    unsigned = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": KID}).encode()).decode().rstrip("=")
    numbers = issuer.private.public_key().public_numbers()
    public = numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")
    wrong = {
        "another issuer's token": issuer.token(iss="https://login.example.com"),
        "a forged token": issuer.token(ec.generate_private_key(ec.SECP256R1())),
        "an unsigned token": f"{unsigned}.{body}.",
        "a token signed by HMAC": issuer.token(public, "HS256"),
        "a changed signature": f"{head}.{body}.{'A' * len(mark)}",
        "without a signature": f"{head}.{body}",
        "a token that ended": issuer.token(exp=time.time() - 3600),
        "a token without an end": issuer.token(exp=None),
        "another audience": issuer.token(aud="another"),
        "no audience": issuer.token(aud=None),
        "other claims": issuer.token(sub="another"),
        "not valid yet": issuer.token(nbf=time.time() + 3600),
    }
    found: list[Failure] = [(name, [*bearer(token).items()], 401, INVALID) for name, token in wrong.items()]
    return [
        *found,
        ("a disabled tenant's token", [*bearer(issuer.token(sub="stopped")).items()], 403, "tenant_disabled"),
    ]


@contextlib.asynccontextmanager
async def clients() -> AsyncIterator["itertools.chain[aiohttp.ClientSession]"]:
    """One for each request, of an address of its own after every few: refusals of an address get slower."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(200):
            connector = aiohttp.TCPConnector(local_addr=(f"127.7.0.{number + 1}", 0))
            made.append(await stack.enter_async_context(aiohttp.ClientSession(connector=connector)))
        yield itertools.chain.from_iterable(itertools.repeat(one, FREE) for one in made)


async def test_forty_kinds_of_wrong_credentials_are_refused_in_the_shape_of_the_api(authority: Authority) -> None:
    async with issuing(authority) as issuer, upstream(echo) as server, clients() as others:
        settings = {"auth_mode": "required", "oidc_ca_file": str(authority.path("ca.crt"))}
        async with gateway(listed(issuer.url), PEPPER, **settings) as gate:
            gate.route(("rev", 100, [server.url]))
            for credentials in (bearer(KEY), bearer(issuer.token())):
                async with await gate.post(BODY, headers=credentials) as answer:
                    assert answer.status == 200, "the right ones are accepted"
            failures = [*of_keys(), *of_tokens(issuer)]
            assert len(failures) >= 40
            messages = defaultdict(set)
            for (what, headers, status, code), client in zip(failures, others, strict=False):
                error = await refusal(gate, client, headers, status, what)
                assert error["code"] == code, (what, error)
                messages[code].add(error["message"])
            # Nothing shows which part was right.
            assert {code: len(texts) for code, texts in messages.items()} == dict.fromkeys(messages, 1)
            assert len(server.seen) == 2
            page = gate.metrics.render().decode()
            assert KEY not in page


async def refusal(
    gate: Gateway, client: aiohttp.ClientSession, headers: list[tuple[str, str]], status: int, what: str
) -> dict[str, Any]:
    url = gate.url + "/v1/chat/completions"
    async with client.post(url, json=BODY, headers=CIMultiDict(headers)) as answer:
        assert answer.status == status, what
        assert answer.content_type == "application/json", what
        assert answer.headers.get("WWW-Authenticate", "").startswith('Bearer realm="slipway"') is (status == 401), what
        body = await answer.json()
    assert body.keys() == {"error"}, what
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}, what
    assert (error["type"], error["param"]) == ("invalid_request_error", None), what
    return error


# Of keys that are well-formed: which part of them is wrong must stay unknown.
GUESSES = {
    "unknown id": make_key("absent"),
    "wrong secret": make_key("known1"),
    "wrong secret, disabled": make_key("stops1"),
    "wrong secret, expired": make_key("ended1"),
    "mistyped": KEY[:-1] + ("0" if KEY[-1] != "0" else "1"),
}


def steps(key: str) -> list[str]:
    """Each step of cryptography that a refusal takes, whatever it is: what takes time that depends on the key."""
    table, found = build(listed(), PEPPER), []

    def record(_: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ("hmac_digest", "compare_digest"):
            found.append(called.__name__)

    sys.setprofile(record)
    try:
        assert isinstance(authenticate(CIMultiDict(bearer(key)), table, time.time()), AuthRefusal)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("what", GUESSES)
def test_a_wrong_key_takes_one_hash_and_one_comparison_whichever_part_is_wrong(what: str) -> None:
    assert steps(GUESSES[what]) == ["hmac_digest", "compare_digest"]


@pytest.mark.integration
async def test_the_time_of_a_refusal_does_not_show_which_part_of_a_key_is_wrong() -> None:
    """By the rank-sum statistic: how often one of a kind took longer than one of another kind. In random order, so that
    what else the machine does is in all kinds."""
    chance = random.Random(1)
    order = [name for name in GUESSES for _ in range(SAMPLES)]
    chance.shuffle(order)
    took_s: dict[str, list[float]] = {name: [] for name in GUESSES}
    async with upstream(echo) as server, gateway(listed(), PEPPER, auth_mode="required") as gate, clients() as others:
        gate.route(("rev", 100, [server.url]))
        connected = None
        for name, client in zip(order, others, strict=False):
            if client is not connected:  # what a new connection takes is no part of it
                await time_of_refusal(gate, client, GUESSES[name])
                connected = client
            took_s[name].append(await time_of_refusal(gate, client, GUESSES[name]))
    first = took_s.pop("unknown id")
    shares = {name: share_longer(times, first) for name, times in took_s.items()}
    assert all(abs(share - 0.5) < MOST_APART for share in shares.values()), shares


async def time_of_refusal(gate: Gateway, client: aiohttp.ClientSession, key: str) -> float:
    """In seconds."""
    began_s = time.perf_counter()
    async with client.post(gate.url + "/v1/chat/completions", json=BODY, headers=bearer(key)) as answer:
        await answer.read()
        assert answer.status == 401
    return time.perf_counter() - began_s


def share_longer(times: list[float], others: list[float]) -> float:
    """Of all pairs, those whose first one took longer."""
    pairs = len(times) * len(others)
    return sum((one > other) + 0.5 * (one == other) for one in times for other in others) / pairs


def test_a_difference_in_time_would_be_seen() -> None:
    chance = random.Random(2)
    times = [chance.expovariate(1 / 50e-6) + 500e-6 for _ in range(SAMPLES)]
    slower = [chance.expovariate(1 / 50e-6) + 540e-6 for _ in range(SAMPLES)]
    assert abs(share_longer(slower, times) - 0.5) > MOST_APART
