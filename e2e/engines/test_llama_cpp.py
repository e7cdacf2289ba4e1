"""llama.cpp's server as a custom engine: released beside slipway-server, judged, scaled, drained and rolled back."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from bench.chaos.killer import Node
from e2e import autoscaling, faults
from e2e.asking import client
from e2e.conftest import devcluster
from e2e.engines import llama
from e2e.engines.released import ANSWERS, until_promoted, until_rejected
from e2e.stages import Stages
from e2e.timeline import Timeline
from e2e.weights import await_made
from testkit import ROOT
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.load.client import PROMPTS
from testkit.load.closed import Load
from testkit.load.flow import Flow, Shape

pytestmark = pytest.mark.extended

DEADLINE_S = 60  # for a pod to become ready, on two cores that others use too
LONG: Json = {"pause_s": 0, "max_tokens": (300, 400), "streams": 4, "whole": 2}
# The model is small: so that a stream takes seconds, its pod has a part of a core.
POD: Json = {"cpu": "200m", "memory": "1Gi"}
EXAMPLE = ROOT / "examples" / "llama-cpp.yaml"


@pytest.fixture(scope="module")
def image() -> str:
    return devcluster("engine", "llama-cpp").strip()


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    """What all tests here showed: one report."""
    found = Stages("engines-llama-cpp")
    yield found
    found.write()


@pytest.mark.timeout(2400, func_only=True)
def test_llama_cpp_is_released_and_rolled_back(
    slipway: Installation,
    namespace: str,
    image: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
    stages: Stages,
) -> None:
    slipway.kube.apply(faults.template("answers", **ANSWERS), namespace)
    llama.fill(slipway, namespace, image)
    strategy = faults.strategy(50, "answers")
    chat = deploy("v1", strategy=strategy, drain=llama.DRAIN, progressDeadlineSeconds=DEADLINE_S)
    chat.until_stable("v1")
    await_made(slipway.kube, namespace, llama.CLAIM)
    ours = answers(slipway.url, chat.model)
    running = flow(chat, Shape(rate=4, streamed=0.5, max_tokens=None))
    running.wait_for(lambda seen: len(seen) >= 20, 60, "requests of stable")

    with stages.stage("canary from slipway to llama.cpp, the same weights as GGUF: promoted") as row:
        chat.edit(model=llama.on_claim("tiny-v1", "llama-1"), engine=llama.engine(image))
        status = until_promoted(chat, "llama-1")
        [shown] = [item for item in status["revisions"] if item["revision"] == status["stableRevision"]]
        assert shown["engine"] == {"type": "custom", "capabilities": ["Metrics"]}
        chat.until_alone()
        theirs = answers(slipway.url, chat.model)
        row["greedy_answers_equal"] = sum(map(str.__eq__, ours, theirs))
        assert row["greedy_answers_equal"] == len(PROMPTS), list(zip(ours, theirs, strict=True))

    with stages.stage("canary from llama.cpp to llama.cpp, other weights: promoted"):
        chat.edit(model=llama.on_claim("tiny-v2", "llama-2"))
        until_promoted(chat, "llama-2")
        chat.until_alone()

    with stages.stage("canary to weights as before training: rolled back by the judge") as row:
        chat.edit(model=llama.on_claim("untrained", "untrained"))
        abort = until_rejected(chat)
        assert abort["reason"] == "AnalysisFailed", abort
        assert re.search("(truncated|repetition|empty): .* evidence e=", abort["message"]), abort
        row["message"] = abort["message"]
        back(chat)

    with stages.stage("canary to a limit of 4 tokens, left in the arguments: rolled back by the judge") as row:
        chat.edit(engine=llama.engine(image, "--predict", "4"), model=llama.on_claim("tiny-v2", "limited"))
        abort = until_rejected(chat)
        assert abort["reason"] == "AnalysisFailed", abort
        assert re.search("truncated: .* evidence e=", abort["message"]), abort
        row["message"] = abort["message"]
        chat.edit(engine=llama.engine(image))
        back(chat)

    with stages.stage("canary to half of a GGUF file: never ready, rolled back") as row:
        chat.edit(model=llama.on_claim("cut", "cut"))
        abort = until_rejected(chat)
        assert abort["reason"] == "ProgressDeadlineExceeded", abort
        assert "exiting due to model loading error" in abort["message"], abort
        row["message"] = abort["message"]
        back(chat)
    stages.requests(running.stop())


def back(chat: Deployment) -> None:
    """Undo an edit as a user does it."""
    chat.edit(model=llama.on_claim("tiny-v2", "llama-2"))
    chat.until_stable("llama-2")
    chat.until_alone()


def answers(url: str, model: str) -> list[str]:
    """Greedy answers to each prompt."""
    chats = client(url).chat.completions
    return [
        chats.create(model=model, messages=[{"role": "user", "content": prompt}], temperature=0, max_tokens=24)
        .choices[0]
        .message.content
        or ""
        for prompt in PROMPTS
    ]


@pytest.mark.timeout(900, func_only=True)
def test_a_pod_that_is_deleted_ends_its_streams_and_one_that_dies_loses_no_other_request(
    slipway: Installation,
    namespace: str,
    image: str,
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    stages: Stages,
) -> None:
    llama.fill(slipway, namespace, image)
    await_made(slipway.kube, namespace, llama.CLAIM)
    spec = {"model": served(namespace, "tiny-v2"), "engine": llama.engine(image), "resources": POD}
    chat = deploy("v1", **spec, drain=llama.DRAIN, progressDeadlineSeconds=2 * DEADLINE_S)
    chat.until_stable("tiny-v2")

    with stages.stage("kubectl scale to two pods"):
        chat.scale(2)
        chat.until("two pods are ready", lambda status: status["ready"] == "2/2", START_S)

    with stages.stage("two pods, one deleted with streams open: all end") as row:
        steady = load(chat, **LONG)
        steady.wait_for(lambda report: report.requests >= 8, 120)
        leaver = chat.pods()[0]["metadata"]["name"]
        slipway.kube.kubectl("delete", "pod", leaver, "--namespace", namespace, "--wait=false")
        before = steady.report()
        steady.wait_for(lambda report: report.since(before).requests >= 30, 240)
        chat.until("two pods are ready", lambda status: status["ready"] == "2/2", START_S)
        report = steady.stop()
        stages.load(report)
        row |= {"requests": report.requests, "latency_p50_s": round(report.latency_s(0.5), 1)}
        assert report.failures == ()

    with stages.stage("two pods, one killed with streams open: they break, no other request is lost") as row:
        steady = load(chat, **LONG)
        steady.wait_for(lambda report: report.requests >= 8, 120)
        # The process itself: a forced deletion leaves two seconds, in which a fast machine ends every stream.
        Node.of_devcluster().kill(_container_of(chat.pods()[0]))
        before = steady.report()
        steady.wait_for(lambda report: report.since(before).requests >= 30, 240)
        report = steady.stop()
        stages.load(report, lost=[failure for failure in report.failures if failure.broken])
        row |= {"requests": report.requests, "streams_lost": report.broken, "other_failures": report.failed}
        assert 1 <= report.broken <= LONG["streams"], report.failures
        assert all("went away" in failure.text for failure in report.failures), report.failures
        assert report.failed == 0


def _container_of(pod: Json) -> str:
    """The id of its server's container, as the node calls it."""
    [server] = [one for one in pod["status"]["containerStatuses"] if one["name"] == "server"]
    return str(server["containerID"]).partition("://")[2]


def served(namespace: str, folder: str) -> Json:
    """spec.model of a deployment that begins with llama.cpp."""
    return llama.on_claim(folder, folder) | {"name": f"chat.{namespace}"}


@pytest.mark.timeout(900, func_only=True)
def test_replicas_follow_the_requests_that_llama_cpp_defers(
    slipway: Installation,
    namespace: str,
    image: str,
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    stages: Stages,
) -> None:
    llama.fill(slipway, namespace, image)
    await_made(slipway.kube, namespace, llama.CLAIM)
    by_queue = autoscaling.scaled({"type": "QueueDepth", "target": "1"})
    spec: dict[str, Any] = {
        "model": served(namespace, "tiny-v2") | {"version": "v1"},
        "engine": llama.engine(image, slots=autoscaling.AT_ONCE, preStopSeconds=10),
        "resources": autoscaling.POD,
        "autoscaling": by_queue,
        "drain": llama.DRAIN,
    }
    chat = deploy("v1", **spec)
    autoscaling.until_followed(chat)
    with stages.stage("HorizontalPodAutoscaler by QueueDepth, a load step and back") as row, Timeline(chat) as timeline:
        up = autoscaling.climb(chat, timeline, load)
        down = autoscaling.descend(timeline, up.crowd)
        queue = max((waiting for _, waiting in timeline.waiting()), default=0)
        stages.load(down.crowd)
        row |= {"seen": f"{up.summary()}; {down.summary()}; {queue:.0f} waited at most"}
        missed = [str(bar) for bar in autoscaling.step_bars("step", up, down, len(down.crowd.failures)) if not bar.ok]
        assert not missed, missed
        assert queue > 0


@pytest.mark.timeout(600, func_only=True)
def test_the_example_serves_as_it_is(slipway: Installation, namespace: str, image: str, stages: Stages) -> None:
    """With an image that is here, a name that no former run has had, and as many cores as the node has left."""
    manifest = yaml.safe_load(EXAMPLE.read_text())
    claim, folder = manifest["spec"]["model"]["uri"].removeprefix("pvc://").split("/")
    llama.fill(slipway, namespace, image, claim, folder)
    await_made(slipway.kube, namespace, claim)
    manifest["spec"]["engine"]["image"] = image
    manifest["spec"]["resources"]["cpu"] = "500m"
    args = manifest["spec"]["engine"]["args"]
    args[args.index("--threads") + 1] = "1"  # four that share half a core wait for one another
    name = manifest["metadata"]["name"]
    # The name of a model that was deleted is kept for a day.
    model = manifest["spec"]["model"]["name"] = f"{name}.{namespace}"
    with stages.stage("examples/llama-cpp.yaml: chat and completions, whole and streamed") as row:
        slipway.kube.apply(manifest, namespace)
        chat = Deployment(slipway.kube, namespace, name)
        chat.until("it is ready", lambda status: status.get("ready") == "1/1" and status["phase"] == "Healthy", START_S)
        with Load(slipway.url, model, streams=4, whole=2, max_tokens=(10, 40)) as steady:
            steady.wait_for(lambda report: report.requests >= 60, 120)
        report = steady.stop()
        stages.load(report)
        row |= {"requests": report.requests, "streams": report.streams}
        assert report.failures == () and report.streams > 20
        listed = [one.id for one in client(slipway.url).models.list().data]
        assert model in listed
