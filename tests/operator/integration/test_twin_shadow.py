"""A twin shadow end to end: a real operator, gateway and API server, and a server for each revision's pod."""

import asyncio
import contextlib
import itertools

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.kube.resources import ANALYSIS_TEMPLATES, MODEL_DEPLOYMENTS, REPLICA_SETS
from slipway_operator.model.labels import REVISION, what_runs
from testkit.world.addresses import own_address
from testkit.world.pods import MERGE, has_pod
from testkit.world.rights import limited_kubeconfig
from testkit.world.slipway import Cluster

from .conftest import MANIFEST

pytestmark = pytest.mark.integration

# Decides within half a minute, in three readings: the way from a pair to the verdict is tested, not how sure it is.
PAIRS = {
    "minSamples": {"pairs": 120, "warmupSeconds": 0},
    "metrics": [{"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 1.0, "maxExtra": 200}],
}
SHADOW = {"templates": [{"templateName": "pairs"}], "twinShadow": {"percentage": 100}, "maxDuration": "10m"}
STRATEGY = {
    "canary": {
        "baselinePod": True,
        "steps": [{"analysis": SHADOW}, {"pause": {}}],
        "scaleDownDelaySeconds": 0,
        "abortScaleDownDelaySeconds": 0,
    },
    "capacity": {"maxSurge": 2},
}
V2 = {"model": {"uri": "file:///opt/slipway/models/tiny-v2"}}


class ModelServer:
    """The pod of one revision: answers completions, or fails all of them; and predicts labels.

    `flips`: each request of which it is a divisor gets another label.
    """

    def __init__(self):
        self.requests, self.fails, self.port, self.text, self.flips = 0, False, 0, "four", 0

    async def respond(self, request):
        await request.read()
        self.requests += 1
        if self.fails:
            return web.json_response({"error": {"message": "out of order"}}, status=500)
        if request.path == "/api/v1/predict":
            return web.json_response({"prediction": "dog" if self.flips and self.requests % self.flips == 0 else "cat"})
        choice = {"index": 0, "text": self.text, "finish_reason": "stop"}
        return web.json_response({"object": "text_completion", "choices": [choice]})

    @contextlib.asynccontextmanager
    async def serving(self):
        application = web.Application()
        application.router.add_post("/{path:.*}", self.respond)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, own_address(), 0).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()


class Trio(Cluster):
    """Stable, canary and baseline have a server each."""

    stable, canary, baseline = ModelServer(), ModelServer(), ModelServer()
    first = ""

    async def _report(self, item):
        revision = item["metadata"]["labels"][REVISION]
        self.first = self.first or revision
        server = (
            self.baseline if what_runs(revision) != revision else self.stable if revision == self.first else self.canary
        )
        wanted = item["spec"].get("replicas", 1)
        status = {"replicas": wanted, "readyReplicas": wanted, "fullyLabeledReplicas": wanted}
        if {key: item.get("status", {}).get(key, 0) for key in status} != status:
            path = REPLICA_SETS.path(self.namespace, item["metadata"]["name"], "status")
            await self.client.request("PATCH", path, [], {"status": status}, MERGE)
            await has_pod(self.client, item, own_address(), server.port)


@pytest.fixture
async def trio(client, namespace, api_server, tmp_path):
    limited = await limited_kubeconfig(client, namespace, api_server, tmp_path)
    made = Trio(client, namespace, api_server, limited, tmp_path)
    made.stable, made.canary, made.baseline = ModelServer(), ModelServer(), ModelServer()
    async with made.stable.serving(), made.canary.serving(), made.baseline.serving(), made.running():
        yield made


async def requests(port, answers, over):
    """Completions of one user after another, one every 30 ms, until it is over."""
    async with aiohttp.ClientSession() as session:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            body = {"model": "chat", "prompt": "two and two", "user": f"user-{number}"}
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
                answers.append((answer.status, answer.headers.get("X-Slipway-Revision")))
                await answer.read()
            await asyncio.sleep(0.03)


@contextlib.asynccontextmanager
async def flow(port):
    answers, over = [], asyncio.Event()
    running = asyncio.create_task(requests(port, answers, over))
    try:
        yield answers
    finally:
        over.set()
        await running


async def released(trio, template=PAIRS, strategy=STRATEGY):
    """chat serves its first revision, and gets a second one."""
    metadata = {"name": "pairs", "namespace": trio.namespace}
    kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "AnalysisTemplate"}
    await trio.client.create(ANALYSIS_TEMPLATES, {**kind, "metadata": metadata, "spec": template})
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": trio.namespace}}
    manifest["spec"] = manifest["spec"] | {"strategy": strategy}
    await trio.client.create(MODEL_DEPLOYMENTS, manifest)
    first = await trio.reaches("chat is stable", lambda status: status.get("phase") == "Healthy")
    await trio.edit(V2)
    return first["stableRevision"]


def state(status):
    return (status.get("rollout") or {}).get("state")


def analysis(status):
    return (status.get("rollout") or {}).get("analysis") or {}


def pairs(status):
    """Pairs in the counts of the analysis."""
    counts = next((item for item in analysis(status).get("counts", ()) if item["metric"] == "bad"), {})
    return sum(epoch.get("canaryUnits", 0) for epoch in counts.get("epochs", ()))


@pytest.mark.parametrize("fails", [False, True], ids=["as-good", "fails"])
async def test_pairs_decide_across_a_kill_of_the_operator_and_no_client_meets_the_canary(trio, fails):
    trio.canary.fails = fails
    stable = await released(trio)
    async with flow(trio.port) as answers:
        shadowed = await trio.reaches("copies are sent", lambda status: status.get("traffic", {}).get("twinShadow"))
        shadow = shadowed["traffic"]["twinShadow"]
        assert (shadow["twin"], shadow["percentage"], shadow["maxPairsPerSecond"]) == (stable, 100, 10)
        assert shadow["revision"] == shadowed["canaryRevision"]
        if not fails:
            before = pairs(await trio.reaches("pairs are counted", lambda status: pairs(status) > 0))
            await trio.operator.kill()
            await trio.operator.start()
            await trio.reaches("they go on", lambda status: pairs(status) > before)
        ends = "Aborted" if fails else "Paused"
        decided = await trio.reaches("the verdict", lambda status: state(status) == ends)
    verdict = analysis(decided)["verdict"]
    assert verdict["outcome"] == ("Fail" if fails else "Pass"), verdict["message"]
    assert "prompts answered twice" in verdict["message"] and pairs(decided) >= 10
    assert not decided["traffic"].get("twinShadow"), "the copies end with the step"
    assert {status for status, _ in answers} == {200} and {revision for _, revision in answers} == {stable}
    assert trio.canary.requests >= pairs(decided) and trio.baseline.requests >= pairs(decided)
    assert trio.stable.requests == len(answers), "stable's own pod got no copy"


# Prompts of the owner's, ten a second, decide in the first readings.
FEW = {
    "minSamples": {"pairs": 20, "warmupSeconds": 0},
    "metrics": [{"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 1.0, "maxExtra": 400}],
}
PROBES = {"prompts": ["two and two", "three rivers"], "api": "Completions", "pairsPerMinute": 600, "maxTokens": 8}


async def test_probes_alone_decide_about_a_model_that_no_client_calls(trio):
    trio.canary.fails = True
    shadow = {"templates": [{"templateName": "pairs"}], "twinShadow": {"probes": PROBES}, "maxDuration": "10m"}
    canary = STRATEGY["canary"] | {"steps": [{"analysis": shadow}, {"pause": {}}]}
    stable = await released(trio, FEW, STRATEGY | {"canary": canary})
    decided = await trio.reaches("the verdict", lambda status: state(status) == "Aborted")
    verdict = analysis(decided)["verdict"]
    assert (verdict["outcome"], decided["stableRevision"]) == ("Fail", stable), verdict["message"]
    found = verdict["pairs"]
    assert found["users"] == 0 and found["probes"] == pairs(decided) == found["probesBadOnCanary"] > 0
    assert trio.baseline.requests >= pairs(decided) and trio.stable.requests == 0


SCORER = {"url": "http://scorer.example.com/score", "content": "Send", "percentage": 100}
RATED = {"name": "rated", "kind": "PairedEvent", "event": "LowerScore", "dryRun": True, "scorer": SCORER}


async def test_a_scorer_that_no_administrator_listed_gets_nothing_and_the_status_says_so(trio):
    trio.canary.text = "five"  # equal texts need no scorer
    await released(trio, FEW | {"metrics": [*FEW["metrics"], RATED]})
    async with flow(trio.port):
        decided = await trio.reaches("the verdict", lambda status: state(status) == "Paused")
    verdict = analysis(decided)["verdict"]
    found = verdict["scores"]
    assert verdict["outcome"] == "Pass" and found["blocked"] > 0 and found["pairs"] == 0, verdict["message"]
    assert "list its host in --scorer-hosts of the gateways" in verdict["message"]
