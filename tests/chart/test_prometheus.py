"""A real Prometheus scrapes drawn pages, and answers those queries of the dashboards that no real page here answers."""

import json
import math
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.ports import reserve_port
from testkit.until import until
from testkit.world.program import Launch, running
from tests.chart import pages
from tests.chart.rendered import CHART
from tests.chart.test_dashboards import BOARDS, panels
from tests.support.stores.debian import program

pytestmark = [
    pytest.mark.extended,
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="Prometheus comes from Debian's package"),
]
VALUES = {"$namespace": "team", "$name": "chat", "$model": "chat", "$tenant": ".*", "$__rate_interval": "10s"}
RANGE = ("$__range:5m", "10s:1s")
# Panels about what does not happen in a healthy cluster: they are empty, and say so.
QUIET = {
    "Requests that did not end well",
    "Failed share by model",
    "Pods whose metrics cannot be read",
    "Engines that died, and restarts",
    "Vetoes, and rollouts that were rejected",
}
# A ratio of an hour that rules of one sample a minute make.
SLOW = {"Cost per million tokens"}
# Panels whose series are the operator's or a GPU's alone.
_DRAWN = ("slipway_operator", "slipway_rollout", "slipway_pod", "slipway_condition", "slipway_cost", "slipway_engine_",
          "slipway_tenant", "slipway_slo", "gpu", "wake", "cost")  # fmt: skip
# What takes a client's feedback, a receiver of webhooks, a rollout, or a limit that is too low.
_ELSEWHERE = {
    "Feedback", "Webhooks", "First attempts that went wrong", "Copies for the revision under test",
    "Requests refused by limits",
}  # fmt: skip
RULES = ["rules.yaml", "alerts.yaml"]
MOST = {"percentunit": 1.0, "percent": 100.0, "s": 3600.0}
FEW = 2e6


class Prometheus:
    """The API of one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, text: str) -> list[dict[str, Any]]:
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, port = tmp_path_factory.mktemp("prometheus"), reserve_port()
    with pages.served() as served:
        _configure(folder, served)
        command = [
            str(program("prometheus")),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        url = f"http://127.0.0.1:{port}"
        with running(Launch(command, {}, url, f"{url}/-/ready"), folder / "log", 60.0):
            found = Prometheus(url)
            recorded = "namespace_name_revision_objective:slipway_slo_burn:rate5m"
            until(lambda: found.query(recorded), "rules are evaluated")
            yield found


def _configure(folder: Path, port: int) -> None:
    jobs = [
        {
            "job_name": path.strip("/"),
            "metrics_path": path,
            "honor_labels": path in ("/operator", "/gateway"),
            "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}],
        }
        for path, labels in pages.PATHS.items()
    ]
    write_rules(folder)
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": RULES,
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))


def write_rules(folder: Path) -> None:
    """The chart's, which are evaluated each second here."""
    for name in RULES:
        rules = yaml.safe_load((CHART / "files" / name).read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
        (folder / name).write_text(yaml.safe_dump(rules))


def is_of_work(panel: dict[str, Any]) -> bool:
    """Whether a gateway, a model server and a jobs process at work have all its series: `test_real_pages.py`."""
    text = " ".join(target["expr"] for target in panel["targets"])
    return panel["title"] not in QUIET | _ELSEWHERE and not any(name in text for name in _DRAWN)


def _with_values(text: str) -> str:
    text = text.replace(*RANGE).replace("$__range", "10s")
    for name, value in VALUES.items():
        text = text.replace(name, value)
    return text


PANELS = [(board, panel) for board in BOARDS for panel in panels(board)]
REST = [(board, panel) for board, panel in PANELS if not is_of_work(panel)]


@pytest.mark.parametrize(("board", "panel"), REST, ids=[f"{b}: {p['title']}" for b, p in REST])
def test_no_panel_is_empty_and_no_unit_is_wrong(prometheus: Prometheus, board: str, panel: dict[str, Any]) -> None:
    if panel["title"] in QUIET | SLOW:
        assert all(isinstance(prometheus.query(_with_values(one["expr"])), list) for one in panel["targets"])
        return
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        query = _with_values(target["expr"])
        found = until(partial(prometheus.query, query), f"{panel['title']} has series", 60)
        for series in found:
            value = float(series["value"][1])
            assert math.isnan(value) or value <= MOST.get(unit, FEW), f"{panel['title']}: {value} {unit}"
        shown = {name.strip("{}") for name in target["legendFormat"].split() if name.startswith("{{")}
        lacks = {name for word in shown for name in word.split("}}/{{")} - set().union(
            *(one["metric"] for one in found)
        )
        assert not lacks, f"{panel['title']}: the legend has labels that no series has"


def test_nothing_alerts_while_all_is_well(prometheus: Prometheus) -> None:
    until(lambda: prometheus.query("namespace_name_revision:slipway_gpu_utilization:avg"), "all is scraped")
    assert [one["metric"] for one in prometheus.query("ALERTS")] == []
