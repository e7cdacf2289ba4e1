"""The inference log of a real gateway before a real server of a classic model, in both databases."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from slipway_gateway.ledger.inference_table import inferences
from slipway_gateway.ledger.tables import open_engine
from slipway_process.database_urls import parse_url
from testkit.until import until_async
from tests.predict import trained
from tests.predict.conftest import PREDICT
from tests.server.process import ServerProcess
from tests.support.postgres import Postgres, postgres

from .test_process import gateway

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW = [6.9, 3.1, 5.4, 2.1]
INSTANCES = {"instances": [ROW]}
KEPT_S = 1.0  # a gateway that is killed loses rows of less than this time


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("models")
    trained.save_all(root)
    with ServerProcess(root / "onnx", *PREDICT) as onnx:
        yield onnx.wait_ready()


@pytest.fixture
def database() -> Any:
    with postgres() as started:
        yield started


def routes(path: Path, url: str, **rule: Any) -> str:
    model = {"backends": [{"revision": "v1", "weight": 100, "endpoints": [url]}], "inferenceLog": rule}
    path.write_text(yaml.safe_dump({"models": {"m": model if rule else {"backends": model["backends"]}}}))
    return f"--routes={path}"


def rows(url: str) -> list[dict[str, Any]]:
    engine = open_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(inferences).order_by(inferences.c.at)).mappings()]
    except SQLAlchemyError:
        return []  # no gateway has made the tables yet
    finally:
        engine.dispose()


async def ask(url: str, count: int = 1) -> list[int]:
    async with aiohttp.ClientSession() as client:
        found = []
        for _ in range(count):
            async with client.post(f"{url}/v1/models/m:predict", json=INSTANCES) as answer:
                assert answer.status == 200, await answer.text()
                found.append(answer.status)
        return found


async def infer(url: str) -> None:
    head = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": ROW}]}
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{url}/v2/models/m") as described:
            head["inputs"][0]["name"] = (await described.json())["inputs"][0]["name"]
        body = json.dumps(head | {"parameters": {"binary_data_output": True}}).encode()
        async with client.post(f"{url}/v2/models/m/infer", data=body) as answer:
            assert answer.status == 200 and "Inference-Header-Content-Length" in answer.headers


async def refused(url: str) -> None:
    async with aiohttp.ClientSession() as client:
        async with client.post(f"{url}/v1/models/m:predict", json={"instances": [["no number"] * 4]}) as answer:
            assert answer.status == 400
        async with client.get(f"{url}/v2/models/m") as answer:
            assert answer.status == 200


async def test_what_a_model_was_given_and_predicted_is_in_the_log(server: ServerProcess, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    flags = (routes(tmp_path / "r.yaml", server.url, percentage=100, contents=True), f"--inference-log-url={url}")
    async with gateway(*flags) as process:
        await ask(process.url("api"))
        await infer(process.url("api"))
        await refused(process.url("api"))
        found = await until_async(lambda: rows(url), holds=lambda seen: len(seen) == 2)
        process.process.terminate()
        assert await process.ended() == 0
    first, second = found
    assert json.loads(first["input"]) == INSTANCES and json.loads(first["output"]) == {"predictions": [2]}
    assert (first["route"], first["revision"], first["predictions"]) == ("file/m", "v1", "[2]")
    assert second["output_base64"] and second["predictions"] == "[2]" and second["rows"] == 1
    assert rows(url) == found, "neither what was refused nor what is no prediction"


async def test_nothing_is_logged_of_models_that_do_not_ask_for_it(server: ServerProcess, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    async with gateway(routes(tmp_path / "r.yaml", server.url), f"--inference-log-url={url}") as process:
        await ask(process.url("api"), 5)
        process.process.terminate()
        assert await process.ended() == 0
    assert rows(url) == []


async def test_a_killed_gateway_loses_the_rows_of_less_than_a_second(
    server: ServerProcess, database: Postgres, tmp_path: Path
) -> None:
    flags = (routes(tmp_path / "r.yaml", server.url, percentage=100), f"--inference-log-url={database.url}")
    async with gateway(*flags) as process:
        await ask(process.url("api"))
        await until_async(lambda: rows(database.url))  # the tables are there
        await ask(process.url("api"), 30)
        await asyncio.sleep(KEPT_S)
        await ask(process.url("api"), 3)
        await process.kill()
    assert 31 <= len(rows(database.url)) <= 34


async def test_no_request_waits_for_a_database_that_is_away_and_the_log_goes_on_when_it_is_back(
    server: ServerProcess, database: Postgres, tmp_path: Path
) -> None:
    flags = (routes(tmp_path / "r.yaml", server.url, percentage=100), f"--inference-log-url={database.url}")
    async with gateway(*flags) as process:
        await ask(process.url("api"), 3)
        await until_async(lambda: rows(database.url), holds=lambda seen: len(seen) == 3)
        database.stop()
        await ask(process.url("api"), 20)
        await until_async(lambda: process.log_entries("the inference log cannot be written"))
        async with aiohttp.ClientSession() as client, client.get(process.url("admin") + "/metrics") as answer:
            page = await answer.text()
        lost = re.search(r'inference_log_dropped_total\{reason="write_failed"\} (\d+)', page)
        assert lost and 1 <= int(lost[1]) <= 20
        assert len(process.log_entries("the inference log cannot be written")) == 1
        database.start()
        async with asyncio.timeout(60):
            while len(rows(database.url)) < 4:
                await ask(process.url("api"))
                await asyncio.sleep(0.2)
        await until_async(lambda: process.log_entries("the inference log is written again"))


def test_an_unknown_database_is_refused_at_the_start() -> None:
    flags = ["--routes=x", "--inference-log-url=mysql://user:hidden@host/d"]
    done = subprocess.run([sys.executable, "-m", "slipway_gateway", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--inference-log-url: the scheme must be sqlite or postgresql" in done.stderr
    assert "hidden" not in done.stderr
