"""A fleet of twenty pods, as on GPUs: the simulator of vLLM, which needs neither a model nor a core of its own."""

import re
from collections.abc import Callable, Iterator

import pytest

from e2e import faults
from e2e.conftest import devcluster
from e2e.engines.released import ANSWERS, until_promoted, until_rejected
from e2e.stages import Stages
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.load.flow import Flow, Shape

pytestmark = pytest.mark.extended

PODS = 20


@pytest.fixture(scope="module")
def image() -> str:
    return devcluster("engine", "simulator").strip()


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    found = Stages("engines-simulator")
    yield found
    found.write()


def simulator(image: str, token_ms: int) -> Json:
    """spec.engine of one that takes so many milliseconds for a token. Its metrics are those of vLLM."""
    return {
        "type": "custom",
        "image": image,
        "args": [
            "--model=$(SLIPWAY_MODEL_NAME)",
            "--port=$(SLIPWAY_PORT)",
            "--force-dummy-tokenizer",
            "--max-num-seqs=64",
            "--time-to-first-token=50ms",
            f"--inter-token-latency={token_ms}ms",
        ],
        "custom": {
            "readinessPath": "/health/ready",
            "metrics": {"queued": "vllm:num_requests_waiting", "running": "vllm:num_requests_running"},
            "preStopSeconds": 10,
        },
    }


def version(name: str) -> Json:
    """spec.model: it reads none, so any folder of its image is one."""
    return {"uri": "file:///models/none", "version": name}


@pytest.mark.timeout(1500, func_only=True)
def test_a_fleet_is_released_scaled_and_rolled_back(
    slipway: Installation,
    namespace: str,
    image: str,
    deploy: Callable[..., Deployment],
    flow: Callable[[Deployment, Shape], Flow],
    stages: Stages,
) -> None:
    slipway.kube.apply(faults.warmed(), namespace)
    slipway.kube.apply(faults.template("answers", **ANSWERS), namespace)
    model = version("v1") | {"name": f"chat.{namespace}"}
    small = {"memory": "128Mi"}
    healthy, slow = faults.strategy(20, "answers"), faults.strategy(20, faults.WARMED)
    chat = deploy("v1", model=model, engine=simulator(image, 10), resources=small, strategy=healthy)
    chat.until_stable("v1")
    running = flow(chat, Shape(rate=16, streamed=0.5))

    with stages.stage(f"kubectl scale from 1 to {PODS} pods"):
        chat.scale(PODS)
        chat.until(f"{PODS} pods are ready", lambda status: status["ready"] == f"{PODS}/{PODS}", START_S)

    with stages.stage(f"canary of {PODS} pods: promoted by what clients get") as row:
        chat.edit(model=version("v2"))
        until_promoted(chat, "v2")
        chat.until_stable("v2")
        chat.until_alone()
        row["pods"] = len(chat.pods())

    with stages.stage(f"canary of {PODS} pods, four times as slow: rolled back by the judge") as row:
        chat.edit(model=version("slow"), engine=simulator(image, 40), strategy=slow)
        abort = until_rejected(chat)
        assert re.search("(itl|ttft): .* evidence e=", abort["message"]), abort
        row["message"] = abort["message"]
        chat.edit(model=version("v2"), engine=simulator(image, 10))
        chat.until_stable("v2")
        chat.until_alone()

    with stages.stage(f"kubectl scale from {PODS} pods to 2"):
        chat.scale(2)
        chat.until("two pods are left", lambda status: status["ready"] == "2/2" and len(chat.pods()) == 2, START_S)
    stages.requests(running.stop())
