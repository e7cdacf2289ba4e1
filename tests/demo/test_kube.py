"""What `kube` makes of values, images and pods."""

from pathlib import Path

import pytest
import yaml

from examples.demo.story import MANIFESTS
from testkit.cluster.api import KubeError
from testkit.cluster.diagnosis import pod_line
from testkit.cluster.release import Images, image_values, merge
from testkit.cluster.tools import run


@pytest.mark.parametrize(
    ("image", "values"),
    [
        ("slipway-server:0.1", {"repository": "slipway-server", "tag": "0.1"}),
        ("host:5000/a/b:1", {"repository": "host:5000/a/b", "tag": "1"}),
        ("host:5000/a/b", {"repository": "host:5000/a/b", "tag": "latest"}),
        ("a/b@sha256:12", {"repository": "a/b", "digest": "sha256:12"}),
    ],
)
def test_image_references_become_chart_values(image: str, values: dict[str, str]) -> None:
    assert image_values(Images("op:1", image))["server"] == {"image": values}
    assert image_values(Images("op:1", "server:1", image))["server"]["predictImage"] == values


def test_merge_joins_mappings_and_prefers_the_second() -> None:
    under = {"gateway": {"replicaCount": 1, "service": {"port": 80}}, "crds": {"keep": True}}
    over = {"gateway": {"replicaCount": 2}, "crds": None}
    assert merge(under, over) == {"gateway": {"replicaCount": 2, "service": {"port": 80}}, "crds": None}


def test_a_pod_that_does_not_run_is_shown_with_its_reason() -> None:
    waiting = {"name": "server", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2}
    waiting["lastState"] = {"terminated": {"message": "shard 2 is missing"}}
    line = pod_line({"metadata": {"name": "chat-x"}, "status": {"phase": "Running", "containerStatuses": [waiting]}})
    assert line == "chat-x Running: server waiting, 2 restarts CrashLoopBackOff shard 2 is missing"
    assert pod_line({"metadata": {"name": "chat-y"}, "status": {"phase": "Pending"}}) == "chat-y Pending: not started"


def test_error_of_a_failed_tool_is_its_output() -> None:
    with pytest.raises(KubeError, match=r"`sh -c .*` failed: it broke"):
        run(["/bin/sh", "-c", "echo it broke >&2; exit 3"])
    with pytest.raises(KubeError, match="did not end within"):
        run(["/bin/sh", "-c", "sleep 5"], timeout_s=0.2)


def test_the_manifests_are_one_deployment_in_four_versions() -> None:
    loaded = [yaml.safe_load(path.read_text()) for path in sorted(Path(MANIFESTS).glob("*.yaml"))]
    assert [item["spec"]["model"]["version"] for item in loaded] == ["v1", "v2", "v3", "v4"]
    assert {item["metadata"]["name"] for item in loaded} == {"chat"}
    for item in loaded:
        del item["spec"]["model"], item["spec"]["progressDeadlineSeconds"]
    assert all(item == loaded[0] for item in loaded), "only the model and the deadline differ"
