"""A real cluster, the release in it, and for each test a namespace of its own; failures show the cluster's state."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devcluster.engine import facts
from devcluster.engine.choice import Missing, choose
from e2e import traffic_features
from testkit import ROOT
from testkit.cluster.deployment import Deployment
from testkit.cluster.diagnosis import diagnosis, events, logs, pods
from testkit.cluster.installation import Installation
from testkit.cluster.kube import CRD, SYSTEM, Kube
from testkit.cluster.release import Images, gateway, is_devcluster
from testkit.load.closed import Load
from testkit.load.flow import Flow, Shape
from tests.support import signals

signals.reset()

HERE = Path(__file__).resolve().parent
LAST = "test_uninstall_clean.py"
TIMEOUT_S = 240
PAUSE_S = 1.0  # between a worker's requests: a load that fills the cores would slow every pod's start, and every test
UP_TIMEOUT_S = 3600  # the first time the node image is built

_why_skipped = pytest.StashKey[str]()


# --- the suite --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-table", metavar="FILE", help="put the table of test_faults.py into this page")
    parser.addoption("--autoscaling-page", metavar="FILE", help="put the table of test_autoscaling.py into this page")
    parser.addoption("--autoscaling-picture", metavar="FILE", help="draw its load step into this PNG")
    parser.addoption("--setups-table", metavar="FILE", help="put the table of test_broken_setups.py into this page")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks and bounds every test here."""
    item.add_marker("e2e")
    if not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(TIMEOUT_S, func_only=True))  # a first build takes longer


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uninstalls the release runs last, whatever shuffled the others."""
    last = [item for item in items if item.path == HERE / LAST]
    last.sort(key=lambda item: item.name == "test_uninstall_leaves_the_crd_and_the_running_models")
    items[:] = [item for item in items if item not in last] + last


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if why := config.stash.get(_why_skipped, ""):
        terminalreporter.write_line(f"NOT RUN: the e2e suite on a real cluster. {why}", red=True, bold=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add to each failure what a person would look at first, while it is still there."""
    report = yield
    given: dict[str, Any] = getattr(item, "funcargs", {})
    shared = (value.namespace for value in given.values() if isinstance(value, Deployment))
    namespace = given.get("namespace") or next(shared, None)
    if report.failed and report.when != "teardown" and namespace:
        report.sections.append(("cluster", _diagnoses(given["slipway"].kube, namespace)))
    return report


def _diagnoses(kube: Kube, namespace: str) -> str:
    names = [one["metadata"]["name"] for one in kube.api.items(CRD, namespace)]
    found = [f"{name}\n{diagnosis(kube, name, namespace)}" for name in names]
    system = f"{SYSTEM}\n{pods(kube, SYSTEM)}\n{events(kube, SYSTEM)}\n{logs(kube, 40)}"
    return "\n".join([*(found or [pods(kube, namespace), events(kube, namespace)]), system])


# --- the cluster and the release --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Kube:
    """$KUBECONFIG where it is set, else the devcluster; where neither can be, the suite prints what it did not run."""
    if named := os.environ.get("KUBECONFIG"):
        return Kube(Path(named))
    engine = choose(facts.observe())
    if isinstance(engine, Missing):
        request.config.stash[_why_skipped] = engine.message
        pytest.skip(engine.message)
    devcluster("up")
    return Kube(Path(devcluster("kubeconfig").strip()))


@pytest.fixture(scope="session")
def slipway(cluster: Kube) -> Iterator[Installation]:
    """The chart's release with the real images and two gateways."""
    installed = Installation(cluster, images())
    installed.upgrade()
    with gateway(cluster) as url:
        yield replace(installed, url=url)
    installed.until_dropped()


def images() -> Images:
    """From the environment for a foreign cluster; else built from the tree and loaded into the devcluster."""
    operator, server, predict = (
        os.environ.get(f"SLIPWAY_{name}_IMAGE", "") for name in ("OPERATOR", "SERVER", "PREDICT")
    )
    if operator and server:
        return Images(operator, server, predict)
    built = dict(line.split("=", 1) for line in devcluster("images").splitlines() if "=" in line)
    return Images(built["operator"], built["server"], built["server-predict"])


def devcluster(*arguments: str) -> str:
    """What one of its commands prints; its progress is shown as it comes."""
    command = [sys.executable, "-m", "devcluster", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=UP_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"`{' '.join(command[1:])}` failed; its last words are above"
    return done.stdout


@pytest.fixture(scope="session")
def metrics_server(slipway: Installation) -> None:
    """What serves CPU and memory of pods; a foreign cluster has it or has not."""
    if is_devcluster(slipway.kube):
        devcluster("metrics-server")
    elif not slipway.kube.kubectl("get", "apiservice", "v1beta1.metrics.k8s.io", "--ignore-not-found", "-o", "name"):
        pytest.skip("this cluster has no metrics-server")


# --- for each test ----------------------------------------------------------------------------------------------------


@pytest.fixture
def namespace(slipway: Installation) -> Iterator[str]:
    """A fresh namespace that takes only pods that pass Pod Security "restricted"; deleted afterwards."""
    slipway.until_well()
    name = slipway.new_namespace()
    yield name
    slipway.drop_namespace(name)


@pytest.fixture
def deploy(slipway: Installation, namespace: str) -> Callable[..., Deployment]:
    """Makes a ModelDeployment: deploy("v1", replicas=2)."""

    def make(version: str = "v1", **spec: Any) -> Deployment:
        made = Deployment(slipway.kube, namespace)
        made.create(version, **spec)
        return made

    return make


@pytest.fixture
def load(slipway: Installation) -> Iterator[Callable[..., Load]]:
    """Starts a closed-loop load on a ModelDeployment that serves; stopped at the end of the test at the latest."""
    started: list[Load] = []

    def start(chat: Deployment, *, url: str = "", pause_s: float = PAUSE_S, streams: int = 4, **options: Any) -> Load:
        chosen: dict[str, Any] = {"whole": 1, "max_tokens": (10, 40)} | options
        steady = Load(url or slipway.url, chat.model, streams=streams, pause_s=pause_s, **chosen).start()
        started.append(steady)
        steady.wait_for(lambda report: report.min_streams >= streams or report.requests >= streams, 30)
        return steady

    yield start
    for steady in started:
        steady.stop()


@pytest.fixture
def flow(slipway: Installation) -> Iterator[Callable[[Deployment, Shape], Flow]]:
    """Starts requests at a fixed rate to a ModelDeployment that serves; stopped with the test at the latest."""
    started: list[Flow] = []

    def start(chat: Deployment, shape: Shape) -> Flow:
        started.append(Flow(slipway.url, traffic_features.model(chat), shape, traffic_features.HEADERS).start())
        return started[-1]

    yield start
    for running in started:
        running.stop()
