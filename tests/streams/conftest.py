"""Three real model servers on the same weights: pods of one revision."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.process import ServerProcess

TINY = Path(__file__).parents[2] / "examples" / "models" / "tiny-v2"
FLAGS = ("--served-model-name", "chat", "--drain-timeout", "0")


@pytest.fixture(scope="module")
def pods() -> Iterator[list[ServerProcess]]:
    """A test may kill some of them: those after it get the rest."""
    with ExitStack() as stack:
        started = [stack.enter_context(ServerProcess(TINY, *FLAGS)) for _ in range(3)]
        yield [pod.wait_ready() for pod in started]
