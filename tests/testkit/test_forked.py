"""Programs that are forked from a process with their imports."""

import pytest

from testkit.until import until_async
from testkit.world.forked import ForkedProgram

pytestmark = pytest.mark.integration


async def test_its_log_can_be_read_as_soon_as_it_is_started_and_has_what_it_writes_later(tmp_path):
    program = ForkedProgram("slipway_gateway", ["--help"], tmp_path / "kubeconfig", tmp_path / "gateway.log")
    await program.start()
    assert isinstance(program.log(), str)
    await until_async(program.log, "it prints its usage", holds=lambda text: "usage:" in text)
    await until_async(lambda: not program.runs(), "it ends")
