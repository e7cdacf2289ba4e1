"""What a gateway writes to and shares with others: Redis, the ledger, logs, and the jobs' process."""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import ClientSession

from slipway_contracts.passes import PassKeys
from slipway_contracts.route_table import GenerationLogSample
from slipway_process.sealing import Keyring
from slipway_process.spans import Exporter, exporter

from ..balancing.load_balancer import LoadBalancer
from ..caching.store import EntryStore
from ..experiments.exposures import Experiments, ExposureTerms
from ..experiments.sinks.opening import open_sinks
from ..generations.log import GenerationLog
from ..generations.table import Bounds, GenerationTable
from ..ledger.inference_table import InferenceTable
from ..ledger.store import LedgerStore
from ..ledger.writer import Ledger
from ..serving.admission import Admission
from ..settings import GatewaySettings
from ..sharing.counters import SharedBudgets, SharedClaims, SharedCounters
from ..sharing.limiter import Limiter
from ..sharing.ready_gateways import ReadyGateways
from ..telemetry.access_log import AccessLog, open_access_log
from ..telemetry.inference_log import InferenceLog
from ..telemetry.line_writer import LineWriter
from ..telemetry.metrics import GatewayMetrics
from ..telemetry.tracing import Traces
from ..upstream.jobs_process import JobsBackend


class SharedStores(NamedTuple):
    """What gateways of a release count together, at Redis; None: each gateway counts alone."""

    limits: SharedCounters | None = None
    budgets: SharedBudgets | None = None
    claims: SharedClaims | None = None  # of feedback tokens
    exposures: SharedClaims | None = None  # of units of experiments
    responses: EntryStore | None = None  # that are kept; None: each gateway keeps its own

    @property
    def tasks(self) -> dict[str, SharedCounters | SharedBudgets]:
        """Those with a task, by its name."""
        return {
            name: store for name, store in (("limits", self.limits), ("budgets", self.budgets)) if store is not None
        }

    @property
    def stores(self) -> tuple[SharedCounters | SharedBudgets | SharedClaims | EntryStore, ...]:
        return tuple(store for store in self if store is not None)


def shared_stores(settings: GatewaySettings, metrics: GatewayMetrics, ledger: Ledger) -> SharedStores:
    """
    Raises:
        ValueError: the URL of Redis cannot be used.
    """
    responses = _response_store(settings, metrics)
    if not (url := settings.redis_url.get_secret_value()):
        return SharedStores(responses=responses)
    # The client takes a while to load.
    from ..sharing.redis_budgets import RedisBudgets
    from ..sharing.redis_claims import RedisClaims
    from ..sharing.redis_counters import RedisCounters

    connection = (url, settings.redis_prefix, settings.redis_timeout_s)
    return SharedStores(
        RedisCounters(*connection, metrics),
        RedisBudgets(*connection, metrics, own=ledger.own, hour=lambda: ledger.hour),
        RedisClaims(*connection),
        RedisClaims(*connection, "exposures"),
        responses,
    )


def _response_store(settings: GatewaySettings, metrics: GatewayMetrics) -> EntryStore | None:
    """
    Raises:
        ValueError: the URL of Redis cannot be used.
    """
    if not (url := settings.cache_redis_url.get_secret_value()):
        return None
    from ..caching.redis_store import RedisStore

    connection = (url, settings.redis_prefix, settings.redis_timeout_s)
    return RedisStore(*connection, settings.cache_max_bytes, time.monotonic, metrics.cache_failures.inc)


def admission_of(
    metrics: GatewayMetrics, ledger: Ledger, balancer: LoadBalancer, gateways: ReadyGateways, shared: SharedStores
) -> Admission:
    """Limits and charges. `gateways`: among which limits are divided where they are not counted together."""
    limiter = Limiter(time.monotonic, gateways, shared.limits)
    return Admission(
        ledger, metrics, time.monotonic, limiter, shared.budgets, on_implausible=balancer.usage_implausible
    )


def ledger_url(settings: GatewaySettings) -> str:
    if given := settings.ledger_url.get_secret_value():
        return given
    return f"sqlite:///{Path(settings.state_dir).absolute()}/ledger.db" if settings.state_dir else "sqlite://"


def ledger_of(settings: GatewaySettings, store: LedgerStore, metrics: GatewayMetrics) -> Ledger:
    quarantine = Path(settings.state_dir) / "ledger-quarantine.jsonl" if settings.state_dir else None
    return Ledger(store, metrics, quarantine=quarantine)


def access_log_of(settings: GatewaySettings, metrics: GatewayMetrics) -> AccessLog:
    """
    Raises:
        OSError: its file cannot be written.
    """
    bounds = (settings.access_log_max_bytes, settings.access_log_max_files)
    return open_access_log(settings.access_log, bounds, metrics, settings.access_log_sample)


def inference_log_of(settings: GatewaySettings, metrics: GatewayMetrics) -> InferenceLog:
    """
    Raises:
        ValueError: its URL names no database that is known.
    """
    if not (url := settings.inference_log_url.get_secret_value()):
        return InferenceLog()
    try:
        table = InferenceTable(url, settings.inference_log_retention_s)
    except ValueError as error:
        raise ValueError(f"--inference-log-url: {error}") from None
    restarted = metrics.task_restarted
    writer = LineWriter(table, metrics.inference_log_dropped, name="inference log", on_restart=restarted)
    return InferenceLog(writer, settings.inference_log_max_content_bytes)


def generation_log_of(settings: GatewaySettings, metrics: GatewayMetrics, balancer: LoadBalancer) -> GenerationLog:
    """
    Raises:
        ValueError: its URL or its keys cannot be used; the message names the flag.
    """
    if not (url := settings.generation_log_url.get_secret_value()):
        return GenerationLog()
    try:
        keyring = Keyring(settings.generation_log_keys_file)
    except ValueError as error:
        raise ValueError(f"--generation-log-keys-file: {error}") from None
    bounds = Bounds(settings.generation_log_retention_s, settings.generation_log_max_bytes)
    try:
        table = GenerationTable(url, keyring, bounds, metrics.generations_deleted)
    except ValueError as error:
        raise ValueError(f"--generation-log-url: {error}") from None
    restarted = metrics.task_restarted
    return GenerationLog(
        LineWriter(table, metrics.generations_dropped, name="generation log", on_restart=restarted),
        partial(_generation_rule, balancer),
        max_content_bytes=settings.generation_log_max_content_bytes,
        hash_key=settings.tenant_salt.get_secret_value().encode(),
        has_keys=keyring.is_on,
        on_omitted=metrics.generation_omitted,
    )


def _generation_rule(balancer: LoadBalancer, route: str) -> GenerationLogSample | None:
    table = balancer.published.current
    deployment = table.routes.get(route) if table else None
    return deployment.generation_log if deployment else None


def experiments_of(
    settings: GatewaySettings, balancer: LoadBalancer, metrics: GatewayMetrics, claims: SharedClaims | None
) -> Experiments:
    """
    Raises:
        OSError: a file cannot be written.
        ValueError: an address or a library cannot be used; the message names the flag.
    """
    salt, window_s = settings.tenant_salt.get_secret_value(), settings.exposure_window_s
    terms = ExposureTerms(salt, window_s, settings.exposure_raw_units)
    sinks = open_sinks(settings, metrics)
    return Experiments(metrics, lambda: balancer.published.current, sinks, terms, claims=claims)


def jobs_of(settings: GatewaySettings, session: ClientSession, balancer: LoadBalancer) -> JobsBackend | None:
    if not settings.jobs_url:
        return None
    return JobsBackend(settings, session, PassKeys(settings.tenant_keys_file), balancer)


def traces_of(settings: GatewaySettings) -> Traces:
    """The traces of a gateway with these settings."""
    if not settings.spans_endpoint:
        return Traces(Exporter(), 0, 0, most_per_s=1)
    return Traces(
        exporter(settings.spans_endpoint, "slipway-gateway", settings.spans_service, sampler=_always()),
        settings.trace_sample,
        settings.trace_parents,
        most_per_s=settings.trace_per_second,
    )


def _always() -> Any:
    """The SDK's sampler that records what the gateway has chosen; None without the SDK."""
    try:
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError:
        return None
    return ALWAYS_ON
