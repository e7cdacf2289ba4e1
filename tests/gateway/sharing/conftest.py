"""Fixtures of tests with a Redis server."""

from collections.abc import Iterator

import pytest

from tests.support.redis import KINDS, RedisServer, redis_server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def redis_or_valkey(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with redis_server(request.param) as server:
        yield server
