"""The real kubectl without validation, the real API server that prunes, and the operator that reports it."""

import asyncio
import json
import subprocess

import pytest

from slipway_operator.kube.resources import EVENTS
from testkit.cluster.tools import tool

from .conftest import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.finding("S15")]


async def apply(cluster, api_server, *flags, **more):
    """The output of kubectl for a manifest with these fields beside the required ones."""
    spec = {**MANIFEST["spec"], **more}
    text = json.dumps({**MANIFEST, "metadata": {"name": "chat", "namespace": cluster.namespace}, "spec": spec})
    command = [tool("kubectl"), f"--kubeconfig={api_server}", "apply", *flags, "-f", "-"]
    return await asyncio.to_thread(
        subprocess.run, command, input=text, capture_output=True, text=True, timeout=100, check=False
    )


def condition(status):
    found = [item for item in status.get("conditions") or () if item["type"] == "UnknownField"]
    return found[0] if found else {}


async def test_a_field_that_kubectl_lets_through_is_named_until_it_is_corrected(cluster, api_server):
    refused = await apply(cluster, api_server, replica=2)
    assert refused.returncode == 1 and 'unknown field "spec.replica"' in refused.stderr
    done = await apply(cluster, api_server, "--validate=false", replica=2)
    assert done.returncode == 0, done.stderr
    status = await cluster.reaches("the condition is there", condition)
    assert 'unknown field "spec.replica" (did you mean "spec.replicas"?)' in condition(status)["message"]
    assert "replica" not in (await cluster.chat())["spec"], "the API server has dropped it"
    await cluster.reaches("it is the reason", lambda now: now.get("reason") == "UnknownField")
    healthy = await cluster.reaches("it serves nevertheless", lambda now: now.get("phase") == "Healthy")
    assert condition(healthy)["status"] == "True"
    events = [item for item in await cluster.client.list(EVENTS, cluster.namespace) if item["reason"] == "UnknownField"]
    assert [(item["type"], item.get("count", 1)) for item in events] == [("Warning", 1)]
    corrected = await apply(cluster, api_server)
    assert corrected.returncode == 0, corrected.stderr
    await cluster.reaches("it is corrected", lambda now: not condition(now))
