"""Stop strings: nothing of one is ever sent, and nothing else is ever lost."""

from hypothesis import given
from hypothesis import strategies as st

from slipway_server.text.stops import StopMatcher

letters = st.text("ab", min_size=1, max_size=4)


@given(st.lists(st.text("abc", max_size=5), max_size=12), st.lists(letters, max_size=4))
def test_what_is_sent_is_the_text_up_to_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(tuple(stops))
    sent = ""
    for piece in pieces:
        sent += matcher.push(piece)
        if matcher.matched:
            break
    sent += matcher.flush()
    text = "".join(pieces)
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if matcher.matched:
        # A stop that began earlier may have been completed by a piece that never came.
        assert first is not None and sent == text[: len(sent)] and text[len(sent) :].startswith(matcher.matched)
        assert not any(stop in sent for stop in stops)
    else:
        assert first is None and sent == text


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(("END",))
    assert [matcher.push(text) for text in ("abc", "dE", "N", "x", "EN", "D more")] == ["abc", "d", "", "ENx", "", ""]
    assert matcher.matched == "END"
