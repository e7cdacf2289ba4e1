"""spec.accuracy end to end: a real operator, gateway and API server, a real classic model in the pod of each revision.

Labels of responses that a former gateway process gave raise the alarm, and it goes back to a revision without pods.
"""

import asyncio
import base64
import contextlib
import json
from collections import Counter
from random import Random

import aiohttp
import pytest

from slipway_operator.kube.resources import EVENTS, MODEL_DEPLOYMENTS, PODS
from slipway_operator.model.labels import REVISION
from testkit.irises import GOOD, irises
from testkit.until import until_async
from tests.support.classifiers import V2, save_classifiers, serving

from .conftest import MANIFEST
from .test_error_budget import _is_ready as is_ready

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ACCURACY = {"feedback": {"minAccuracy": 0.9}, "predictions": {}, "falseAlarmsPerYear": 12, "onAlarm": "Rollback"}
STRATEGY = {"canary": {"steps": [{"setWeight": 50}], "scaleDownDelaySeconds": 0}}
AT_ONCE, LABELS = 10, 60
FIRST = 200  # predictions of which a gateway makes bins


async def classify(port, times):
    """Ids for feedback of so many responses, with the right label of each."""
    chance, known = Random(5), irises()

    async def one(session):
        features, label = chance.choice(known)
        body = {"model": "chat", "input": {"features": features}}
        async with session.post(f"http://127.0.0.1:{port}/api/v1/predict", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return {"id": answer.headers["X-Slipway-Feedback"], "label": label}

    found = []
    async with aiohttp.ClientSession() as session:
        for _ in range(times // AT_ONCE):
            found += await asyncio.gather(*(one(session) for _ in range(AT_ONCE)))
    return found


async def send(port, entries):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/v1/feedback", json=entries) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return [one["status"] for one in (await answer.json())["data"]]


@contextlib.asynccontextmanager
async def clients(port):
    """A request each twentieth of a second; how many had which status."""
    over, served = asyncio.Event(), Counter()
    body = {"model": "chat", "input": {"features": irises()[0][0]}}

    async def run():
        async with aiohttp.ClientSession() as session:
            while not over.is_set():
                async with session.post(f"http://127.0.0.1:{port}/api/v1/predict", json=body) as answer:
                    served[answer.status] += 1
                await asyncio.sleep(0.05)

    running = asyncio.create_task(run())
    try:
        yield served
    finally:
        over.set()
        await running


def labels_of(status, revision):
    """Right and wrong labels that count for a revision."""
    revisions = (status.get("accuracy") or {}).get("revisions") or ()
    return next((tuple(one["monitors"][0].get("counts") or ()) for one in revisions if one["revision"] == revision), ())


def bins_are_acknowledged(status):
    table = status["traffic"]
    return table["accuracy"].get("bins") and table["acknowledged"] == "1/1"


def reason_of(status):
    return next((one["reason"] for one in status["conditions"] if one["type"] == "AccuracyAlarm"), None)


async def revisions_with_pods(client, namespace):
    return {one["metadata"]["labels"][REVISION] for one in await client.list(PODS, namespace)}


async def test_a_label_shift_after_restarts_is_an_alarm_and_goes_back_to_a_revision_without_pods(
    client, namespace, api_server, tmp_path
):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"id": "k1", "key": base64.urlsafe_b64encode(b"a" * 32).decode()}]}))
    models = save_classifiers(tmp_path, good=GOOD, other=GOOD)
    flags = ("--auth-mode=off", f"--tenant-keys-file={keys}")
    async with serving((client, namespace, api_server, tmp_path), models / "good", models / "other", flags) as cluster:
        spec = {**MANIFEST["spec"], "strategy": STRATEGY, "accuracy": ACCURACY}
        metadata = {"name": "chat", "namespace": namespace}
        await client.create(MODEL_DEPLOYMENTS, {**MANIFEST, "metadata": metadata, "spec": spec})
        first = await cluster.reaches("v1 serves", lambda seen: seen.get("phase") == "Healthy")
        v1 = first["stableRevision"]
        assert first["traffic"]["accuracy"] == {"feedback": True, "maxAgeSeconds": 30 * 86_400, "revision": v1}
        await cluster.edit(V2)
        second = await cluster.reaches(
            "v2 serves", lambda seen: seen["phase"] == "Healthy" and seen["stableRevision"] != v1
        )
        v2 = second["stableRevision"]

        async def without_v1():
            return await revisions_with_pods(client, namespace) == {v2}

        await until_async(without_v1, "the pods of v1 are gone")

        # Right labels, and as many responses whose labels come later.
        seen = await classify(cluster.port, 2 * LABELS)
        results = await send(cluster.port, seen[:LABELS])
        assert set(results) == {"accepted"}
        await asyncio.sleep(1)  # longer than a report is kept
        await cluster.edit({"accuracy": {"feedback": {"minAccuracy": 0.89}}})  # written at once, with first stakes
        counted = await cluster.reaches("labels count", lambda now: sum(labels_of(now, v2)) == LABELS)
        assert counted["accuracy"]["revisions"][-1]["monitors"][0]["bets"]
        assert reason_of(counted) is None and labels_of(counted, v2)[1] <= LABELS // 10

        # The bins of the gateway's first predictions are in the table, by which it routes, and in no process alone.
        await classify(cluster.port, FIRST)
        table = (await cluster.reaches("bins are published", bins_are_acknowledged))["traffic"]["accuracy"]
        assert table["revision"] == v2 and 1 <= len(table["bins"]["labels"]) <= 3 and "cuts" not in table["bins"]

        await cluster.operator.stop()
        await cluster.gateway.stop()
        await cluster.gateway.start()
        await cluster.operator.start()
        await until_async(lambda: is_ready(cluster.gateway_admin_port), "the gateway is ready")
        async with clients(cluster.port) as served:
            shifted = [{"id": one["id"], "correct": False} for one in seen[LABELS:]]
            assert set(await send(cluster.port, shifted)) == {"accepted"}
            forged = [{"id": shifted[0]["id"][:-3] + "AAA", "correct": False}]
            assert await send(cluster.port, [*shifted[:1], *forged]) == ["duplicate", "unknown"]
            back = await cluster.reaches(
                "v1 serves again", lambda now: now["stableRevision"] == v1 and now["phase"] == "Healthy"
            )
            await asyncio.sleep(3)
            await until_async(lambda: served.total() > 20, "predictions")
        assert set(served) == {200}
        assert reason_of(back) == "RolledBack" and back["accuracy"]["rollback"] == f"{v2}/{v1}"
        right, wrong = labels_of(back, v2)
        assert right + wrong == 2 * LABELS and wrong >= LABELS, "none is lost, and none counts twice"
        predicted = next(one for one in back["accuracy"]["revisions"] if one["revision"] == v2)["monitors"][1]
        assert sum(predicted["counts"]) > 0 and "referenceUntil" not in predicted
        assert v1 in await revisions_with_pods(client, namespace)
        reasons = Counter(one.get("reason") for one in await client.list(EVENTS, namespace))
        assert reasons["AccuracyAlarm"] >= 1
        assert (await cluster.chat())["status"]["stableRevision"] == v1, "what it left is not tried again"
