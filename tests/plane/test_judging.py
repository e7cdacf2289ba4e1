"""Sessions of the judge, and responses that are good for certain: as Rust computes them and as Python does."""

import json
from email.utils import formatdate
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.judging.units import CountedSessions, SessionMemory, SharedUnits, Units
from slipway_gateway.wire.responses import find_failures, loops
from slipway_plane import NATIVE
from tests.plane.mutation import varying
from tests.plane.native import FEW, MILLION, Pair, name_of, needs_plane

pytestmark = needs_plane

# -- sessions

REVISIONS, WEIGHTS = ("a", "b", "c"), {"a": 20, "b": 80}
KEYS = st.one_of(
    st.integers(0, 30).map(lambda n: f"session:{n}"),
    st.integers(0, 9).map(lambda n: f"request:{n}"),
    st.text(max_size=4),
)
STEPS = st.tuples(
    st.sampled_from(["assign", "assign", "assign", "has", "remember", "first", "first_end"]),
    st.sampled_from(REVISIONS),
    KEYS,
    st.sampled_from(["x", "y", "\u00e9"]),
    st.floats(0, 5),
)


def _step(units: CountedSessions, step: tuple[str, str, str, str, float]) -> Any:
    what, revision, key, client, now_s = step
    if what == "assign":
        return units.assign(revision, key, client, now_s)
    if what == "first":
        return units.first(key, revision)
    return getattr(units, what)(key)


@given(st.lists(STEPS, max_size=400), st.integers(1, 60))
def test_sessions_are_counted_alike(steps: list[tuple[str, str, str, str, float]], limit: int) -> None:
    assert NATIVE is not None
    memory, shared = SessionMemory(limit), NATIVE.Sessions(limit)
    ours = [Units(WEIGHTS, 0.0, memory) for _ in range(2)]
    compiled = [SharedUnits(NATIVE.Units(shared, WEIGHTS, 0.0)) for _ in range(2)]
    for at, step in enumerate(steps):
        assert _step(ours[at % 3 == 0], step) == _step(compiled[at % 3 == 0], step)
        assert [len(units) for units in ours] == [len(units) for units in compiled]
        assert memory.taken == shared.taken
    for one in ours:
        one.end()
    for other in compiled:
        other.end()
    assert (memory.taken, shared.taken) == (0, 0)


def test_one_client_among_others_is_bounded_alike() -> None:
    assert NATIVE is not None
    ours, compiled = Units(WEIGHTS, 0.0), SharedUnits(NATIVE.Units(NATIVE.Sessions(1 << 16), WEIGHTS, 0.0))
    random = Random(1)
    for n in range(3000):
        client = "large" if random.random() < 0.9 else f"small{random.randrange(5)}"
        revision = "a" if random.random() < (0.5 if n > 2000 else 0.2) else "b"
        call = (revision, f"session:{n}", client, n / 100)
        assert ours.assign(*call) == compiled.assign(*call)


# -- responses that are good for certain

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", " ", "word " * 300, "ab" * 200, "0123456789" * 120, "a long and varied text, " + "x" * 300]),
    st.binary(min_size=300, max_size=1500).map(lambda data: data.hex()),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), TEXTS, st.integers(-1, 3), st.just([]), st.just({}), st.just([{}]), st.just({"a": "b"})
)
MESSAGES = st.dictionaries(
    st.sampled_from(["content", "reasoning_content", "refusal", "tool_calls", "function_call", "role"]),
    VALUES,
    max_size=4,
) | st.fixed_dictionaries({"content": TEXTS})
CHOICES = st.dictionaries(st.sampled_from(["index", "text", "delta", "finish_reason"]), VALUES, max_size=3)
CHOICES = st.one_of(
    CHOICES,
    st.builds(lambda more, message: more | {"message": message}, CHOICES, MESSAGES),
    st.fixed_dictionaries(
        {"index": st.just(0), "message": MESSAGES, "finish_reason": st.sampled_from(["stop", "length", None])}
    ),
    st.fixed_dictionaries({"text": TEXTS, "finish_reason": st.sampled_from(["stop", "length", None])}),
)
NAMES = ("text", "token", "finish_reason", "error", "object", "type", "response", "output", "code", "id", "data")
BODIES = st.builds(
    lambda more, choices: json.dumps(more | choices, ensure_ascii=False).encode("utf-8", "replace"),
    st.dictionaries(st.sampled_from(NAMES), VALUES | st.sampled_from(["response", "length"]), max_size=3),
    st.one_of(st.just({}), st.lists(CHOICES, max_size=2).map(lambda found: {"choices": found})),
)
TOKENS = (
    b'"length"',
    b"null",
    b'""',
    b"[]",
    b"{}",
    b'"error":{}',
    b'"error":"x"',
    b'"choices":[',
    b'"text":"a",',
    b"\\u0061",
)
_good = [0]


def compare_good(body: bytes) -> None:
    assert NATIVE is not None
    if NATIVE.is_good_response(body):
        _good[0] += 1
        assert find_failures(body) == ()


GOOD = Pair("good responses", BODIES, compare_good, varying(TOKENS))


@pytest.mark.parametrize("size", [FEW, pytest.param(MILLION, marks=pytest.mark.extended)])
def test_what_is_good_for_certain_has_no_failure(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plane.native.LEAST_READ", 0)  # no input is left to Python here
    _good[0] = 0
    GOOD.run(size)
    assert _good[0] > size[0], f"{name_of(GOOD)}: some of these are good"


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{}}',
        b'{"choices":[{"text":"hi","finish_reason":null}]}',
        b'{"text":"hi","finish_reason":"stop"}',
        b'{"data":[{"embedding":[0.1]}]}',
    ],
)
def test_ordinary_responses_are_good_for_certain(body: bytes) -> None:
    assert NATIVE is not None
    assert NATIVE.is_good_response(body)


@given(st.integers(1, 400), st.integers(1, 60), st.randoms(use_true_random=True))
def test_a_varied_text_is_no_loop(period: int, letters: int, random: Random) -> None:
    """Texts with a period, from few and from many letters: what Rust calls varied compresses less than a loop does."""
    assert NATIVE is not None
    unit = "".join(chr(0x21 + random.randrange(letters)) for _ in range(period))
    noise = "".join(chr(0x21 + random.randrange(letters)) for _ in range(random.randrange(600)))
    for text in (unit * (1400 // period + 1), unit * (700 // period + 1) + noise, noise + unit * (700 // period + 1)):
        if NATIVE.is_varied_text(text.encode()):
            assert not loops(text)


@given(st.integers(0, 4_000_000_000))
def test_dates_are_written_alike(unix_s: int) -> None:
    assert NATIVE is not None
    assert NATIVE.http_date(unix_s) == formatdate(unix_s, usegmt=True)
