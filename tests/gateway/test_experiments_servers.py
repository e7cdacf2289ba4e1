"""Exposures with real servers: each unit once over gateways and restarts at Redis, and once in PostgreSQL."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from slipway_gateway.experiments.sinks.database import exposures
from slipway_gateway.ledger.tables import open_engine
from slipway_process.database_urls import parse_url
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
            options: dict[str, Any] = {"redis_url": server.url, "redis_timeout_s": 2.0}
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
        engine = open_engine(parse_url(server.url))
        with engine.connect() as found:
            rows = found.execute(select(exposures.c.value, exposures.c.arm)).all()
        engine.dispose()
    assert sorted(map(tuple, rows)) == sorted((user, arm_of(experiment(), user)) for user in USERS)
