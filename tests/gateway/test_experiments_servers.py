"""Exposures with real servers: each unit once over gateways and restarts at Redis, and once in PostgreSQL."""

import contextlib
import json
from collections import Counter
from pathlib import Path

import pg8000.dbapi
import pytest

from tests.support.postgres import postgres
from tests.support.redis import redis_server

from .test_experiments import arm_of, experiment, reached, running

pytestmark = pytest.mark.integration

USERS = [f"user-{n}" for n in range(20)]


async def test_with_redis_a_unit_is_logged_once_over_gateways_and_restarts(tmp_path: Path) -> None:
    made, log = experiment(), tmp_path / "exposures"
    counted: Counter[str] = Counter()
    with redis_server() as server:
        for n in range(2):  # the second time, after a restart of both
            options = {"redis_url": server.url, "redis_timeout_s": 2.0}
            async with (
                running(made, exposure_log=f"{log}-{n}-a", **options) as one,
                running(made, exposure_log=f"{log}-{n}-b", **options) as two,
            ):
                for gate in (one, two):
                    for user in USERS:
                        await reached(gate, user)
                await one.edge.experiments.close()
                await two.edge.experiments.close()
                for gate in (one, two):
                    report = gate.edge.experiments.report("i")
                    assert report.shared
                    arms = report.experiments["prod/size"].arms
                    counted.update({name: arm.units for name, arm in arms.items()})
    lines = logged(tmp_path)
    assert len(lines) == len(USERS) == len({line["id"] for line in lines})
    assert counted == Counter(arm_of(made, user) for user in USERS)


def logged(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


async def test_postgresql_keeps_each_exposure_of_two_gateways_once() -> None:
    with postgres() as server:
        for _ in range(2):
            async with running(experiment(), exposure_database_url=server.url, exposure_raw_units=True) as gate:
                for user in USERS:
                    await reached(gate, user)
        with contextlib.closing(pg8000.dbapi.connect(**connection(server.url))) as found:
            cursor = found.cursor()
            cursor.execute("select value, arm from slipway_exposures order by at")
            rows = cursor.fetchall()
    assert sorted(map(tuple, rows)) == sorted((user, arm_of(experiment(), user)) for user in USERS)


def connection(url: str) -> dict[str, object]:
    """Arguments of the driver for a URL."""
    from sqlalchemy.engine import make_url

    parts = make_url(url)
    return {"user": parts.username, "password": parts.password, "host": parts.host, "port": parts.port} | {
        "database": parts.database
    }
