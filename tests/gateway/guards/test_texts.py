"""Which texts of a body guards see, and what types, files and tables have of guards."""

from dataclasses import replace

import msgspec
import pytest

from slipway_contracts.guards import GuardBuiltin, GuardDeployment, GuardSpec, GuardWebhook, guards_refusal
from slipway_gateway.authentication.last_tenants import StoredTenants
from slipway_gateway.guards import texts
from slipway_gateway.guards.events import StreamEvent
from slipway_gateway.guards.protocol import GuardFailed
from slipway_gateway.guards.verdict import Span
from slipway_gateway.identity.tenants import UnreadableTenant, parse
from slipway_gateway.routing.guards import guards_of
from slipway_gateway.routing.routes_file import parse as parse_file
from slipway_gateway.routing.table import Problem

from ..tenants import tenant

WEBHOOK = GuardWebhook("https://guard.tools.svc/check")
FILE = """
models:
  chat: {guards: [{name: of-model, stages: [Input], webhook: {url: "https://g.test/"}}], backends: [{endpoints: ["http://127.0.0.1:1"]}]}
  small: {guards: [{name: of-small, stages: [Output], webhook: {url: "https://g.test/"}}], backends: [{endpoints: ["http://127.0.0.1:1"]}]}
modelRoutes:
  public:
    guards: [{name: of-route, stages: [Input], builtin: {patterns: [a]}}]
    rules: [{name: all, backendRefs: [{name: chat}]}]
"""


def test_two_texts_with_one_path_are_both_seen() -> None:
    """A member may be named like the path of another text."""
    body = b'{"messages":[{"role":"user","content":[{"type":"text","text":"evil"}],"content[0].text":"good"}]}'
    found = texts.of_request(body)
    assert sorted(found.texts.values()) == ["evil", "good"] and len(found.texts) == 2
    (path,) = (path for path, text in found.texts.items() if text == "evil")
    assert b"evil" not in found.redacted({path: (Span(0, 4, "#"),)})


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", b'"' + b"a" * (5 << 20)]
)
def test_what_is_no_request_cannot_be_checked(body: bytes) -> None:
    with pytest.raises(GuardFailed):
        texts.of_request(body)


@pytest.mark.parametrize(
    "body", [b'{"prompt": [1.0, 2.0]}', b'{"input": ["", 1]}', b'{"Prompt": [1]}', b'{"Prompt_Embeds": "AA"}']
)
def test_numbers_of_tokens_are_no_text_in_any_form(body: bytes) -> None:
    with pytest.raises(GuardFailed):
        texts.of_request(body)


def test_templates_and_names_in_another_case_go_into_the_prompt_too() -> None:
    body = b'{"Messages":[{"content":"a"}],"chat_template":"b","chat_template_kwargs":{"c":"d"},"data_1":"e"}'
    assert sorted(texts.of_request(body).texts.values()) == ["a", "b", "d", "e"]


def test_a_response_has_its_texts_and_not_those_of_the_request() -> None:
    body = b'{"id":"r","instructions":"x","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}'
    assert texts.of_response(body).texts == {"output[0].content[0].text": "a"}


def test_a_guard_is_one_kind() -> None:
    one = GuardSpec("g", ("Input",), webhook=WEBHOOK)
    assert guards_refusal([one]) == "" and "same name" in guards_refusal([one, one])
    assert "exactly one" in guards_refusal([GuardSpec("g", ("Input",))])
    assert "exactly one" in guards_refusal([replace(one, builtin=GuardBuiltin(("a",)))])
    assert "patterns, pii or json" in guards_refusal([GuardSpec("g", ("Input",), builtin=GuardBuiltin())])
    classifier = GuardSpec("g", ("Input",), deployment=GuardDeployment("c", ("bad",)))
    assert guards_refusal([classifier]) == "" and "no namespace" in guards_refusal([classifier], deployments=False)


def test_a_tenant_with_guards_is_read_and_kept_for_a_restart() -> None:
    spec = {"models": ["*"], "guards": [{"name": "g", "stages": ["Input"], "webhook": {"url": WEBHOOK.url}}]}
    known = parse({"metadata": {"name": "team"}, "spec": spec})
    assert known.guards == (GuardSpec("g", ("Input",), webhook=WEBHOOK),)
    kept = msgspec.json.decode(msgspec.json.encode(StoredTenants(1.0, [known])), type=StoredTenants)
    assert kept.tenants[0].guards == known.guards
    spec["guards"] = [{"name": "g", "stages": ["Input"], "deployment": {"name": "c", "blockLabels": ["bad"]}}]
    with pytest.raises(UnreadableTenant, match=r"spec.guards\[0\].deployment"):
        parse({"metadata": {"name": "team"}, "spec": spec})


def test_a_request_has_the_guards_of_tenant_route_deployment_and_its_fallbacks() -> None:
    table = parse_file(FILE, 1)
    assert not isinstance(table, Problem)
    (public,) = table.model_routes
    route = replace(table.models["chat"], fallback=("small",))
    known = replace(tenant("team"), guards=(GuardSpec("of-tenant", ("Input",), webhook=WEBHOOK),))
    found = guards_of(table, route, [public], known.name, known.guards, route.fallbacks)
    assert [(one.guard.name, one.owner.partition("/")[0]) for one in found] == [
        ("of-tenant", "Tenant"),
        ("of-route", "ModelRoute"),
        ("of-model", "ModelDeployment"),
        ("of-small", "ModelDeployment"),
    ]


@pytest.mark.parametrize("tokens", [5, {"a": 1}, "ab", [7, None, {"token": 3}], True])
@pytest.mark.parametrize("name", ["tokens", "content", "refusal"])
def test_tokens_of_any_shape_are_others(name: str, tokens: object) -> None:
    """A server is a stranger: what is no list of texts is not the text beside it."""
    assert texts.has_other_tokens({"choices": [{"text": "ab", "logprobs": {name: tokens}}]})


def test_tokens_beside_their_own_text_are_no_others() -> None:
    choice = {"delta": {"content": "a b"}, "text": "a b", "logprobs": {"tokens": ["a", " b"]}}
    assert texts.has_other_tokens({"choices": [choice]}), "the text is there twice"
    del choice["delta"]
    assert not texts.has_other_tokens({"choices": [choice, {"text": "c"}]})


_MANY = (
    b"[" + b"[]," * 300_000 + b"[]]",
    b"[" + b'"",' * 300_000 + b'""]',
    b"[" + b'{"index":0,"text":"a"},' * 60_000 + b"{}]",
    b"[" + b"[[]]," * 20_000 + b"[]]",
    b"[" + b'{"logprobs":{"tokens":["a"]},"text":"a"},' * 8_000 + b"{}]",
)


@pytest.mark.parametrize("many", _MANY, ids=["lists", "texts", "choices", "nested", "tokens"])
def test_what_holds_too_much_to_look_at_is_not_checked(many: bytes) -> None:
    """Of clients and of servers: nothing else runs while a body is read."""
    with pytest.raises(GuardFailed):
        texts.of_request(b'{"messages":' + many + b"}")
    with pytest.raises(GuardFailed):
        texts.of_response(b'{"choices":' + many + b"}")
    with pytest.raises(GuardFailed):
        StreamEvent(b'data: {"choices":' + many + b"}\n\n")


def test_log_probabilities_of_a_long_response_leave_its_texts_readable() -> None:
    token = b'{"token":"a","logprob":-1.5,"bytes":[97],"top_logprobs":[' + b'{"token":"b","logprob":-2},' * 4 + b"{}]},"
    response = b'{"choices":[{"message":{"content":"a"},"logprobs":{"content":[' + token * 6_000 + b"{}]}}]}"
    assert texts.of_response(response).texts == {"choices[0].message.content": "a"}
