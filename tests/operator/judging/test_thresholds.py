"""Thresholds are bounds of buckets, per stratum, and not guessed from a handful of requests."""

import pytest

from slipway_operator.judging.thresholds import Histogram, median, quantile_bound, stratum

BOUNDS = (0.1, 0.2, 0.5, 1.0, 2.0)


def test_the_bound_that_enough_requests_do_not_exceed() -> None:
    histogram = Histogram(BOUNDS, (50, 30, 14, 5, 1, 0))
    assert quantile_bound(histogram, 0.5) == 0.1
    assert quantile_bound(histogram, 0.95) == 1.0
    assert quantile_bound(histogram, 1.0) == 2.0


def test_no_threshold_from_few_requests_nor_above_the_last_bound() -> None:
    strata = {
        "p<1000,stream": Histogram(BOUNDS, (500, 300, 140, 50, 10, 0)),
        "p<8000,stream": Histogram(BOUNDS, (9, 9, 9, 9, 9, 9)),
        "p>=8000,stream": Histogram(BOUNDS, (0, 0, 0, 0, 0, 1000)),
    }
    assert [quantile_bound(histogram, 0.95) for histogram in strata.values()] == [1.0, None, None]


def test_the_median_lies_in_its_bucket() -> None:
    assert median(Histogram(BOUNDS, (50, 30, 14, 5, 1, 0))) == pytest.approx(0.1)
    assert median(Histogram(BOUNDS, (0, 0, 10, 0, 0, 0))) == pytest.approx(0.35)
    assert median(Histogram(BOUNDS, (0,) * 6)) is None and median(Histogram(BOUNDS, (0, 0, 0, 0, 0, 9))) is None


@pytest.mark.parametrize(("bounds", "counts"), [((1.0, 0.5), (1, 1, 1)), ((1.0, 1.0), (1, 1, 1)), ((1.0,), (1,))])
def test_a_malformed_histogram_is_refused(bounds: tuple[float, ...], counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rising bounds"):
        Histogram(bounds, counts)


def test_stratum_depends_on_the_request_alone() -> None:
    names = [stratum(tokens, streams) for tokens, streams in ((999, True), (1000, False), (8000, True))]
    assert names == ["p<1000,stream", "p<8000,whole", "p>=8000,stream"]
