"""A canary from slipway-server to another engine, which is known by `spec.engine.custom` alone, under load."""

from collections.abc import Callable

from e2e.asking import assert_share, split
from testkit.cluster.deployment import MODELS, Deployment, canary, weights_of
from testkit.cluster.installation import Installation
from testkit.load.closed import Load

SAMPLE = 200


def test_canary_from_slipway_to_a_custom_engine_under_load(
    slipway: Installation, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    """The engine is slipway-server in the role of any OpenAI server: it gets no flag or key from the operator."""
    chat = deploy("v1", strategy=canary({"setWeight": 50}, {"pause": {}}))
    chat.until_stable("v1")
    steady = load(chat)

    engine = {
        "type": "custom",
        "image": slipway.images.server,
        "command": ["slipway-server"],
        "args": [
            *("--model", "$(SLIPWAY_MODEL_PATH)", "--served-model-name", "$(SLIPWAY_MODEL_NAME)"),
            *("--port", "$(SLIPWAY_PORT)", "--probe-port", "8001", "--drain-timeout", "60"),
        ],
        "custom": {
            "readinessPath": "/readyz",
            "livenessPath": "/healthz",
            "metrics": {"queued": "vllm:num_requests_waiting"},
            "preStopSeconds": 5,
        },
    }
    chat.release("v2", engine=engine)
    paused = chat.until_state("Paused")
    other = paused["canaryRevision"]
    assert weights_of(paused) == {"v2": 50, "v1": 50}
    assert_share(split(slipway.url, chat.model, SAMPLE), other, 50)
    [shown] = [item for item in paused["revisions"] if item["revision"] == other]
    assert shown["engine"] == {"type": "custom", "capabilities": ["Metrics"]}
    [pod] = chat.pods(other)
    assert pod["spec"].get("initContainers", []) == [], "the model is in the engine's image"
    [container] = pod["spec"]["containers"]
    assert f"{MODELS}/tiny-v2".removeprefix("file://") in [item.get("value") for item in container["env"]]

    chat.promote()
    chat.until_stable("v2")
    chat.until_alone()
    report = steady.stop()
    assert report.failures == ()
    assert other in report.by_revision
