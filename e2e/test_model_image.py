"""A model that the kubelet mounts from an image: served, released, pinned; a missing image is named."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from devcluster.engine.engine import find
from devcluster.images.archive import Image, write_archive
from devcluster.node.access import load_archive
from devcluster.places import places
from testkit import ROOT
from testkit.cluster.deployment import START_S, Deployment, Json, canary, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.release import is_devcluster
from testkit.load.closed import Load

REGISTRY = "registry.invalid/e2e"  # of which the node has what a test puts there
CONDITIONS = ("Available", "CanaryHealthy", "StableHealthy")

Put = Callable[[str, str], str]


@pytest.fixture
def put(slipway: Installation, namespace: str, tmp_path: Path) -> Put:
    """Puts an image with a tiny model on the node, under a tag; gives the model's URI."""
    if not is_devcluster(slipway.kube):
        pytest.skip("puts images on the node of the devcluster")
    engine, _ = find(places())

    def put_image(tag: str, version: str) -> str:
        reference = f"{REGISTRY}/{namespace}:{tag}"
        files = tuple((f"/models/{path.name}", path) for path in sorted((ROOT / "examples/models" / version).iterdir()))
        archive = tmp_path / "image.tar"
        write_archive(Image(reference, files), archive, platform.machine())
        load_archive(places(), engine, archive)
        return f"oci://{reference}"

    return put_image


def mounted(uri: str, version: str) -> Json:
    return {"uri": uri, "version": version, "cache": "image"}


@pytest.mark.timeout(4 * START_S, func_only=True)
def test_a_release_goes_from_one_mounted_image_to_another_and_a_moved_tag_is_refused(
    put: Put, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    first, second = put("v1", "tiny-v1"), put("v2", "tiny-v2")
    chat = deploy(model=mounted(first, "v1"), strategy=canary({"setWeight": 50}, {"pause": {}}))
    chat.until_stable("v1")
    steady = load(chat)
    chat.edit(model=mounted(second, "v2"))
    assert weights_of(chat.until_state("Paused")) == {"v1": 50, "v2": 50}
    chat.promote()
    [revision] = [item for item in chat.until_stable("v2")["revisions"] if item["role"] == "stable"]
    assert revision["digest"].startswith("sha256:"), "the files are pinned as those of any model"
    chat.until_alone()
    assert steady.stop().failures == ()
    [pod] = chat.pods()
    [volume] = [volume for volume in pod["spec"]["volumes"] if "image" in volume]
    assert f"oci://{volume['image']['reference']}" == second

    put("v2", "tiny-v1")
    chat.scale(2)
    refused = chat.until("the other bytes are refused", lambda status: "WeightsDiffer" in reasons(status), START_S)
    assert refused["ready"].startswith("1/"), "the pod with the pinned bytes serves"


def test_an_image_that_no_registry_has_is_named_with_a_remedy(put: Put, deploy: Callable[..., Deployment]) -> None:
    missing = f"oci://{REGISTRY}/missing:v1"
    chat = deploy(model=mounted(missing, "v1"), strategy=canary({"setWeight": 50}))
    status = chat.until("it is named", lambda status: "ImagePullFailed" in reasons(status), START_S)
    assert f"{REGISTRY}/missing:v1" in status["message"] and "spec.engine.imagePullSecrets" in status["message"]


def reasons(status: Json) -> set[str]:
    """Of its conditions that show a problem of pods."""
    return {item["reason"] for item in status.get("conditions", ()) if item["type"] in CONDITIONS}
