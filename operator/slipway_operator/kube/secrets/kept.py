"""A Secret of the release whose items are rotated in steps; each namespace with model pods gets a part of them."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.resources import SECRETS
from slipway_operator.model.cluster.plan import Plan

LOOK_S = 60.0  # between two reads of the Secret
AGAIN_AFTER_S = 240.0  # shorter than the resync period: manual changes in a namespace are reverted


class HasId(Protocol):
    """One item of the Secret."""

    @property
    def id(self) -> str:
        """The name of the item in logs."""


Item = TypeVar("Item", bound=HasId)
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Words:
    """Parts of log messages about the Secret."""

    items: str  # what the Secret contains, in plural
    refused: str  # the consequence when the operator has no permission for the release's Secret
    refused_in: str  # the same for the Secret of a namespace, whose name replaces %s


class KeptSecret(Component, ABC, Generic[Item, Part]):
    """The items in the release's Secret, and which part each namespace was given.

    `fenced_pause_s`: seconds until the next look while another operator holds the lease.
    """

    words: ClassVar[Words]
    unreadable: ClassVar[type[ValueError]]  # what `_parse` raises
    fenced_pause_s: ClassVar[float] = LOOK_S

    def __init__(
        self,
        client: Client,
        namespace: str,
        secret: str,
        served: Callable[[], Iterable[tuple[str, str]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`served`: namespace and name of each ModelDeployment. `clock`: Unix seconds."""
        self._client, self._served, self._clock = client, served, clock
        self._namespace, self._secret = namespace, secret
        self._items: tuple[Item, ...] = ()
        self._given: dict[str, tuple[Part, float]] = {}  # by namespace: the part, and when it was written
        self._lock = asyncio.Lock()
        self._log = logging.getLogger(type(self).__module__)
        self._trouble = ""

    @abstractmethod
    def _parse(self, data: dict[str, str]) -> tuple[Item, ...]:
        """The items in the Secret's `data`. Raises `unreadable` when no operator wrote it so."""

    @abstractmethod
    def _next(self, known: tuple[Item, ...]) -> tuple[Item, ...]:
        """The items after the next step of the rotation; `known` itself when none is due."""

    @abstractmethod
    def _manifest(self, items: tuple[Item, ...]) -> Object:
        """The manifest of the release's Secret."""

    @abstractmethod
    def _part(self, namespace: str) -> Part:
        """The part that a namespace is given now; called only when there are items."""

    @abstractmethod
    def _part_manifest(self, namespace: str, part: Part) -> Object:
        """The manifest of the Secret in a namespace."""

    async def _keep_others(self) -> None:
        """Write further Secrets in the namespace of the release."""

    async def before(self, deployment: ReconciledDeployment, planned: Plan) -> None:
        """Write the part of the pods' namespace."""
        await self.keep(deployment.key[0])

    async def keep(self, namespace: str) -> None:
        """Write a namespace's part unless it was written lately.

        Without the permission, or without items, a warning is logged. Any other ApiError is raised, so that reconciles,
        which call this before they create pods, create none.
        """
        if not self._items:
            await self.look()
        if not self._items:
            return
        part, (given, at) = self._part(namespace), self._given.get(namespace, (None, 0.0))
        if given == part and self._clock() - at < AGAIN_AFTER_S:
            return
        try:
            await self._give(namespace, part)
        except Refused as error:
            self._log.warning(f"{self.words.refused_in}: %s", namespace, error)
        self._given[namespace] = (part, self._clock())

    async def _give(self, namespace: str, part: Part) -> None:
        """Write a namespace's part. Raises ApiError."""
        await self._client.apply(SECRETS, self._part_manifest(namespace, part))

    async def _pause(self, seconds: float) -> None:
        """Wait until the next look, `seconds` at most."""
        await asyncio.sleep(seconds)

    async def run(self) -> None:
        """Take each due step of the rotation, and write the result to all namespaces at once, until cancelled."""
        while True:
            pause_s = LOOK_S
            try:
                await self.look()
                await self._give_all()
            except Fenced:
                pause_s = self.fenced_pause_s
            except ApiError as error:
                self._log_once(f"the {self.words.items} cannot be kept: {error}")
            await self._pause(pause_s)

    async def look(self) -> None:
        """Read the Secret, and take the step of the rotation that is due.

        Raises:
            ApiError: when the API server is unavailable, or another writer was faster.
        """
        async with self._lock:
            try:
                self._items = await self._advance(await self._read(self._secret))
                await self._keep_others()
            except Refused as error:
                self._log_once(f"{self.words.refused}, the {self.words.items} cannot be kept: {error}")
            except self.unreadable as error:
                where = f"{self._namespace}/{self._secret}"
                self._log_once(f"Secret {where}: {error}; delete it, then the operator writes it again")
            else:
                self._trouble = ""

    def forget(self, key: ObjectKey) -> None:
        """Forget what the namespace of a ModelDeployment was given; the next `keep` writes it again."""
        self._given.pop(key[0], None)

    async def _read(self, name: str) -> Object | None:
        try:
            return await self._client.get(SECRETS, self._namespace, name)
        except NotFound:
            return None

    async def _advance(self, found: Object | None) -> tuple[Item, ...]:
        """Write the step that is due, and return the items after it.

        A deleted or emptied Secret is restored from memory, because pods have its items.
        """
        known = (self._parse(found.get("data") or {}) if found else ()) or self._items
        items = self._next(known)
        try:
            await self._write(found, self._manifest(items))
        except (Fenced, Stale, Exists):
            if not known:
                raise
            return known
        if (ids := [item.id for item in items]) != [item.id for item in known]:
            self._log.info("the release's %s are now %s", self.words.items, ", ".join(ids))
        return items

    async def _write(self, found: Object | None, body: Object) -> None:
        """Create or replace a Secret that differs, conditionally: the slower of two operators gets Stale or Exists."""
        if found is None:
            await self._client.create(SECRETS, body)
        elif (found.get("data") or {}) != body["data"]:
            metadata = {**found["metadata"], "labels": body["metadata"]["labels"]}
            await self._client.replace(SECRETS, {**body, "metadata": metadata, "type": found.get("type", "Opaque")})

    async def _give_all(self) -> None:
        for namespace in sorted({namespace for namespace, _ in self._served()}):
            given = self._given.get(namespace)
            if self._items and given and given[0] == self._part(namespace):
                continue  # written already; reconciles repair manual changes
            try:
                await self.keep(namespace)
            except Fenced:
                raise
            except ApiError as error:  # a namespace that is being deleted must not block the others
                self._log.warning("namespace %s has not the newest %s yet: %s", namespace, self.words.items, error)

    def _log_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._log.warning("%s", trouble)
