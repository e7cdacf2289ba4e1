"""Fixtures of tests with a Redis server."""

from collections.abc import Iterator

import pytest

from tests.support.redis import RedisServer, redis_server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server
