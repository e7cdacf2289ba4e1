"""Tenants in the fast lane of the data plane: keys, limits, budgets and charges are those of Python."""

import asyncio
import base64
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from multidict import CIMultiDict

from slipway_contracts.guards import GuardSpec
from slipway_contracts.headers import PROOF, WEIGHT
from slipway_gateway.identity.tenants import KnownTenant
from slipway_gateway.ledger.periods import day_begin
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price, micro
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.serving.tenants_report import report as report_on_tenants
from slipway_gateway.sharing.ready_gateways import ReadyGateways
from slipway_gateway.upstream.tenant_proof import WINDOW_S, TenantSigner
from slipway_plane import NATIVE, WHY_MISSING
from testkit.until import until_async

from . import harness, tenants
from .harness import Gateway, Upstream, drop, upstream
from .sharing.limiters import gateways as share_of
from .sharing.random_runs import ModelServer, draw, play
from .sharing.test_overshoot import overshoot, overspent, summed
from .test_fast_lane import (
    ANSWER,
    PATH,
    SeenRequest,
    answer,
    connect,
    counted,
    fast,
    post,
    read_response,
    reasons,
    seen_by,
    shown,
)

pytestmark = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)

KEY, OTHER, STRANGE = tenants.make_key("k1First"), tenants.make_key("k2Other"), tenants.make_key("k3Strange")
PRICES = (Price("*", micro("1"), micro("2"), micro("0.5"), 7),)
# Nothing flows back while a test runs, so that headers do not depend on time.
SLOW = Limits(requests_per_minute=1, input_tokens_per_minute=1, output_tokens_per_minute=1, burst_s=60_000_000)


def requests(count: int, **more: Any) -> Limits:
    """So many requests, and no more for long."""
    return Limits(requests_per_minute=1, burst_s=60.0 * count, **more)


COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost_nano", "estimated")


def tenant(limits: Limits = SLOW, *, key: str = KEY, name: str = "team-a", **policy: Any) -> KnownTenant:
    return replace(tenants.tenant(name, key), policy=Policy(limits, **({"prices": PRICES} | policy)))


Handler = Callable[[web.Request], Any]


@contextlib.asynccontextmanager
async def lanes(
    *known: KnownTenant, handler: Handler = answer, planes: Sequence[str] = ("off", "required"), **changes: Any
) -> AsyncIterator[tuple[list[Gateway], Upstream]]:
    """Gateways with the same tenants, by default one in Python alone and one with the fast lane, and their server."""
    given = {"tenants": known, "pepper": tenants.PEPPER, "auth_mode": "required", "hold_timeout_s": 0.1}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(upstream(handler))
        gates = []
        for plane in planes:
            gate = await stack.enter_async_context(harness.gateway(plane=plane, **(given | changes)))
            gate.route(("rev", 100, [server.url]))
            gates.append(gate)
        yield gates, server


async def ledger_rows(gate: Gateway) -> list[dict[str, Any]]:
    """What the ledger has, without the hour."""
    await gate.ledger.flush()
    _, rows = await gate.ledger.usage(0, 1 << 30, "")
    return [{name: value for name, value in row.items() if name != "hour"} for row in rows]


async def books(gate: Gateway) -> dict[str, Any]:
    """All that is counted of tenants, without times."""
    wanted = re.compile(
        r"slipway_gateway_(tokens_total|quota_refusals_total|authentications_total|implausible\w+_total)$"
    )
    metrics = {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if wanted.match(sample.name)
    }
    reports = msgspec.to_builtins(report_on_tenants(gate.edge.authenticator, gate.admission).tenants)
    quotas, now_s = gate.admission.quotas, asyncio.get_running_loop().time()
    owed = {
        (name, limit): units
        for name in quotas.names()
        if (quota := quotas.find(name))
        for limit in ("requests", "input_tokens", "output_tokens")
        if (units := round(quota.owed(limit, now_s)))
    }
    return {"metrics": metrics, "tenants": reports, "owed": owed, "ledger": await ledger_rows(gate)}


def bearer(key: str = KEY, **headers: str) -> dict[str, str]:
    return tenants.bearer(key) | headers


REQUESTS: dict[str, tuple[dict[str, str], dict[str, Any], str, str]] = {
    # by name: headers, fields of the body, path, and why Python served it; "" where the fast lane did
    "plain": (bearer(), {}, PATH, ""),
    "with limits of its own": (bearer(), {"max_tokens": 5, "n": 2}, PATH, ""),
    "of a session": (bearer(**{"X-Session-Id": "s"}), {}, PATH, ""),
    "of a user": (bearer(), {"user": "u"}, PATH, ""),
    "by the route's name": (bearer(), {"model": "default/chat"}, PATH, ""),
    "a lower case scheme": ({"Authorization": f"bearer  {KEY}"}, {}, PATH, ""),
    "an embedding": (bearer(), {"input": "a"}, "/v1/embeddings", ""),
    "a ranking": (bearer(), {"query": "q" * 50, "documents": ["a"] * 9}, "/v1/rerank", ""),
    "tokens": (bearer(), {"text": "a"}, "/tokenize", ""),
    "a prediction": (bearer(), {"rows": [[1]], "n": 9}, "/v2/models/chat/infer", ""),
    "with headers back": (bearer(**{"x-want": "headers"}), {}, PATH, ""),
    "with no usage": (bearer(**{"x-want": "no usage"}), {}, PATH, ""),
    "with cached tokens": (bearer(**{"x-want": "cached"}), {}, PATH, ""),
    "with more than it can have caused": (bearer(**{"x-want": "lies"}), {}, PATH, "usage"),
    "with limits of its server": (bearer(**{"x-want": "limits"}), {}, PATH, "response_head"),
    "a stream": (bearer(**{"x-want": "stream"}), {"stream": True}, PATH, "stream"),
    "a loop": (bearer(**{"x-want": "loop"}), {}, PATH, "judged"),
    "slow": (bearer(**{"x-want": "slow"}), {}, PATH, "slow"),
    "not found": (bearer(**{"x-want": "404"}), {}, PATH, "status"),
    "failed": (bearer(**{"x-want": "500"}), {}, PATH, "status"),
    "no key": ({}, {}, PATH, "anonymous"),
    "a placeholder": ({"Authorization": "Bearer EMPTY"}, {}, PATH, "anonymous"),
    "a strange key": (bearer(STRANGE), {}, PATH, "key"),
    "a mistyped key": (bearer(KEY[:-1] + ("a" if KEY[-1] != "a" else "b")), {}, PATH, "key"),
    "a foreign token": ({"Authorization": "Bearer sk-abc"}, {}, PATH, "credentials"),
    "another scheme": ({"Authorization": "Basic abc"}, {}, PATH, "credentials"),
    "an unknown model": (bearer(), {"model": "other"}, PATH, "unknown_model"),
}


async def paid_answer(request: web.Request) -> web.StreamResponse:
    usage = {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 12}}
    match request.headers.get("x-want", ""):
        case "no usage":
            return web.json_response({"choices": ANSWER["choices"]}, headers={"X-Slipway-Prompt-Tokens": "9"})
        case "cached":
            return web.json_response(ANSWER | {"usage": usage})
        case "lies":
            return web.json_response(ANSWER | {"usage": {"prompt_tokens": 10**9, "completion_tokens": 10**9}})
        case "limits":
            return web.json_response(ANSWER, headers={"X-RateLimit-Limit-Requests": "5", "x-ratelimit-own": "1"})
    return await answer(request)


def proved(seen: SeenRequest, keys: Path) -> SeenRequest:
    """What a server got, without its signatures, once verified: both lanes may not serve in the same minute."""
    headers = CIMultiDict(seen[0])
    if PROOF in headers:
        minute = int(headers[PROOF].split(".")[2])
        assert abs(time.time() / WINDOW_S - minute) < 3
        expected = headers.copy()
        TenantSigner(str(keys), lambda: minute * WINDOW_S).sign(expected, "default/chat")
        assert (expected[PROOF], expected[WEIGHT]) == (headers.pop(PROOF), headers[WEIGHT])
        headers[WEIGHT] = headers[WEIGHT].partition(".")[0]
    return list(headers.items()), *seen[1:]


@pytest.mark.parametrize("name", REQUESTS)
async def test_both_lanes_serve_and_charge_a_tenant_alike(name: str, tmp_path: Path) -> None:
    headers, fields, path, reason = REQUESTS[name]
    keys = tmp_path / "keys.json"
    key = base64.urlsafe_b64encode(b"m" * 32).decode()
    keys.write_text(json.dumps({"keys": [{"id": "k1", "key": key, "from": 1.0}]}))
    one = replace(tenant(budget=Budget(10**15, 10**15)), weight=3, priority_limit=-2)
    async with lanes(one, handler=paid_answer, max_attempts=2, tenant_keys_file=str(keys)) as (gates, server):
        made = []
        for gate in gates:
            answered = await gate.post({"model": "chat"} | fields, path, headers=headers)
            seen = (seen_by(server) if server.seen else ([], b"", ""), len(server.seen))
            kept = shown(answered)
            if reason == "stream":
                kept.pop("content-length", kept.pop("transfer-encoding", ""))  # by chance
            made.append((answered.status, kept, await answered.read(), proved(seen[0], keys), *seen[1:]))
            server.seen.clear()
        assert made[0] == made[1]
        python, both = gates
        await until_async(lambda: sum(both.outcomes().values()) == 1)
        await until_async(lambda: (fast(both), reasons(both)) == ((0, {reason: 1}) if reason else (1, {})))
        assert counted(python) == counted(both)
        assert await books(python) == await books(both)
        if not reason:
            assert made[0][1]["x-ratelimit-limit-requests"] == "1"


async def test_what_a_table_of_tenants_says_is_in_force_at_once() -> None:
    """A key that is revoked, expired or replaced, a tenant that is disabled, and models that it may not use."""
    async with lanes(tenant()) as (gates, _):
        states: tuple[tuple[list[KnownTenant], int], ...] = (
            ([tenant()], 200),
            ([replace(tenant(), disabled=True)], 403),
            ([replace(tenant(), keys=(tenants.entry(KEY, 1.0),))], 401),
            ([replace(tenant(), keys=(tenants.entry(KEY, 4e9),))], 200),
            ([tenant(key=OTHER)], 401),
            ([replace(tenant(), models=("team/*",))], 404),
            ([replace(tenant(), models=("default/*",))], 200),
            ([replace(tenant(), models=("cha*",))], 200),
            ([], 401),
            ([tenant(name="younger", key=OTHER), tenant()], 200),
        )
        for gate in gates:
            for known, status in states:
                reader, writer = await connect(gate)
                gate.known.publish(known)
                writer.write(post(more=b"Authorization: Bearer %b\r\n" % KEY.encode()))
                assert (await read_response(reader))[0] == status
                await drop(writer)
        await until_async(lambda: fast(gates[1]) == 5)
        await until_async(lambda: gates[0].outcomes() == gates[1].outcomes())


async def test_a_key_of_two_tenants_is_the_older_ones() -> None:
    known = [
        replace(tenant(name=name), created=created) for name, created in (("young", "2026-02"), ("old", "2026-01"))
    ]
    async with lanes(*known) as (gates, _):
        for gate in gates:
            assert (await gate.post(headers=bearer())).status == 200
            assert [row["tenant"] for row in await ledger_rows(gate)] == ["old"]
        await until_async(lambda: fast(gates[1]) == 1)


async def test_another_pepper_makes_other_keys_valid_in_both_lanes() -> None:
    pepper = tenants.PEPPER
    async with lanes(tenant()) as (gates, _):
        gate = gates[1]
        gate.known._pepper = lambda: pepper
        assert (await gate.post(headers=bearer())).status == 200
        pepper = b"q" * 32
        lane = gate.edge.lane
        assert lane is not None
        lane.tenants_changed()  # as the port has it done four times in a second
        assert (await gate.post(headers=bearer())).status == 401
        await until_async(lambda: (fast(gate), reasons(gate)) == (1, {"key": 1}))


async def test_without_a_required_key_the_lane_serves_those_who_have_one() -> None:
    async with lanes(tenant(), auth_mode="optional") as (gates, _):
        for gate in gates:
            assert [(await gate.post(headers=one)).status for one in (bearer(), {}, bearer())] == [200] * 3
            assert sum(row["requests"] for row in await ledger_rows(gate)) == 2
        assert reasons(gates[1]) == {"anonymous": 1}
        assert (await books(gates[0]))["metrics"] == (await books(gates[1]))["metrics"]


async def test_a_limit_refuses_alike_and_both_lanes_take_from_one_bucket() -> None:
    """Streams are Python's and other requests the lane's: together they get what the limit has, and not twice that."""
    one = tenant(requests(20))
    async with lanes(one) as (gates, _):
        for gate in gates:
            statuses = Counter[int]()
            for number in range(30):
                stream = {"stream": True} if number % 2 else {}
                sent = await gate.post(
                    {"model": "chat"} | stream, headers=bearer(**{"x-want": "stream"} if stream else {})
                )
                statuses[sent.status] += 1
                if sent.status == 429:
                    assert (await sent.json())["error"]["code"] == "rate_limit_exceeded"
                    assert sent.headers["x-ratelimit-remaining-requests"] == "0"
                    assert int(sent.headers["Retry-After"]) > 0
                await sent.read()
            assert statuses == {200: 20, 429: 10}
        await until_async(lambda: (fast(gates[1]), reasons(gates[1])) == (10, {"stream": 15, "limit": 5}))
        assert await books(gates[0]) == await books(gates[1])


async def test_of_requests_at_once_in_both_lanes_as_many_run_as_may() -> None:
    running, most, goes_on = 0, 0, asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await goes_on.wait()
        running -= 1
        return web.json_response(ANSWER)

    one = tenant(replace(SLOW, concurrency=6))
    async with lanes(one, planes=("required",), handler=hang) as ((gate,), server):
        calls = [
            asyncio.create_task(gate.post({"model": "chat"}, headers=bearer(**{"x-slipway-resumable": "1"})))
            for _ in range(4)
        ]
        await until_async(lambda: len(server.seen) == 4)
        calls += [asyncio.create_task(gate.post({"model": "chat", "stream": True}, headers=bearer())) for _ in range(4)]
        await until_async(lambda: len(server.seen) == 6)
        calls += [asyncio.create_task(gate.post({"model": "chat"}, headers=bearer())) for _ in range(4)]
        await until_async(lambda: sum(call.done() for call in calls) == 6)
        goes_on.set()
        statuses = Counter([(await call).status for call in calls])
        assert (statuses, most) == ({200: 6, 429: 6}, 6)
        quota = gate.admission.quotas.find("team-a")
        assert quota is not None
        await until_async(lambda: quota.running == 0)


async def test_a_budget_is_one_for_both_lanes_and_the_request_that_ends_it_is_the_last() -> None:
    one = tenant(Limits(), prices=(Price("*", request_nano=10**9),), budget=Budget(day_nano=10 * 10**9))
    async with lanes(one) as (gates, server):
        for gate in gates:
            bodies = [
                {"model": "chat", "stream": True} if number % 3 == 0 else {"model": "chat"} for number in range(40)
            ]
            want = {True: {"x-want": "stream"}, False: {}}
            calls = [gate.post(body, headers=bearer(**want["stream" in body])) for body in bodies]
            answers = await asyncio.gather(*calls)
            for one_answer in answers:
                await one_answer.read()
            assert Counter(one_answer.status for one_answer in answers) == {200: 10, 429: 30}
            assert len(server.seen) == 10
            server.seen.clear()
            assert sum(row["cost_nano"] for row in await ledger_rows(gate)) == 10 * 10**9
            assert gate.ledger.spent("team-a").day_nano == 10 * 10**9
        assert fast(gates[1]) > 0 and reasons(gates[1])["budget"] > 0


async def test_gateways_that_divide_limits_have_their_part_in_both_lanes() -> None:
    one = tenant(requests(20), budget=Budget(day_nano=10**15))
    async with lanes(one, gateways=share_of(4)) as (gates, _):
        for gate in gates:
            statuses = Counter([(await gate.post(headers=bearer())).status for _ in range(7)])
            assert statuses == {200: 5, 429: 2}
        assert await books(gates[0]) == await books(gates[1])


async def test_other_gateways_change_the_part_of_the_lane() -> None:
    one, ready = tenant(requests(20)), ReadyGateways("gateway-0")
    async with lanes(one, planes=("required",), gateways=ready) as ((gate,), _):
        assert (await gate.post(headers=bearer())).status == 200
        ready.seen("/slice", [f"gateway-{number}" for number in range(4)])
        lane = gate.edge.lane
        assert lane is not None
        lane.tenants_changed()  # as the port has it done four times in a second
        statuses = Counter([(await gate.post(headers=bearer())).status for _ in range(6)])
        assert statuses == {200: 4, 429: 2}


async def test_while_the_server_of_limits_is_away_its_tenants_are_pythons() -> None:
    """Each gateway has its part then, which Python counts."""
    free = replace(tenant(Limits(), name="free", key=OTHER), policy=Policy(Limits(), PRICES))
    known = (tenant(), free)
    async with lanes(*known, planes=("required",), redis_url=f"redis://{harness.refused_url()[7:]}/0") as ((gate,), _):
        for key in (KEY, OTHER):
            assert (await gate.post(headers=bearer(key, Connection="close"))).status == 200
        await until_async(lambda: (fast(gate), reasons(gate)) == (1, {"limit": 1}))


async def test_a_tenant_with_guards_is_pythons_and_others_are_not() -> None:
    guards = (GuardSpec("words", ("Output",), failure_policy="Ignore"),)
    known = replace(tenant(Limits(), name="guarded"), guards=guards), tenant(Limits(), key=OTHER, name="plain")
    async with lanes(*known, planes=("required",)) as ((gate,), _):
        for key in (KEY, OTHER):
            async with await gate.post(headers=tenants.bearer(key)) as response:
                assert response.status == 200
        assert reasons(gate) == {"guards": 1} and fast(gate) == 1


async def test_an_engine_that_knows_no_tenants_gets_their_requests_from_python() -> None:
    async with lanes(tenant(), planes=("required",)) as ((gate,), server):
        table = harness.table(9, ("rev", 100, [server.url]))
        table.engines[server.url] = "vllm"
        gate.balancer.publish(table)
        assert (await gate.post(headers=bearer())).status == 200
        assert b"cache_salt" in server.bodies[-1]
        assert reasons(gate) == {"isolation": 1}


async def test_a_client_that_leaves_keeps_its_reservation_in_both_lanes() -> None:
    async with lanes(tenant()) as (gates, server):
        for number, gate in enumerate(gates):
            _, writer = await connect(gate)
            writer.write(post(more=b"x-want: slow\r\nAuthorization: Bearer %b\r\n" % KEY.encode()))
            await until_async(lambda number=number: len(server.seen) == number + 1)  # type: ignore[misc]
            await drop(writer)
            await until_async(lambda gate=gate: gate.outcomes() == {"client_closed": 1})  # type: ignore[misc]
        await until_async(lambda: fast(gates[1]) == 1)
        python, both = [await books(gate) for gate in gates]
        assert python == both
        assert both["ledger"] == [] and both["owed"]["team-a", "requests"] == 1
        assert [gate.ledger.spent("team-a").day_nano for gate in gates] == [0, 0]


async def test_what_python_goes_on_with_is_taken_and_charged_once() -> None:
    """A request that the lane has sent keeps what it took: no other one gets that between both lanes."""
    one = tenant(requests(3), budget=Budget(day_nano=10**15))
    async with lanes(one, max_attempts=1) as (gates, _):
        for gate in gates:
            wants = ("loop", "slow", "500", "404")
            statuses = [(await gate.post(headers=bearer(**{"x-want": want}))).status for want in wants]
            assert statuses == [200, 200, 500, 429]
            quota = gate.admission.quotas.find("team-a")
            assert quota is not None and quota.running == 0
            assert gate.ledger.spent("team-a").day_nano == sum(row["cost_nano"] for row in await ledger_rows(gate))
        assert reasons(gates[1]) == {"judged": 1, "slow": 1, "status": 1, "limit": 1}
        assert await books(gates[0]) == await books(gates[1])


async def test_what_lane_and_ledger_have_is_the_usage_of_the_responses_to_the_token() -> None:
    random = Random(5)
    keys = {f"team-{number}": tenants.make_key(f"key{number:03}") for number in range(8)}
    due: Counter[tuple[str, str]] = Counter()

    async def serve(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        usage = {"prompt_tokens": body["want"][0], "completion_tokens": body["want"][1]}
        return web.json_response(ANSWER | {"usage": usage})

    known = [tenant(Limits(), name=name, key=key) for name, key in keys.items()]
    async with lanes(*known, planes=("required",), handler=serve) as ((gate,), _):
        writing = asyncio.create_task(gate.ledger.run())

        async def client(name: str, count: int) -> None:
            for _ in range(count):
                want = [random.randrange(60), random.randrange(40)]
                async with await gate.post({"model": "chat", "want": want}, headers=bearer(keys[name])) as done:
                    usage = (await done.json())["usage"]
                due[name, "requests"] += 1
                due[name, "input_tokens"] += usage["prompt_tokens"]
                due[name, "output_tokens"] += usage["completion_tokens"]
                due[name, "cost_nano"] += PRICES[0].cost_nano(usage_of(usage))
                if random.random() < 0.05:
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(client(name, 60) for name in keys for _ in range(2)))
        rows = await ledger_rows(gate)
        got: Counter[tuple[str, str]] = Counter()
        for row in rows:
            for count in ("requests", "input_tokens", "output_tokens", "cost_nano"):
                got[row["tenant"], count] += row[count]
        writing.cancel()
        assert +got == +due
        # On a busy machine Python serves some: a body that comes late, for example.
        await until_async(lambda: fast(gate) > 900)
        assert all(gate.ledger.spent(name).day_nano == due[name, "cost_nano"] for name in keys)
        # One row for each batch, and not for each response.
        assert gate.metrics.registry.get_sample_value("slipway_gateway_ledger_waiting") == 0


def usage_of(reported: dict[str, int]) -> Any:
    from slipway_gateway.quotas.usage import Usage

    return Usage(reported["prompt_tokens"], reported["completion_tokens"])


async def test_a_sample_of_tenants_requests_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.fast_lane.lane.RECOUNT_ONE_IN", 1)

    def results(gate: Gateway) -> dict[str, int]:
        return {
            sample.labels["result"]: int(sample.value)
            for family in gate.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "slipway_gateway_recounts_total"
        }

    async with lanes(tenant(), planes=("required",), handler=paid_answer) as ((gate,), _):
        cases = [case for case in REQUESTS.values() if not case[3]]
        for headers, fields, path, _ in cases:
            await (await gate.post({"model": "chat"} | fields, path, headers=headers)).read()
        await until_async(lambda: results(gate) == {"same": len(cases)})
        monkeypatch.setattr("slipway_gateway.quotas.prices.Price.cost_nano", lambda self, usage: 1)
        await (await gate.post(headers=bearer())).read()
        await until_async(lambda: results(gate) == {"same": len(cases), "cost": 1})
        await until_async(lambda: fast(gate) == len(cases) + 1)
        before = fast(gate)
        assert (await gate.post(headers=bearer())).status == 200 and fast(gate) == before
        assert gate.balancer.report()["default/chat"].recounts_differ == ("cost",)


async def test_lines_of_the_access_log_have_the_tenant_in_both_lanes() -> None:
    lines: list[dict[str, Any]] = []

    class Writer:
        def put(self, owner: str, line: bytes) -> None:
            lines.append(json.loads(line) | {"owner": owner})

        async def close(self) -> None:
            pass

    async with lanes(tenant(), handler=paid_answer) as (gates, _):
        for want in ("", "no usage"):
            for gate in gates:
                gate.edge.access_log._writer, before = Writer(), gate.edge.access_log._writer
                came = len(lines)
                await (await gate.post(headers=bearer(**{"x-want": want}))).read()
                await until_async(lambda came=came: len(lines) == came + 1)  # type: ignore[misc]
                gate.edge.access_log._writer = before
                before.put("", json.dumps(lines[-1]).encode())
        chance = ("ts", "request_id", "duration_ms", "ttft_ms", "upstream")
        kept = [{name: value for name, value in line.items() if name not in chance} for line in lines]
        assert kept[0] == kept[1] and kept[2] == kept[3]
        assert (kept[0]["tenant"], kept[0]["key_id"], kept[3]["tokens_estimated"]) == ("team-a", "k1First", True)
        await until_async(lambda: fast(gates[1]) == 2)


async def check_runs(plane: str, count: int) -> None:
    """One gateway without a server of limits. Requests of a tenant end in all ways, in both lanes."""
    runs = [draw(seed, beyond=seed % 2 > 0, budgets=True) for seed in range(count)]
    server = ModelServer(dict(enumerate(runs)))
    known = [run.tenant for run in runs]
    async with lanes(*known, planes=(plane,), handler=server.answer) as ((gate,), _):
        writing = asyncio.create_task(gate.ledger.run())
        first_day, waiting = day_begin(gate.ledger.hour), list(runs)

        async def play_some(session: aiohttp.ClientSession) -> None:
            while waiting:
                await play(waiting.pop(), (gate, gate), session)

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(play_some(session) for _ in range(8)))
        found: dict[str, Counter[str]] = {}
        for row in await ledger_rows(gate):
            counts = {name: row[name] for name in ("requests", "input_tokens", "output_tokens")}
            found.setdefault(row["tenant"], Counter()).update(counts)
        writing.cancel()
        assert {name: +counts for name, counts in found.items()} == {
            run.tenant.name: +run.billed for run in runs if run.billed
        }
        days = 1 + (day_begin(gate.ledger.hour) != first_day)
        served = fast(gate)
        quotas = gate.admission.quotas
        assert not any(quota.running for name in quotas.names() if (quota := quotas.find(name)))
    # Clients that left are settled a moment after the next request of theirs may come.
    assert not {run.tenant.name: over for run in runs if (over := overshoot(run, 2 * run.lanes))}
    assert not {run.tenant.name: over for run in runs if (over := overspent(run, days)) > 0}
    totals = summed(runs)
    assert all(totals[name] > 2 * count for name in ("taken", "rate_limit_exceeded", "insufficient_quota")), totals
    assert (served > count) is (plane == "required")


@pytest.mark.parametrize("plane", ["off", "required"])
async def test_requests_of_any_kind_exceed_no_limit_and_no_budget_by_more_than_stated(plane: str) -> None:
    await check_runs(plane, 20)


@pytest.mark.extended
@pytest.mark.timeout(1800)
async def test_a_thousand_random_runs_in_both_lanes_exceed_nothing_by_more_than_stated() -> None:
    await check_runs("required", 1000)
