"""The world that operators are killed in."""

import pytest

from tests.crash.world import World


@pytest.fixture
async def world(api_server, tmp_path):
    async with World(api_server, tmp_path) as world:
        yield world
