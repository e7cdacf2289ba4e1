"""How much of a processor a gateway uses, and that pairs and mirrored requests give way to clients then."""

from pathlib import Path

import pytest

from slipway_gateway.limits.processor import ProcessorUse, processor_limit

from .test_mirror import saying
from .test_twins import ask, counts, results, twins, until_results


class Clocks:
    """Time, and time of the processor."""

    now_s = used_s = 0.0

    def step(self, seconds: float, share: float) -> None:
        self.now_s += seconds
        self.used_s += seconds * share


@pytest.mark.parametrize(("limit", "share"), [(1.0, 0.4), (0.5, 0.8), (0.25, 1.0)])
def test_the_share_is_that_of_what_the_container_may_use(limit: float, share: float) -> None:
    clocks = Clocks()
    use = ProcessorUse(lambda: clocks.now_s, lambda: clocks.used_s, limit)
    assert use.share() == 0
    for _ in range(300):
        clocks.step(0.01, 0.4)
        use.share()
    assert use.share() == pytest.approx(share, abs=0.001)


def test_one_slow_step_is_no_load_and_a_rush_of_half_a_second_is() -> None:
    clocks = Clocks()
    use = ProcessorUse(lambda: clocks.now_s, lambda: clocks.used_s)
    clocks.step(0.05, 1.0)
    assert use.share() < 0.3
    for _ in range(50):
        clocks.step(0.01, 1.0)
        use.share()
    assert use.share() > 0.9
    clocks.step(60.0, 0.01)
    assert use.share() < 0.02, "what was long ago is forgotten"


@pytest.mark.parametrize(
    ("written", "limit"),
    [("max 100000\n", 1.0), ("50000 100000\n", 0.5), ("400000 100000\n", 1.0), ("", 1.0), ("0 0", 1.0), (None, 1.0)],
)
def test_the_limit_of_the_container_is_read(written: str | None, limit: float, tmp_path: Path) -> None:
    if written is not None:
        (tmp_path / "cpu.max").write_text(written)
    assert processor_limit(tmp_path) == limit


async def test_pairs_are_withheld_while_the_processor_is_in_use() -> None:
    # Of a limit of 0 % any use is too much: so no load is needed, and none can be too little.
    async with twins(saying("c"), saying("s"), mirror_max_cpu_percentage=0) as (gate, canary, twin, served):
        for _ in range(2):
            assert await ask(gate) == 200
        await until_results(gate, 2)
        assert results(gate) == {"busy": 2} and counts(gate)["withheld"] == {"busy": 2}
        assert (len(canary.seen), len(twin.seen), len(served.seen)) == (0, 0, 2)
