"""Tokens of service accounts: what the API server is called for, how often, and what counts while it is away."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from devcluster.controlplane import ControlPlane
from slipway_gateway.authentication.service_accounts import (
    MAX_IN_FLIGHT,
    RETRY_S,
    REVIEWS_PER_S,
    ReviewUnavailable,
    ServiceAccountTokens,
)
from slipway_gateway.identity import reviewed_tokens
from slipway_gateway.identity.reviewed_tokens import (
    FRESH_S,
    REFUSED_S,
    STALE_S,
    Reviewed,
    ReviewedTokens,
    UnreadableReview,
    username,
)
from slipway_gateway.identity.tenants import KnownTenant, TrustedIssuer, username_of
from slipway_gateway.identity.tokens import UnverifiedToken
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.cluster.api import Api
from testkit.until import until_async
from tests.support.api_server import install_crds
from tests.support.failing_control_plane import FailingControlPlane
from tests.support.redis import redis_server

from .harness import Gateway, echo, gateway, upstream
from .tenants import PEPPER, bearer
from .test_process import gateway as gateway_process

AUDIENCE = "slipway"
APP = username_of("default", "app")
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Reviews:
    """An API server in one function: `answers` by token; what is not there is refused, None: it is away."""

    def __init__(self, **answers: str) -> None:
        self.answers: dict[str, str] | None = answers
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.now_s = 1000.0
        self.tokens = ServiceAccountTokens(self.review, AUDIENCE, GatewayMetrics("test"), lambda: self.now_s)

    async def review(self, token: str) -> str:
        self.calls.append(token)
        await self.gate.wait()
        if self.answers is None:
            raise ReviewUnavailable("away")
        return self.answers.get(token, "")

    async def username(self, token: str, source: str = "a") -> str | None:
        """None: it is not known."""
        try:
            return await self.tokens.username(UnverifiedToken(token, "", "", ""), source)
        except ReviewUnavailable:
            return None


async def test_a_token_is_reviewed_once_in_a_minute_and_a_refused_one_once_in_ten_seconds() -> None:
    reviews = Reviews(good=APP)
    for _ in range(3):
        assert (await reviews.username("good"), await reviews.username("bad")) == (APP, "")
    assert reviews.calls == ["good", "bad"]
    reviews.now_s += REFUSED_S
    assert (await reviews.username("good"), await reviews.username("bad")) == (APP, "")
    assert reviews.calls == ["good", "bad", "bad"]
    reviews.now_s += FRESH_S - REFUSED_S
    reviews.answers = {}
    assert await reviews.username("good") == ""  # its pod is gone


async def test_requests_with_one_token_wait_for_one_review_also_when_the_first_client_leaves() -> None:
    reviews = Reviews(good=APP)
    reviews.gate.clear()
    waiting = [asyncio.create_task(reviews.username("good")) for _ in range(50)]
    await until_async(lambda: reviews.calls)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    reviews.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [APP] * 49 and reviews.calls == ["good"]


async def test_while_the_api_server_is_away_accepted_tokens_stay_for_their_time_and_no_client_waits() -> None:
    reviews = Reviews(good=APP)
    assert await reviews.username("good") == APP
    reviews.answers = None
    reviews.now_s += FRESH_S
    assert await reviews.username("good") == APP  # tried, and failed
    assert await reviews.username("new") is None
    assert reviews.calls == ["good", "good"] and reviews.tokens.trouble == "away"
    reviews.gate.clear()  # from now on it does not even answer
    reviews.now_s += RETRY_S
    assert await reviews.username("good") == APP
    await until_async(lambda: len(reviews.calls) == 3)
    reviews.gate.set()
    await until_async(lambda: not reviews.tokens._pending)
    reviews.now_s = 1000.0 + STALE_S
    assert await reviews.username("good") is None
    reviews.answers = {"good": APP}
    reviews.now_s += RETRY_S
    assert await reviews.username("good") == APP and not reviews.tokens.trouble


async def test_reviews_are_bounded_and_a_flood_of_one_source_leaves_room_for_others() -> None:
    reviews = Reviews(good=APP, other=APP)
    assert await reviews.username("good") == APP
    reviews.now_s += FRESH_S
    flood = [await reviews.username(f"bad{number}", "flood") for number in range(100)]
    assert flood.count("") == REVIEWS_PER_S // 2 and flood.count(None) == 100 - REVIEWS_PER_S // 2
    many = [await reviews.username(f"bad{number}", f"source{number}") for number in range(100, 200)]
    assert None in many
    reviews.calls.clear()
    assert await reviews.username("good") == APP and reviews.calls == ["good"]  # half is for those accepted before
    reviews.now_s += 1.0
    assert await reviews.username("other", "quiet") == APP


async def test_reviews_in_flight_are_bounded() -> None:
    reviews = Reviews()
    reviews.gate.clear()
    waiting: list[asyncio.Task[str | None]] = []
    for number in range(10 * MAX_IN_FLIGHT):
        reviews.now_s += 1.0
        waiting.append(asyncio.create_task(reviews.username(str(number), f"source {number}")))
        await asyncio.sleep(0)
    await until_async(lambda: len(reviews.calls) == MAX_IN_FLIGHT)
    assert sum(task.done() for task in waiting) == 9 * MAX_IN_FLIGHT
    await reviews.tokens.close()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_kept_reviews_are_bounded_and_refused_ones_push_out_no_accepted_one() -> None:
    kept = ReviewedTokens(max_accepted=10, max_refused=5)
    for number in range(100):
        kept.put(b"accepted%d" % number, Reviewed(APP, 0.0))
    for number in range(100):
        kept.put(b"refused%d" % number, Reviewed("", 0.0))
    assert len(kept) == 15 and kept.find(b"accepted99") == Reviewed(APP, 0.0) and kept.find(b"accepted0") is None
    kept.put(b"accepted99", Reviewed("", 1.0))
    assert kept.find(b"accepted99") == Reviewed("", 1.0) and len(kept) == 14


GOOD = {"authenticated": True, "user": {"username": APP}, "audiences": [AUDIENCE]}


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (GOOD, APP),
        ({}, ""),
        ({"error": "invalid bearer token"}, ""),
        (GOOD | {"authenticated": False}, ""),
        (GOOD | {"audiences": ["https://kubernetes.default.svc"]}, ""),
        (GOOD | {"audiences": []}, ""),
        ({"authenticated": True, "user": {"username": APP}}, ""),
    ],
)
def test_only_an_authenticated_token_for_the_audience_has_a_user_name(status: dict[str, Any], found: str) -> None:
    assert username({"status": status}, AUDIENCE) == found


@pytest.mark.parametrize("review", [{}, {"status": None}, {"status": {"authenticated": "yes"}}, {"status": [GOOD]}])
def test_what_is_no_review_proves_nothing(review: dict[str, Any]) -> None:
    with pytest.raises(UnreadableReview):
        username(review, AUDIENCE)


# -- with a real API server


class Issuer(FailingControlPlane):
    """An API server that issues tokens and reviews them for an account with that right alone."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self.api = Api(plane.kubeconfig)
        self.gateway = str(plane.user_kubeconfig("gateway"))
        self.powerless = str(plane.user_kubeconfig("powerless"))
        rule = {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
        assert self.api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "reviewer"}, "rules": [rule]}).ok
        binding: dict[str, Any] = {"metadata": {"name": "reviewer"}}
        binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reviewer"}
        binding["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "gateway"}]
        assert self.api.post(f"{RBAC}/clusterrolebindings", binding).ok

    def token(self, name: str = "app", audience: str = AUDIENCE) -> str:
        path = "/api/v1/namespaces/default/serviceaccounts"
        self.api.post(path, {"metadata": {"name": name}})
        spec = {"audiences": [audience], "expirationSeconds": 600}
        made = self.api.post(f"{path}/{name}/token", {"apiVersion": "authentication.k8s.io/v1", "spec": spec})
        assert made.ok, made.message
        return str(made.body["status"]["token"])


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with ControlPlane() as plane:
        made = Issuer(plane)
        yield made
        made.api.close()


def covering(*names: str, **fields: Any) -> KnownTenant:
    return KnownTenant(
        "-".join(names), service_accounts=tuple(username_of("default", name) for name in names), **fields
    )


async def status(gate: Gateway, token: str) -> int:
    async with await gate.post(headers=bearer(token)) as answer:
        assert answer.status != 503 or answer.headers["Retry-After"]
        return answer.status


def reviewed(gate: Gateway) -> dict[str, int]:
    """TokenReviews by their results."""
    found = {}
    for result in ("accepted", "refused", "failed", "limited"):
        labels = {"result": result}
        value = gate.metrics.registry.get_sample_value("slipway_gateway_token_reviews_total", labels)
        found |= {result: int(value)} if value else {}
    return found


def changed(token: str, **claims: Any) -> str:
    """The same token with other claims, and a signature that is not theirs."""
    known = jwt.decode(token, options={"verify_signature": False})
    return jwt.encode(known | claims, ec.generate_private_key(ec.SECP256R1()), "ES256")


@pytest.mark.integration
@pytest.mark.attack_class(25)
async def test_a_token_is_its_tenants_and_no_other_is_accepted(issuer: Issuer) -> None:
    tenants = (covering("app"), covering("off", disabled=True))
    settings = {"kubeconfig": issuer.gateway, "token_review_audience": AUDIENCE}
    async with upstream(echo) as server, gateway(tenants, PEPPER, **settings) as gate:
        gate.route(("rev", 100, [server.url]))
        good = issuer.token()
        assert [await status(gate, good) for _ in range(3)] == [200, 200, 200]
        assert await status(gate, issuer.token("off")) == 403
        assert reviewed(gate) == {"accepted": 2}
        none = base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).decode().rstrip("=")
        bad = [
            issuer.token("another"),
            issuer.token(audience="another"),
            issuer.token(audience="https://kubernetes.default.svc"),
            good[:-4] + ("AAAA" if good[-4:] != "AAAA" else "BBBB"),
            f"{none}.{good.split('.')[1]}.",
            changed(good),
            changed(issuer.token("another"), sub=APP),
            changed(good, exp=None),
            changed(good, exp=time.time() - 1),
            changed(good, aud={"slipway": "slipway"}),
            changed(good, sub=[APP]),
        ]
        assert [await status(gate, token) for token in bad] == [401] * len(bad)
        # Those that say of themselves that they are not valid here are refused without a review.
        assert reviewed(gate) == {"accepted": 2, "refused": 4}
        sent = str([list(seen.headers.items()) for seen in server.seen])
        page = gate.metrics.render().decode()
        assert good not in sent and good.split(".")[2] not in page
        assert 'slipway_gateway_authentications_total{method="service_account",result="ok"} 3.0' in page


@pytest.mark.integration
async def test_tokens_of_an_issuer_of_a_tenant_are_verified_by_its_keys(issuer: Issuer) -> None:
    """The service account is one of the Tenant's too; the issuer answers no request for keys."""
    trusted = TrustedIssuer("https://kubernetes.default.svc", (AUDIENCE,))
    tenant = KnownTenant("both", service_accounts=(APP,), issuers=(trusted,))
    settings = {"kubeconfig": issuer.gateway, "token_review_audience": AUDIENCE}
    async with upstream(echo) as server, gateway((tenant,), PEPPER, **settings) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await status(gate, issuer.token()) == 503 and reviewed(gate) == {}


@pytest.mark.integration
async def test_without_the_right_or_without_an_audience_the_tenants_status_says_so(issuer: Issuer) -> None:
    tenant = covering("app")
    token = issuer.token()
    settings = {"kubeconfig": issuer.powerless, "token_review_audience": AUDIENCE}
    async with gateway((tenant,), PEPPER, **settings) as gate:
        assert await status(gate, token) == 503
        reason, message = gate.edge.authenticator.trouble_of(tenant, PEPPER) or ("", "")
        assert reason == "TokenReviewUnavailable" and "not allowed to create tokenreviews" in message
    async with gateway((tenant,), PEPPER, kubeconfig=issuer.gateway) as gate:
        assert await status(gate, token) == 401
        assert (gate.edge.authenticator.trouble_of(tenant, PEPPER) or ("",))[0] == "TokenReviewOff"


@pytest.mark.integration
async def test_the_api_server_dies_and_comes_back_without_the_service_account(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = (covering("gone", "stays"),)
    settings = {"kubeconfig": issuer.gateway, "token_review_audience": AUDIENCE}
    async with upstream(echo) as server, gateway(tenants, PEPPER, **settings) as gate:
        gate.route(("rev", 100, [server.url]))
        gone, stays, new = issuer.token("gone"), issuer.token("stays"), issuer.token("stays")
        assert [await status(gate, token) for token in (gone, stays)] == [200, 200]
        assert issuer.api.delete("/api/v1/namespaces/default/serviceaccounts/gone").ok
        assert await status(gate, gone) == 200  # until it is reviewed again
        killed = issuer.kill_api_server()
        try:
            monkeypatch.setattr(reviewed_tokens, "FRESH_S", 0.0)
            assert [await status(gate, token) for token in (gone, stays, new)] == [200, 200, 503]
            monkeypatch.setattr(reviewed_tokens, "STALE_S", 0.0)
            assert await status(gate, stays) == 503
        finally:
            issuer.start_api_server(killed)
        await asyncio.sleep(RETRY_S)
        assert [await status(gate, token) for token in (stays, gone, new)] == [200, 401, 200]


@pytest.mark.integration
async def test_the_process_reviews_tokens_for_the_audience_of_its_flag(issuer: Issuer) -> None:
    """Of the Tenant that the API server has, by the process as the chart starts it; with Redis for what is shared."""
    kubeconfig = issuer.plane.kubeconfig
    install_crds(kubeconfig)
    accounts = {"models": ["*"], "auth": {"serviceAccounts": [{"namespace": "default", "name": "app"}]}}
    tenant = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team"}, "spec": accounts}
    made = issuer.api.post("/apis/slipway.dev/v1alpha1/tenants", tenant)
    assert made.ok, made.message
    names = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slipway-model-names"}}
    assert issuer.api.post("/api/v1/namespaces/default/configmaps", names | {"data": {"names.json": "{}"}}).ok
    flags = (f"--kubeconfig={kubeconfig}", f"--token-review-audience={AUDIENCE}", "--auth-mode=required")
    with redis_server() as redis:
        async with gateway_process(*flags, f"--redis-url={redis.url}", ready=False) as process:

            async def models(token: str) -> int:
                url, headers = process.url("api") + "/v1/models", bearer(token)
                async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
                    return answer.status

            found = 0
            for _ in range(150):  # until it has read the Tenants
                if (found := await models(issuer.token())) == 200:
                    break
                await asyncio.sleep(0.2)
            assert found == 200, process.log
            assert await models(issuer.token(audience="another")) == 401
            await until_async(lambda: process.log_entries("budgets are shared by Redis"))
