"""Every panel about requests, engines and batches on real data: a gateway, a model server and a jobs process at work.

A real Prometheus scrapes them. Panels of the operator's series and of GPUs are those of `test_prometheus.py`, on drawn
pages: a rollout in progress takes a cluster, and a GPU takes one.
"""

import asyncio
import base64
import json
import math
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from devcluster.ports import reserve_port
from slipway_contracts.route_table import Backend
from slipway_contracts.service_levels import ServiceLevels
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from testkit.world.program import Launch, running
from tests.chart import pages
from tests.chart.test_prometheus import FEW, MOST, PANELS, RANGE, RULES, Prometheus, is_of_work, write_rules
from tests.jobs.world import World, create, jsonl, world
from tests.server.process import ServerProcess
from tests.support.stores.debian import program

pytestmark = [
    pytest.mark.extended,
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="Prometheus comes from Debian's package"),
]
MODEL, NAME = "tiny-v1", "default/tiny-v1"
FOUND_S = 60.0
VALUES = {"$namespace": ".*", "$name": ".*", "$model": MODEL, "$tenant": ".*", "$__rate_interval": "10s"}


async def _at_work(here: World, server: ServerProcess) -> AsyncIterator[None]:
    """Each step: streams, responses that share a prefix, and a batch."""
    ask = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    text = "In the beginning there was a long prompt that several requests have in common, and then it ends. " * 4
    number = 0
    while True:
        number += 1
        stream = await here.client.chat.completions.create(
            **ask, messages=[{"role": "user", "content": text + str(number)}], stream=True
        )  # type: ignore[call-overload]
        async for _ in stream:
            pass
        await here.client.chat.completions.create(**ask, messages=[{"role": "user", "content": text}])  # type: ignore[call-overload]
        if number % 10 == 1:
            body = ask | {"messages": [{"role": "user", "content": "x"}]}
            line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
            await create(here.client, jsonl(line))
        yield


def _configure(folder: Path, targets: dict[str, str]) -> None:
    """`targets`: URL by path of `pages`."""
    jobs = [
        {
            "job_name": path.strip("/"),
            "metrics_path": urlsplit(url).path,
            "honor_labels": path in ("/operator", "/gateway"),
            "static_configs": [{"targets": [urlsplit(url).netloc], "labels": pages.PATHS[path]}],
        }
        for path, url in targets.items()
    ]
    write_rules(folder)
    times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings = {"global": times, "rule_files": RULES, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))


def _query(text: str) -> str:
    text = text.replace(*RANGE).replace("$__range", "10s")
    for name, value in VALUES.items():
        text = text.replace(name, value)
    return text


def _problem(prometheus: Prometheus, panel: dict[str, Any]) -> str:
    """What is wrong about a panel now; empty: nothing."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        found = prometheus.query(_query(target["expr"]))
        if not found:
            return f"{panel['title']} is empty: {target['expr']}"
        for series in found:
            value = float(series["value"][1])
            if not (math.isnan(value) or value <= MOST.get(unit, FEW)):
                return f"{panel['title']}: {value} {unit}"
    return ""


async def test_no_panel_about_requests_engines_and_batches_is_empty(tmp_path: Path, tiny_v1: Path) -> None:
    key = base64.urlsafe_b64encode(b"k" * 32).decode()
    (tmp_path / "tenant.json").write_text(json.dumps({"keys": [{"id": "k1", "key": key}]}))
    with ServerProcess(tiny_v1) as server:
        await asyncio.to_thread(server.wait_ready)
        async with world(f"sqlite:///{tmp_path}/jobs.db", f"{tmp_path}/tenant.json", tmp_path) as here:
            levels = ServiceLevels(800, 60, 2000, True)
            route = Route(NAME, "uid", MODEL, "2026-01-01T00:00:00Z", 1, "salt", (Backend("r1", 100),), slo=levels)
            here.edge.balancer.publish(build([route], [RevisionEndpoints(NAME, "r1", (server.url,))]))
            targets = {
                "/gateway": f"{here.edge.admin_url}/metrics",
                "/jobs": f"{here.jobs[0].admin_url}/metrics",
                "/server": f"{server.url}/metrics",
            }
            await _check(tmp_path, targets, here, server, [panel for _, panel in PANELS if is_of_work(panel)])


async def _check(
    folder: Path, targets: dict[str, str], here: World, server: ServerProcess, shown: list[dict[str, Any]]
) -> None:
    assert len(shown) > 15
    _configure(folder, targets)
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(program("prometheus")), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with running(Launch(command, {}, url, f"{url}/-/ready"), folder / "log", 60.0):
        prometheus, until_s = Prometheus(url), asyncio.get_running_loop().time() + FOUND_S
        problems = ["nothing was looked at"]
        look: Callable[[], list[str]] = lambda: list(filter(None, (_problem(prometheus, one) for one in shown)))  # noqa: E731
        async for _ in _at_work(here, server):
            problems = await asyncio.to_thread(look)
            if not problems or asyncio.get_running_loop().time() > until_s:
                break
        assert not problems, "\n".join(problems)
