"""The ModelDeployment as owner of its children."""

from dataclasses import dataclass
from typing import Any

from slipway_operator.api.objects import Json
from slipway_operator.model import labels


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of a ModelDeployment, or of a ModelAdapter: `name` is then its name among ModelDeployments."""

    name: str
    namespace: str
    uid: str
    collision_count: int = 0  # for the names of children that are created from now on

    @classmethod
    def of(cls, obj: Json) -> "Owner":
        """The owner from the ModelDeployment object."""
        metadata = obj["metadata"]
        return cls(metadata["name"], metadata["namespace"], metadata["uid"])

    def component_metadata(self, suffix: str, component: str) -> dict[str, Any]:
        """Return the metadata of an object that all revisions share."""
        return {
            "name": labels.child_name(self.name, suffix),
            "namespace": self.namespace,
            "labels": {
                labels.MODEL_DEPLOYMENT: self.name,
                labels.MANAGED_BY: "slipway",
                labels.COMPONENT: component,
            },
            "ownerReferences": [self.reference()],
        }

    def child_metadata(self, revision: str) -> dict[str, Any]:
        """Return the metadata of a revision's child; its ownerReference lets garbage collection delete it."""
        return {
            "name": labels.child_name(self.name, revision, self.collision_count),
            "namespace": self.namespace,
            "labels": labels.child_labels(self.name, revision),
            "ownerReferences": [self.reference()],
        }

    def reference(self) -> dict[str, Any]:
        """The ownerReference of a child."""
        kind, name = labels.object_of(self.name)
        return {
            "apiVersion": labels.API_VERSION,
            "kind": kind,
            "name": name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
