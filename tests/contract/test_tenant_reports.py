"""What a gateway reports about tenants is what the operator reads, of the last release too."""

import json
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web

from slipway_contracts.tenants import GatewayTenants, TenantReport
from slipway_gateway.identity.tenants import TrustedIssuer
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price, nano
from slipway_gateway.quotas.tenant import Limits
from testkit import ROOT
from tests.gateway import tenants as known
from tests.gateway.harness import Gateway, gateway, upstream

RECORDED = ROOT / "tests/contract/recorded/tenants.json"
POLICY = Policy(Limits(requests_per_minute=2), (Price("*", request_nano=nano("3")),), Budget(day_nano=nano("5")))


async def reported(edge: Gateway) -> GatewayTenants:
    async with await edge.client.get(f"{edge.admin_url}/internal/tenants") as answer:
        return msgspec.json.decode(await answer.read(), type=GatewayTenants)


async def test_the_operator_reads_why_requests_of_a_tenant_fail() -> None:
    tenant = replace(known.tenant("team-a", known.make_key()), generation=4, issuers=(TrustedIssuer("https://x", ()),))
    async with gateway(tenants=[tenant]) as edge:
        edge.known.problems["team-a"] = "spec.prices[0]"
        report = (await reported(edge)).tenants["team-a"]
    assert (report.generation, report.problem) == (4, "spec.prices[0]")
    assert report.trouble and report.trouble[0] == "KeyPepperMissing"


async def whole(request: web.Request) -> web.StreamResponse:
    return web.json_response({"usage": {"prompt_tokens": 7, "completion_tokens": 5}})


async def test_a_gateway_reports_what_one_of_the_last_release_did() -> None:
    recorded = msgspec.json.decode(RECORDED.read_bytes(), type=GatewayTenants)
    key = known.make_key()
    tenant = replace(known.tenant("team-a", key), policy=POLICY, generation=4)
    async with upstream(whole) as server, gateway(tenants=[tenant], pepper=known.PEPPER) as edge:
        edge.route(("r1", 100, [server.url]))
        for _ in range(3):
            async with await edge.post(headers=known.bearer(key)) as answer:
                await answer.read()
        edge.known.problems["team-c"] = "spec.prices[0]: no amount"
        assert await reported(edge) == recorded
    assert recorded.tenants["team-c"] == TenantReport(problem="spec.prices[0]: no amount")


def test_fields_of_a_later_release_are_ignored() -> None:
    report: dict[str, Any] = json.loads(RECORDED.read_bytes())
    later = report | {"region": "a", "tenants": {name: one | {"x": 1} for name, one in report["tenants"].items()}}
    decoder = msgspec.json.Decoder(GatewayTenants)
    assert decoder.decode(json.dumps(later)) == decoder.decode(RECORDED.read_bytes())
