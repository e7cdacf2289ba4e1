"""The manifest that `kubectl apply` keeps in an annotation, before the API server drops or defaults anything.

Any user may write the annotation: an unreadable one counts as none.
"""

from typing import Any

import msgspec

from slipway_operator.api.objects import Json
from slipway_operator.api.v1beta1.differences import as_stored

ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
LONGEST = 65_536  # characters; the API server allows 256 KiB, and it is read in each reconcile


def manifest(obj: Json) -> dict[str, Any]:
    """Return the manifest in v1alpha1; empty if none was applied or the annotation cannot be read."""
    text = (obj["metadata"].get("annotations") or {}).get(ANNOTATION)
    if not text or len(text) > LONGEST:
        return {}
    try:
        applied = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return {}
    return as_stored(applied) if isinstance(applied, dict) else {}
