"""The operator as a process, with a real API server and a real gateway; only pods are pretended."""

import asyncio
import json
from functools import partial

import pytest

from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import ENDPOINT_SLICES, EVENTS, LEASES, MODEL_DEPLOYMENTS, REPLICA_SETS
from testkit.until import until_async
from tests.support.tools import kubectl

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

CANARY = {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}], "scaleDownDelaySeconds": 0}}
NOWHERE = "192.0.2.1"  # no host answers at an address for documentation
V2 = {"model": {"uri": "file:///opt/slipway/models/tiny-v2"}}


async def launch(cluster):
    """Create chat; its status when it serves."""
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    manifest["spec"] = manifest["spec"] | {"strategy": CANARY}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    return await cluster.reaches("chat is stable", healthy)


def healthy(status):
    return status.get("phase") == "Healthy"


def paused(status):
    return status.get("phase") == "Paused" and status.get("weight") == 50


async def test_a_canary_is_launched_paused_promoted_and_survives_kill_9_at_both_ends(cluster):
    first = await launch(cluster)
    assert first["stableRevision"] == first["currentRevision"]
    assert [backend["weight"] for backend in first["traffic"]["backends"]] == [100]

    await cluster.edit(V2)
    waiting = await cluster.reaches("the pause", paused)
    assert waiting["canaryRevision"] != first["stableRevision"]
    await cluster.operator.kill()
    await cluster.operator.start()

    await until_async(lambda: ready(cluster), "the second operator is ready")
    assert (await cluster.chat())["status"]["traffic"] == waiting["traffic"]
    await cluster.edit({"rollout": {"promote": waiting["rollout"]["token"]}})
    await cluster.operator.kill()
    await cluster.operator.start()

    last = await cluster.reaches(
        "the promotion", lambda now: healthy(now) and now["stableRevision"] == waiting["canaryRevision"]
    )
    assert last["previousRevision"] == first["stableRevision"]
    await until_async(lambda: gone(cluster, f"chat-{first['stableRevision']}"), "the old ReplicaSet is gone")


async def test_killed_at_every_transition_it_reaches_the_same_end(cluster):
    first = await launch(cluster)
    await cluster.edit({"strategy": {"canary": {"steps": [{"setWeight": 10}, {"setWeight": 50}]}}} | V2)
    seen = {transition(first)}

    def moved_or_done(status):
        return transition(status) not in seen

    while not (healthy(now := await cluster.reaches("a transition", moved_or_done)) and "canaryRevision" not in now):
        seen.add(transition(now))
        await cluster.operator.kill()
        await cluster.operator.start()
    print(f"killed {len(seen) - 1} times: {seen}")
    assert len(seen) > 2
    assert now["previousRevision"] == first["stableRevision"]
    assert [(backend["revision"], backend["weight"]) for backend in now["traffic"]["backends"]] == [
        (now["stableRevision"], 100)
    ]


def transition(status):
    rollout = status.get("rollout") or {}
    return rollout.get("state"), rollout.get("stepIndex"), (status.get("traffic") or {}).get("generation")


async def ready(cluster):
    return (await cluster.admin("/readyz"))[0] == 200


async def gone(cluster, name):
    try:
        await cluster.client.get(REPLICA_SETS, cluster.namespace, name)
    except NotFound:
        return True
    return False


async def test_a_revision_that_never_gets_ready_is_rejected_and_stable_keeps_its_traffic(cluster):
    first = await launch(cluster)
    cluster.pods_fail()
    # The stable pods stay ready: only new pods fail.
    await cluster.edit({"progressDeadlineSeconds": 5} | V2)
    status = await cluster.reaches("the abort", lambda now: now.get("rollout", {}).get("state") == "Aborted")
    assert status["stableRevision"] == first["stableRevision"]
    assert status["rollout"]["abort"]["reason"] == "ProgressDeadlineExceeded"
    assert {backend["revision"]: backend["weight"] for backend in status["traffic"]["backends"]}[
        first["stableRevision"]
    ] == 100


async def test_idle_operator_writes_nothing_and_has_metrics(cluster):
    await launch(cluster)
    after = await at_rest(cluster)
    assert f'slipway_rollout_phase{{name="chat",namespace="{cluster.namespace}",phase="Healthy"}} 1.0' in after
    for wanted in (
        'slipway_operator_reconcile_total{result="ok"}',
        "slipway_operator_queue_depth 0.0",
        'slipway_operator_watch_last_event_timestamp_seconds{kind="replicasets"}',
        "slipway_rollout_weight_percent{",
        "slipway_operator_build_info{",
    ):
        assert wanted in after
    assert (await cluster.admin("/livez"), await cluster.admin("/readyz")) == ((200, "ok\n"), (200, "ok\n"))
    events = await cluster.client.list(EVENTS, cluster.namespace)
    assert {event["reason"] for event in events} >= {"TrafficWeightUpdated"}
    assert all(event["count"] == 1 for event in events)


async def at_rest(cluster):
    """The metrics at the end of a second without a write; an operator that never comes to rest fails here."""
    code, after = await cluster.admin("/metrics")
    for _ in range(10):  # the Events of the launch come after the status that ended it
        before = after
        await asyncio.sleep(1.0)
        code, after = await cluster.admin("/metrics")
        assert code == 200
        if writes(before) == writes(after):
            return after
    raise AssertionError(f"it goes on writing: {writes(before)}, a second later {writes(after)}")


def writes(metrics):
    return [line for line in metrics.splitlines() if line.startswith("slipway_operator_apply_total")]


@pytest.mark.finding("S14")
async def test_new_gateway_is_counted_within_seconds(cluster):
    """Six seconds after a third one started, the status showed two of two: the next regular read was minutes away."""
    await launch(cluster)
    await cluster.reaches("the only gateway follows", lambda now: now["traffic"]["acknowledged"] == "1/1")
    await at_rest(cluster)
    live = await cluster.client.get(ENDPOINT_SLICES, cluster.namespace, "slipway-gateway-admin-1")
    silent = {"addresses": [NOWHERE], "conditions": {"ready": True}}
    await cluster.client.replace(ENDPOINT_SLICES, {**live, "endpoints": [*live["endpoints"], silent]})
    await cluster.reaches("the status shows that one does not", lambda now: now["traffic"]["acknowledged"] == "1/2")
    live = await cluster.client.get(ENDPOINT_SLICES, cluster.namespace, "slipway-gateway-admin-1")
    await cluster.client.replace(ENDPOINT_SLICES, {**live, "endpoints": live["endpoints"][:1]})
    await cluster.reaches("it has left", lambda now: now["traffic"]["acknowledged"] == "1/1")


async def test_a_child_deleted_by_hand_comes_back(cluster):
    status = await launch(cluster)
    name = f"chat-{status['stableRevision']}"
    old = await cluster.client.get(REPLICA_SETS, cluster.namespace, name)
    await cluster.client.delete(REPLICA_SETS, cluster.namespace, name, old["metadata"]["uid"])
    await until_async(lambda: replaced(cluster, name, old["metadata"]["uid"]), "the ReplicaSet is back")


async def replaced(cluster, name, uid):
    try:
        return (await cluster.client.get(REPLICA_SETS, cluster.namespace, name))["metadata"]["uid"] != uid
    except NotFound:
        return False


async def test_status_patches_of_argo_rollouts_are_understood_as_kubectl_sends_them(cluster, api_server):
    """With the rights of docs/operator.md only: the operator answers in the status, and the spec stays unchanged."""
    await launch(cluster)
    await cluster.edit({"strategy": {"canary": {"steps": [{"setWeight": 50}, {"pause": {}}, {"pause": {}}]}}} | V2)
    first = await cluster.reaches("the first pause", paused)
    spec = (await cluster.chat())["spec"]
    await patch_status(cluster, api_server, {"pauseConditions": None})
    await cluster.reaches("the second pause", lambda now: paused(now) and now["rollout"]["stepIndex"] == 2)
    await patch_status(cluster, api_server, {"abort": True})
    aborted = await cluster.reaches("the abort", lambda now: now["rollout"]["state"] == "Aborted")
    assert aborted["abortedRevisions"] == [f"{first['canaryRevision']}/1"]
    assert "abort" not in aborted
    await patch_status(cluster, api_server, {"abort": False})
    await cluster.reaches("the second attempt", lambda now: paused(now) and now["rollout"]["attempt"] == 2)
    await patch_status(cluster, api_server, {"promoteFull": True})
    await cluster.reaches(
        "the promotion", lambda now: healthy(now) and now["stableRevision"] == first["canaryRevision"]
    )
    assert (await cluster.chat())["spec"] == spec
    events = await cluster.client.list(EVENTS, cluster.namespace)
    assert len([event for event in events if event["reason"] == "ControlTranslated"]) == 4


async def patch_status(cluster, api_server, change):
    arguments = ["-n", cluster.namespace, "patch", "mdep", "chat", "--subresource=status", "--type=merge"]
    command = partial(kubectl, api_server, *arguments, "-p", json.dumps({"status": change}))
    done = await asyncio.to_thread(command)
    assert done.returncode == 0, done.stderr


async def test_sigterm_ends_the_process_cleanly(cluster):
    await launch(cluster)
    code, seconds = await cluster.operator.end()
    print(f"ended after {seconds:.1f} s")
    assert (code, seconds < 25) == (0, True), cluster.operator.log()
    assert '"error"' not in cluster.operator.log()
    assert '"warning"' not in cluster.operator.log()
    lease = await cluster.client.get(LEASES, cluster.namespace, "slipway-operator")
    assert lease["spec"]["holderIdentity"] == "", "the next operator would wait"
