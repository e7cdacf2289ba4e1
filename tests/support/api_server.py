"""One real kube-apiserver for a test session, with Slipway's CRDs in it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from devcluster import controlplane
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH, Api
from testkit.until import until

CRD_FILE = ROOT / "crds" / "modeldeployments.yaml"
CRD_FILES = (
    CRD_FILE,
    ROOT / "crds" / "analysistemplates.yaml",
    ROOT / "crds" / "analysisruns.yaml",
    ROOT / "crds" / "tenants.yaml",
    ROOT / "crds" / "modelpools.yaml",
    ROOT / "crds" / "modelroutes.yaml",
    ROOT / "crds" / "experiments.yaml",
    ROOT / "crds" / "modeladapters.yaml",
)
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="session")
def api_server() -> Iterator[Path]:
    """Kubeconfig of a real API server with the CRDs established.

    It starts on loopback for this session and goes with it; where its binaries cannot be had, devcluster answers with
    the running kind cluster. Without either the tests fail: an explicit run must not skip them.
    """
    with controlplane.api_server() as kubeconfig:
        install_crds(kubeconfig, served_alone=True)
        yield kubeconfig


@pytest.fixture(scope="session")
def api(api_server: Path) -> Iterator[Api]:
    """A client of `api_server` with all rights."""
    session = Api(api_server)
    yield session
    session.close()


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> str:
    """A namespace of its own for one test. It stays: without a controller manager it cannot be emptied."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    made = api.post("/api/v1/namespaces", body)
    assert made.ok, made.message
    return str(made.body["metadata"]["name"])


def install_crds(kubeconfig: Path, *, served_alone: bool = False) -> None:
    """Apply the CRDs and wait until the API server serves them. `served_alone`: as the chart installs them, without the
    versions that are not served yet."""
    session = Api(kubeconfig)
    for path in CRD_FILES:
        crd = yaml.safe_load(path.read_text())
        if served_alone:
            crd["spec"]["versions"] = [version for version in crd["spec"]["versions"] if version["served"]]
        applied = session.apply(f"{_CRDS}/{crd['metadata']['name']}", crd, fieldValidation="Strict")
        assert applied.ok, f"the API server refused {path.name}: {applied.message}"
        served = partial(session.get, f"{GROUP_PATH}/{crd['spec']['names']['plural']}")
        until(served, f"{path.name} is served", holds=lambda answer: answer.ok)
    session.close()
