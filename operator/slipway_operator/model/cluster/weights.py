"""What a revision's weights are: as a pod reported it, and as the operator keeps it; see docs/contracts.md."""

import json
import re
from dataclasses import dataclass
from typing import Any

from slipway_operator.model import labels

ANNOTATION = f"{labels.GROUP}/weights"  # of a ControllerRevision
FILE = "pin.json"  # key of the ConfigMap, and the file that the fetcher reads
LIMIT = 4096  # characters of a report; the kubelet passes on no more
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COMMIT = re.compile(r"([0-9a-f]{40,64})?")


@dataclass(frozen=True, slots=True)
class Weights:
    """The bytes of a model."""

    digest: str  # sha256:… over the digests of its files
    commit: str = ""  # of an hf:// repository


def reported(message: str) -> Weights | None:
    """From the last words of a fetcher that succeeded; None where it says nothing of the kind."""
    try:
        return _read(json.loads(message[:LIMIT])["weights"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def parse(text: str | None) -> Weights | None:
    """From the annotation or the ConfigMap; None where it is not what `render` writes."""
    try:
        return _read(json.loads((text or "")[:LIMIT]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def render(weights: Weights) -> str:
    """For the annotation and the ConfigMap."""
    return json.dumps({"commit": weights.commit, "digest": weights.digest})


def _read(content: dict[str, Any]) -> Weights | None:
    """Pods may run any image: what is no digest or commit is never passed on."""
    found = Weights(str(content["digest"]), str(content.get("commit") or ""))
    valid = _DIGEST.fullmatch(found.digest) and _COMMIT.fullmatch(found.commit)
    return found if valid else None
