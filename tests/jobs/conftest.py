"""Databases of both kinds, each empty, and the release's keys."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from slipway_jobs.store.tables import metadata
from slipway_process.database_urls import parse_url
from tests.support.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def started_server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture
def server(started_server: Postgres) -> Postgres:
    """PostgreSQL with an empty database: no test finishes the batches of the one before."""
    engine = create_engine(parse_url(started_server.url))
    metadata.drop_all(engine)
    engine.dispose()
    return started_server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server: Postgres = request.getfixturevalue("server")
    return server.url


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    """As the operator makes it."""
    path = tmp_path / "tenant.json"
    key = base64.urlsafe_b64encode(b"k" * 32).decode()
    path.write_text(json.dumps({"keys": [{"id": "k1", "key": key}]}))
    return str(path)
