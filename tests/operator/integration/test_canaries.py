"""Secrets planted in every possible place: none of them appears in output of the operator or the gateway."""

import asyncio
import contextlib
import io

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.__main__ import main
from slipway_operator.kube.resources import (
    ANALYSIS_TEMPLATES,
    CONTROLLER_REVISIONS,
    EVENTS,
    JOBS,
    MODEL_DEPLOYMENTS,
    NETWORK_POLICIES,
    REPLICA_SETS,
    SECRETS,
)
from testkit.world.addresses import own_address
from testkit.world.web import web_service

from .conftest import MANIFEST
from .test_measuring import allow_secret, healthy, measured

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(2, 22)]

CANARY = "c4nary"  # a part of every secret value


class Service:
    """A hook's receiver, a web service and a Prometheus that put secrets into every part of their responses."""

    def __init__(self):
        self.base_url, self.paths = "", []

    async def respond(self, request):
        self.paths.append(request.path)
        body = {"error": f"{CANARY}-answer", "status": "error", "errorType": f"{CANARY}-type"}
        headers = {"X-Secret": f"{CANARY}-header", "Location": f"http://{CANARY}-location/"}
        status = {"/hook": 403, "/moved": 302}.get(request.path, 200)
        return web.json_response(body, status=status, reason=f"{CANARY}-reason", headers=headers)

    def url(self, path):
        return f"{self.base_url}/{path}"


@pytest.fixture
async def service():
    service = Service()
    async with web_service("*", "/{path:.*}", service.respond) as service.base_url:
        yield service


@pytest.fixture
def operator_flags():
    return [f"--allowed-private-cidrs={own_address()}/32", "--network-policy-release=a=b", "--log-level=debug"]


def template(service):
    header = {"key": "Authorization", "valueFrom": {"secretKeyRef": {"name": "given", "key": "token"}}}
    hidden = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "not-given", "key": "token"}}}
    pod = {"containers": [{"name": "a", "image": "b:1", "env": [hidden]}]}
    endless = {"interval": "5s", "consecutiveErrorLimit": 100, "failureLimit": -1}

    def web_metric(name, path, **fields):
        provider = {"web": {"url": service.url(path), "headers": [header], **fields}}
        return {"name": name, "successCondition": "result == 'x'", "provider": provider, **endless}

    query = {"prometheus": {"address": service.url("prometheus"), "query": "up", "headers": [header]}}
    return {
        "metrics": [
            web_metric("web", "web"),
            web_metric("part", "web", jsonPath="{$.error}"),
            web_metric("missing", "web", jsonPath="{$.nothing}"),
            web_metric("moved", "moved"),
            {"name": "prometheus", "successCondition": "result[0] > 1", "provider": query, **endless},
            {"name": "job", "provider": {"job": {"spec": {"template": {"spec": pod}}}}, "consecutiveErrorLimit": 100},
        ]
    }


async def plant(cluster, service):
    for name in ("given", "not-given", "hub", "engine"):
        metadata = {"name": name, "namespace": cluster.namespace}
        values = dict.fromkeys(("token", "HF_TOKEN", "key"), f"{CANARY}-{name}")
        await cluster.client.create(SECRETS, {"metadata": metadata, "stringData": values})
    await allow_secret(cluster, "given")
    metadata = {"name": "quality", "namespace": cluster.namespace}
    kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "AnalysisTemplate"}
    await cluster.client.create(ANALYSIS_TEMPLATES, {**kind, "metadata": metadata, "spec": template(service)})
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    steps = [{"setWeight": 50}, {"analysis": {"templates": [{"templateName": "quality"}], "maxDuration": "30m"}}]
    hooks = [{"name": "gate", "type": "confirm-traffic-increase", "url": service.url("hook")}]
    hooks += [{"name": "log", "type": "event", "url": service.url("hook"), "retries": 0}]
    manifest["spec"] = {
        "model": {"uri": "hf://org/model", "revision": "v1", "secretRef": {"name": "hub"}},
        "engine": {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "engine", "key": "key"}}}]},
        "strategy": {"canary": {"steps": steps, "scaleDownDelaySeconds": 0}, "hooks": hooks},
    }
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    await cluster.reaches("chat is stable", healthy)
    await cluster.edit({"model": {"revision": "v2"}})


async def all_output(cluster):
    """All that a reader of the cluster, of logs or of admin pages sees."""
    kinds = (MODEL_DEPLOYMENTS, REPLICA_SETS, CONTROLLER_REVISIONS, EVENTS, JOBS, NETWORK_POLICIES)
    output = {kind.plural: str(await cluster.client.list(kind, cluster.namespace)) for kind in kinds}
    output |= {"operator's log": cluster.operator.log(), "gateway's log": cluster.gateway.log()}
    output["operator's metrics"] = (await cluster.admin("/metrics"))[1]
    key = {"Authorization": f"Bearer {CANARY}-client", "Cookie": f"a={CANARY}-cookie"}
    async with aiohttp.ClientSession(headers=key) as session:
        body = {"model": "chat", "prompt": "x", "user": f"{CANARY}-user"}
        async with session.post(f"http://127.0.0.1:{cluster.port}/v1/completions", json=body) as answer:
            output["gateway's answer"] = await answer.text()
        for page in ("/metrics", "/internal/routes"):
            async with session.get(f"http://127.0.0.1:{cluster.gateway_admin_port}{page}") as answer:
                output[f"gateway's {page}"] = await answer.text()
    return output


def explained(kubeconfig, namespace, monkeypatch):
    out = io.StringIO()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with contextlib.redirect_stdout(out):
        assert main(["explain", "chat", "-n", namespace, "--own-namespace", namespace]) == 0
    return out.getvalue()


@pytest.mark.finding(17, 21)
async def test_no_secret_appears_in_objects_logs_or_pages(cluster, service, api_server, monkeypatch):
    """Safety 17 and 21."""
    await plant(cluster, service)
    gated = await cluster.reaches("the gate holds", lambda now: "403 Forbidden" in now.get("message", ""))
    assert "gate" in gated["message"]
    await cluster.client.patch(MODEL_DEPLOYMENTS, cluster.namespace, "chat", {"spec": {"strategy": {"hooks": []}}})

    def all_measured(status):
        return len(measured(status)) == 6 and all(item.get("measurements") for item in measured(status))

    status = await cluster.reaches("every provider was called", all_measured)
    latest = {item["name"]: item["measurements"][-1] for item in measured(status)}
    assert latest["part"]["value"] == f"a text of {len(CANARY) + 7} characters"
    assert "302 Found: redirects are not followed" in latest["moved"]["message"]
    assert "Secret 'not-given' may not be used" in latest["job"]["message"]
    assert {"/web", "/moved", "/prometheus/api/v1/query"} <= set(service.paths), "each was really called"
    (revision, *_) = await cluster.client.list(CONTROLLER_REVISIONS, cluster.namespace)
    assert revision["data"]["inputs"]["model"]["secretRef"] == {"name": "hub"}, "by reference"
    policies = await cluster.client.list(NETWORK_POLICIES, cluster.namespace)
    assert [item["metadata"]["name"] for item in policies] == ["chat-fence"]

    output = await all_output(cluster)
    output["explain"] = await asyncio.to_thread(explained, api_server, cluster.namespace, monkeypatch)
    assert [place for place, text in output.items() if not text] == [], "each place was really read"
    assert [place for place, text in output.items() if CANARY in text.lower()] == []
