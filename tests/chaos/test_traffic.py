"""How many streams it takes that each lasts."""

import pytest

from bench.chaos.traffic import AIM_S, MOST_STREAMS, enough


@pytest.mark.parametrize(
    ("rows", "seconds", "wanted"),
    [(64, AIM_S, 64), (64, AIM_S / 2, 128), (100, AIM_S * 2, 50), (64, 0.0, MOST_STREAMS)],
)
def test_streams_share_the_machine_until_each_lasts(rows: int, seconds: float, wanted: int) -> None:
    assert enough(rows, seconds) == wanted
