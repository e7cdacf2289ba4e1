"""The release's keys: rotation never lets a signer and a verifier disagree (safety 19)."""

import base64
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_operator.model.cluster import keys
from slipway_operator.model.cluster.keys import MIN_ROTATION_S, PROPAGATION_S, Key, UnreadableKeys

pytestmark = [pytest.mark.attack_class(9, 19), pytest.mark.finding(19)]

DAY_S = 86_400.0
VIEW_S = 300.0  # how old a view of the keys may be


def fresh(number: int, now: float = 0.0) -> Key:
    return keys.new_key(number.to_bytes(36, "big"), now)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.floats(1.0, 4000.0), min_size=10, max_size=120),
    st.floats(MIN_ROTATION_S, 2 * MIN_ROTATION_S),
    st.data(),
)
def test_a_signer_and_a_verifier_with_old_views_agree_at_every_moment(
    pauses: list[float], rotation_s: float, data: st.DataObject
) -> None:
    """At any frequency of reconciles, and with any writes in between."""
    now, content = 1e9, ()
    history: list[tuple[float, tuple[Key, ...]]] = []
    for number, pause_s in enumerate(pauses):
        now += pause_s
        content = keys.advance(content, now, rotation_s, fresh(number + 1, now))
        history.append((now, content))
    begin = history[0][0] + VIEW_S  # before the first key arrived no signature is accepted
    if begin > now:
        return
    for _ in range(20):
        moment = data.draw(st.floats(begin, now))
        signer, verifier = (_view(history, moment - data.draw(st.floats(0.0, VIEW_S))) for _ in range(2))
        assert signer[0].id in {key.id for key in verifier}


def _view(history: list[tuple[float, tuple[Key, ...]]], moment: float) -> tuple[Key, ...]:
    return [content for at, content in history if at <= moment][-1]


def test_a_rotation_step_by_step() -> None:
    a, b = fresh(1), fresh(2)
    one = keys.advance((), 0.0, DAY_S, a)
    assert one == (a,) == keys.advance(one, DAY_S - 1, DAY_S, b)
    two = keys.advance(one, DAY_S, DAY_S, b)
    assert [key.id for key in two] == [a.id, b.id]
    assert keys.advance(two, DAY_S + PROPAGATION_S - 1, DAY_S, fresh(3)) == two
    three = keys.advance(two, DAY_S + PROPAGATION_S, DAY_S, fresh(3))
    assert [key.id for key in three] == [b.id, a.id]
    four = keys.advance(three, DAY_S + 2 * PROPAGATION_S, DAY_S, fresh(3))
    assert [key.id for key in four] == [b.id]
    # The next one counts from when this one began to sign.
    assert keys.advance(four, 2 * DAY_S + PROPAGATION_S - 1, DAY_S, fresh(3)) == four
    assert len(keys.advance(four, 2 * DAY_S + PROPAGATION_S, DAY_S, fresh(3))) == 2


@settings(deadline=None)
@given(st.lists(st.integers(-10 * 86_400, 10 * 86_400), min_size=1, max_size=60))
def test_a_clock_that_jumps_never_drops_the_signing_key_in_one_step(jumps: list[int]) -> None:
    now, content = 1e9, (fresh(1, 1e9),)
    for number, jump in enumerate(jumps):
        now += jump
        after = keys.advance(content, now, DAY_S, fresh(number + 2, now))
        assert content[0].id in {key.id for key in after} and 1 <= len(after) <= 2
        content = after


def test_a_clock_that_was_ahead_holds_rotation_back_for_one_step_alone() -> None:
    content = keys.advance((fresh(1, 1e12),), 0.0, DAY_S, fresh(2))
    assert content[0].since == 0.0
    assert len(keys.advance(content, DAY_S, DAY_S, fresh(2))) == 2


@given(st.lists(st.tuples(st.binary(min_size=36, max_size=36), st.floats(0, 1e10)), max_size=2, unique_by=lambda x: x))
def test_what_is_written_is_read(made: list[tuple[bytes, float]]) -> None:
    content = tuple(keys.new_key(entropy, since) for entropy, since in made)
    if len({key.id for key in content}) == len(content):
        assert keys.parse(keys.render(content)) == content
        tokens = base64.b64decode(keys.render(content)["operator-token"]).split()
        assert tokens == [keys.operator_token(key).encode() for key in content]


def _data(content: object) -> dict[str, str]:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return {"tenant.json": base64.b64encode(text).decode()}


GOOD = msgspec.to_builtins(fresh(1))


@pytest.mark.parametrize(
    "data",
    [
        {"tenant.json": "%%%"},
        _data(b"{"),
        _data({"keys": 3}),
        _data({"keys": [{**GOOD, "key": "c2hvcnQ="}]}),
        _data({"keys": [{**GOOD, "key": "a"}]}),
        _data({"keys": [{**GOOD, "id": "a b"}]}),
        _data({"keys": [GOOD, GOOD]}),
    ],
)
def test_invalid_list_of_keys_is_refused_and_no_key_is_quoted(data: dict[str, str]) -> None:
    with pytest.raises(UnreadableKeys) as refused:
        keys.parse(data)
    assert "tenant.json" in str(refused.value) and GOOD["key"] not in str(refused.value)


def test_namespace_gets_neither_the_release_key_nor_the_key_of_another() -> None:
    content = (fresh(1), fresh(2))
    published = {name: base64.b64decode(keys.render_derived(keys.derive(content, name))["keys.json"]) for name in "ab"}
    assert published["a"] != published["b"]
    for text in published.values():
        assert [one["id"] for one in json.loads(text)["keys"]] == [key.id for key in content]
        for key in content:
            assert key.key.encode() not in text and keys.operator_token(key).encode() not in text
