"""A web service on a real socket: the request, the part of the answer that is taken, and Secrets without a leak."""

import pytest
from aiohttp import web

from slipway_operator.kube.errors import Refused, Unavailable
from slipway_operator.manifests.pods.tenant_key import release_secret
from slipway_operator.model.analysis.measure import Header, Measure, Question, SecretKey, Web

TOKEN = Header("Authorization", secret=SecretKey("token", "bearer"))


async def ask(service, providers, path="/score?a=b", **fields):
    question = Question("k", Measure("score", web=Web(str(service.make_url(path)), **{"timeout_s": 5, **fields})))
    return await providers.measure("default", question)


async def test_all_of_the_answer_or_a_part_of_it(service, providers):
    assert (await ask(service, providers)).value == {"ok": True}
    assert (await ask(service, providers, json_path="{$.ok}")).value is True
    assert service.got[0][0].query_string == "a=b"


async def test_a_body_is_json_unless_a_header_says_otherwise(service, providers):
    await ask(service, providers, method="POST", body='{"a": 1}')
    await ask(service, providers, method="PUT", body="a,b", headers=(Header("content-type", "text/csv"),))
    (first, body), (second, csv) = service.got
    assert (first.method, first.headers["Content-Type"], body) == ("POST", "application/json", b'{"a": 1}')
    assert (second.method, second.headers.getall("Content-Type"), csv) == ("PUT", ["text/csv"], b"a,b")


@pytest.mark.parametrize(
    ("reply", "path", "message"),
    [
        (
            web.Response(status=500, text="it broke\nbadly"),
            "",
            "500: no measurement, for the status is not 2xx (14 bytes)",
        ),
        (web.Response(status=404), "", "404: no measurement, for the status is not 2xx (0 bytes)"),
        (
            web.Response(status=302, headers={"Location": "http://elsewhere/"}),
            "",
            "302 Found: redirects are not followed",
        ),
        (web.Response(text="fine"), "", "200: the answer of 4 bytes is no JSON from character 0 on"),
        (web.json_response({"a": 1}), "{$.b}", "jsonPath {$.b}: the answer has no 'b' there"),
        (web.json_response({"a": 1}), "{$..b}", "cannot be read"),
    ],
)
async def test_answer_without_a_value_is_refused_with_the_reason(service, providers, reply, path, message):
    async def give(request):
        return reply

    service.reply = give
    answer = await ask(service, providers, json_path=path)
    assert message in answer.problem and "broke" not in answer.problem and "fine" not in answer.problem


async def test_header_from_a_secret_is_read_each_time(service, providers, secrets):
    secrets.data["token"] = {"bearer": b"Bearer one\n"}
    await ask(service, providers, headers=(TOKEN, Header("X-Team", "qa")))
    secrets.data["token"] = {"bearer": b"Bearer two"}
    await ask(service, providers, headers=(TOKEN,))
    assert [request.headers["Authorization"] for request, _ in service.got] == ["Bearer one", "Bearer two"]
    assert service.got[0][0].headers["X-Team"] == "qa"


@pytest.mark.parametrize(
    ("data", "failure", "message"),
    [
        ({}, None, "cannot be read: there is no such Secret in namespace default"),
        ({"token": {"other": b"x"}}, None, "cannot be read: the Secret has no such key"),
        ({"token": {"bearer": b"\xff\xfe"}}, None, "cannot be sent: it is no text"),
        (
            {},
            Refused(403, "secrets is forbidden"),
            "may not be read: allow the operator to get it by a Role in namespace",
        ),
        ({}, Unavailable("503: away"), "cannot be read: 503: away"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_named_with_its_key(service, providers, secrets, data, failure, message):
    secrets.data, secrets.failure = data, failure
    answer = await ask(service, providers, headers=(TOKEN,))
    assert answer.problem.startswith("Secret 'token', key 'bearer', ") and message in answer.problem
    assert service.got == [], "nothing is sent without it"


async def test_keys_of_the_release_are_never_sent(service, providers, secrets):
    secrets.data["token"] = {"bearer": b"Bearer one"}
    secrets.labels = release_secret("default", "token", ())["metadata"]["labels"]
    answer = await ask(service, providers, headers=(TOKEN,))
    assert "it holds keys of Slipway" in answer.problem and service.got == []


async def test_a_secret_is_in_no_message(service, providers, secrets):
    secrets.data["token"] = {"bearer": b"s3cret\nX-Evil: 1"}
    answer = await ask(service, providers, headers=(TOKEN,))
    assert answer.problem and "s3cret" not in answer.problem
    assert service.got == []
