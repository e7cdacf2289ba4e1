"""CustomResourceDefinitions of API types."""

from typing import Any

import yaml

from slipway_contracts.api import markers
from slipway_operator.api.schema import Node, structural
from slipway_operator.api.v1beta1.differences import GROUP
from slipway_operator.api.v1beta1.schema import beta_version

_LABELS = {"app.kubernetes.io/name": "slipway", "app.kubernetes.io/part-of": "slipway"}
_HEADER = """\
# Generated from {module} by `make generate`; do not edit.
"""


def text(kind: type, stored_only: bool = False) -> str:
    """The manifest, as it stands in crds/. `stored_only`: without later versions, as in the chart."""
    whole = manifest(kind)
    if stored_only:
        whole["spec"]["versions"] = whole["spec"]["versions"][:1]
    header = _HEADER.format(module=kind.__module__.replace(".", "/") + ".py")
    return header + yaml.dump(whole, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def manifest(kind: type) -> Node:
    """The CustomResourceDefinition of a root type."""
    definition = markers.definition_of(kind)
    singular = kind.__name__.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{definition.group}", "labels": _LABELS},
        "spec": {
            "group": definition.group,
            "scope": "Cluster" if definition.cluster_scoped else "Namespaced",
            "names": {
                "kind": kind.__name__,
                "listKind": f"{kind.__name__}List",
                "plural": definition.plural,
                "singular": singular,
                "shortNames": list(definition.short_names),
                **({"categories": list(definition.categories)} if definition.categories else {}),
            },
            "versions": _versions(kind, definition),
        },
    }


def _versions(kind: type, definition: markers.Definition) -> list[Node]:
    """The stored version first."""
    stored = _version(kind, definition)
    beta = beta_version(kind.__name__, stored) if definition.group == GROUP else None
    return [stored, *([beta] if beta else [])]


def _version(kind: type, definition: markers.Definition) -> Node:
    return {
        "name": definition.version,
        "served": True,
        "storage": True,
        **_subresources(definition),
        "additionalPrinterColumns": [_column(column) for column in definition.columns],
        "schema": {"openAPIV3Schema": _root(kind, definition)},
    }


def _subresources(definition: markers.Definition) -> Node:
    found: Node = {"status": {}} if definition.status else {}
    if definition.scale:
        found["scale"] = {
            "specReplicasPath": definition.scale.spec_replicas,
            "statusReplicasPath": definition.scale.status_replicas,
            "labelSelectorPath": definition.scale.selector,
        }
    return {"subresources": found} if found else {}


def _column(column: markers.PrinterColumn) -> Node:
    return {
        "name": column.name,
        "type": column.type,
        **({"priority": 1} if column.wide else {}),
        "jsonPath": column.path,
        **({"description": column.description} if column.description else {}),
    }


def _root(kind: type, definition: markers.Definition) -> Node:
    """The schema, with what every object has."""
    node = structural(kind)
    if definition.status and "status" in node["properties"]:
        # Until the operator has read a new object, tools that wait for it must not take it as reconciled.
        node["properties"]["status"]["default"] = {"observedGeneration": -1}
    own = {
        "apiVersion": {"type": "string", "description": f"{definition.group}/{definition.version}."},
        "kind": {"type": "string", "description": f"{kind.__name__}."},
        # The API server describes it itself and refuses a description here.
        "metadata": {"type": "object"},
    }
    return {**node, "properties": {**own, **node["properties"]}}


class _Dumper(yaml.SafeDumper):
    """As people write manifests: items of lists where their list begins, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
