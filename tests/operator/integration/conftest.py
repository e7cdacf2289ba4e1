"""A client of the real API server, and children as the plan makes them."""

import contextlib

import pytest

from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound, Stale
from slipway_operator.kube.resources import API_SERVICES, MODEL_DEPLOYMENTS
from slipway_operator.model import labels
from tests.support.processes import cluster, operator_flags

__all__ = ["cluster", "operator_flags"]

MANIFEST = {
    "apiVersion": "slipway.dev/v1alpha1",
    "kind": "ModelDeployment",
    "spec": {"model": {"uri": "file:///opt/slipway/models/tiny-v1"}},
}


@pytest.fixture
async def client(api_server, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(api_server))
    async with Client(await auth.load(str(api_server))) as client:
        yield client


@pytest.fixture
async def chat(client, namespace):
    """A ModelDeployment called chat."""
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": namespace}}
    return await client.create(MODEL_DEPLOYMENTS, manifest)


@pytest.fixture
async def registrations(client, namespace):
    """After the test no API is registered for its namespace: while one is, no other test can serve that group."""
    yield
    for item in await client.list(API_SERVICES, None, f"{labels.MANAGED_BY}=slipway"):
        if item["spec"]["service"]["namespace"] == namespace:
            with contextlib.suppress(NotFound, Stale):
                await client.delete(API_SERVICES, None, item["metadata"]["name"], item["metadata"]["uid"])
