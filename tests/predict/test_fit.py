"""The fit of service times: a line through what was measured, that forgets."""

import pytest

from slipway_predict.fit import ServiceTime


def fitted(t0: float, a: float, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32), rounds: int = 5) -> ServiceTime:
    fit = ServiceTime()
    for _ in range(rounds):
        for size in sizes:
            fit.observe(size, t0 + a * size)
    return fit


def test_a_line_is_found() -> None:
    fit = fitted(0.002, 0.0001)
    assert fit.fixed_s == pytest.approx(0.002, rel=1e-3) and fit.slope_s == pytest.approx(0.0001, rel=1e-3)
    assert fit.predict_s(64) == pytest.approx(0.0084, rel=1e-3)


def test_nothing_is_refused_before_the_first_batch() -> None:
    assert not ServiceTime().misses(100, 10_000, 100, left_s=0.001)


def test_batches_of_one_size_say_nothing_of_the_slope() -> None:
    fit = fitted(0.01, 0.0, sizes=(8,))
    assert fit.slope_s == 0.0 and fit.predict_s(8) == pytest.approx(0.01)


def test_a_slower_machine_is_noticed() -> None:
    fit = fitted(0.002, 0.0001)
    for _ in range(40):
        for size in (1, 8, 32):
            fit.observe(size, 0.02 + 0.001 * size)
    assert fit.predict_s(32) == pytest.approx(0.052, rel=0.05)


def test_noise_never_makes_a_negative_time() -> None:
    fit = ServiceTime()
    for size, seconds in ((1, 0.5), (64, 0.001), (1, 0.4), (64, 0.002)):
        fit.observe(size, seconds)
    assert fit.slope_s == 0.0 and fit.predict_s(1000) >= 0.0
