"""llama.cpp's server as a custom engine: as a user writes it, with the tiny models as GGUF on a claim."""

from typing import Any

from e2e import weights
from testkit.cluster.deployment import Json
from testkit.cluster.installation import Installation

CLAIM = "gguf"
SLOTS, CONTEXT_TOKENS = 8, 512  # of one request: the tiny models know no more
PRE_STOP_S = 60
DRAIN: Json = {"timeoutSeconds": 1}  # after SIGTERM it computes nothing more, and what it has not answered only hangs


def fill(slipway: Installation, namespace: str, image: str, claim: str = CLAIM, folder: str = "") -> None:
    """Put the models of the image on a claim; `folder`: and tiny-v1 once more, under that name."""
    copies = [
        f"cp -r /models/* {weights.MOUNT}/",
        *([f"cp -r /models/tiny-v1 {weights.MOUNT}/{folder}"] if folder else []),
    ]
    weights.fill(slipway.kube, namespace, claim, image, ["sh", "-c", " && ".join(copies)])


def engine(image: str, *args: str, slots: int = SLOTS, **custom: Any) -> Json:
    """spec.engine, on one core. llama-server takes no `--flag=value`."""
    return {
        "type": "custom",
        "image": image,
        "command": ["/app/llama-server"],
        "args": [
            *("--model", "$(SLIPWAY_MODEL_PATH)/model.gguf", "--alias", "$(SLIPWAY_MODEL_NAME)"),
            *("--host", "0.0.0.0", "--port", "$(SLIPWAY_PORT)", "--metrics"),
            *("--threads", "1", "--cache-ram", "0"),
            *("--parallel", str(slots), "--ctx-size", str(slots * CONTEXT_TOKENS)),
            *args,
        ],
        "custom": {
            "readinessPath": "/health",
            "metrics": {
                "queued": "llamacpp:requests_deferred",
                "running": "llamacpp:requests_processing",
                "generatedTokens": "llamacpp:tokens_predicted_total",
            },
            "preStopSeconds": PRE_STOP_S,
        }
        | custom,
    }


def on_claim(folder: str, version: str) -> Json:
    """spec.model."""
    return {"uri": f"pvc://{CLAIM}/{folder}", "version": version}
