"""A ConfigMap of a namespace with a file for each of several objects, which own it together."""

from collections.abc import Iterable
from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels


def shared_file(
    name: str, kind: str, namespace: str, files: dict[str, str], labels_: dict[str, str], owners: Iterable[Owner]
) -> dict[str, Any]:
    """Return the ConfigMap; `files`: texts by name of the object, `kind`: of the owners.

    All of them own it and none controls it, so garbage collection deletes it after the last one. Its name is fixed, so
    that the operator's Role can name it.
    """
    data = {f"{owner}.json": text for owner, text in files.items()}
    references = [
        {"apiVersion": labels.API_VERSION, "kind": kind, "name": owner.name, "uid": owner.uid}
        for owner in sorted(owners, key=lambda owner: owner.name)
    ]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels_, "ownerReferences": references},
        "data": data,
    }
