"""Keeps the owner of each model name in one ConfigMap of the operator's namespace, where no tenant writes."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from slipway_contracts.api.times import format_time
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.resources import CONFIG_MAPS, NAMESPACES
from slipway_operator.model import labels
from slipway_operator.model.cluster import names
from slipway_operator.model.cluster.names import Claim, Standing, Wish
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.planning.claims import UNCLAIMED, ClaimRules, settle
from slipway_operator.planning.facts.model_name import NAME_CONFLICT
from slipway_process.supervisor import OnFailure

GATHER_S = 0.25  # changes within this time are one write
LOOK_S = 30.0  # after that at the latest grants are read again and old claims expire
GRANTS_S = 2.0  # how long grants that were read count when a name is assigned
RETRY_S, RETRY_LIMIT_S = 1.0, 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NameTerms:
    """Where claims are stored, how long they outlive their owner, and what the installation grants."""

    namespace: str
    config_map: str
    retention_s: float
    granted: tuple[tuple[str, str], ...] = ()  # namespace and its patterns with commas
    annotations: bool = True  # whether Namespaces' annotations grant too
    namespaces: tuple[str, ...] = ()  # those that are served; empty: all


class Unreadable(ApiError):
    """The ConfigMap's content cannot be parsed."""


class Names(Component):
    """The stored claims, and the resulting standing of each ModelDeployment.

    All claims are decided together and written in one conditional update: of two operators, or an operator and an
    admin's edit, the second one reads again. Standings are published only after the write, and gateways follow only
    the ConfigMap.
    """

    task, on_failure = "names", OnFailure.SHOW

    def __init__(
        self,
        client: Client,
        cache: ObjectCache,
        terms: NameTerms,
        add: Callable[[ObjectKey], None],
        may_write: Callable[[], bool],
        now: Callable[[], datetime],
        *,
        routes: Callable[[], Sequence[Wish] | None] = lambda: (),
    ) -> None:
        """`add` is called with each ModelDeployment whose standing changed; `may_write` is `held` of the lease.

        `routes`: the names that ModelRoutes want; None while they are not known: then claims of ModelRoutes stay.
        """
        self._routes = routes
        self._client, self._cache, self._terms = client, cache, terms
        self._add, self._may_write, self._now = add, may_write, now
        self._claims: dict[str, Claim] = {}
        self._object: Object | None = None  # the ConfigMap as it was last read or written
        self._rules = ClaimRules(terms.retention_s)
        self._rules_until: datetime | None = None
        self._standings: dict[str, Standing] = {}
        self._warned: set[str] = set()  # owners whose standing reports that names cannot be claimed
        self._logged: tuple[str, ...] = ()
        self._trouble = ""
        self._dirty = asyncio.Event()

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the standing."""
        return replace(observed, standing=self.of(deployment.obj))

    def of(self, obj: Object) -> Standing | None:
        """Return the standing of a ModelDeployment; None while it is not decided: `add` is called when it is."""
        wish = _wish(obj)
        standing = self._standings.get(wish.owner)
        if standing and standing.name == wish.name:
            return standing
        self._dirty.set()
        if not self._trouble:
            return None
        self._warned.add(wish.owner)
        return self._unclaimed(wish)

    def of_route(self, owner: str, name: str) -> Standing | None:
        """The standing of one name of a ModelRoute; None while it is not decided."""
        standing = self._standings.get(names.route_key(owner, name))
        if standing is None and self._trouble:
            return Standing(owner, name, UNCLAIMED, self._trouble, known=False)
        return standing

    def routes_changed(self) -> None:
        """Decide claims again after ModelRoutes came, left or changed their names."""
        self._dirty.set()

    def forget(self, key: ObjectKey) -> None:
        """Decide claims again after a ModelDeployment was deleted."""
        if "/".join(key) in self._standings:
            self._dirty.set()

    async def run(self) -> None:
        """Decide claims after each change, and every LOOK_S, until cancelled."""
        while True:
            retrying = AsyncRetrying(
                wait=wait_exponential(multiplier=RETRY_S, max=RETRY_LIMIT_S),
                retry=retry_if_exception(_is_trouble),
                before_sleep=self._failed,
                reraise=True,
            )
            try:
                await retrying(self._settle)
            except (Stale, Exists, Fenced):
                # Another operator may be writing now: discard the ConfigMap that was read.
                self._object = None
                await asyncio.sleep(GATHER_S)
            else:
                await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._dirty.wait()
        except TimeoutError:
            self._object = None  # read again, so that any change to it is found and repaired
        await asyncio.sleep(GATHER_S)

    async def _settle(self) -> None:
        if not self._may_write():
            raise Fenced("no name is given without the lease")
        self._dirty.clear()
        if self._object is None:
            self._object = await self._read()
        await self._look_up_grants()
        wishes = [_wish(obj) for key in self._cache.subjects() if (obj := self._cache.get(key))]
        routes = self._routes()
        wishes += _kept_routes(self._claims) if routes is None else routes
        settled = settle(self._claims, wishes, self._rules, self._now())
        if settled.claims != self._claims or names.DATA_KEY not in (self._object.get("data") or {}):
            await self._write(settled.claims)
        self._claims = settled.claims
        self._trouble = ""
        self._notify(settled.standings)
        self._warned.clear()

    async def _read(self) -> Object:
        """Return the ConfigMap; a deleted or emptied one is restored from the memory of this process."""
        place = f"{self._terms.namespace}/{self._terms.config_map}"
        try:
            found = await self._client.get(CONFIG_MAPS, self._terms.namespace, self._terms.config_map)
        except NotFound:
            return {}
        text = (found.get("data") or {}).get(names.DATA_KEY)
        if text is not None:
            try:
                self._claims = names.decode(text)
            except ValueError as error:
                raise Unreadable(
                    f"{names.DATA_KEY} of ConfigMap {place} cannot be read: {error}; mend it, or remove the key: then "
                    "it is written again as this operator knew it, or by the age of ModelDeployments where it did not"
                ) from error
        return found

    async def _write(self, claims: dict[str, Claim]) -> None:
        data = {names.DATA_KEY: names.encode(claims)}
        if self._object:
            self._object = await self._client.replace(CONFIG_MAPS, {**self._object, "data": data})
            return
        metadata = {"name": self._terms.config_map, "namespace": self._terms.namespace}
        body = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "metadata": metadata, "data": data}
        self._object = await self._client.create(CONFIG_MAPS, body)

    # --- grants

    async def _look_up_grants(self) -> None:
        """Read the grants before any name is assigned: a granted name must not go to another namespace."""
        now = self._now()
        if self._rules_until and now < self._rules_until:
            return
        try:
            annotated = await self._annotated() if self._terms.annotations else []
        except Refused as error:
            annotated = []
            problems = [f"annotations {names.ANNOTATION} of Namespaces do not count: {error}"]
            if self._rules_until:
                return  # former grants stay in force
        else:
            problems = []
        found, unread = names.grants(self._terms.granted, annotated)
        self._log_once((*problems, *unread))
        self._rules = replace(self._rules, grants=found)
        self._rules_until = now + timedelta(seconds=GRANTS_S)

    async def _annotated(self) -> list[tuple[str, str]]:
        if self._terms.namespaces:
            found = [one for name in self._terms.namespaces if (one := await self._namespace(name))]
        else:
            found = await self._client.metadata(NAMESPACES, None)
        pairs = ((one["metadata"]["name"], one["metadata"].get("annotations") or {}) for one in found)
        return [
            (name, annotations[names.ANNOTATION]) for name, annotations in pairs if annotations.get(names.ANNOTATION)
        ]

    async def _namespace(self, name: str) -> Object | None:
        try:
            return await self._client.get(NAMESPACES, None, name)
        except NotFound:  # it is served as soon as it exists
            return None

    def _log_once(self, problems: Sequence[str]) -> None:
        if tuple(problems) != self._logged:
            self._logged = tuple(problems)
            for problem in problems:
                log.warning("%s", problem)

    # --- notifications

    def _notify(self, standings: dict[str, Standing]) -> None:
        before, self._standings = self._standings, standings
        for owner, standing in standings.items():
            if names.is_route(owner):
                continue  # whoever writes their status looks at it again and again
            # An owner with its name, and no conflict in its status, needs no reconcile: most owners at a cold start.
            former = before.get(owner)
            yields = standing.yields or (former is not None and former.yields)
            lost = standing.lost or (former is not None and former.lost)
            changed = yields or lost or self._reports_conflict(_key(owner))
            if standing != former and changed:
                self._add(_key(owner))

    def _reports_conflict(self, key: ObjectKey) -> bool:
        """Whether a ModelDeployment's status reports a name conflict, or a reconcile may be about to report one."""
        status = (self._cache.get(key) or {}).get("status") or {}
        return "/".join(key) in self._warned or any(
            one["type"] == NAME_CONFLICT for one in status.get("conditions") or ()
        )

    def _failed(self, state: RetryCallState) -> None:
        self._object = None
        why = str(state.outcome.exception()) if state.outcome else ""
        if why == self._trouble:
            return
        log.warning("model names cannot be claimed: %s", why)
        self._trouble = why
        for key in self._cache.subjects():
            if "/".join(key) not in self._standings:
                self._add(key)

    def _unclaimed(self, wish: Wish) -> Standing:
        message = f'clients reach this model as {wish.owner}; whether also as "{wish.name}" is unknown'
        return Standing(wish.owner, wish.name, UNCLAIMED, f"{message}: {self._trouble}", known=False)


def _is_trouble(error: BaseException) -> bool:
    """Whether to retry after a pause; after a conflict with a faster writer the ConfigMap is read again instead."""
    return isinstance(error, ApiError) and not isinstance(error, Stale | Exists | Fenced)


def _wish(obj: Object) -> Wish:
    metadata = obj["metadata"]
    name = ((obj.get("spec") or {}).get("model") or {}).get("name") or labels.object_of(metadata["name"])[1]
    return Wish(f"{metadata['namespace']}/{metadata['name']}", str(name), metadata.get("creationTimestamp") or "")


def _kept_routes(claims: Mapping[str, Claim]) -> list[Wish]:
    """Wishes for all names that ModelRoutes have."""
    return [
        Wish(claim.owner, name, format_time(claim.since))
        for name, claim in claims.items()
        if names.is_route(claim.owner) and claim.released_at is None
    ]


def _key(owner: str) -> ObjectKey:
    namespace, _, name = owner.partition("/")
    return namespace, name
