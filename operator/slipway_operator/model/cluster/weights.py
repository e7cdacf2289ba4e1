"""The identity of a revision's weights, as a pod reported it and the operator records it; see docs/contracts.md."""

import json
import re
from dataclasses import dataclass
from typing import Any

from slipway_operator.model import labels

ANNOTATION = f"{labels.GROUP}/weights"  # of a ControllerRevision
FILE = "pin.json"  # key of the ConfigMap, and the file that the fetcher reads
LARGEST_BYTES = 1 << 50  # more than any model has
LIMIT = 4096  # characters of a report; the kubelet passes on no more
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COMMIT = re.compile(r"([0-9a-f]{40,64})?")


@dataclass(frozen=True, slots=True)
class Weights:
    """The identity of a model's bytes."""

    digest: str  # sha256:… over the digests of its files
    commit: str = ""  # commit of an hf:// repository, or digest of an oci:// manifest


def is_digest(text: str) -> bool:
    """Whether a text is a digest as fetchers report it."""
    return _DIGEST.fullmatch(text) is not None


def reported(message: str) -> Weights | None:
    """Parse the weights in the termination message of a fetcher that succeeded; None if it has none."""
    try:
        return _read(json.loads(message[:LIMIT])["weights"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def reported_bytes(message: str) -> int | None:
    """Parse the size of the model, in bytes, in a fetcher's termination message; None if it has none."""
    try:
        found = json.loads(message[:LIMIT])["weights"]["bytes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) and 0 <= found <= LARGEST_BYTES else None


def parse(text: str | None) -> Weights | None:
    """Parse the weights in the annotation; None if the text is none that `render` writes."""
    try:
        return _read(json.loads((text or "")[:LIMIT]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def render(weights: Weights) -> str:
    """Return the JSON text for the annotation and the ConfigMap."""
    return json.dumps({"commit": weights.commit, "digest": weights.digest})


def _read(content: dict[str, Any]) -> Weights | None:
    """Return the weights, None if invalid: pods may run any image and report any text as digest and commit."""
    found = Weights(str(content["digest"]), str(content.get("commit") or ""))
    valid = _DIGEST.fullmatch(found.digest) and _COMMIT.fullmatch(found.commit)
    return found if valid else None
