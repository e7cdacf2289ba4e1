"""A real Prometheus with the chart's alerts reads a cluster: it is silent while all is well, and fires when it must.

Prometheus runs beside the cluster and reads the pods through the API server. Alerts that hold for minutes here hold for
seconds: their expressions are the chart's own.
"""

import json
import shutil
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from devcluster.ports import reserve_port
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import RELEASE, SYSTEM
from testkit.cluster.release import CHART
from testkit.load.closed import Load
from testkit.until import until
from testkit.world.program import Launch, running
from tests.chart.test_prometheus import PANELS, QUIET, is_of_work
from tests.support.stores.debian import program

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(shutil.which("apt-get") is None, reason="Prometheus comes from Debian's package"),
]
BROKEN_URI = "file:///opt/slipway/models/tiny-broken"
FOR_S = 20
FIRES_S = 120
# Nothing alerts for so long with a load: alerts hold for FOR_S, and rules are evaluated each second.
SILENT_S = 45
PODS = ("gateway/0", "gateway/1", "operator/0")
# Panels about requests, engines and batches are proved in tests/chart/test_real_pages.py. Of these no cluster without a
# GPU, feedback, copies or a broken answer has something to show.
BOARDS, PANELS_S = ("fleet", "model", "engines"), 120
ELSEWHERE = {
    "GPU utilization by deployment and revision", "GPU utilization by pod", "Feedback",
    "First attempts that went wrong", "Copies for the revision under test", "Conditions with a problem",
}  # fmt: skip


class Alerts:
    """The alerts that a Prometheus has firing."""

    def __init__(self, url: str) -> None:
        self._url = url

    def firing(self) -> set[str]:
        found = self.query('ALERTS{alertstate="firing"}')
        return {series["metric"]["alertname"] for series in found}

    def query(self, text: str) -> list[Json]:
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return list(json.load(response)["data"]["result"])

    def until_firing(self, name: str) -> None:
        until(lambda: name in self.firing(), f"{name} fires", FIRES_S)


@contextmanager
def pages_of(slipway: Installation) -> Iterator[int]:
    """A port with the metrics of each ready pod of a component: /gateway/0 and so on; 503 where there is none."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, component, number = self.path.split("/")
            pod = dict(enumerate(sorted(slipway.ready(component)))).get(int(number))
            page = None
            if pod is not None:
                with suppress(KubeError, OSError):  # a pod that is on its way out
                    page = slipway.kube.api.text(f"api/v1/namespaces/{SYSTEM}/pods/{pod}:8001/proxy/metrics")
            self.send_response(503 if page is None else 200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def alerts(slipway: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alerts]:
    folder, port = tmp_path_factory.mktemp("prometheus"), reserve_port()
    # The operator's series of engines that are not autoscaled, which dashboards show.
    slipway.upgrade(metrics={"engineSeries": {"maxPods": 20}})
    with pages_of(slipway) as pages:
        _configure(folder, pages)
        command = [
            str(program("prometheus")),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        url = f"http://127.0.0.1:{port}"
        with running(Launch(command, {}, url, f"{url}/-/ready"), folder / "log", 60.0):
            found = Alerts(url)
            until(lambda: found.query("slipway_gateway_build_info"), "the gateways are read")
            until(lambda: found.query("slipway_operator_holds_lease == 1"), "the operator is read")
            yield found
    slipway.upgrade()


def _configure(folder: Path, port: int) -> None:
    jobs = [
        {
            "job_name": path,
            "metrics_path": f"/{path}",
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"pod": path}}],
        }
        for path in PODS
    ]
    for name in ("rules.yaml", "alerts.yaml"):
        rules = yaml.safe_load((CHART / "files" / name).read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = f"{FOR_S}s"
        (folder / name).write_text(yaml.safe_dump(rules))
    settings = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml", "alerts.yaml"],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))


def test_what_alerts_and_what_does_not(
    slipway: Installation, alerts: Alerts, deploy: Callable[..., Deployment], load: Callable[..., Load]
) -> None:
    chat = deploy("v1", slo={"availability": "99.9", "window": "1d"})
    chat.until_stable("v1")
    steady = load(chat, pause_s=0.1)
    # A rollout that goes well: every panel about it has something to show.
    chat.release("v2", strategy={"canary": {"steps": [{"setWeight": 50}, {"pause": {}}], "scaleDownDelaySeconds": 1}})
    chat.until_state("Paused")
    until(lambda: _empty_panels(alerts, chat), "no panel is empty", PANELS_S, holds=lambda empty: not empty, shown=str)
    chat.promote()
    chat.until_stable("v2")
    _assert_silent(alerts)

    # A canary that is broken.
    broken = {"uri": BROKEN_URI, "version": "v3"}
    chat.edit(model=broken, progressDeadlineSeconds=20)
    chat.until_state("Aborted", START_S)
    alerts.until_firing("SlipwayDeploymentDegraded")
    chat.release("v2")
    until(lambda: "SlipwayDeploymentDegraded" not in alerts.firing(), "it is well again", FIRES_S)
    assert steady.stop().failures == ()

    # A budget that is spent: no response is that fast.
    chat.edit(slo={"latencyP99": "1ms", "availability": None, "window": "1d"})
    load(chat, pause_s=0.05)
    alerts.until_firing("SlipwayErrorBudgetSpent")
    assert {"SlipwayErrorBudgetBurnsFast"} <= alerts.firing()


def test_dead_gateways_alert(slipway: Installation, alerts: Alerts) -> None:
    scaled = ("scale", "deployment", f"{RELEASE}-gateway", "--namespace", SYSTEM)
    slipway.kube.kubectl(*scaled, "--replicas=0")
    try:
        alerts.until_firing("SlipwayGatewayMissing")
    finally:
        slipway.kube.kubectl(*scaled, "--replicas=2")
        slipway.until_well()
    until(lambda: "SlipwayGatewayMissing" not in alerts.firing(), "they are back", FIRES_S)


def _empty_panels(alerts: Alerts, chat: Deployment) -> list[str]:
    """Titles of the panels about rollouts, pods and engines that show nothing now."""
    values = {"$namespace": chat.namespace, "$name": chat.name, "$model": chat.model, "$__rate_interval": "30s"}

    def query(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    panels = [panel for board, panel in PANELS if board in BOARDS and panel["title"] not in ELSEWHERE | QUIET]
    assert len(panels) > 12
    return [
        panel["title"]
        for panel in panels
        if not is_of_work(panel) and not all(alerts.query(query(target["expr"])) for target in panel["targets"])
    ]


def _assert_silent(alerts: Alerts) -> None:
    """Nothing fires for SILENT_S."""
    until_s = time.monotonic() + SILENT_S
    while time.monotonic() < until_s:
        assert alerts.firing() == set()
        time.sleep(1)
