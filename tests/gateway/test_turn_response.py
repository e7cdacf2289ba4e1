"""Events of a turn as the gateway cuts them, however they arrive."""

import itertools
import json
import time

from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.conversations.turn_response import EventReader, written_response

RESPONSE = {"id": "resp_1", "status": "completed", "output": []}
STREAM = (
    b'event: a\r\ndata: {"type": "response.output_text.delta", "delta": "x"}\r\n\r\n'
    b": alive\n\n"
    b"data: " + json.dumps({"type": "response.completed", "response": RESPONSE}).encode() + b"\n\nrest"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    reader, ends = EventReader(), [0, *sorted(cuts), len(STREAM)]
    events = [event for begin, end in itertools.pairwise(ends) for event in reader.feed(STREAM[begin:end])]
    assert b"".join(event.data for event in events) + reader.rest() == STREAM
    assert [event.response is not None for event in events if event.data.startswith((b"event", b"data"))] == [
        False, True
    ]  # fmt: skip


def test_a_long_event_in_small_pieces_is_searched_once() -> None:
    reader, piece = EventReader(), b"x" * 8
    began_s = time.process_time()
    for _ in range(1 << 16):
        assert reader.feed(piece) == []
    assert time.process_time() - began_s < 2
    assert reader.held_bytes == 1 << 19


def test_a_response_of_too_many_values_is_not_stored() -> None:
    """A server is a stranger: its members are counted before any of them is made."""
    few, many = (
        {"id": "resp_1", "status": "completed", "output": [], "tools": ["a"] * count} for count in (8, 300_000)
    )
    assert written_response(json.dumps(few).encode()) is not None
    assert written_response(json.dumps(many).encode()) is None
