"""Labels of pairs end to end: a real operator, gateway and API server decide about a classic model that flips some."""

import asyncio
import contextlib
import itertools

import aiohttp
import pytest

from .test_twin_shadow import STRATEGY, analysis, released, state, trio

__all__ = ["trio"]  # a fixture

pytestmark = pytest.mark.integration

LABELS = {
    "minSamples": {"pairs": 120, "warmupSeconds": 0},
    "metrics": [
        {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.5, "maxExtra": 200},
        {
            "name": "labels",
            "kind": "PairedEvent",
            "event": "PredictionDisagreement",
            "share": 0.5,
            "maxDisagreement": 0.05,
        },
    ],
}


@contextlib.asynccontextmanager
async def predictions(port, labels):
    """Requests without a session, one every 30 ms; `labels` gets those that clients got, by revision."""
    over = asyncio.Event()

    async def predict():
        async with aiohttp.ClientSession() as session:
            for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                body = {"model": "chat", "input": {"features": [number]}}
                async with session.post(f"http://127.0.0.1:{port}/api/v1/predict", json=body) as answer:
                    labels.add((answer.headers["X-Slipway-Revision"], (await answer.json())["prediction"]))
                await asyncio.sleep(0.03)

    running = asyncio.create_task(predict())
    try:
        yield
    finally:
        over.set()
        await running


@pytest.mark.parametrize("flips", [0, 10], ids=["equal", "a-tenth-flipped"])
async def test_flipped_labels_are_rejected_before_any_client_gets_one(trio, flips):
    trio.canary.flips = flips
    shadow = {"templates": [{"templateName": "pairs"}], "twinShadow": {"percentage": 100, "maxPairsPerSecond": 100}}
    canary = STRATEGY["canary"] | {"steps": [{"analysis": shadow | {"maxDuration": "10m"}}, {"pause": {}}]}
    stable, labels = await released(trio, LABELS, STRATEGY | {"canary": canary}), set()
    async with predictions(trio.port, labels):
        shadowed = await trio.reaches("copies are sent", lambda status: status.get("traffic", {}).get("twinShadow"))
        tolerance = shadowed["traffic"]["twinShadow"]["tolerance"]
        assert tolerance == {"relativeMillionths": 1000, "absoluteBillionths": 1000}
        decided = await trio.reaches("the verdict", lambda status: state(status) == ("Aborted" if flips else "Paused"))
    verdict = analysis(decided)["verdict"]
    assert verdict["outcome"] == ("Fail" if flips else "Pass"), verdict["message"]
    row = next(one for one in verdict["metrics"] if one["name"] == "labels")
    assert (row["finding"], verdict.get("metric", "")) == (("Worse", "labels") if flips else ("NotWorse", ""))
    assert "pairs canary predicts something else than its twin for" in verdict["message"]
    assert labels == {(stable, "cat")} and trio.canary.requests >= row["canarySamples"] >= 50
