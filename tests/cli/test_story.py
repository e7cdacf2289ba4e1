"""A day's work through the real console script on a real API server, operator and gateway; only pods are pretended."""

import asyncio
import contextlib
import json
import shlex
import signal
import subprocess
from functools import partial
from itertools import pairwise

import pytest
import yaml

from slipway_operator.kube.resources import LEASES, MODEL_DEPLOYMENTS, PODS
from testkit.until import until_async
from tests.operator.integration.conftest import MANIFEST

from .conftest import SCRIPTS

# Whole rollouts by command line: 40 s on a quiet machine, several times that on a busy one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STEPS = [{"setWeight": 50}, {"pause": {}}]


@pytest.fixture
def ok(slipway):
    """Runs `slipway`, which must succeed, beside the loop that pretends the pods; what it printed."""

    async def run(*arguments):
        done = await asyncio.to_thread(partial(slipway, *arguments))
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
async def canary(cluster, ok):
    """chat, with v1 stable and v2 at its pause."""
    metadata = {"name": "chat", "namespace": cluster.namespace}
    strategy = {"canary": {"steps": STEPS, "scaleDownDelaySeconds": 0}}
    spec = {"model": model("v1"), "replicas": 2, "strategy": strategy, "progressDeadlineSeconds": 300}
    await cluster.client.create(MODEL_DEPLOYMENTS, MANIFEST | {"metadata": metadata, "spec": spec})
    assert "chat is healthy: serving revision" in await ok("wait", "chat", "--for=healthy", "--timeout=60s")
    await launch(cluster, ok, "v2")
    return cluster


def model(version):
    return {"uri": f"file:///opt/slipway/models/{version}", "version": version}


async def launch(cluster, ok, version):
    await cluster.edit({"model": model(version)})
    await ok("wait", "chat", "--for=paused", "--timeout=60s")


async def status(cluster):
    return (await cluster.chat())["status"]


async def test_look_promote_and_go_back(canary, ok, kubectl):
    tree = await ok("status", "chat")
    assert f"{canary.namespace}/chat  Paused  step 2/2  weight 50%" in tree
    assert "[x] 1 setWeight 50" in tree and "[>] 2 pause until it is promoted" in tree
    table = await ok("get")
    assert (await ok("status")).split()[:12] == table.split()[:12], "without a name it lists, as get does"
    assert table.split()[:4] == ["NAME", "PHASE", "REASON", "STEP"] and "MESSAGE" in table and "Paused" in table
    assert [line.split()[0] for line in (await ok("history", "chat")).splitlines()] == ["ORDINAL", "1", "2"]
    difference = await ok("history", "chat", "--diff")
    assert "-    version: v1" in difference and "+    version: v2" in difference

    command = await ok("promote", "chat", "--dry-run")
    assert (await status(canary))["phase"] == "Paused", "a dry run changes nothing"
    program, *arguments = shlex.split(command)
    assert program == "kubectl"
    done = await asyncio.to_thread(partial(kubectl, *arguments))
    assert done.returncode == 0, done.stderr
    assert "chat is stable=v2" in await ok("wait", "chat", "--for=stable=v2", "--timeout=60s")

    assert "goes back to revision" in await ok("undo", "chat", "--to", "1")
    await ok("wait", "chat", "--for=stable=v1", "--timeout=60s")
    assert "stable" in (await ok("history", "chat")).splitlines()[1]


@pytest.mark.finding("S11")
async def test_history_and_undo_name_a_former_rejection(canary, ok, slipway):
    await ok("abort", "chat")
    await canary.reaches("the abort", lambda now: now["rollout"]["state"] == "Aborted")
    await launch(canary, ok, "v3")
    await ok("promote", "chat", "--full")
    await ok("wait", "chat", "--for=stable=v3", "--timeout=60s")
    row = (await ok("history", "chat")).splitlines()[2]
    assert "rejected" in row and row.endswith("attempt 1: aborted by spec.rollout.abort")
    done = await asyncio.to_thread(partial(slipway, "undo", "chat", "--to", "2"))
    assert done.returncode == 0
    assert done.stderr.startswith("warning: revision ") and "aborted by spec.rollout.abort" in done.stderr
    await ok("wait", "chat", "--for=stable=v2", "--timeout=60s")
    assert "rollback holds: revision " in await ok("status", "chat")
    assert "rollback to it holds in place of " in await ok("get", "chat")


@pytest.mark.finding("S10")
async def test_the_operators_explain_needs_no_flag_to_find_its_gateways(canary, environment, api_server):
    command = [str(SCRIPTS / "slipway-operator"), "explain", "chat", "-n", canary.namespace]
    variables = environment | {"KUBECONFIG": str(api_server)}
    run = partial(subprocess.run, command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    explained = json.loads((await asyncio.to_thread(run)).stdout)
    now = await status(canary)
    assert [item["reachable"] for item in explained["observed"]["gateways"]] == [True]
    assert explained["plan"]["status"]["message"] == now["message"]
    assert explained["plan"]["status"]["endpoint"] == now["endpoint"]


@pytest.mark.finding("S10")
async def test_explain_goes_to_the_pod_that_holds_the_lease(canary, slipway):
    lost = await asyncio.to_thread(partial(slipway, "explain", "chat"))
    assert lost.returncode == 1 and f"is no pod of namespace {canary.namespace}" in lost.stderr
    live = await canary.client.get(LEASES, canary.namespace, "slipway-operator")
    holder = live["spec"]["holderIdentity"]
    container = {"name": "operator", "image": "operator:1", "command": ["slipway-operator"], "args": ["--workers=1"]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": holder, "namespace": canary.namespace}}
    await canary.client.create(PODS, manifest | {"spec": {"containers": [container]}})
    # No kubelet runs here, so the API server itself must refuse to run the program in this pod.
    refused = await asyncio.to_thread(partial(slipway, "explain", "chat"))
    assert refused.returncode == 1
    assert f"in pod {holder} failed: " in refused.stderr and "does not have a host assigned" in refused.stderr


async def test_abort_ends_a_wait_with_4_and_retry_starts_again(canary, ok, slipway):
    waiting = asyncio.create_task(asyncio.to_thread(partial(slipway, "wait", "chat", "--for=stable=v2")))
    printed = await ok("abort", "chat")
    assert (
        "attempt 1, is rejected" in printed and "\nsame as: kubectl patch modeldeployments.slipway.dev chat" in printed
    )
    done = await waiting
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[-1].startswith("error: chat does not reach stable=v2: ")
    await canary.reaches("the abort", lambda now: now["rollout"]["state"] == "Aborted")

    changed = json.loads(await ok("retry", "chat", "-o", "json"))
    assert changed["changed"] is True and changed["patch"]["spec"]["rollout"]["retry"].endswith("/2")
    await ok("wait", "chat", "--for=paused", "--timeout=60s")
    assert (await status(canary))["rollout"]["attempt"] == 2
    assert "skips the steps" in await ok("promote", "chat", "--full")
    await ok("wait", "chat", "--for=healthy", "--timeout=60s")
    assert yaml.safe_load(await ok("status", "chat", "-o", "yaml"))["revisions"][0]["version"] == "v2"


async def test_pause_holds_and_resume_lets_go(canary, ok, slipway):
    await ok("promote", "chat", "--full")
    await ok("wait", "chat", "--for=healthy", "--timeout=60s")
    assert "the next rollout is held" in await ok("pause", "chat")
    await canary.edit({"model": model("v3")})
    await ok("wait", "chat", "--for=paused", "--timeout=60s")
    late = await asyncio.to_thread(partial(slipway, "wait", "chat", "--for=stable=v3", "--timeout=1s"))
    assert late.returncode == 3 and "was not reached within 1s: Paused: held by spec.paused" in late.stderr
    held = await asyncio.to_thread(partial(slipway, "promote", "chat"))
    assert (held.returncode, held.stderr) == (
        1,
        "error: chat is held by spec.paused: run `slipway resume chat` first\n",
    )
    await ok("resume", "chat")
    await canary.reaches("the pause of the steps", lambda now: now["rollout"].get("stepIndex") == 1)


@pytest.mark.finding("S12")
async def test_status_without_an_operator_is_marked(canary, ok):
    assert "no operator runs" not in await ok("status", "chat")
    assert (await canary.operator.end())[0] == 0
    named = f"{canary.namespace}/slipway-operator"
    lines = (await ok("status", "chat")).splitlines()
    assert lines[1] == f"no operator runs: its Lease {named} has no holder; what follows is as it was written last"
    live = await canary.client.get(LEASES, canary.namespace, "slipway-operator")
    await canary.client.delete(LEASES, canary.namespace, "slipway-operator", live["metadata"]["uid"])
    assert f"no operator runs: its Lease {named} is gone" in await ok("status", "chat")


async def test_watch_prints_a_line_for_each_change_until_it_is_interrupted(canary, ok, environment, api_server):
    command = [str(SCRIPTS / "slipway"), "status", "chat", "--watch", "-n", canary.namespace]
    variables = environment | {"KUBECONFIG": str(api_server), "PYTHONUNBUFFERED": "1"}
    watching = await asyncio.create_subprocess_exec(*command, env=variables, stdout=subprocess.PIPE)
    try:
        first = (await asyncio.wait_for(watching.stdout.readline(), 30)).decode()
        assert " Paused step 2/2 [v2 50% 1/1, v1 50% 2/2] step 2 of 2" in first
        await ok("promote", "chat")
        seen = []

        async def promoted():
            seen.append((await asyncio.wait_for(watching.stdout.readline(), 30)).decode())
            return " Healthy [v2 100%" in seen[-1]

        await until_async(promoted, "a line that shows that v2 serves")
        printed = [line.split(" ", 1)[1] for line in (first, *seen)]
        assert all(one != next_ for one, next_ in pairwise(printed)), "a line is printed only when something changed"
    finally:
        watching.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(watching.communicate(), 30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                watching.kill()
    assert watching.returncode == 130
