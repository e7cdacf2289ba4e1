"""Every metric of the gateway is declared here."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.samples import Exemplar

from ..identity.authenticate import RequestIdentity
from ..quotas.prices import NANO
from ..quotas.usage import Usage
from .tracing import UNTRACED, RequestTrace

if TYPE_CHECKING:
    from slipway_plane import _native

# One child of a histogram: a function that adds to its sum, its upper bounds, and functions that add to its buckets.
_Measured = tuple[Callable[[float], None], Sequence[float], list[Callable[[float], None]]]

# Bounds on label values: a client can invent models, a year of rollouts can pile up revisions.
_MAX_PAIRS = 1000
_MAX_TENANTS = 1000
_MAX_EXPERIMENTS = 250  # with up to 8 arms each
TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GUARD_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_MOST_GUARDS = 1024  # that have labels of their own
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
TIME_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

LEFT = "client_closed"  # the outcome of a request whose client hung up


def _no_usage() -> None:
    return None


class RequestRecord(msgspec.Struct):
    """One request at its end. `id`: made by this gateway. `request_id`: the client's own, where it sent a sane one."""

    id: str
    request_id: str
    started: float
    model: str = "unknown"
    route: str = ""  # whose objectives it counts against; empty: it counts against none
    revision: str = ""
    rules: str = ""  # of ModelRoutes that chose its deployment, as a response header names them
    code: int = 500
    outcome: str = "internal"
    first_byte: float | None = None
    itl_s: float | None = None  # mean seconds between the events of a stream of its first attempt, once it ended
    body_s: float = 0.0  # in which the client sent its body
    stalled_s: float = 0.0  # in which the client did not read what was there for it
    whole: bool = False  # the client got the last event of a stream
    identity: RequestIdentity | None = None  # None: it is anonymous, or not authenticated yet
    owner: str = ""  # whose places it takes: its tenant's or, without one, those of its address
    in_flight: bool = False  # whether it has a place among the requests in flight
    reason: str = ""  # code of the error that the client got from this gateway
    begun: Any = None  # `_native.Begun`, where the fast lane has sent it already
    upstream: str = ""  # URL of the endpoint that got it last
    attempts: int = 0  # endpoints that got it before the first byte
    resumes: int = 0  # endpoints that continued its stream
    stream: bool = False
    sent_bytes: int = 0  # of the response's body
    cache: str = ""  # of a route with a cache: hit, miss or bypass
    answered_by: str = ""  # route whose server began the response; empty: none did
    generation: Any = None  # `GenerationCapture`, where the log of generations may have it
    trace: RequestTrace = UNTRACED
    # Its tokens, and whether they are an estimate. Found when a line of the access log needs them.
    find_usage: Callable[[], tuple[Usage, bool] | None] = _no_usage

    def end(self, outcome: str, code: int, reason: str = "") -> None:
        self.outcome, self.code, self.reason = outcome, code, reason

    def close(self) -> None:
        """Nothing more is read from it: it forgets its response, which has it. A cycle waits long for the collector."""
        self.find_usage, self.generation = _no_usage, None

    def left(self) -> None:
        """The client hung up: too early, unless it has the whole stream, after which OpenAI's clients hang up."""
        if not self.whole:
            self.end(LEFT, 499)


class _Registry(CollectorRegistry):
    """`before` is called before metrics are read."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] = lambda: None

    def collect(self) -> Iterable[Metric]:
        self.before()
        return super().collect()


class GatewayMetrics:
    """The registry of one process."""

    def __init__(self, version: str) -> None:
        self.registry = _Registry()
        ProcessCollector(registry=self.registry)
        pair = ("model", "revision")
        self._requests = self._counter("requests_total", "Requests by how they ended", (*pair, "code", "outcome"))
        self._retries = self._counter("retries_total", "Further attempts before the first byte", (*pair, "reason"))
        self._resumes = self._counter("resumes_total", "Broken streams by what became of them", (*pair, "outcome"))
        self._ttft = self._histogram("ttft_seconds", "Seconds from request to first byte", pair, TTFT_BUCKETS)
        self._seconds = self._histogram("request_seconds", "Seconds from request to last byte", pair, TIME_BUCKETS)
        self._itl = self._histogram("itl_seconds", "Mean seconds between a stream's events", pair, _ITL_BUCKETS)
        self._bad = self._counter("bad_answers_total", "First attempts that went wrong, by how", (*pair, "kind"))
        self._implausible = self._counter(
            "implausible_usage_total", "Responses that reported more tokens than their requests can cause", pair
        )
        self._declare_choices(pair)
        self._declare_copies(pair)
        self._rated = self._counter("feedback_total", "Entries of feedback by what became of them", (*pair, "result"))
        self._inflight = self._gauge("inflight", "Requests now at a revision, streams included", pair)
        self._applied: dict[str, int] = {}  # what the next line's gauge shows
        self._generation = self._gauge("route_generation", "Traffic generation now applied", ("route",))
        self._failsafe = self._gauge("failsafe", "1: what the gateway does alone for now", ("route", "kind"))
        self._watch = self._gauge("watch_last_event_timestamp_seconds", "Unix time of the last word", ("resource",))
        self._unreadable = self._counter("unreadable_objects_total", "Objects that could not be read", ("resource",))
        self.held = self._gauge("held_requests", "Requests that wait for an endpoint", ())
        self.remembered = self._gauge("remembered_bytes", "Tokens of broken streams, for clients that come back", ())
        self.ejected = self._gauge("ejected_endpoints", "Endpoints that get nothing now because they failed", ())
        self.ejections = self._counter("ejections_total", "Endpoints that were ejected", pair)
        self.crashes = self._counter("engine_crashes_total", "Requests in flight at an engine that died", pair)
        self.poison = self._counter("poison_total", "Requests refused because engines died of them", pair)
        self.restored_age = self._gauge("restored_table_age_seconds", "Of a restored table in use, else 0", ())
        self.memory_budget = self._gauge("memory_budget_bytes", "What requests may hold together", ())
        self.memory_held = self._gauge("memory_held_bytes", "What requests hold", ())
        self._shed = self._counter("memory_shed_total", "Requests refused or ended for want of memory", ("reason",))
        self._declare_caches(pair)
        self._declare_guards()
        self._declare_clients()
        self._declare_logs()
        self._declare_certificates()
        self._declare_tenants()
        self._gauge("build_info", "Always 1", ("version",)).labels(version).set(1)
        answers = (self._requests, self._retries, self._resumes, self._bad, self._mirrored, self._paired, self._rated)
        counts = (
            *answers,
            self._implausible,
            self._prompts,
            self._fallbacks,
            self._scored,
            self.ejections,
            self.crashes,
            self.poison,
            self._json_checked,
        )
        self._of_pairs = (*counts, *self._of_caches, self._fast, self._ttft, self._seconds, self._itl, self._inflight)
        self._pairs: dict[tuple[str, str], None] = {}
        self._of_tenants = (self._quota_refusals, self._tokens)
        self._tenants: dict[str, None] = {}
        self._running: dict[tuple[str, str], int] = {}  # what the gauge of requests now at a revision shows
        self._touched: tuple[str, str] | None = None  # the pair that was counted last
        self._forget_children()

    def _forget_children(self) -> None:
        # Functions of children: looking a child up takes longer than counting. Kept until labels are forgotten.
        self._adders: dict[tuple[MetricWrapperBase, tuple[str, ...]], Callable[[float], None]] = {}
        self._ended: dict[tuple[tuple[str, str], int, str], Callable[[float], None]] = {}
        self._measured: dict[Histogram, dict[tuple[str, str], _Measured]]
        self._measured = {family: {} for family in (self._ttft, self._seconds, self._itl)}

    def _declare_copies(self, pair: tuple[str, str]) -> None:
        """Metrics of copies that no client sees."""
        self._mirrored = self._counter("mirror_total", "Mirrored requests by what they came to", (*pair, "result"))
        self.mirroring = self._gauge("mirror_inflight", "Mirrored requests now at servers", ())
        self._paired = self._counter(
            "twin_copies_total", "Requests of a twin shadow by what became of them", (*pair, "result")
        )
        self.pairing = self._gauge("twin_inflight", "Pairs of copies now at servers", ())
        self._scored = self._counter(
            "scorer_pairs_total", "Pairs for a scorer by what became of them", (*pair, "result")
        )

    def _declare_choices(self, pair: tuple[str, str]) -> None:
        """Metrics of the choice of an endpoint, and of another deployment."""
        self._prompts = self._counter(
            "prompt_bytes_total", "Prompts of routes with prefix affinity, by what had been there", (*pair, "seen")
        )
        self._fallbacks = self._counter(
            "fallbacks_total", "Requests that were sent to another deployment", (*pair, "reason", "result")
        )
        self._external = self._counter(
            "external_requests_total",
            "Calls of providers, by whose requests they were",
            ("model", "provider", "result"),
        )
        self._degraded = self._counter("degraded_requests_total", "Requests of overloaded models", ("model", "step"))
        self._overflows = self._counter("retry_overflow_total", "Retries that a budget had no room for", ("model",))
        self._openings = self._counter("circuit_breaker_openings_total", "Breakers that opened", ("model",))
        self.open_breakers = self._gauge("circuit_breakers_open", "Breakers that are open or half open", ())
        self.overloaded = self._gauge("overloaded_models", "Models with a step of degradation in force", ())
        self._classified = self._counter(
            "route_classifications_total", "Calls of classifiers of rules, by classifier", ("model", "result")
        )
        self._of_models = (self._external, self._degraded, self._overflows, self._openings, self._classified)
        self._models: dict[str, None] = {}
        self._adapter_reports = self._counter("adapter_reports_total", "Reports of pods on their adapters", ("result",))
        self._adapter_refusals = self._counter(
            "adapter_refusals_total", "Requests for an adapter that a pod reported and had not", pair
        )
        self.prefix_blocks = self._gauge("prefix_blocks", "Blocks of prompts that are remembered", ())

    def _declare_caches(self, pair: tuple[str, str]) -> None:
        self._cached = self._counter("cache_requests_total", "Requests to routes with a cache", (*pair, "result"))
        self._saved_tokens = self._counter(
            "cache_saved_tokens_total", "Tokens of kept responses that clients got", (*pair, "kind")
        )
        self._saved_cost = self._counter("cache_saved_cost_total", "What these did not cost tenants, in units", pair)
        self.cache_bytes = self._gauge("cache_bytes", "Responses that this gateway keeps", ())
        self.cache_failures = self._counter("cache_failures_total", "Calls to the cache's server that failed", ())
        self._turns = self._counter(
            "conversation_turns_total", "Turns of conversations by whether they were stored", ("result",)
        )
        for result in ("stored", "refused", "away", "unstorable"):
            self._turns.labels(result)
        self._of_caches = (self._cached, self._saved_tokens, self._saved_cost)

    def _declare_guards(self) -> None:
        labels = ("owner", "guard", "stage")
        self._guard_calls = self._counter("guard_calls_total", "Decisions of guards", (*labels, "action"))
        self._guard_seconds = self._histogram("guard_seconds", "Seconds of a guard's call", labels, _GUARD_BUCKETS)
        self._guards: set[tuple[str, str]] = set()  # those that have labels
        self._json_checked = self._counter(
            "json_responses_total", "Responses that a guard of JSON checked", ("model", "revision", "result")
        )

    def guarded(self, owner: str, guard: str, stage: str, action: str, seconds: float | None) -> None:
        """A guard decided, or failed. `seconds`: of its call; None: there was none."""
        if (owner, guard) not in self._guards:
            if len(self._guards) >= _MOST_GUARDS:
                owner, guard = "other", "other"
            self._guards.add((owner, guard))
        self._guard_calls.labels(owner, guard, stage, action).inc()
        if seconds is not None:
            self._guard_seconds.labels(owner, guard, stage).observe(seconds)

    def json_checked(self, model: str, revision: str, result: str) -> None:
        """A guard of JSON saw a response: `valid`, `invalid` or `undecided`; or had it computed again: `retried`."""
        self._add(self._json_checked, 1, model, revision, result)

    def _declare_clients(self) -> None:
        self._stream_requests = self._counter(
            "stream_requests_total", "Requests by WebSocket and gRPC streams of tokens", ("surface", "outcome")
        )
        self.websocket_connections = self._gauge("websocket_connections", "Connections of WebSocket", ())
        self._websockets_closed = self._counter(
            "websockets_closed_total", "Connections of WebSocket that ended, by why", ("reason",)
        )
        connections = self._gauge("connections", "Connections of clients", ())
        # Those that Python counts, and those that the data plane does.
        self._counted_connections = 0
        self._plane_connections: Callable[[], int] = lambda: 0
        connections.set_function(lambda: self._counted_connections + self._plane_connections())
        self._plane = self._gauge("plane", "1: the state of the compiled data plane", ("state",))
        self._plane_failures = self._counter("plane_failures_total", "Failures inside of the data plane", ("kind",))
        self._fast = self._counter(
            "fast_requests_total", "Requests that the compiled data plane served alone", ("model", "revision")
        )
        self._hand_overs = self._counter(
            "handovers_total", "Connections that the compiled data plane gave to Python, by why", ("model", "reason")
        )
        self._by_rule = self._counter(
            "model_route_requests_total", "Requests that fit a rule of a ModelRoute", ("model_route", "rule")
        )
        self._rules: dict[tuple[str, str], None] = {}
        self._event_relays = self._counter(
            "event_relays_total", "Streams whose events the data plane relayed, by how that ended", ("end",)
        )
        self._recounts = self._counter("recounts_total", "Requests of the data plane counted again", ("result",))
        self._handed_models: dict[str, None] = {}
        self._before: Callable[[], None] = lambda: None
        self._running_in_lane: Callable[[], Mapping[tuple[str, str], int]] = dict
        self._in_lane: Mapping[tuple[str, str], int] = {}
        self.held_by_lane: Callable[[], int] = lambda: 0
        self._turned_away = self._counter("connections_refused_total", "Connections of clients not taken", ("reason",))
        self._authentications = self._counter(
            "authentications_total", "Requests by how they were authenticated", ("method", "result")
        )
        self._token_reviews = self._counter(
            "token_reviews_total", "Tokens of service accounts that the API server was to review", ("result",)
        )
        self._returns = self._counter("returns_total", "Clients that came back by an event's id", ("tokens",))

    def _declare_logs(self) -> None:
        self._restarts = Counter(
            "slipway_task_restarts", "Tasks of the process that ended and were started again", ("task",),
            registry=self.registry,
        )  # fmt: skip
        dropped = ("access_log_dropped_total", "Lines of the access log that were not written")
        self._access_log_dropped = self._counter(*dropped, ("reason",))
        labels = ("experiment", "arm", "result")
        self._experiment_requests = self._counter(
            "experiment_requests_total", "Requests to names of experiments", labels
        )
        self._exposures = self._counter("exposures_total", "Units by the arm that they came to", labels[:2])
        self._exposures_lost = self._counter(
            "exposures_lost_total", "Exposures that a sink has not, by why", ("sink", "reason")
        )
        self.experiment_units_forgotten = self._counter(
            "experiment_units_forgotten_total", "Units of experiments that may be counted again", ()
        )
        self._experiments: dict[str, None] = {}
        dropped = ("inference_log_dropped_total", "Rows of the inference log that were not written")
        self._inference_log_dropped = self._counter(*dropped, ("reason",))
        self._declare_generations()

    def _declare_generations(self) -> None:
        dropped = ("generation_log_dropped_total", "Rows of the generation log that were not written")
        self._generations_dropped = self._counter(*dropped, ("reason",))
        omitted = ("generation_log_omitted_total", "Prompts and responses that are not in their rows, by why")
        self._generations_omitted = self._counter(*omitted, ("reason",))
        deleted = ("generation_log_deleted_total", "Rows of the generation log that gateways deleted, by why")
        self._generations_deleted = self._counter(*deleted, ("reason",))

    def _declare_certificates(self) -> None:
        self.internal_certificate = self._gauge(
            "internal_certificate_expiration_timestamp_seconds",
            "End of the validity of the certificate for pods and the operator",
            (),
        )
        self._certificate = self._gauge(
            "certificate_expiration_timestamp_seconds", "End of the validity of the API port's certificate", ()
        )

    def _declare_tenants(self) -> None:
        """Metrics of what tenants use, and of where it is counted."""
        self._quota_refusals = self._counter("quota_refusals_total", "Requests refused by a limit", ("tenant", "limit"))
        self._touched_tenant = ""  # the tenant that was counted last
        self._tokens = self._counter("tokens_total", "Tokens that tenants used", ("tenant", "model", "kind"))
        self.ready_gateways = self._gauge("ready_gateways", "Gateways that divide what they do not share", ())
        self.shared_limits = self._gauge("shared_limits", "1: limits are counted at Redis, for all gateways", ())
        self.shared_budgets = self._gauge("shared_budgets", "1: budgets are counted at Redis, for all gateways", ())
        self.shared_limits_failures = self._counter(
            "shared_limits_failures_total", "Calls to Redis that failed: limits are divided for a while", ()
        )
        self.settlements_lost = self._counter(
            "settlements_lost_total", "Requests whose reservation at Redis stays: it was away for too long", ()
        )
        self.ledger_waiting = self._gauge("ledger_waiting", "Charges that are not in the ledger yet", ())
        self.ledger_failures = self._counter("ledger_failures_total", "Writes that the ledger did not take", ())
        self.ledger_quarantined = self._counter(
            "ledger_quarantined_total", "Charges that the ledger refused for their own sake", ()
        )
        self.ledger_lost = self._counter("ledger_lost_total", "Charges that no ledger has: too many waited", ())

    def _counter(self, name: str, help_: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"slipway_gateway_{name}", help_, labels, registry=self.registry)

    def _gauge(self, name: str, help_: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"slipway_gateway_{name}", help_, labels, registry=self.registry)

    def _histogram(self, name: str, help_: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"slipway_gateway_{name}", help_, labels, buckets=buckets, registry=self.registry)

    def task_restarted(self, task: str) -> None:
        self._restarts.labels(task).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All metrics and their content type. Exemplars are in OpenMetrics alone, for a client that accepts it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _read_lane(self) -> None:
        self._before()
        self._in_lane = self._running_in_lane()
        for model, revision in self._in_lane:
            self.inflight_changed(model, revision, 0)

    def of_lane(
        self,
        drain: Callable[[], None],
        running: Callable[[], Mapping[tuple[str, str], int]],
        held_bytes: Callable[[], int],
    ) -> None:
        """The fast lane of the data plane counts requests too.

        `drain`: adds what it counted here. `running`: its requests in flight by model and revision. `held_bytes`: of
        its requests.
        """
        self._before, self._running_in_lane, self.held_by_lane = drain, running, held_bytes
        self.registry.before = self._read_lane

    def served_in_lane(self, counts: "_native.RevisionCounts") -> None:
        """Adds requests of one revision that the fast lane ended."""
        pair = (counts.model, counts.revision)
        self._touch(*pair)
        self.inflight_changed(*pair, 0)
        for requests, code, outcome in ((counts.ok, 200, "ok"), (counts.left, 499, "client_closed")):
            if requests:
                self._requests_of(pair, code, outcome)(requests)
        if ended := counts.ok + counts.left:
            self._add(self._fast, ended, *pair)
        if any(counts.prompt_bytes):
            self.prompt_sent(*pair, *counts.prompt_bytes)
        if counts.hits:
            tokens, saved_nano = counts.saved
            self.cached(*pair, "hit", Usage(*tokens), saved_nano, counts.hits)
        for family, (buckets, sum_s) in ((self._seconds, counts.seconds), (self._ttft, counts.ttft)):
            if buckets:
                add, _, adders = self._child_of(family, pair)
                add(sum_s)
                for add_to, count in zip(adders, buckets, strict=True):
                    add_to(count)

    def recorded_in_lane(self, entry: "_native.LogEntry") -> None:
        """A request that the fast lane ended, and counted, has spans: it is the exemplar of its buckets."""
        pair = (entry.model, entry.revision)
        for family, seconds in ((self._seconds, entry.seconds), (self._ttft, entry.ttft_s)):
            if seconds is not None:
                child = family.labels(*pair)
                bucket = child._buckets[bisect_left(child._upper_bounds, seconds)]
                bucket.set_exemplar(Exemplar({"trace_id": entry.id}, seconds, time.time()))

    def handed_over(self, model: str, reason: str, connections: int) -> None:
        """The fast lane gave connections to Python. `model`: of a route, or `unknown`."""
        self._handed_models.pop(model, None)
        self._handed_models[model] = None
        if len(self._handed_models) > _MAX_PAIRS:
            gone = next(iter(self._handed_models))
            del self._handed_models[gone]
            self._hand_overs.remove_by_labels({"model": gone})
        self._hand_overs.labels(model, reason).inc(connections)

    def sent_by_rule(self, model_route: str, rule: str) -> None:
        """A rule chose the way of a request. Of more than _MAX_PAIRS rules those are forgotten that were first."""
        pair = (model_route, rule)
        if pair not in self._rules:
            self._rules[pair] = None
            if len(self._rules) > _MAX_PAIRS:
                gone = next(iter(self._rules))
                del self._rules[gone]
                self._by_rule.remove(*gone)
        self._by_rule.labels(*pair).inc()

    def experiment_requests(self, experiment: str, arm: str, result: str) -> None:
        """A request to a name with an experiment. `result`: where it went or, without an arm, why it has none."""
        self._touch_experiment(experiment)
        self._experiment_requests.labels(experiment, arm, result).inc()

    def exposed(self, experiment: str, arm: str) -> None:
        """A unit came to an arm for the first time."""
        self._touch_experiment(experiment)
        self._exposures.labels(experiment, arm).inc()

    def exposures_lost(self, sink: str, reason: str, lines: int) -> None:
        self._exposures_lost.labels(sink, reason).inc(lines)

    def lost_exposures(self) -> int:
        """All exposures that a sink has not."""
        found = (sample for metric in self._exposures_lost.collect() for sample in metric.samples)
        return int(sum(sample.value for sample in found if sample.name.endswith("_total")))

    def _touch_experiment(self, experiment: str) -> None:
        """Of more than _MAX_EXPERIMENTS experiments those are forgotten that were first."""
        if experiment in self._experiments:
            return
        self._experiments[experiment] = None
        if len(self._experiments) > _MAX_EXPERIMENTS:
            gone = next(iter(self._experiments))
            del self._experiments[gone]
            self._experiment_requests.remove_by_labels({"experiment": gone})
            self._exposures.remove_by_labels({"experiment": gone})

    def recounted(self, result: str) -> None:
        """`result`: `same`, or what differs between the data plane and Python."""
        self._recounts.labels(result).inc()

    def observe(self, record: RequestRecord, now: float) -> None:
        pair = (record.model, record.revision)
        self._touch(*pair)
        self._requests_of(pair, record.code, record.outcome)(1)
        trace_id = record.trace.trace_id
        self._measure(self._seconds, now - record.started, pair, trace_id)
        if record.first_byte is not None:
            self._measure(self._ttft, record.first_byte - record.started, pair, trace_id)

    def first_attempt(self, model: str, revision: str, bad: Iterable[str], itl_s: float | None) -> None:
        """`bad`: kinds of failure. `itl_s`: mean inter-token latency of a stream."""
        for kind in bad:
            self._bad.labels(model, revision, kind).inc()
        if itl_s is not None:
            self._measure(self._itl, itl_s, (model, revision))

    def retried(self, model: str, revision: str, reason: str) -> None:
        """A further attempt begins. `revision`, `reason`: of the failed attempt before it."""
        self._retries.labels(model, revision, reason).inc()

    def resumed(self, model: str, revision: str, outcome: str) -> None:
        self._resumes.labels(model, revision, outcome).inc()

    def returned(self, *, known: bool) -> None:
        self._returns.labels("known" if known else "unknown").inc()

    def mirrored(self, model: str, revision: str, result: str) -> None:
        self._touch(model, revision)
        self._mirrored.labels(model, revision, result).inc()

    def paired(self, model: str, revision: str, result: str) -> None:
        """Counts a request of a session that a twin shadow copies."""
        self._touch(model, revision)
        self._paired.labels(model, revision, result).inc()

    def scored(self, model: str, revision: str, result: str) -> None:
        """Counts a pair that a scorer was to rate."""
        self._touch(model, revision)
        self._scored.labels(model, revision, result).inc()

    def rated(self, model: str, revision: str, result: str) -> None:
        """Counts an entry of a feedback request."""
        self._touch(model, revision)
        self._rated.labels(model, revision, result).inc()

    def fell_back(self, model: str, revision: str, reason: str, *, answered: bool) -> None:
        """A request went to another deployment. `model`, `revision`: which did not answer it."""
        self._touch(model, revision)
        self._fallbacks.labels(model, revision, reason, "answered" if answered else "failed").inc()

    def called_provider(self, model: str, provider: str, result: str) -> None:
        """A request of `model` went to a provider, or was to."""
        self._touch_model(model)
        self._external.labels(model, provider, result).inc()

    def degraded(self, model: str, steps: Iterable[str]) -> None:
        """A request of an overloaded model got less, by these steps."""
        self._touch_model(model)
        for step in steps:
            self._degraded.labels(model, step).inc()

    def retry_overflow(self, model: str) -> None:
        """A retry or fallback was not made, because the budget had no room."""
        self._touch_model(model)
        self._overflows.labels(model).inc()

    def breaker_opened(self, model: str) -> None:
        """The circuit breaker of a model opened."""
        self._touch_model(model)
        self._openings.labels(model).inc()

    def classified(self, model: str, result: str) -> None:
        """A rule of a ModelRoute had a classifier called, or was to."""
        self._touch_model(model)
        self._classified.labels(model, result).inc()

    def prompt_sent(self, model: str, revision: str, seen_bytes: int, new_bytes: int) -> None:
        """An endpoint got a prompt, of which it had seen a part."""
        self._touch(model, revision)
        self._add(self._prompts, seen_bytes, model, revision, "yes")
        self._add(self._prompts, new_bytes, model, revision, "no")

    def cached(
        self,
        model: str,
        revision: str,
        result: str,
        usage: Usage | None = None,
        saved_nano: int = 0,
        requests: int = 1,
    ) -> None:
        """Requests to a route with a cache. `usage`, `saved_nano`: of kept responses, what tenants did not use and
        pay."""
        self._touch(model, revision)
        self._add(self._cached, requests, model, revision, result)
        if usage is not None:
            self._add(self._saved_tokens, usage.input_tokens, model, revision, "input")
            self._add(self._saved_tokens, usage.output_tokens, model, revision, "output")
        if saved_nano:
            self._add(self._saved_cost, saved_nano / NANO, model, revision)

    def turn_ended(self, result: str) -> None:
        """Counts a turn of a conversation that was to be stored."""
        self._turns.labels(result).inc()

    def inflight_changed(self, model: str, revision: str, by: int) -> None:
        pair = (model, revision)
        if pair not in self._running:
            self._running[pair] = 0
            self._inflight.labels(model, revision).set_function(
                lambda: self._running.get(pair, 0) + self._in_lane.get(pair, 0)
            )
        self._running[pair] += by

    def shed(self, reason: str) -> None:
        self._shed.labels(reason).inc()

    def inference_log_dropped(self, reason: str, lines: int) -> None:
        self._inference_log_dropped.labels(reason).inc(lines)

    def generations_dropped(self, reason: str, lines: int) -> None:
        """Rows of the generation log were not written."""
        self._generations_dropped.labels(reason).inc(lines)

    def generation_omitted(self, reason: str) -> None:
        """A prompt or a response that owner and tenant allow is not in its row."""
        self._generations_omitted.labels(reason).inc()

    def generations_deleted(self, reason: str, rows: int) -> None:
        """Rows of the generation log were deleted: for their age, or the size of all."""
        self._generations_deleted.labels(reason).inc(rows)

    def access_log_dropped(self, reason: str, lines: int) -> None:
        self._access_log_dropped.labels(reason).inc(lines)

    def stream_request_ended(self, surface: str, outcome: str) -> None:
        """A request for a stream of tokens ended. `surface`: `websocket` or `grpc`."""
        self._add(self._stream_requests, 1, surface, outcome)

    def websocket_closed(self, reason: str) -> None:
        self._websockets_closed.labels(reason).inc()

    def connections_changed(self, by: int) -> None:
        self._counted_connections += by

    def connections_of_plane(self, count: Callable[[], int]) -> None:
        """`count`: how many connections the data plane counts now."""
        self._plane_connections = count

    def plane_is(self, state: str, states: Iterable[str]) -> None:
        """`state`: that of the data plane, of all `states`."""
        for each in states:
            self._plane.labels(each).set(each == state)

    def plane_failed(self, kind: str, times: int) -> None:
        """`kind`: `panic`, which ended one connection each time, or `accept`: no descriptor or memory for one."""
        self._plane_failures.labels(kind).inc(times)

    def relayed_in_plane(self, end: str) -> None:
        """The data plane has relayed events of a stream. `end`: why it stopped."""
        self._event_relays.labels(end).inc()

    def certificate_expires(self, unix_s: float) -> None:
        self._certificate.set(unix_s)

    def turned_away(self, reason: str, connections: int = 1) -> None:
        self._turned_away.labels(reason).inc(connections)

    def token_reviewed(self, result: str) -> None:
        """`result`: `accepted`, `refused`, `failed`, or `limited`, where the token was not sent to the API server."""
        self._token_reviews.labels(result).inc()

    def authenticated(self, method: str, result: str, requests: int = 1) -> None:
        self._add(self._authentications, requests, method, result)

    def quota_refused(self, tenant: str, limit: str) -> None:
        self._touch_tenant(tenant)
        self._quota_refusals.labels(tenant, limit).inc()

    def tokens_used(self, tenant: str, model: str, usage: Usage) -> None:
        self._touch_tenant(tenant)
        fresh = usage.input_tokens - usage.cached_tokens
        if fresh > 0:
            self._add(self._tokens, fresh, tenant, model, "input")
        if usage.cached_tokens > 0:
            self._add(self._tokens, usage.cached_tokens, tenant, model, "cached_input")
        if usage.output_tokens > 0:
            self._add(self._tokens, usage.output_tokens, tenant, model, "output")

    def usage_implausible(self, model: str, revision: str) -> None:
        self._touch(model, revision)
        self._implausible.labels(model, revision).inc()

    def routes_applied(self, generations: Mapping[str, int]) -> None:
        former, self._applied = self._applied, dict(generations)
        for route in former.keys() - generations.keys():
            self._generation.remove(route)
        for route, generation in generations.items() - former.items():
            self._generation.labels(route).set(generation)

    def failsafe(self, route: str, *, cut_off: bool, expired: bool) -> None:
        self._failsafe.labels(route, "cut_off").set(cut_off)
        self._failsafe.labels(route, "expired").set(expired)

    def failsafe_gone(self, route: str) -> None:
        self._failsafe.remove_by_labels({"route": route})

    def adapter_report(self, result: str) -> None:
        """A pod was read: ok, unreachable or wrong."""
        self._adapter_reports.labels(result).inc()

    def adapter_refused(self, model: str, revision: str) -> None:
        self._adapter_refusals.labels(model, revision).inc()

    def watch_event(self, resource: str) -> None:
        self._watch.labels(resource).set_to_current_time()

    def unreadable_object(self, resource: str) -> None:
        self._unreadable.labels(resource).inc()

    def _add(self, family: Counter | Gauge, amount: float, *labels: str) -> None:
        """Does `family.labels(*labels).inc(amount)`, but looks the child up only once: it runs for every request."""
        found = self._adders.get((family, labels))
        if found is None:
            found = self._adders[family, labels] = family.labels(*labels)._value.inc
        found(amount)

    def _requests_of(self, pair: tuple[str, str], code: int, outcome: str) -> Callable[[float], None]:
        """What counts requests that ended so, looked up as in `_add`."""
        found = self._ended.get((pair, code, outcome))
        if found is None:
            found = self._ended[pair, code, outcome] = self._requests.labels(*pair, str(code), outcome)._value.inc
        return found

    def _measure(self, family: Histogram, value: float, pair: tuple[str, str], trace_id: str = "") -> None:
        """Does `family.labels(*pair).observe(value)`, but looks the child up only once.

        `trace_id`: of a recorded request, which then is the exemplar of its bucket.
        """
        if trace_id:
            family.labels(*pair).observe(value, {"trace_id": trace_id})
            return
        add, bounds, adders = self._child_of(family, pair)
        add(value)
        adders[bisect_left(bounds, value)](1)  # the last bound is infinite

    def _child_of(self, family: Histogram, pair: tuple[str, str]) -> _Measured:
        measured = self._measured[family]
        found = measured.get(pair)
        if found is None:
            child = family.labels(*pair)
            adders = [bucket.inc for bucket in child._buckets]
            found = measured[pair] = (child._sum.inc, child._upper_bounds, adders)
        return found

    def _touch(self, model: str, revision: str) -> None:
        pair = (model, revision)
        if pair == self._touched:
            return  # it is the last one already
        self._touched = pair
        self._pairs.pop(pair, None)
        self._pairs[pair] = None
        if len(self._pairs) > _MAX_PAIRS:
            self._forget(next(iter(self._pairs)))

    def _touch_model(self, model: str) -> None:
        """Of more than _MAX_PAIRS models those are forgotten that were counted first."""
        if model in self._models:
            return
        self._models[model] = None
        if len(self._models) > _MAX_PAIRS:
            gone = next(iter(self._models))
            del self._models[gone]
            for family in self._of_models:
                family.remove_by_labels({"model": gone})

    def _touch_tenant(self, tenant: str) -> None:
        if tenant == self._touched_tenant:
            return
        self._touched_tenant = tenant
        self._tenants.pop(tenant, None)
        self._tenants[tenant] = None
        if len(self._tenants) > _MAX_TENANTS:
            gone = next(iter(self._tenants))
            del self._tenants[gone]
            self._forget_children()
            for family in self._of_tenants:
                family.remove_by_labels({"tenant": gone})

    def _forget(self, pair: tuple[str, str]) -> None:
        del self._pairs[pair]
        self._forget_children()
        self._running.pop(pair, None)
        for family in self._of_pairs:
            family.remove_by_labels({"model": pair[0], "revision": pair[1]})
