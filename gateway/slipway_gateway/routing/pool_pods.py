"""Pods that serve many models: each revision of a member is an endpoint of its own at each of them (pure).

Its URL has the revision before the path, by which the pod knows the entry. So in-flight counts, ejections and retries
are of one entry, and a broken model takes no requests from others in the same pod.
"""

from collections.abc import Iterable, Mapping
from typing import Any

LABEL_POOL = "slipway.dev/modelpool"
PREFIX = "/revisions"


def controller_uid(owner: Mapping[str, Any], labels: Mapping[str, Any], namespace: str) -> str:
    """`namespace/uid` of the StatefulSet of a pod's pool; empty for a pod that belongs to no pool.

    The pod serves the revisions with which the operator published that uid. A pool serves its own namespace alone,
    whatever a status says.
    """
    uid = owner.get("uid")
    return f"{namespace}/{uid}" if labels.get(LABEL_POOL) and owner.get("kind") == "StatefulSet" and uid else ""


def entry_urls(urls: Iterable[str], revision: str) -> set[str]:
    """The endpoints of one revision at the pods of its pool."""
    return {f"{url}{PREFIX}/{revision}" for url in urls}
