"""vLLM on CPUs: released beside slipway-server, judged, scaled, drained and rolled back, without a failed request."""

import re
from collections.abc import Callable

import pytest

from e2e import faults, weights
from e2e.conftest import devcluster
from e2e.engines.released import ANSWERS, START_S, until_promoted, until_rejected
from e2e.stages import Stages
from testkit.cluster.deployment import MODELS, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.load.closed import Load
from testkit.load.flow import Flow, Shape

pytestmark = pytest.mark.extended

VERSION = "0.32.0"


@pytest.fixture(scope="module")
def image() -> str:
    return devcluster("engine", "vllm-cpu").strip()


def vllm(image: str) -> Json:
    return {
        "type": "vllm",
        "version": VERSION,
        "image": image,
        "args": ["--enforce-eager", "--max-num-seqs=16"],
        "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}],
    }


def in_image(model: str, version: str) -> Json:
    return {"uri": f"file:///models/{model}", "version": version}


@pytest.mark.timeout(3600, func_only=True)
def test_vllm_is_released_scaled_drained_and_rolled_back(
    slipway: Installation,
    namespace: str,
    image: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
    load: Callable[..., Load],
) -> None:
    stages = Stages("engines-vllm")
    slipway.kube.apply(faults.template("answers", **ANSWERS), namespace)
    weights.begin(slipway.kube, namespace, slipway.images.server)
    chat = deploy("v1", strategy=faults.strategy(50, "answers"), progressDeadlineSeconds=int(START_S))
    chat.until_stable("v1")
    running = flow(chat, Shape(rate=4, streamed=0.5, max_tokens=None))
    running.wait_for(lambda seen: len(seen) >= 20, 60, "requests of stable")

    with stages.stage("canary from slipway to vllm, the same weights: promoted"):
        chat.edit(model=in_image("tiny-v1", "vllm-1"), engine=vllm(image))
        status = until_promoted(chat, "vllm-1")
        [shown] = [item for item in status["revisions"] if item["revision"] == status["stableRevision"]]
        assert shown["engine"] == {"type": "vllm", "capabilities": ["Drain", "Metrics", "TenantCache"]}
        chat.until_alone()

    with stages.stage("canary from vllm to vllm, other weights: promoted"):
        chat.edit(model=in_image("tiny-v2", "vllm-2"))
        until_promoted(chat, "vllm-2")
        chat.until_alone()

    with stages.stage("canary from vllm to a context of 24 tokens, its weights on a claim: rolled back"):
        weights.await_made(slipway.kube, namespace)
        chat.edit(model={"uri": f"{weights.URI}/untrained", "version": "short", "maxModelLen": 24})
        abort = until_rejected(chat)
        assert abort["reason"] == "AnalysisFailed" and re.search("truncated: .* evidence e=", abort["message"]), abort
        chat.edit(model=in_image("tiny-v2", "vllm-2") | {"maxModelLen": None})
        chat.until_stable("vllm-2")
        chat.until_alone()
    stages.requests(running.stop())

    with stages.stage("two pods, one deleted with streams open: all end"):
        chat.scale(2)
        chat.until("two pods are ready", lambda status: status["ready"] == "2/2", START_S)
        steady = load(chat, pause_s=0, max_tokens=(100, 300), streams=4)
        steady.wait_for(lambda report: report.requests >= 8, 120)
        leaver = chat.pods()[0]["metadata"]["name"]
        slipway.kube.kubectl("delete", "pod", leaver, "--namespace", namespace, "--wait=false")
        before = steady.report()
        steady.wait_for(lambda report: report.since(before).requests >= 20, 240)
        report = steady.stop()
        stages.load(report)
        assert report.failures == ()
    stages.write()


@pytest.mark.timeout(3600, func_only=True)
def test_a_canary_between_slipway_and_vllm_is_judged_right_both_ways(
    slipway: Installation,
    namespace: str,
    image: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    """From each engine to the other: the same model is promoted, one with a context of 24 tokens is rolled back."""
    stages = Stages("engines-both-ways")
    slipway.kube.apply(faults.template("answers", **ANSWERS), namespace)
    chat = deploy("v1", strategy=faults.strategy(50, "answers"), progressDeadlineSeconds=int(START_S))
    chat.until_stable("v1")
    running = flow(chat, Shape(rate=4, streamed=0.5, max_tokens=None))
    running.wait_for(lambda seen: len(seen) >= 20, 60, "requests of stable")
    model_in_slipway = {"uri": f"{MODELS}/tiny-v1"}  # each image has it in a folder of its own
    for source, target, engine, folder in (
        ("slipway", "vllm", vllm(image), {}),
        ("vllm", "slipway", None, model_in_slipway),
    ):
        with stages.stage(f"canary from {source} to {target} with a context of 24 tokens: rolled back"):
            chat.edit(model=in_image("tiny-v1", f"{target}-short") | {"maxModelLen": 24} | folder, engine=engine)
            abort = until_rejected(chat)
            assert abort["reason"] == "AnalysisFailed" and re.search("truncated: .* evidence e=", abort["message"]), (
                abort
            )
        with stages.stage(f"canary from {source} to {target}, the same model: promoted"):
            chat.edit(model=in_image("tiny-v1", target) | {"maxModelLen": None} | folder)
            status = until_promoted(chat, target)
            [shown] = [item for item in status["revisions"] if item["revision"] == status["stableRevision"]]
            assert shown.get("engine", {"type": "slipway"})["type"] == target
            chat.until_alone()
    stages.requests(running.stop())
    stages.write()
