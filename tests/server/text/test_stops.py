"""Stop strings: nothing of one is ever sent, and nothing else is ever lost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.text.stops import StopMatcher

letters = st.text("ab", min_size=1, max_size=4)
pieces_of_text = st.lists(st.text("abc", max_size=5), max_size=12)


def first_match(text: str, stops: list[str], least: int = 0) -> tuple[int, int] | None:
    """Where the stop string that is complete first begins and ends, by trying all; the longest where several end."""
    for end in range(least + 1, len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return min(found), end
    return None


def sent(matcher: StopMatcher, pieces: list[str], least: int = 0) -> str:
    text, seen = "", 0
    for piece in pieces:
        seen += len(piece)
        text += matcher.push(piece, may_end=seen > least)
        if matcher.matched:
            return text
    return text + matcher.flush()


@given(pieces_of_text, st.lists(letters, max_size=4), st.booleans())
def test_the_text_up_to_the_first_stop_string_is_sent(pieces: list[str], stops: list[str], include: bool) -> None:
    matcher, text = StopMatcher(tuple(stops), include=include), "".join(pieces)
    text_sent, found = sent(matcher, pieces), first_match(text, stops)
    assert (matcher.matched is None) == (found is None)
    assert text_sent == (text if found is None else text[: found[1] if include else found[0]])


@pytest.mark.finding(11)
@given(pieces_of_text, st.lists(letters, max_size=4), st.integers(0, 20))
def test_safety_11_before_the_least_length_no_stop_string_ends_a_text(
    pieces: list[str], stops: list[str], least: int
) -> None:
    """A stop string counts when its last character comes behind the least length, as in vLLM."""
    pieces = list("".join(pieces))  # one character each: the border is then the same for both
    matcher, text = StopMatcher(tuple(stops)), "".join(pieces)
    text_sent, found = sent(matcher, pieces, least), first_match(text, stops, least)
    assert text_sent == (text if found is None else text[: found[0]])


def test_only_a_possible_start_of_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(("END",))
    assert [matcher.push(text) for text in ("abc", "dE", "N", "x", "EN", "D more")] == ["abc", "d", "", "ENx", "", ""]
    assert matcher.matched == "END"


@pytest.mark.finding(5)
@pytest.mark.attack_class(17, 18)
def test_safety_5_stop_strings_are_found_in_linear_time() -> None:
    """Long stop strings that nearly match everywhere were compared with every end of the text, for each token."""
    stops = tuple("a" * 1000 + str(number) for number in range(16))

    def seconds(tokens: int) -> float:
        matcher, began = StopMatcher(stops), time.process_time()
        for _ in range(tokens):
            matcher.push("aaaa")
        return time.process_time() - began

    seconds(300)
    assert seconds(4000) < 25 * seconds(400)
    assert seconds(500) < 1.0


@pytest.mark.finding(5)
@pytest.mark.attack_class(17, 18)
def test_safety_5_a_long_stop_string_that_breaks_off_is_given_up_in_linear_time() -> None:
    """All ends of the text that was held back were compared with it, one after the other."""

    def seconds(length: int) -> float:
        matcher, began = StopMatcher(("a" * length + "!",)), time.process_time()
        assert matcher.push("a" * length) == ""
        assert matcher.push("b") == "a" * length + "b"
        return time.process_time() - began

    seconds(1000)
    assert seconds(320_000) < 50 * max(0.01, seconds(20_000))
