"""What a gateway reports about tenants is what the operator reads."""

from dataclasses import replace

import msgspec

from slipway_gateway.identity.tenants import TrustedIssuer
from slipway_operator.model.cluster.tenant_reports import GatewayTenants, TenantReport
from tests.gateway import tenants as known
from tests.gateway.harness import gateway


async def test_the_operator_reads_every_field_that_a_gateway_reports() -> None:
    tenant = replace(known.tenant("team-a", known.make_key()), generation=4, issuers=(TrustedIssuer("https://x", ()),))
    async with gateway(tenants=[tenant]) as edge:
        edge.known.problems["team-a"] = "spec.prices[0]"
        async with await edge.client.get(f"{edge.admin_url}/internal/tenants") as answer:
            body = await answer.read()
    found = msgspec.json.decode(body, type=GatewayTenants)
    one = found.tenants["team-a"]
    assert (one.generation, one.problem) == (4, "spec.prices[0]")
    assert one.trouble and one.trouble[0] == "KeyPepperMissing"
    assert set(msgspec.json.decode(body)) == {field.name for field in msgspec.structs.fields(GatewayTenants)}
    reported = set(msgspec.json.decode(body)["tenants"]["team-a"])
    assert reported == {field.name for field in msgspec.structs.fields(TenantReport)}
