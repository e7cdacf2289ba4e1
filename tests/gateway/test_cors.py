"""Web pages of other origins may send requests where origins are allowed, and nowhere else."""

import pytest
from pydantic import ValidationError

from slipway_gateway.settings import GatewaySettings

from .harness import Gateway, echo, gateway, upstream

APP = "https://app.example.com"
CHAT = "/v1/chat/completions"
PREFLIGHT = {"Origin": APP, "Access-Control-Request-Method": "POST"}
NAMES = "authorization, content-type,x-stainless-os"


async def preflight(gate: Gateway, path: str = CHAT, **more: str) -> tuple[int, dict[str, str]]:
    given = PREFLIGHT | {name.replace("_", "-"): value for name, value in more.items()}
    async with gate.client.options(gate.url + path, headers=given) as answer:
        return answer.status, {name: value for name, value in answer.headers.items() if name.startswith("Access-")}


@pytest.mark.parametrize(("allowed", "named"), [((APP, "http://localhost:3000"), APP), (("*",), "*")])
async def test_a_page_of_an_allowed_origin_may_send_and_read(allowed: tuple[str, ...], named: str) -> None:
    async with upstream(echo) as server, gateway(allowed_origins=allowed, auth_mode="required") as gate:
        gate.route(("rev", 100, [server.url]))
        status, found = await preflight(gate, Access_Control_Request_Headers=NAMES)
        assert status == 204 and found == {
            "Access-Control-Allow-Origin": named,
            "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE",
            "Access-Control-Allow-Headers": NAMES,
            "Access-Control-Max-Age": "600",
            "Access-Control-Expose-Headers": found["Access-Control-Expose-Headers"],
        }
        async with await gate.post(b'{"model":"chat"}', headers={"Origin": APP}) as answer:
            assert answer.status == 401 and answer.headers["Access-Control-Allow-Origin"] == named
            assert ("Origin" in answer.headers.getall("Vary", [])) == (named == APP)
        assert gate.outcomes() == {"ok": 1, "unauthenticated": 1}, "each request is counted once"


@pytest.mark.parametrize("streams", [False, True])
async def test_responses_of_models_can_be_read(streams: bool) -> None:
    async with upstream(echo) as server, gateway(allowed_origins=(APP,)) as gate:
        gate.route(("rev", 100, [server.url]))
        body = b'{"model":"chat","stream":true}' if streams else b'{"model":"chat"}'
        async with await gate.post(body, headers={"Origin": APP}) as answer:
            assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == APP
            exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
            assert {"X-Request-Id", "X-Slipway-Revision", "Retry-After", "x-ratelimit-remaining-tokens"} <= {*exposed}


@pytest.mark.parametrize("allowed", [(), (APP,)])
async def test_other_origins_get_no_permission(allowed: tuple[str, ...]) -> None:
    async with upstream(echo) as server, gateway(allowed_origins=allowed) as gate:
        gate.route(("rev", 100, [server.url]))
        origin = "https://app.example.com.attacker.net"
        status, found = await preflight(gate, Origin=origin)
        assert (status, found) == (405, {})
        async with await gate.post(b'{"model":"chat"}', headers={"Origin": origin}) as answer:
            assert answer.status == 200 and "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("names", ["a(b", "a" * 65, ", ".join("a" * 8 for _ in range(65)), "a;b"])
async def test_names_that_are_none_are_not_sent_back(names: str) -> None:
    async with gateway(allowed_origins=("*",)) as gate:
        gate.route(("rev", 100, []))
        _, found = await preflight(gate, Access_Control_Request_Headers=names)
        assert "Access-Control-Allow-Headers" not in found


@pytest.mark.parametrize(
    "origin", ["app.example.com", "https://app.example.com/", "null", "https://App.example.com", ""]
)
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValidationError, match="is no origin"):
        GatewaySettings(allowed_origins=(origin,))
