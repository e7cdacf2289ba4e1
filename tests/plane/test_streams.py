"""Alignment of events, their marks and ids: as Rust does it and as Python does, in every way of cutting a stream."""

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from slipway_contracts.headers import STREAM
from slipway_gateway.wire import sse
from slipway_gateway.wire.resume import StreamProgress
from slipway_gateway.wire.sse import EventAligner
from tests.plane.mutation import cut_anywhere, varying
from tests.plane.native import FEW, MILLION, Pair, name_of, needs_plane, twins

pytestmark = needs_plane

CRASHED = b": engine_crashed\n\n"
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a: b"}}]}\n\n',
    b": 12.0a1b2c3d 5,6\ndata: x\n\n",
    b": +\ndata: y\n\n",
    b": +\r\ndata: y\r\n\r\n",
    b"data: crlf\r\n\r\n",
    b"data: cr\r\r",
    b"data: mixed\n\r\n",
    b"data: [DONE]\n\n",
    b": ping\n\n",
    b": ping\r\n\r\n",
    b":\n",
    b":\n\n",
    b": 13.ffffffff\n\n",
    CRASHED,
    b": engine_crashed\r\n\r\n",
    b"\n",
    b"data: open",
    b"event: a\nid: 1\ndata: b\ndata: c\n\n",
)
TOKENS = (
    *EVENTS,
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\r",
    b":",
    b": ",
    b"+",
    b": +\n",
    b": +",
    b"data:",
    b" ",
    b"\x00",
)
LONG = (b": +\ndata: y\n\n" * 70, b"data: x\n\n" * 1000, b": +\ndata: y\n\n" * 900, b"x" * (256 << 10), b"\r" * 9000)
STREAMS = st.lists(st.sampled_from(EVENTS), max_size=8).map(b"".join)
vary_stream = varying(TOKENS)


def compare_chunks(chunks: list[bytes]) -> None:
    ours, theirs = EventAligner(), twins.EventAligner()
    for chunk in chunks:
        assert theirs.feed(chunk) == ours.feed(chunk)
        assert theirs.held_bytes == ours.held_bytes
        assert theirs.reports_crash() == ours.reports_crash()
    assert theirs.flush() == ours.flush()


def vary_chunks(chunks: list[bytes], random: Random) -> list[bytes]:
    data = vary_stream(b"".join(chunks), random)
    if random.random() < 0.02:
        at = random.randint(0, len(data))
        data = data[:at] + random.choice(LONG) + data[at:]
    return cut_anywhere(data, random)


def compare_progress(case: tuple[int, list[bytes]]) -> None:
    seed, parts = case
    random = Random(seed)
    stream = f"{random.randrange(16**4):x}-{random.randrange(16**3):x}-{'a' * 32}"
    stream = random.choice((stream, stream, stream, stream.upper(), stream + "0", "", f"-{stream}", f"{stream}-"))
    listed, revision = [(STREAM, stream.encode())] if stream else [], random.choice(("r1", "r/1 \u00e9~", ""))
    known = random.choice((b"", b"1,2,"))
    ours = StreamProgress.begin(dict(listed and [(STREAM, stream)]), revision, "00ff", known)
    theirs = twins.StreamProgress.begin(listed, revision, "00ff", known)
    assert (theirs is None) == (ours is None)
    if ours is None:
        return
    other = f"b-b-{'b' * 32}"
    for events in parts:
        assert theirs.add_ids(events) == ours.add_ids(events)
        compare_state(theirs, ours)
        step = random.randrange(8)
        if step == 0:
            ours.moves_to("1234")
            theirs.moves_to("1234")
        if step == 1:
            ours.forget()
            theirs.forget()
        if step == 2:
            assert theirs.continues([(STREAM, other.encode())]) == ours.continues({STREAM: other})


def compare_state(theirs: Any, ours: StreamProgress) -> None:
    from multidict import CIMultiDict

    stream, resume, tokens, position = theirs.state
    headers, sent = ours.resume_request(CIMultiDict(), b"before")
    value = headers.get("X-Slipway-Resume")
    assert (stream, tokens, position) == (ours.stream, ours.tokens, ours.position)
    if resume is None:
        assert (value, sent) == (None, b"before")
    else:
        assert (value, sent) == (resume.decode("ascii", "replace"), tokens)


def vary_progress(case: Any, random: Random) -> tuple[int, list[bytes]]:
    data = vary_stream(b"".join(case[1]), random)
    if random.random() < 0.02:
        data += b": 7.00000000 " + b"1" * random.choice((70_000, 140_000)) + b"\ndata: x\n\n"
    if random.random() < 0.05:
        data += b": " + b"1" * random.choice((9, 10, 5_000)) + b".00000000\ndata: x\n\n"
    return random.randrange(10**9), [part + b"\n\n" for part in data.split(b"\n\n\n\n")]


def compare_crashes(events: bytes) -> None:
    assert twins.split_crash_comment(events) == sse.split_crash_comment(events)


PAIRS = [
    Pair("aligner", STREAMS.map(lambda data: [data]), compare_chunks, vary_chunks),
    Pair(
        "progress",
        st.tuples(st.integers(0, 10**9), st.lists(st.sampled_from(EVENTS), max_size=5)),
        compare_progress,
        vary_progress,
    ),
    Pair("crashes", STREAMS, compare_crashes, vary_stream),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_aligns_streams_as_python_does(pair: Pair) -> None:
    pair.run(FEW)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_a_million_streams(pair: Pair) -> None:
    pair.run(MILLION)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_cut_at_every_byte_and_into_bytes(seed: int) -> None:
    random = Random(seed)
    data = b"".join(random.choices(EVENTS, k=14))
    compare_chunks([data[at : at + 1] for at in range(len(data))])
    for first in range(len(data) + 1):
        compare_chunks([data[:first], data[first:]])
        second = random.randint(first, len(data))
        compare_chunks([data[:first], data[first:second], data[second:]])


@pytest.mark.parametrize("long", LONG, ids=["followed", "events", "many-followed", "partial", "returns"])
def test_long_parts_are_handed_on_alike(long: bytes) -> None:
    for before in (b"", b"data: open", b": +\n", b"data: a\n"):
        for behind in (b"", b"\n\n", b"data: b\n\n"):
            compare_chunks([before + long + behind])
            compare_chunks([before, long, behind])
            compare_chunks([before + long[:5000], long[5000:] + behind])
