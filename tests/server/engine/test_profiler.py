"""A profile is of so many steps, or of so much time, and there is one table of it."""

import pytest

from slipway_server.engine.execution.profiler import Profiler
from slipway_server.engine.messages import Profile

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("operations", [False, True])
def test_a_profile_ends_by_its_steps_or_by_its_time(operations: bool) -> None:
    now = 0.0
    profiler = Profiler(lambda: now)
    assert profiler.run(lambda: 7) == 7 and profiler.take() is None
    profiler.begin(Profile(2, 5.0, operations))
    for _ in range(2):
        assert profiler.take() is None
        assert profiler.run(lambda: 7) == 7
    assert (profiler.take() or "").startswith("2 steps\n") and profiler.take() is None
    profiler.begin(Profile(2, 5.0, operations))
    profiler.run(lambda: 7)
    now = 4.9
    assert profiler.take() is None
    now = 5.0
    assert (profiler.take() or "").startswith("1 steps\n")
    profiler.begin(Profile(2, 5.0, operations))
    now = 10.0
    assert profiler.take() == "No step ran.\n"
