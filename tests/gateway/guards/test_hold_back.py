"""Random streams through the hold-back window: nothing that guards mark is shown, and all else is as it was."""

import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_gateway.guards.events import EventCutter, StreamEvent
from slipway_gateway.guards.hold_back import HoldBack
from slipway_gateway.guards.verdict import Span, merged, redacted

TOKENS, SECONDS = 8, 1.0
MARK = "#"  # the replacement, which no text has


@dataclass(frozen=True)
class Stream:
    """`tokens`: of each choice. `gaps_s`: before each event. `secrets`: what the guard finds; `vetoes`: it blocks."""

    tokens: tuple[tuple[str, ...], ...]
    gaps_s: tuple[float, ...]
    secrets: tuple[str, ...]
    vetoes: bool = False
    cuts: int = 1  # bytes of each piece


@dataclass
class Shown:
    """What a client got: texts by choice, and whether the guard ended the stream."""

    texts: dict[int, str] = field(default_factory=dict)
    blocked: bool = False
    events: int = 0

    def take(self, data: bytes) -> None:
        for event in data.split(b"\n\n"):
            if event.startswith(b"data: {"):
                for choice in json.loads(event[6:])["choices"]:
                    text = choice["delta"].get("content", "")
                    self.texts[choice["index"]] = self.texts.get(choice["index"], "") + text
                self.events += 1


def places(text: str, secrets: Iterable[str]) -> tuple[Span, ...]:
    """All places of all secrets, those that overlap as one."""
    found = [
        Span(at, at + len(secret), MARK)
        for secret in secrets
        for at in range(len(text) - len(secret) + 1)
        if text.startswith(secret, at)
    ]
    return merged(found)


def event_of(choice: int, token: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": choice, "delta": {"content": token}}]}).encode() + b"\n\n"


def pieces_of(stream: Stream) -> list[tuple[float, bytes]]:
    """The bytes of a stream with the pause before each event; choices take turns."""
    turns = [
        (choice, tokens[turn])
        for turn in range(max(map(len, stream.tokens)))
        for choice, tokens in enumerate(stream.tokens)
        if turn < len(tokens)
    ]
    gaps = [stream.gaps_s[n % len(stream.gaps_s)] for n in range(len(turns))]
    return [(gap, event_of(*turn)) for gap, turn in zip(gaps, turns, strict=True)]


def shown_of(stream: Stream) -> Shown:
    """The stream as its client gets it, with a clock that the test turns."""
    hold, cutter, shown, now_s = HoldBack(TOKENS, SECONDS), EventCutter(), Shown(), 0.0

    def advance() -> None:
        shown.take(hold.passing())
        if shown.blocked or not hold.is_due(now_s):
            return
        marked = {name: found for name, text in hold.texts().items() if (found := places(text, stream.secrets))}
        if marked and stream.vetoes:
            shown.blocked = True
            return
        shown.take(hold.seen(marked, now_s))

    for gap_s, event in pieces_of(stream):
        # The timer of a stream whose server is slow.
        while (due_s := hold.due_s()) is not None and due_s <= now_s + gap_s and not shown.blocked:
            gap_s -= due_s - now_s
            now_s = due_s
            advance()
        now_s += max(0.0, gap_s)
        for begin in range(0, len(event), stream.cuts):
            for raw in cutter.feed(event[begin : begin + stream.cuts]):
                hold.add(StreamEvent(raw), now_s)
                advance()
        if shown.blocked:
            return shown
    hold.add(StreamEvent(b"data: [DONE]\n\n"), now_s)
    advance()
    assert shown.blocked or hold.is_empty, "all of a stream that ended is shown"
    return shown


def check(stream: Stream) -> None:
    shown = shown_of(stream)
    texts = ["".join(tokens) for tokens in stream.tokens]
    for choice, text in enumerate(texts):
        found = shown.texts.get(choice, "")
        assert not any(secret in found for secret in stream.secrets), (stream, found)
        if stream.vetoes:
            # Of what is vetoed not even the beginning is shown.
            first = places(text, stream.secrets)
            assert text.startswith(found) and len(found) <= (first[0].start if first else len(text)), (stream, found)
        else:
            assert found == redacted(text, places(text, stream.secrets)), stream
    if not stream.vetoes:
        assert shown.events == sum(map(len, stream.tokens)), "each event has its place in the stream"
    else:
        assert shown.blocked == any(places(text, stream.secrets) for text in texts)


def random_stream(source: random.Random, *, slow: bool = False) -> Stream:
    def token() -> str:
        return "".join(source.choice("ab é") for _ in range(source.randint(1, 5)))

    tokens = tuple(
        tuple(token() for _ in range(source.randint(0, 40))) or ("a",) for _ in range(source.choice((1, 1, 1, 2)))
    )
    # Half of the window is four tokens, and each has a character at least.
    secrets = tuple("".join(source.choice("ab") for _ in range(source.randint(2, 5))) for _ in range(2))
    gaps_s = tuple(source.choice((0.0, 0.01, 0.4, 3.0) if slow else (0.0,)) for _ in range(7))
    return Stream(tokens, gaps_s, secrets, vetoes=source.random() < 0.4, cuts=source.choice((1, 3, 1000)))


def test_random_streams_never_show_what_guards_mark() -> None:
    source = random.Random(0)
    for _ in range(400):
        check(random_stream(source))


@pytest.mark.extended
@pytest.mark.parametrize("part", range(1, 11))
def test_ten_thousand_random_streams_never_show_what_guards_mark(part: int) -> None:
    source = random.Random(part)
    for _ in range(1000):
        check(random_stream(source))


_TOKENS = st.lists(st.text("ab c", min_size=1, max_size=6), min_size=1, max_size=30).map(tuple)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Stream,
        st.lists(_TOKENS, min_size=1, max_size=3).map(tuple),
        st.just((0.0,)),
        st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
        st.booleans(),
        st.integers(1, 50),
    )
)
def test_streams_of_any_shape_never_show_what_guards_mark(stream: Stream) -> None:
    check(stream)


def test_a_slow_stream_shows_nothing_before_the_window_is_over_and_all_of_it_then() -> None:
    hold = HoldBack(TOKENS, SECONDS)
    hold.add(StreamEvent(event_of(0, "a")), 10.0)
    assert not hold.is_due(10.99) and hold.is_due(11.0) and hold.due_s() == 11.0
    hold.add(StreamEvent(event_of(0, "b")), 10.6)
    shown = Shown()
    shown.take(hold.seen({}, 11.0))
    # What came within the last half of the window waits: more of what it begins may follow.
    assert shown.texts == {0: "a"} and hold.due_s() == 11.6


def test_slow_streams_differ_only_in_time() -> None:
    """Time shows what tokens would hold, but never what guards have marked."""
    source = random.Random(1)
    for _ in range(60):
        stream = random_stream(source, slow=True)
        shown = shown_of(stream)
        if not stream.vetoes:
            for choice, tokens in enumerate(stream.tokens):
                assert len(shown.texts[choice]) <= len("".join(tokens)) + shown.texts[choice].count(MARK)


def test_a_first_look_marks_what_a_later_look_no_longer_does() -> None:
    hold, shown = HoldBack(4, SECONDS), Shown()
    for token in ("x", "secret", "y", "z"):
        hold.add(StreamEvent(event_of(0, token)), 0.0)
    (name,) = hold.texts()
    shown.take(hold.seen({name: [Span(1, 7, MARK)]}, 0.0))
    hold.end()
    shown.take(hold.seen({}, 0.0))
    assert shown.texts == {0: f"x{MARK}yz"}


def response_events(deltas: Sequence[str], whole: str) -> list[bytes]:
    """Events of the Responses API, of which the later ones repeat the text."""
    events = [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": delta}
        for delta in deltas
    ]
    item = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": whole}]}
    events += [
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": whole},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "r", "instructions": "secret", "output": [item]}},
    ]
    return [b"event: e\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events]


def through(events: Iterable[bytes], secret: str) -> bytes:
    hold, out = HoldBack(4, SECONDS), b""
    for raw in events:
        hold.add(StreamEvent(raw), 0.0)
        out += hold.passing()
        if hold.is_due(0.0):
            out += hold.seen({name: places(text, [secret]) for name, text in hold.texts().items()}, 0.0)
    hold.end()
    return out + hold.seen({name: places(text, [secret]) for name, text in hold.texts().items()}, 0.0)


def test_events_that_repeat_a_text_have_it_as_the_client_got_it() -> None:
    out = through(response_events(["my ", "se", "cret", " is", " out", " now"], "my secret is out now"), "secret")
    events = [json.loads(line[6:]) for line in out.splitlines() if line.startswith(b"data: ")]
    assert "".join(event.get("delta", "") for event in events) == f"my {MARK} is out now"
    assert events[6]["text"] == f"my {MARK} is out now"
    assert events[7]["item"]["content"][0]["text"] == f"my {MARK} is out now"
    assert events[8]["response"]["output"][0]["content"][0]["text"] == f"my {MARK} is out now"


def test_a_text_that_only_a_late_event_has_is_looked_at_too() -> None:
    out = through(response_events(["harmless"], "a secret that no delta had"), "secret")
    assert out.count(b"a # that no delta had") == 3 and b"a secret" not in out


def test_log_probabilities_of_a_redacted_event_are_left_out() -> None:
    choice = {"index": 0, "delta": {"content": "secret"}, "logprobs": {"content": [{"token": "secret"}]}}
    raw = b"id: 7\ndata: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    out = through([raw], "secret")
    assert out.startswith(b"id: 7\ndata: ") and b"secret" not in out


def completion_event(text: str, tokens: Sequence[str] | None, ids: Sequence[int]) -> bytes:
    logprobs = None if tokens is None else {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}
    choice = {"index": 0, "text": text, "logprobs": logprobs, "token_ids": ids}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("has_texts", [True, False])
def test_tokens_of_a_text_that_a_server_still_holds_are_left_out(has_texts: bool) -> None:
    """As before a stop sequence: the text of a token comes in a later event, which alone is redacted."""
    texts = (("", "se"), ("my se", "cret"), ("cret", " no"))
    out = through([completion_event(text, [own] if has_texts else None, [4_711]) for text, own in texts], "secret")
    assert b"4711" not in out and b'"cret"' not in out and b'"se"' not in out
    assert b"my #" in out.replace(b'"', b"")


@pytest.mark.parametrize(
    "choice",
    [
        {"text": " yes no", "logprobs": {"tokens": ["yes", "no"]}, "token_ids": [1, 2]},
        {"delta": {"role": "assistant", "content": "yes"}, "logprobs": {"content": [{"token": "yes"}]}},
        {"delta": {"content": "yes"}, "logprobs": None},
        {"delta": "yes", "logprobs": [{"token": "yes", "top_logprobs": []}]},
    ],
)
def test_tokens_of_the_text_beside_them_stay(choice: dict[str, object]) -> None:
    raw = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    assert through([raw], "secret") == raw


def test_texts_of_one_event_do_not_follow_one_another() -> None:
    """A server may write one text in several choices of one index: what follows the last one is in later events."""
    hold, shown = HoldBack(TOKENS, SECONDS), Shown()
    parts = [{"index": 0, "delta": {"content": text}} for text in ("a long text of many tokens, ", "sec")]
    hold.add(StreamEvent(b"data: " + json.dumps({"choices": parts}).encode() + b"\n\n"), 0.0)
    assert hold.is_due(0.0)
    shown.take(hold.seen({}, 0.0))
    hold.add(StreamEvent(event_of(0, "ret")), 0.0)
    hold.end()
    shown.take(hold.seen({name: places(text, ["secret"]) for name, text in hold.texts().items()}, 0.0))
    assert shown.texts == {0: f"a long text of many tokens, {MARK}"}


def test_an_event_of_many_texts_with_many_marks_takes_no_long_time() -> None:
    hold, shown = HoldBack(TOKENS, SECONDS), Shown()
    parts = [{"index": 0, "delta": {"content": "ab" * 400}} for _ in range(1000)]
    hold.add(StreamEvent(b"data: " + json.dumps({"choices": parts}).encode() + b"\n\n"), 0.0)
    hold.end()
    marked = {name: places(text, ["b"]) for name, text in hold.texts().items()}
    began_s = time.thread_time()
    shown.take(hold.seen(marked, 0.0))
    assert time.thread_time() - began_s < 20, "each text looks at its own marks alone"
    assert shown.texts == {0: f"a{MARK}" * 400_000}
