"""A world whose decisions a StatementRunner follows, with an API server that keeps annotations of records."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from slipway_contracts.verdict_statements import ANNOTATION
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, Resource
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.deployment.spec import parse
from slipway_operator.statements.runner import StatementRunner
from tests.support.model_cluster import ModelCluster

KEY: ObjectKey = ("default", "chat")
VERSION = "1.2.3"
COMMIT = "c" * 40


def digest_of(uri: str) -> str:
    return "sha256:" + uri.encode().hex().ljust(64, "0")[:64]


@dataclass
class Followed:
    """`signed`: what was written to records, by revision, the oldest first. `fault`: of the next patches."""

    world: ModelCluster
    key_file: Path
    pinned: bool = True
    leads: bool = True
    fault: Exception | None = None
    signed: list[tuple[str, str]] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    woken: list[ObjectKey] = field(default_factory=list)
    runner: StatementRunner = field(init=False)

    def __post_init__(self) -> None:
        self._plain = self.world.reconcile
        self.world.reconcile = self.reconcile  # type: ignore[method-assign]
        self.restart()

    def restart(self) -> None:
        """Another operator goes on."""
        self.runner = StatementRunner(
            cast(Client, self), self.key_file, VERSION, self.woken.append, lambda: self.leads, lambda: self.world.now
        )

    def reconcile(self) -> Plan:
        """One reconcile as the operator makes it: what is observed first, what is written, then the component."""
        if self.pinned:
            for name, one in self.world.snapshots.items():
                pin = Weights(digest_of(one.inputs.model.uri), COMMIT)
                self.world.snapshots[name] = replace(one, weights=pin)
        obj, observed = self.world.obj(), self.world.observed()
        planned = self._plain()
        self.runner.after(ReconciledDeployment(KEY, obj, parse(obj)), observed, planned, self.world.now)
        return planned

    async def sign(self, *, again: bool = True) -> None:
        """Sign what is pending. `again`: also what failed before: in place of the time that passes."""
        for item in self.runner._pending.values():
            item.due_at = 0.0 if again else max(item.due_at, time.monotonic())
        await self.runner.sign_due()

    async def patch(self, resource: Resource, namespace: str, name: str, change: dict[str, Any]) -> Object:
        """The API server."""
        assert (resource, namespace) == (CONTROLLER_REVISIONS, "default")
        if self.fault:
            raise self.fault
        named = [revision for revision, one in self.world.snapshots.items() if one.name == name]
        if not named:
            raise NotFound("no such record")
        text = change["metadata"]["annotations"][ANNOTATION]
        self.world.snapshots[named[0]] = replace(self.world.snapshots[named[0]], statement=text)
        self.signed.append((named[0], text))
        return {}

    async def create(self, resource: Resource, obj: Object) -> Object:
        """The API server, of Events."""
        self.events.append(obj)
        return obj


def write_key(path: Path) -> ed25519.Ed25519PrivateKey:
    key = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key
