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
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("server").url
    engine = create_engine(parse_url(found))
    metadata.drop_all(engine)
    engine.dispose()
    return found


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    """As the operator makes it."""
    path = tmp_path / "tenant.json"
    key = base64.urlsafe_b64encode(b"k" * 32).decode()
    path.write_text(json.dumps({"keys": [{"id": "k1", "key": key}]}))
    return str(path)
