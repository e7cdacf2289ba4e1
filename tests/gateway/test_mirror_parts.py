"""Mirroring without a network: choice of requests, mirrored requests, reading of responses, counts."""

import json
from typing import Any

import pytest
from multidict import CIMultiDict

from slipway_contracts.counters import ShadowCounts, zero
from slipway_contracts.route_table import Backend, HeaderMatch, MirrorRoute
from slipway_gateway.mirror.scoring import MAX_SCORED_BYTES, build_scoring_request, count_flips
from slipway_gateway.mirror.shadow_request import ShadowRequest, make_repeatable, make_shadow
from slipway_gateway.mirror.transcript import MAX_WHOLE_BYTES, ChoiceTexts, Transcript
from slipway_gateway.routing.mirroring import choose_mirror, is_compared
from slipway_gateway.routing.router import assign_revision
from slipway_gateway.routing.table import Route

IDS = [f"request-{n}" for n in range(4000)]


def route(*mirrors: MirrorRoute, weight: int = 0) -> Route:
    backends = (Backend("c", weight), Backend("s", 100 - weight))
    return Route("default/chat", "u", "chat", salt="c.1", backends=backends, mirror_routes=mirrors)


# -- which requests


@pytest.mark.parametrize("percentage", [0, 1, 20, 100])
def test_a_mirror_takes_its_share_and_the_same_requests_each_time(percentage: int) -> None:
    shown = route(MirrorRoute("m", "c", percentage))
    taken = [name for name in IDS if choose_mirror(shown, "s", name, CIMultiDict())]
    assert taken == [name for name in IDS if choose_mirror(shown, "s", name, CIMultiDict())]
    # Five standard deviations of a binomial share of 4000.
    assert (
        abs(len(taken) / len(IDS) - percentage / 100) <= 5 * (percentage * (100 - percentage) / 1e4 / len(IDS)) ** 0.5
    )


def test_mirrored_share_is_independent_of_split_and_comparison() -> None:
    shown = route(MirrorRoute("m", "c", 50), weight=50)
    mirrored = {name for name in IDS if choose_mirror(shown, "s", name, CIMultiDict())}
    split = {name for name in IDS if assign_revision(shown, f"request:{name}") == "c"}
    compared = {name for name in IDS if is_compared(shown, name, 50)}
    for other in (split, compared):
        assert abs(len(mirrored & other) / len(IDS) - 0.25) < 0.035


def test_only_matching_requests_of_other_revisions_are_mirrored() -> None:
    testers = (HeaderMatch("x-team", prefix="qa-"),)
    shown = route(MirrorRoute("m", "c", 100, testers), MirrorRoute("all", "d", 100))
    headers = CIMultiDict({"X-Team": "qa-blue"})
    assert choose_mirror(shown, "s", "r", headers) == shown.mirror_routes[0]
    assert choose_mirror(shown, "s", "r", CIMultiDict()) == shown.mirror_routes[1]
    assert choose_mirror(shown, "c", "r", headers) == shown.mirror_routes[1]
    assert choose_mirror(shown, "d", "r", CIMultiDict()) is None


# -- the mirrored request


def ask(body: object, path: str = "/v1/completions?x=1") -> ShadowRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"X-Slipway-Tenant": "a" * 32, "X-Slipway-Resumable": "1", "Accept-Encoding": "gzip", "X-Request-Id": "r"}
    return ShadowRequest(path, CIMultiDict(headers), raw)


def test_a_shadow_is_marked_and_is_another_tenant() -> None:
    request = ask({"model": "chat"})
    made = make_shadow(request)
    assert (made.headers["X-Slipway-Shadow"], made.headers["X-Request-Id"]) == ("1", "r")
    assert len(made.headers["X-Slipway-Tenant"]) == 32 and made.headers["X-Slipway-Tenant"] != "a" * 32
    assert "X-Slipway-Resumable" not in made.headers and "Accept-Encoding" not in made.headers
    assert (made.path_qs, made.body) == (request.path_qs, request.body)
    assert "X-Slipway-Resumable" in request.headers, "the client's own request stays as it is"


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 0.0, "seed": None}, {"seed": 7}])
def test_deterministic_request_is_mirrored_unchanged(fields: dict[str, Any]) -> None:
    request = ask({"model": "chat", **fields})
    found = make_repeatable(request, "r")
    assert found and not found.repeat_stable and found.request == request


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7}, {"seed": None}, {"temperature": None}, {"temperature": False}]
)
def test_random_sampling_gets_a_seed_from_the_request_id(fields: dict[str, Any]) -> None:
    request = ask({"model": "chat", **fields})
    one, same, other = make_repeatable(request, "r"), make_repeatable(request, "r"), make_repeatable(request, "r2")
    assert one and same and other and one.repeat_stable
    assert one.request.body == same.request.body != other.request.body
    body = json.loads(one.request.body)
    assert 0 <= body.pop("seed") < 1 << 31
    assert body == {name: value for name, value in {"model": "chat", **fields}.items() if name != "seed"}
    assert one.request.body.startswith(request.body.rstrip(b"}"))


@pytest.mark.parametrize("body", [b"{}", b" { } \n", b'{"model": "{}"}  '])
def test_a_seed_fits_behind_whatever_is_there(body: bytes) -> None:
    found = make_repeatable(ask(body), "r")
    assert found and json.loads(found.request.body) == json.loads(body) | {
        "seed": json.loads(found.request.body)["seed"]
    }


def test_an_endpoint_without_seeds_is_compared_when_it_is_greedy_alone() -> None:
    path = "/api/v1/generate"
    assert make_repeatable(ask({"prompt": "x"}, path), "r") is None
    assert make_repeatable(ask({"prompt": "x", "temperature": 0}, path), "r")


# -- what is read


def events(*parts: object, done: bool = True) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(part).encode() for part in parts) + b"data: [DONE]\n\n" * done


def delta(text: str, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"completion_tokens": 2}}
CALL = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}
STREAMS: list[tuple[bytes, ChoiceTexts | None]] = [
    (events(delta("Hel"), delta("lo"), USAGE), ("Hello",)),
    (events(delta("a", 1), delta("b"), delta("c", 1)), ("b", "ac")),
    (events(delta("", finish="stop")), ("",)),
    (events(), ("",)),
    (events(delta("a", finish="stop"), done=False), ("a",)),
    (b": 1.00 7,8\n" + events(delta("a")), ("a",)),
    (events({"type": "token", "token": "a"}, {"type": "done", "finish_reason": "stop"}, done=False), ("a",)),
    (events({"token": "a"}, {"token": "b"}), ("ab",)),
    (events(delta("a"), done=False), None),  # it broke off
    (events(delta("a"), {"error": {"message": "no"}}), None),
    (events(CALL), None),
    (events({"other": 1}), None),
    (b"data: {nonsense\n\n", None),
    (b"\x00\xff\n\n\x00", None),
    (b"", None),
]


@pytest.mark.parametrize(("stream", "texts"), STREAMS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_stream_is_read_in_any_pieces(stream: bytes, texts: ChoiceTexts | None, size: int) -> None:
    transcript = Transcript(streamed=True)
    for begin in range(0, len(stream), size):
        transcript.feed(stream[begin : begin + size])
    assert transcript.texts() == texts


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"choices": [{"message": {"content": "Hi"}}]}, ("Hi",)),
        ({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}, ("a", "b")),
        ({"text": "Hi", "usage": {}}, ("Hi",)),
        ({"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, None),
        ({"error": {"message": "no"}}, None),
        ({"data": [{"embedding": [1.0]}]}, None),
        ([1], None),
    ],
)
def test_a_whole_answer_is_read(body: object, texts: ChoiceTexts | None) -> None:
    transcript = Transcript(streamed=False)
    transcript.feed(json.dumps(body).encode())
    assert transcript.texts() == texts


def test_no_answer_takes_more_memory_than_is_set() -> None:
    whole = Transcript(streamed=False)
    for _ in range(3):
        whole.feed(b"x" * (MAX_WHOLE_BYTES // 2))
    assert len(whole.body) <= MAX_WHOLE_BYTES and whole.texts() is None
    stream = Transcript(streamed=True)
    for _ in range(40):
        stream.feed(events(delta("x" * (64 << 10)), done=False))
    stream.feed(events())
    found = stream.texts()
    assert found and len(found[0]) < 1 << 20 and found != ("short",)


# -- what is scored


def scored(*tokens: tuple[str, int], chat: bool = False) -> bytes:
    """A response with rank and text of each token of a prompt."""
    logprobs = [
        None,
        *({str(n): {"logprob": -1.0, "rank": rank, "decoded_token": text}} for n, (text, rank) in enumerate(tokens)),
    ]
    body = (
        {"choices": [{"text": "x"}], "prompt_logprobs": logprobs}
        if chat
        else {"choices": [{"prompt_logprobs": logprobs}]}
    )
    return json.dumps(body).encode()


@pytest.mark.parametrize("chat", [True, False])
def test_flips_are_counted_in_the_answer_alone(chat: bool) -> None:
    tokens = (("Say", 9), (" it:", 4), (" one", 1), (" two", 2), (" three", 7), ("<end>", 5))
    assert count_flips(scored(*tokens, chat=chat), (" one two three",)) == 2
    assert count_flips(scored(*tokens, chat=chat), (" one",)) == 0
    # A token that the answer begins inside of is a part of it.
    assert count_flips(scored(*tokens, chat=chat), ("two",)) == 1


@pytest.mark.parametrize(
    "answer", [b"{", b"{}", b'{"choices": []}', b'{"prompt_logprobs": [null]}', scored(("other", 1))]
)
def test_unscored_responses_have_no_flips(answer: bytes) -> None:
    assert count_flips(answer, ("text",)) is None


def test_scoring_request_appends_the_answer_to_its_prompt() -> None:
    made = build_scoring_request(ask({"model": "chat", "prompt": "Say", "stream": True, "stop": ["x"]}), (" it",))
    assert made and json.loads(made.body) == {
        "model": "chat",
        "prompt": "Say it",
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
    }
    messages = [{"role": "user", "content": "Hi"}]
    made = build_scoring_request(ask({"model": "chat", "messages": messages}, "/v1/chat/completions"), ("Hello",))
    assert made and json.loads(made.body)["messages"] == [*messages, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("body", "path", "texts"),
    [
        ({"prompt": ["a", "b"]}, "/v1/completions", ("x",)),
        ({"prompt": "a", "echo": True}, "/v1/completions", ("ax",)),
        ({"prompt": "a"}, "/v1/generate", ("x",)),
        ({"prompt": "a"}, "/v1/completions", ("x", "y")),
        ({"prompt": "a"}, "/v1/completions", ("",)),
        ({"prompt": "a"}, "/v1/completions", ("x" * MAX_SCORED_BYTES,)),
    ],
)
def test_unscorable_response_sends_no_scoring_request(body: object, path: str, texts: ChoiceTexts) -> None:
    assert build_scoring_request(ask(body, path), texts) is None


# -- what is counted


def test_a_pair_is_counted_by_who_differs_more() -> None:
    pairs = zero(ShadowCounts)
    for canary, second in ((0, 0), (1, 0), (5, 2), (0, 1), (1, 1), (1, None), (0, None)):
        pairs.count(canary, second)
    assert pairs == ShadowCounts(pairs=5, canary_only=2, second_only=1, both=1, no_floor=2, no_floor_differs=1)
