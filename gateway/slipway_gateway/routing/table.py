"""The route table: which model is served by which revisions at which endpoints (pure)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from slipway_contracts.accuracy import AccuracyCounting
from slipway_contracts.adapters import subject_name
from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.guards import GuardSpec
from slipway_contracts.resilience import CircuitBreaker, Degradation, ExternalTarget, RetryBudget
from slipway_contracts.route_table import (
    Backend,
    GenerationLogSample,
    HeaderRoute,
    InferenceLogSample,
    MirrorRoute,
    ResponseCache,
    Traffic,
    digest,
    refusal,
)
from slipway_contracts.service_levels import ServiceLevels
from slipway_contracts.twin_shadow import TwinShadow

from .experiments import PublishedExperiment, by_subject
from .fallbacks import Fallback
from .public_names import PublicRoute, owned_names

POOL_PREFIX = "/revisions"  # before the path of an entry's URL at a pod that serves many models
OWNERS_KEY = "names.json"  # in the ConfigMap of model names
BASELINE = "-baseline"  # suffix of a revision's label: new pods of it, with which the revision under test is compared

STANDBY = "-standby"  # end of the name of the ReplicaSet of a revision's standby pods


class NameClaim(msgspec.Struct, frozen=True):
    """The owner of a model name; other fields belong to the operator."""

    owner: str


_OWNERS = msgspec.json.Decoder(dict[str, NameClaim])


class RevisionReplicaSet(msgspec.Struct, frozen=True, rename="camel"):
    """An item of `ModelDeployment.status.revisions`, as far as a gateway reads it."""

    revision: str = ""
    replica_set_uid: str = ""
    standby_uid: str = ""


def namespace_of(route: str) -> str:
    """The namespace in the name of a route, whose owner decides what happens in it."""
    return route.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Route:
    """One ModelDeployment as the gateway sees it; no backends means known, but not ready."""

    name: str
    uid: str
    model: str
    created: str = ""  # RFC 3339 in UTC: text order is time order
    generation: int = 0
    salt: str = ""
    backends: tuple[Backend, ...] = ()
    header_routes: tuple[HeaderRoute, ...] = ()
    mirror_routes: tuple[MirrorRoute, ...] = ()
    twin_shadow: TwinShadow | None = None
    hold_s: float | None = None  # how long requests wait for an endpoint; None is the gateway's own setting
    replicas: int = 0  # that the spec requests; 0: not known
    asleep: bool = False  # its endpoints get no requests, even if there are some
    wake_s: int | None = None  # how long a wake is expected to take, 0: not known; None: it is awake
    forward_headers: tuple[str, ...] = ()  # credentials of clients that its endpoints get, in lower case
    feedback: bool = False  # what clients learn about its responses later is counted
    predictions: bool = False  # what its responses predict is counted, in bins
    inference_log: InferenceLogSample | None = None  # None: it has none of its requests
    generation_log: GenerationLogSample | None = None  # None: none of its requests is in it
    slo: ServiceLevels | None = None  # objectives that its requests are counted against
    prefix_affinity: bool = False  # endpoints that have seen the beginning of a prompt are preferred
    fallback: tuple[str, ...] = ()  # names of deployments of its namespace that answer while it cannot
    first_byte_seconds: int | None = None  # so long without a first byte counts as that it cannot
    accuracy: AccuracyCounting | None = None  # which labels and predictions are counted for as long as it serves
    cache: ResponseCache | None = None  # responses that are kept; None: none
    external: tuple[ExternalTarget, ...] = ()  # those of `fallback` that are APIs of other providers
    circuit_breaker: CircuitBreaker | None = None
    retry_budget: RetryBudget | None = None
    degradation: Degradation | None = None
    guards: tuple[GuardSpec, ...] = ()  # checks of requests and responses
    base: str = ""  # `namespace/name` of the deployment whose pods serve it; empty: it has its own
    digest: str = ""  # of `status.traffic` as it is applied; empty without one
    replica_sets: Mapping[str, str] = field(default_factory=dict)  # uid by revision, as the operator published them
    standby_sets: Mapping[str, str] = field(default_factory=dict)  # the same of those with their standby pods

    @property
    def deployment(self) -> str:
        """The name of the route to which its pods belong: its base's, or its own."""
        return self.base or self.name

    @property
    def rates_labels(self) -> bool:
        """Whether labels of clients count: an analysis compares them, or spec.accuracy watches them."""
        return self.feedback or bool(self.accuracy and self.accuracy.feedback)

    @property
    def reads_predictions(self) -> bool:
        """Whether what responses predict is counted: an analysis compares it, or spec.accuracy watches it."""
        return self.predictions or bool(self.accuracy and self.accuracy.revision)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """What answers in its place, in order, without itself."""
        external = {target.name: target for target in self.external}
        found = (
            Fallback(f"{self.name}/{name}", external[name]) if name in external else Fallback(self._beside(name))
            for name in self.fallback
        )
        return tuple(fallback for fallback in found if fallback.name != self.name)

    @property
    def smaller(self) -> str:
        """Name of the route that answers what its pods refuse for lack of capacity; empty without one."""
        name = self.degradation.name if self.degradation else None
        return self._beside(name) if name and self._beside(name) != self.name else ""

    def _beside(self, name: str) -> str:
        namespace, slash, _ = self.name.partition("/")
        return f"{namespace}{slash}{name}"

    def engine_of(self, revision: str) -> str:
        """The engine type of a revision, or of pods that run the same; empty where it is not known."""
        runs = base_revision(revision)
        return next((one.engine for one in self.backends if one.engine and base_revision(one.revision) == runs), "")


@dataclass(frozen=True, slots=True)
class RevisionEndpoints:
    """URLs of one revision. `ready`: they take new requests.

    `replica_set`: uid of the ReplicaSet that controls the pod, "" where endpoints are not from a cluster.
    """

    route: str
    revision: str
    urls: tuple[str, ...]
    replica_set: str = ""
    pool: str = ""  # of a pod that serves many models: `namespace/uid`, with the uid that their revisions name
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an object from outside cannot be used."""

    text: str


@dataclass(frozen=True, slots=True)
class RouteTable:
    """One immutable state of the world; a request is routed by exactly one of them.

    `endpoints`: those that take new requests. `unready`: those of pods that are there and take none now. A pod that is
    being deleted is in neither. `as_of_s`: Unix time at which its source was last in contact with the cluster; 0: not
    known. It is no part of what is routed, so tables that differ in it alone are equal. `model_routes`: by
    `namespace/name`. `public`: by the names that they have. `experiments`: by `namespace/name`.
    """

    routes: Mapping[str, Route] = field(default_factory=dict)
    models: Mapping[str, Route] = field(default_factory=dict)
    endpoints: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    unready: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    as_of_s: float = field(default=0.0, compare=False)
    model_routes: Mapping[str, PublicRoute] = field(default_factory=dict)
    public: Mapping[str, PublicRoute] = field(default_factory=dict)
    experiments: Mapping[str, PublishedExperiment] = field(default_factory=dict)
    # Those that are followed, by what they are about, the oldest first.
    subjects: dict[str, tuple[PublishedExperiment, ...]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    # Revisions with endpoints by route: a lookup needs no scan over all routes.
    _served: dict[str, list[str]] = field(init=False, default_factory=dict, compare=False, repr=False)
    # Base and revision of it by URL, of the endpoints of deployments that are the base of others.
    hosts: dict[str, tuple[str, str]] = field(init=False, default_factory=dict, compare=False, repr=False)
    # Engine types by URL, of endpoints whose type is known.
    engines: dict[str, str] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        bases = {route.base for route in self.routes.values() if route.base}
        for (name, revision), urls in self.endpoints.items():
            self._served.setdefault(name, []).append(revision)
            if name in bases:
                self.hosts.update(dict.fromkeys(urls, (name, revision)))
            route = self.routes.get(name)
            if route is not None and (engine := route.engine_of(revision)):
                self.engines.update(dict.fromkeys(urls, engine))
        if self.experiments:
            backends = {name: route.backends for name, route in self.routes.items()}
            self.subjects.update(by_subject(self.experiments.values(), backends))

    def urls(self, route: Route, revision: str) -> tuple[str, ...]:
        return self.endpoints.get((route.name, revision), ())

    def pods(self, route: Route, revision: str) -> tuple[list[str], list[str]]:
        """URLs of all pods that run what this revision runs: ready ones, and others."""
        keys = [(route.name, name) for name in equivalent_revisions(revision)]
        ready, unready = ([url for key in keys for url in urls.get(key, ())] for urls in (self.endpoints, self.unready))
        return ready, unready

    def id_of(self, route: Route) -> str:
        """The name by which clients request the route: its model name where it owns that, else `namespace/name`."""
        owner = self.models.get(route.model)
        return route.model if owner is not None and owner.name == route.name else route.name

    def names_of(self, route: Route) -> tuple[str, ...]:
        """The names by which a tenant may be allowed the route: those by which clients request it.

        A model name that the route yields to a ModelRoute of its own namespace is one of them, too.
        """
        public = self.public.get(route.model)
        yields = public is not None and namespace_of(public.name) == namespace_of(route.name)
        return (route.name, route.model if yields else self.id_of(route))

    def ready(self, route: Route) -> bool:
        return any(self.urls(route, backend.revision) for backend in route.backends)

    def revisions(self, route: Route) -> list[str]:
        """Every revision that the route lists or that has endpoints."""
        listed = [backend.revision for backend in route.backends]
        return listed + [r for r in self._served.get(route.name, ()) if r not in listed]


def base_revision(revision: str) -> str:
    """The revision that pods with this label run."""
    return revision.removesuffix(BASELINE)


def equivalent_revisions(revision: str) -> tuple[str, str]:
    """A revision and the label of other pods that run the same: its baseline, or the revision of a baseline."""
    runs = base_revision(revision)
    return revision, runs + BASELINE if revision == runs else runs


def build(
    routes: Iterable[Route],
    endpoints: Iterable[RevisionEndpoints],
    owners: Mapping[str, str] | None = None,
    *,
    as_of_s: float = 0.0,
    model_routes: Iterable[PublicRoute] = (),
    experiments: Iterable[PublishedExperiment] = (),
) -> RouteTable:
    """One table of all routes and endpoints.

    `owners`: the owner (`namespace/name`) of each model name, a ModelRoute as `owner_of` names it. Without it every
    name is served by the first route that has it, which is right only for a file, which has one owner.
    """
    by_name = {route.name: route for route in routes}
    models = _first_come(by_name.values()) if owners is None else _owned(by_name, owners)
    listed = list(endpoints)
    ready = _urls_of(by_name, (entry for entry in listed if entry.ready))
    unready = _urls_of(by_name, (entry for entry in listed if not entry.ready))
    routes_by_name = {route.name: route for route in model_routes}
    public = owned_names(routes_by_name, owners)
    by_experiment = {experiment.name: experiment for experiment in experiments}
    return RouteTable(by_name, models, ready, unready, as_of_s, routes_by_name, public, by_experiment)


def _urls_of(
    by_name: Mapping[str, Route], endpoints: Iterable[RevisionEndpoints]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """URLs by route and revision."""
    urls: dict[tuple[str, str], set[str]] = {}
    pools: dict[str, set[str]] = {}
    for entry in endpoints:
        if entry.pool:
            pools.setdefault(entry.pool, set()).update(entry.urls)
        elif entry.urls and _admitted(by_name.get(entry.route), entry):
            urls.setdefault((entry.route, entry.revision), set()).update(entry.urls)
    for route in by_name.values() if pools else ():
        for revision, uid in route.replica_sets.items():
            if found := pools.get(f"{route.name.partition('/')[0]}/{uid}"):
                urls[route.name, revision] = {f"{url}{POOL_PREFIX}/{revision}" for url in found}
    return {key: tuple(sorted(found)) for key, found in urls.items()}


def _first_come(routes: Iterable[Route]) -> dict[str, Route]:
    models: dict[str, Route] = {}
    for route in routes:
        models.setdefault(route.model, route)
    return models


def _owned(by_name: Mapping[str, Route], owners: Mapping[str, str]) -> dict[str, Route]:
    """Routes by model name. A name counts if its owner, which only the operator writes, has a route with that name.

    A name with a slash is never a model's: it would read as another deployment's `namespace/name`.
    """
    found = ((name, by_name.get(owner)) for name, owner in owners.items() if "/" not in name)
    return {name: route for name, route in found if route is not None and route.model == name}


def _admitted(route: Route | None, entry: RevisionEndpoints) -> bool:
    """Whether a pod's ReplicaSet is the revision's own, by its uid. `parse_pod` has checked its name.

    Where the operator publishes uids, a revision without one has no ReplicaSet: one with its name has another owner.
    """
    if route is None or not (route.replica_sets or route.standby_sets) or not entry.replica_set:
        return True
    return entry.replica_set in (route.replica_sets.get(entry.revision), route.standby_sets.get(entry.revision))


def merge_route(last: Route | None, seen: Route) -> Route:
    """The route to use after the API server sent an object: the newest one, whatever its generation is.

    Lists are consistent reads and watches go on from their resourceVersion, so what comes later is newer. A status
    without a table changes nothing: the last table of that object stays until there is another one, and so do the
    ReplicaSets that it named.
    """
    if last is None or last.uid != seen.uid:
        return seen
    if seen.digest:
        named = seen.replica_sets or seen.standby_sets
        return seen if named else replace(seen, replica_sets=last.replica_sets, standby_sets=last.standby_sets)
    return last


def parse_route(obj: Mapping[str, Any]) -> Route | Problem:
    """A ModelDeployment → its route. Without `status.traffic` (generation 0) the model is only a name."""
    return _parse(obj, f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")


def parse_adapter(obj: Mapping[str, Any]) -> Route | Problem:
    """A ModelAdapter → its route, which has the name that it has among ModelDeployments."""
    namespace, name = obj["metadata"]["namespace"], subject_name(obj["metadata"]["name"])
    parsed = _parse(obj, f"{namespace}/{name}")
    if isinstance(parsed, Problem):
        return parsed
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    base = (status.get("traffic") or {}).get("base") or (spec.get("deploymentRef") or {}).get("name")
    if not isinstance(base, str) or not base:
        return Problem(f"{parsed.name}: neither status.traffic nor spec.deploymentRef names its deployment")
    return replace(parsed, base=f"{namespace}/{base}")


def _parse(obj: Mapping[str, Any], name: str) -> Route | Problem:
    """The route of an object; `base` is not read."""
    meta = obj["metadata"]
    known = Route(name, meta.get("uid", ""), _declared_model(obj), meta.get("creationTimestamp", ""))
    raw = (obj.get("status") or {}).get("traffic")
    if raw is None:
        return known
    try:
        traffic, listed = read(Traffic, encoded(raw)), _revisions(obj)
    except (UnreadableObject, msgspec.ValidationError, UnicodeEncodeError) as error:  # the last of a lone surrogate
        return Problem(f"status.traffic of {name}: {error}")
    if reason := refusal(traffic):
        return Problem(f"status.traffic of {name}: {reason}")
    return replace(
        known,
        model=traffic.model,
        generation=traffic.generation,
        salt=traffic.salt,
        backends=traffic.backends,
        header_routes=traffic.header_routes,
        mirror_routes=traffic.mirror_routes,
        twin_shadow=traffic.twin_shadow,
        hold_s=traffic.hold_seconds,
        asleep=bool(traffic.asleep),
        wake_s=traffic.wake_seconds,
        forward_headers=traffic.forward_headers,
        feedback=bool(traffic.feedback),
        predictions=bool(traffic.predictions),
        inference_log=traffic.inference_log,
        generation_log=traffic.generation_log,
        slo=traffic.slo,
        prefix_affinity=bool(traffic.prefix_affinity),
        fallback=traffic.fallback,
        first_byte_seconds=traffic.first_byte_seconds,
        accuracy=traffic.accuracy,
        cache=traffic.cache,
        external=traffic.external,
        circuit_breaker=traffic.circuit_breaker,
        retry_budget=traffic.retry_budget,
        degradation=traffic.degradation,
        guards=traffic.guards,
        replicas=_replicas(obj),
        digest=digest(raw),
        replica_sets={one.revision: one.replica_set_uid for one in listed if one.replica_set_uid},
        standby_sets={one.revision: one.standby_uid for one in listed if one.standby_uid},
    )


def parse_owners(obj: Mapping[str, Any]) -> dict[str, str] | Problem | None:
    """The ConfigMap of model names → owners by name; None while the operator has not written it.

    A name whose owner was deleted is listed too: no other deployment serves it meanwhile.
    """
    text = (obj.get("data") or {}).get(OWNERS_KEY)
    if text is None:
        return None
    try:
        return {name: claim.owner for name, claim in _OWNERS.decode(text).items()}
    except (msgspec.MsgspecError, RecursionError) as error:
        return Problem(f"{OWNERS_KEY} of the model names: {error}")


def _revisions(obj: Mapping[str, Any]) -> list[RevisionReplicaSet]:
    """The revisions in the status. Raises ValidationError where `status.revisions` is not a list of revisions."""
    listed = msgspec.convert((obj.get("status") or {}).get("revisions") or (), tuple[RevisionReplicaSet, ...])
    return [one for one in listed if one.revision]


def _replicas(obj: Mapping[str, Any]) -> int:
    replicas = (obj.get("spec") or {}).get("replicas")
    return replicas if isinstance(replicas, int) else 0


def _declared_model(obj: Mapping[str, Any]) -> str:
    model = (obj.get("spec") or {}).get("model")
    declared = model.get("name") if isinstance(model, Mapping) else None
    return declared if isinstance(declared, str) and declared else str(obj["metadata"]["name"])
