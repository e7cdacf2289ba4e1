"""Prometheus by its documented JSON, on a real socket: which answers are values, and the error for each other one."""

import asyncio
import math

import pytest
from aiohttp import web

from slipway_operator.model.analysis.measure import Measure, Prometheus, Question
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Dialer
from slipway_operator.providers.dispatch import BODY_LIMIT_BYTES, Providers


def data(kind, result):
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def vector(*values):
    return data("vector", [{"metric": {"n": str(n)}, "value": [1.7e9, value]} for n, value in enumerate(values)])


def replies(payload, status=200):
    async def reply(request):
        return web.json_response(payload, status=status)

    return reply


def text(body, status=200):
    async def reply(request):
        return web.Response(text=body, status=status)

    return reply


def question(address, timeout_s=5, headers=()):
    return Question(
        "k", Measure("rate", prometheus=Prometheus(str(address), 'sum(rate(x{a="b"}[1m]))', headers, timeout_s))
    )


async def ask(service, providers, **fields):
    return await providers.measure("default", question(service.make_url("/prefix/"), **fields))


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (vector("0.25"), [0.25]),
        (vector("1", "2e3", "+Inf"), [1.0, 2000.0, math.inf]),
        (vector(), []),
        (data("scalar", [1.7e9, "42"]), 42.0),
        ({**vector("1"), "warnings": ["slow"], "infos": []}, [1.0]),
    ],
)
async def test_values(service, providers, payload, value):
    service.reply = replies(payload)
    answer = await ask(service, providers)
    assert (answer.problem, answer.value) == ("", value)


async def test_nan_is_kept_as_it_is(service, providers):
    service.reply = replies(vector("NaN"))
    (value,) = (await ask(service, providers)).value
    assert math.isnan(value)


async def test_the_query_and_its_time_go_where_the_api_wants_them(service, providers):
    service.reply = replies(vector("1"))
    await ask(service, providers, timeout_s=7)
    request, _ = service.got[0]
    assert (request.method, request.path) == ("GET", "/prefix/api/v1/query")
    assert dict(request.query) == {"query": 'sum(rate(x{a="b"}[1m]))', "timeout": "7s"}


MATRIX = data("matrix", [{"metric": {}, "values": [[1.7e9, "1"]]}])
BAD = {"status": "error", "errorType": "bad_data", "error": 'parse error: unexpected "}"'}
HISTOGRAM = data("vector", [{"metric": {}, "histogram": [1.7e9, {"count": "1", "sum": "2", "buckets": []}]}])


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (replies(MATRIX), "the query gives a matrix, and an analysis takes a vector or a scalar"),
        (replies(data("string", [1.7e9, "x"])), "the query gives a string"),
        (replies(BAD, 400), "400: bad_data: ask this query of Prometheus itself"),
        (
            replies({"status": "error", "errorType": "timeout", "error": "query timed out"}, 503),
            "503: timeout: ask this query",
        ),
        (text("upstream is away", 503), "503: the answer of 16 bytes is no JSON from character 0 on"),
        (text("<html>log in</html>"), "200: the answer of 19 bytes is no JSON from character 0 on"),
        (text("[" * 100_000), "200: the answer of 100000 bytes is no JSON"),
        (text(""), "200: the answer of 0 bytes is no JSON"),
        (replies({"data": {}}), "bytes that are no answer of Prometheus"),
        (replies([1]), "bytes that are no answer of Prometheus"),
        (replies({"status": "success"}), "a sample has no number"),
        (replies(HISTOGRAM), "a sample has no number"),
        (replies(vector("many")), "a sample has no number"),
    ],
)
async def test_other_answers_are_errors_that_name_what_came(service, providers, reply, message):
    service.reply = reply
    answer = await ask(service, providers)
    assert message in answer.problem
    assert answer.value is None


async def test_a_slow_one_is_cut_off_in_time(service, providers):
    release = asyncio.Event()

    async def reply(request):
        await release.wait()
        return web.Response()

    service.reply = reply
    answer = await ask(service, providers, timeout_s=0.05)
    release.set()
    assert answer.problem == "no answer within 0.05 s"


async def test_a_huge_body_is_not_read_to_its_end(service, providers):
    sent = 0

    async def reply(request):
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(400):
            await response.write(b" " * 65536)
            sent += 65536
        return response

    service.reply = reply
    answer = await ask(service, providers)
    assert answer.problem == f"the answer is longer than {BODY_LIMIT_BYTES // 1024} KiB"
    assert sent < 400 * 65536, "nor sent"


async def test_refused_connection_is_reported_with_the_address(providers):
    answer = await providers.measure("default", question("http://127.0.0.1:1"))
    assert answer.problem.startswith("127.0.0.1:1 cannot be reached: ")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9090", "http://[::1]:9090", "http://169.254.169.254"])
async def test_this_machines_own_addresses_are_refused(secrets, address):
    answer = await Providers(secrets, Dialer(EgressPolicy(), "analyses")).measure("default", question(address))
    assert answer.problem.startswith("analyses may not call ") and "it is this machine, link-local" in answer.problem


@pytest.mark.parametrize(
    ("address", "message"),
    [("ftp://x", "must start with http:// or https://"), ("{{args.x}}", "must start with"), ("http://[", "not valid")],
)
async def test_invalid_address_is_refused_with_the_reason(providers, address, message):
    assert message in (await providers.measure("default", question(address))).problem
