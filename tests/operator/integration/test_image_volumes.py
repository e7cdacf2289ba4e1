"""A model that is mounted from its image, on API servers with image volumes and without."""

import os

import pytest

from slipway_operator.kube.resources import REPLICA_SETS

pytestmark = pytest.mark.integration

MODEL = {"uri": "oci://registry.example.com/models/tiny:v1", "cache": "image"}
WITHOUT = os.environ.get("SLIPWAY_KUBERNETES") == "oldest"


@pytest.mark.skipif(WITHOUT, reason="the oldest API server drops the field")
async def test_the_pods_have_the_image_as_a_volume(cluster, chat):
    await cluster.edit({"model": MODEL})
    status = await cluster.reaches(
        "the new revision is stable",
        lambda now: now.get("phase") == "Healthy" and now["stableRevision"] == now["currentRevision"],
    )
    [pod] = [
        item["spec"]["template"]["spec"]
        for item in await cluster.client.list(REPLICA_SETS, cluster.namespace)
        if item["metadata"]["labels"]["slipway.dev/revision"] == status["stableRevision"]
    ]
    [image] = [volume["image"] for volume in pod["volumes"] if "image" in volume]
    assert image == {"reference": "registry.example.com/models/tiny:v1", "pullPolicy": "IfNotPresent"}


@pytest.mark.skipif(not WITHOUT, reason="this API server has image volumes: make oldest")
async def test_an_api_server_without_image_volumes_is_named(cluster, chat):
    await cluster.reaches("it serves", lambda now: now.get("phase") == "Healthy")
    await cluster.edit({"model": MODEL})
    status = await cluster.reaches("it is refused", lambda now: now.get("reason") == "ImageVolumesUnavailable")
    assert "spec.model.cache" in status["message"]
    assert status["stableRevision"] != status["currentRevision"], "the former revision serves on"
