"""Hooks end to end: operator and gateway as processes, a real API server, a real receiver on this machine's address."""

import hashlib
import hmac
import json
import re

import pytest
from aiohttp import web

from slipway_operator.kube.resources import EVENTS, MODEL_DEPLOYMENTS
from testkit.until import until_async
from testkit.world.addresses import own_address
from testkit.world.web import web_service

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

KEY = b"s3cret"
V2 = {"model": {"uri": "file:///opt/slipway/models/tiny-v2"}}


class Receiver:
    """Answers each hook by its path, 2xx by default, and keeps the requests."""

    def __init__(self):
        self.statuses, self.got, self.base_url = {}, [], ""

    async def take(self, request):
        hook, body = request.match_info["hook"], await request.read()
        self.got.append((hook, request.headers.copy(), body))
        return web.Response(status=self.statuses.get(hook, 200), text=f"{hook} answers")

    def hook(self, name, kind, **fields):
        return {"name": name, "type": kind, "url": f"{self.base_url}/{name}", **fields}

    def keys(self, name):
        return [headers["Idempotency-Key"] for hook, headers, _ in self.got if hook == name]


@pytest.fixture
async def receiver():
    receiver = Receiver()
    async with web_service("POST", "/{hook}", receiver.take) as receiver.base_url:
        yield receiver


@pytest.fixture
def operator_flags(tmp_path):
    (tmp_path / "key").write_bytes(KEY + b"\n")
    return [f"--hook-signing-key-file={tmp_path / 'key'}", f"--allowed-private-cidrs={own_address()}/32"]


async def launch(cluster, steps, *hooks):
    """chat serves its first revision, and gets a second."""
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    canary = {"steps": steps, "scaleDownDelaySeconds": 0}
    manifest["spec"] = manifest["spec"] | {"strategy": {"canary": canary, "hooks": list(hooks)}}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    first = await cluster.reaches("chat is stable", healthy)
    await cluster.edit(V2)
    return first


def healthy(status):
    return status.get("phase") == "Healthy"


def state(status, name):
    hooks = (status.get("rollout") or {}).get("hooks") or ()
    return next((item for item in hooks if item["name"] == name), {})


async def test_a_gate_holds_across_a_kill_and_opens(cluster, receiver):
    receiver.statuses["approval"] = 403
    first = await launch(
        cluster,
        [{"setWeight": 50}],
        receiver.hook("smoke", "pre-rollout", metadata={"suite": "chat"}),
        receiver.hook("approval", "confirm-promotion"),
        receiver.hook("end", "post-rollout"),
        receiver.hook("log", "event"),
    )
    held = await cluster.reaches(
        "the gate holds, twice", lambda now: state(now, "approval").get("asked", 0) >= 3 and now["phase"] == "Paused"
    )
    assert "waits for gate approval (confirm-promotion, promotion) since " in held["message"]
    assert held["message"].endswith("last answer: 403 Forbidden")
    assert [backend["weight"] for backend in held["traffic"]["backends"]] == [50, 50]

    await cluster.operator.kill()
    receiver.statuses.clear()
    await cluster.operator.start()
    last = await cluster.reaches("the promotion", lambda now: healthy(now) and "canaryRevision" not in now)
    assert last["previousRevision"] == first["stableRevision"]
    ended = await cluster.reaches(
        "post-rollout was called", lambda now: now.get("ended", {}).get("hooks", [{}])[0].get("outcome") == "Passed"
    )
    assert ended["ended"]["promoted"] is True

    assert len(receiver.keys("smoke")) == 1, "a passed hook is not repeated, whoever died"
    # A question is put again only where the kill took its answer.
    assert len(receiver.keys("approval")) - len(set(receiver.keys("approval"))) <= 1
    uid = (await cluster.chat())["metadata"]["uid"]
    assert re.fullmatch(rf"{uid}/{last['stableRevision']}/1/0/smoke/\d+-1", receiver.keys("smoke")[0])
    (_, headers, body) = next(item for item in receiver.got if item[0] == "smoke")
    moment, signed = headers["X-Slipway-Signature"].removeprefix("t=").split(",v1=")
    assert hmac.new(KEY, f"{moment}.".encode() + body, hashlib.sha256).hexdigest() == signed
    payload = json.loads(body)
    assert (payload["name"], payload["namespace"], payload["type"]) == ("chat", cluster.namespace, "pre-rollout")
    assert (payload["metadata"], payload["canary"]) == ({"suite": "chat"}, last["stableRevision"])

    events = await cluster.client.list(EVENTS, cluster.namespace)
    assert {"GateWaiting", "GateOpened"} <= {event["reason"] for event in events}
    reasons = [json.loads(body)["metadata"]["eventReason"] for hook, _, body in receiver.got if hook == "log"]
    assert {"RolloutUpdated", "GateWaiting", "GateOpened", "RolloutCompleted"} <= set(reasons)
    _, metrics = await cluster.admin("/metrics")
    assert 'slipway_operator_hook_calls_total{outcome="ok",type="confirm-promotion"} 1.0' in metrics
    assert 'slipway_operator_hook_seconds_count{type="event"}' in metrics


async def test_a_rollback_hook_rejects_a_revision_in_flight(cluster, receiver):
    receiver.statuses["button"] = 404
    button = receiver.hook("button", "rollback", timeoutSeconds=1)
    first = await launch(cluster, [{"setWeight": 50}, {"pause": {}}], button)
    await cluster.reaches("the pause", lambda now: now.get("phase") == "Paused" and now.get("weight") == 50)
    receiver.statuses.clear()
    status = await cluster.reaches("the abort", lambda now: now.get("rollout", {}).get("state") == "Aborted")
    assert status["rollout"]["abort"]["reason"] == "HookRollback"
    assert status["rollout"]["abort"]["message"] == "hook button (rollback) requested it: 200 OK"
    assert status["stableRevision"] == first["stableRevision"]


async def test_a_failed_check_rejects_after_its_tries(cluster, receiver):
    receiver.statuses["smoke"] = 500
    await launch(cluster, [{"setWeight": 50}], receiver.hook("smoke", "pre-rollout", retries=1))
    status = await cluster.reaches("the abort", lambda now: now.get("rollout", {}).get("state") == "Aborted")
    assert status["rollout"]["abort"]["reason"] == "HookFailed"
    problem = "500 Internal Server Error (try 2 of 2)"
    assert status["rollout"]["abort"]["message"] == f"hook smoke (pre-rollout, pods) failed: {problem}"
    assert len(receiver.keys("smoke")) == 2
    assert len(set(receiver.keys("smoke"))) == 1


async def test_this_machines_own_addresses_are_refused(cluster, receiver):
    local = {"name": "own", "type": "confirm-rollout", "url": f"http://127.0.0.1:{cluster.admin_port}/livez"}
    await launch(cluster, [{"setWeight": 50}], local)
    refused = "last answer: hooks may not call 127.0.0.1: it is this machine"
    await cluster.reaches("the refusal", lambda now: refused in now.get("message", ""))
    # Opened by taking the hook away.
    await cluster.client.patch(MODEL_DEPLOYMENTS, cluster.namespace, "chat", {"spec": {"strategy": {"hooks": []}}})
    await until_async(lambda: promoted(cluster), "the promotion")


async def promoted(cluster):
    status = (await cluster.chat())["status"]
    return healthy(status) and "previousRevision" in status
