"""The position that the server sends beside its events is the one that the gateway sends to the next server."""

import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_contracts.headers import RESUMABLE, RESUME, RESUME_BYTES, STREAM
from slipway_gateway.wire import resume as theirs
from slipway_gateway.wire.sse import EventAligner
from slipway_process.serving.errors import HttpError
from slipway_server.engine.request import FinishReason
from slipway_server.http.responses import resume as ours
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.sse import CRASHED, _frames
from slipway_server.http.slipway import typed_events

BODY = b'{"model":"chat","stream":true}'
# Tokens of which some have no text of their own, as parts of a character or what could become a stop string.
WORDS = {token: "" if token % 3 == 0 else f"<{token}>" for token in range(1, 30)}
TOKENS = tuple(range(1, 30))


async def deltas(resumed: tuple[int, ...]) -> AsyncIterator[Delta]:
    """A model with a constant output; the resumed tokens are no work for it."""
    assert TOKENS[: len(resumed)] == resumed
    for count, token in enumerate(TOKENS, 1):
        yield Delta(WORDS[token], count, token, FinishReason.LENGTH if count == len(TOKENS) else None)


def served(headers: CIMultiDict[str], body: bytes) -> tuple[dict[str, str], bytes]:
    """All that a server answers: headers and the bytes of the stream."""
    request = ours.parse_request(headers, body)
    assert request.body == BODY
    identity = request.resume.identity if request.resume else ours.Identity(2**63 + 5)
    progress = request.track_progress(identity, streamed=True)
    assert progress

    async def run() -> bytes:
        events = typed_events(deltas(request.resumed_tokens), 3, progress)
        return b"".join([frame async for frame in _frames(events, progress)])

    return {STREAM: str(identity)}, at_once(run())


def at_once(work: Coroutine[None, None, bytes]) -> bytes:
    """Nothing here waits for anything, so that no loop is needed."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def events_of(stream: bytes) -> list[dict[str, Any]]:
    parts = [dict(line.split(": ", 1) for line in part.split("\n")) for part in stream.decode().split("\n\n")[:-1]]
    assert all(set(part) == {"id", "data"} for part in parts)
    return [part | {"data": json.loads(part["data"])} for part in parts]


def asked_first() -> CIMultiDict[str]:
    return CIMultiDict({RESUMABLE: "1"})


def taking_up(resume: str) -> CIMultiDict[str]:
    return CIMultiDict({RESUMABLE: "1", RESUME: resume})


@settings(deadline=None)
@given(st.lists(st.integers(0, 2600), max_size=4), st.booleans())
@example([0, 0, 0], True)
@example([2600], True)
def test_a_stream_cut_at_any_bytes_comes_out_whole(cuts: list[int], remembers: bool) -> None:
    headers, whole = served(asked_first(), BODY)
    trail, aligner = theirs.StreamProgress.begin(headers, "rev", "00aa"), EventAligner()
    assert trail
    if not remembers:
        trail._whole = False
    sent, (asking, tokens) = b"", (asked_first(), b"")
    for cut in [*cuts, len(whole)]:
        _, stream = served(asking, BODY + tokens)
        sent += trail.add_ids(aligner.feed(stream[:cut])) if stream[:cut] else b""
        aligner.drop()
        asking, tokens = trail.resume_request(asked_first(), b"")
        assert remembers or not tokens
    events = events_of(sent)
    assert "".join(event["data"].get("token", "") for event in events) == "".join(WORDS.values())
    assert [event["data"]["type"] for event in events].count("done") == 1
    assert events[-1]["data"]["usage"] == {"input_tokens": 3, "output_tokens": len(TOKENS)}
    assert len({event["id"] for event in events}) == len(events)


@settings(deadline=None)
@given(st.integers(0, 20))
def test_an_event_id_leads_to_the_events_after_it(index: int) -> None:
    headers, stream = served(asked_first(), BODY)
    trail = theirs.StreamProgress.begin(headers, "a/b.c 1", "0b1c")
    assert trail
    events = events_of(trail.add_ids(stream))
    index %= len(events)
    place = theirs.place(events[index]["id"])
    assert place and (place.revision, place.holder) == ("a/b.c 1", "0b1c")
    assert str(headers[STREAM]) == place.stream == trail.stream
    # Ids of a gateway of a version without the place of a stream.
    assert theirs.place(events[index]["id"].removesuffix(".0b1c")) == theirs.ResumePoint(place.revision, place.resume)
    again, rest = served(taking_up(place.resume), BODY)
    second = theirs.StreamProgress.begin(again, "a/b.c 1", "0b1c")
    assert second
    assert (events_of(second.add_ids(rest)) if rest else []) == events[index + 1 :]
    # When this one breaks in its turn, the next server gets the tokens that the client had before, too.
    if rest:
        assert ours._tokens(second.resume_request(CIMultiDict(), b"")[1]) == TOKENS


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(0, 9), st.integers(0, 2600))
def test_stream_resumes_from_any_event_before_the_remembered_tokens(index: int, lost: int, cut: int) -> None:
    """The gateway sent more than arrived; the next one breaks in its turn."""
    headers, stream = served(asked_first(), BODY)
    trail = theirs.StreamProgress.begin(headers, "rev", "0b1c")
    assert trail
    events = events_of(trail.add_ids(stream))
    index %= len(events)
    place = theirs.place(events[index]["id"])
    assert place
    known = b"".join(b"%d," % token for token in TOKENS[: int(place.resume.split(".")[1]) + lost])
    asking = taking_up(place.resume)
    asking[RESUME_BYTES] = str(len(known))
    again, rest = served(asking, BODY + known)
    second, aligner = theirs.StreamProgress.begin(again, "rev", "0b1c", known), EventAligner()
    assert second
    sent = second.add_ids(aligner.feed(rest[:cut])) if rest[:cut] else b""
    asking, tokens = second.resume_request(asking, known)
    _, rest = served(asking, BODY + tokens)
    sent += second.add_ids(rest) if rest else b""
    assert (events_of(sent) if sent else []) == events[index + 1 :]


def test_another_answer_is_noticed() -> None:
    headers, stream = served(asked_first(), BODY)
    trail = theirs.StreamProgress.begin(headers, "rev", "0b1c")
    assert trail
    events = events_of(trail.add_ids(stream))
    place = theirs.place(events[7]["id"])
    assert place
    wrong = place.resume[:-1] + ("0" if place.resume[-1] != "0" else "1")
    far = place.resume.rsplit(".", 2)[0] + ".99.00000000"
    for resume in (wrong, far):
        with pytest.raises(HttpError) as refused:
            served(taking_up(resume), BODY)
        assert (refused.value.status, refused.value.code) == (410, "stream_gone")


@pytest.mark.parametrize(
    ("resume", "size", "tail"),
    [("x", "0", b""), ("1-1-" + "a" * 32 + ".1.00000000", "99", b""), ("1-1-" + "a" * 32 + ".1.00000000", "1", b"x")],
)
def test_invalid_resume_headers_are_a_400(resume: str, size: str, tail: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        ours.parse_request({RESUME: resume, RESUME_BYTES: size}, b"{}" + tail)
    assert refused.value.status == 400


@pytest.mark.parametrize("given", ["", "42", "rev.1-1-abc.1.00000000", "r\u00e9v.1-1-" + "a" * 32 + ".1.00000000"])
def test_foreign_event_ids_are_not_taken(given: str) -> None:
    assert theirs.place(given) is None


def test_streams_without_marks_are_forwarded_unchanged() -> None:
    assert theirs.StreamProgress.begin({}, "rev", "0b1c") is None
    assert theirs.StreamProgress.begin({STREAM: "x\n: forged"}, "rev", "0b1c") is None


def test_memory_of_a_stream_is_bounded() -> None:
    trail = theirs.StreamProgress("1-1-" + "a" * 32, "rev", "0b1c")
    for position in range(3000):
        trail.add_ids(b": %d.00000000 %s\ndata: {}\n\n" % (position, b",".join([b"123456"] * 10)))
    headers, tokens = trail.resume_request(CIMultiDict(), b"")
    assert (headers[RESUME_BYTES], tokens) == ("0", b"")
    assert not trail._tokens


def test_crash_in_a_comment_changes_no_resume_point() -> None:
    headers, whole = served(asked_first(), BODY)
    trail = theirs.StreamProgress.begin(headers, "rev", "00aa")
    assert trail
    events = whole.split(b"\n\n")
    came = trail.add_ids(b"\n\n".join(events[:3]) + b"\n\n")
    before = trail.resume_request(CIMultiDict(), b"")
    assert trail.add_ids(CRASHED) == CRASHED, "clients pass comments over"
    assert trail.resume_request(CIMultiDict(), b"") == before
    request, tokens = trail.resume_request(asked_first(), b"")
    _, rest = served(request, BODY + tokens)
    at_once_whole = theirs.StreamProgress.begin(headers, "rev", "00aa")
    assert at_once_whole and came + trail.add_ids(rest) == at_once_whole.add_ids(whole)


@pytest.mark.parametrize("more", [0, 1])
def test_a_server_reads_as_many_tokens_as_a_gateway_keeps_and_no_more(more: int) -> None:
    """They are read where they stop other requests: 16 MB of them took seconds."""
    tokens = b"12345678," * (theirs.MAX_TOKEN_BYTES // 9)
    tokens += b"1" * (theirs.MAX_TOKEN_BYTES - len(tokens) + more)
    place = f"{'1' * 16}-1-{'a' * 32}.5.00000000"
    headers = CIMultiDict({RESUME: place, RESUME_BYTES: str(len(tokens))})
    if not more:
        assert len(ours.parse_request(headers, BODY + tokens).resumed_tokens) > 14_000
        return
    with pytest.raises(HttpError, match=f"the most is {theirs.MAX_TOKEN_BYTES}"):
        ours.parse_request(headers, BODY + tokens)
