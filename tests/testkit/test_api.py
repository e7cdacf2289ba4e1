"""What is looked at again and again: by name, by label, as text, and with a sentence when it cannot be had."""

from pathlib import Path

import pytest
import yaml

from testkit.cluster.api import Api, KubeError
from testkit.cluster.kube import CRD, Kube

pytestmark = pytest.mark.integration


def test_reads_by_name_by_label_and_as_text(api_server: Path, namespace: str) -> None:
    kube = Kube(api_server)
    for name, tier in (("one", "a"), ("two", "b")):
        kube.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"t": tier}}}, namespace
        )
    api = Api(api_server)
    assert api.find(f"api/v1/namespaces/{namespace}/configmaps/one")["metadata"]["name"] == "one"
    assert api.find(f"api/v1/namespaces/{namespace}/configmaps/three") == {}
    labelled = api.items("v1/configmaps", namespace, selector="t=b")
    named = api.items("v1/configmaps", namespace, fields="metadata.name=two")
    assert [item["metadata"]["name"] for item in (*labelled, *named)] == ["two", "two"]
    assert {"one", "two"} <= {item["metadata"]["name"] for item in api.items("v1/configmaps")}
    assert api.items(CRD, namespace) == [] and kube.deployment("chat", namespace) == {}
    assert api.text("readyz") == "ok"


def test_a_refusal_names_the_request_and_the_reason(api_server: Path) -> None:
    with pytest.raises(KubeError, match=r"GET /api/v1/nothings.*404.*could not find the requested resource"):
        Api(api_server).items("v1/nothings")


def test_unreachable_server_is_an_error(api_server: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(api_server.read_text())
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    unreachable = tmp_path / "kubeconfig"
    unreachable.write_text(yaml.safe_dump(content))
    with pytest.raises(KubeError, match="GET /readyz"):
        Api(unreachable).text("readyz")
