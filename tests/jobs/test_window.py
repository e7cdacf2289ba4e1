"""The window of a tenant: additive increase, multiplicative decrease."""

from hypothesis import given
from hypothesis import strategies as st

from slipway_jobs.window import BACKOFF, FIRST, LEAST, Window


def test_the_window_grows_by_one_for_each_window_of_successes_up_to_its_limit() -> None:
    window = Window(limit=6.0)
    for _ in range(int(FIRST)):
        window.begun()
        window.succeeded()
    assert FIRST + 0.8 < window.size < FIRST + 1
    for _ in range(100):
        window.begun()
        window.succeeded()
    assert window.size == 6.0 and window.room(0.0) == 6


def test_requests_that_are_refused_together_halve_the_window_once() -> None:
    window = Window(limit=32.0, size=16.0)
    for _ in range(16):
        window.begun()
    for _ in range(16):
        window.refused(began_s=1.0, now_s=2.0, retry_after_s=3.0)
    assert (window.size, window.running, window.room(2.0), window.room(5.0)) == (8.0, 0, 0, 8)
    window.begun()
    window.refused(began_s=5.0, now_s=6.0)
    assert window.size == 4.0


def test_pauses_without_a_retry_after_double_up_to_a_minute_and_end_with_a_success() -> None:
    window, now_s, pauses = Window(limit=4.0), 0.0, []
    for _ in range(8):
        window.begun()
        pauses.append(window.refused(now_s, now_s))
        now_s += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    window.begun()
    window.succeeded()
    window.begun()
    assert window.refused(now_s, now_s) == 1


@given(st.lists(st.tuples(st.sampled_from(["ok", "broke", "refused"]), st.floats(0, 1e6))))
def test_the_window_stays_within_its_bounds_whatever_comes(events: list[tuple[str, float]]) -> None:
    window, now_s = Window(limit=32.0), 0.0
    for kind, value in events:
        window.begun()
        now_s += 1
        if kind == "ok":
            window.succeeded()
        elif kind == "broke":
            window.broke()
        else:
            assert 0 <= window.refused(now_s - 0.5, now_s, value) <= BACKOFF.most_s
        assert LEAST <= window.size <= 32 and window.running == 0
