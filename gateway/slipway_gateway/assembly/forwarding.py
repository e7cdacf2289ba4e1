"""Makes what forwards requests, once in a process, from its settings."""

import ssl
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import aiohttp

from slipway_process.network.listed_hosts import ListedHosts
from slipway_process.places import Places
from slipway_process.supervisor import OnFailure

from ..balancing.failsafe import CutOffRule
from ..balancing.failsafe_state import FailsafeSettings
from ..balancing.load_balancer import LoadBalancer
from ..balancing.outlier import OutlierDetection
from ..balancing.prefix_index import BLOCK_BYTES, MAX_BLOCKS
from ..caching.caches import ResponseCaches
from ..caching.store import EntryStore, MemoryStore
from ..experiments.exposures import Experiments
from ..external.client import ExternalClient, ExternalLimits
from ..external.hosts import ExternalHosts
from ..external.keys import KeyUnavailable, ProviderKeys, ReadKey
from ..feedback.tokens import FeedbackTokens
from ..forwarding.classifiers import Classifiers
from ..forwarding.crashes import CrashTracker
from ..forwarding.event_relays import EventRelays
from ..forwarding.fallback import Fallbacks
from ..forwarding.proxy import Forwarding, Proxy
from ..forwarding.relay import RelayContext
from ..forwarding.resume_memory import ResumeMemory
from ..forwarding.resumption import Resumption
from ..forwarding.retries import Retries
from ..forwarding.sender import Sender
from ..guards.checks import GuardChecks
from ..guards.classifier import ClassifierClient
from ..guards.webhook import GuardSecrets, WebhookClient
from ..guards.workers import FinderPool
from ..judging.samples import ENTRY_BYTES, MAX_ENTRIES
from ..limits.budget import MemoryBudget
from ..limits.container import budget_bytes, memory_limit_bytes
from ..limits.demand import ClientDemand
from ..limits.processor import ProcessorUse, processor_limit
from ..limits.time_limits import TimeLimits
from ..mirror.endpoints import MirrorEndpoints
from ..mirror.leg import LegSender
from ..mirror.queue import MirrorQueue
from ..mirror.room import MirrorMemory
from ..mirror.twins import TwinShadows
from ..routing.table import namespace_of
from ..settings import GatewaySettings
from ..telemetry.inference_log import InferenceLog
from ..telemetry.metrics import GatewayMetrics
from ..upstream.adapter_reports import AdapterReports
from ..upstream.isolation import TenantIsolation
from ..upstream.session import open_direct
from ..upstream.tenant_proof import TenantSigner
from .cluster import Run


def forwarding_of(
    settings: GatewaySettings,
    balancer: LoadBalancer,
    metrics: GatewayMetrics,
    session: aiohttp.ClientSession,
    inference_log: InferenceLog,
    experiments: Experiments,
    read_key: ReadKey | None = None,
) -> Forwarding:
    """Must run in the event loop that serves. `session`: for requests to pods. `read_key`: reads API keys of providers;
    None: no provider is called."""
    clock = time.monotonic  # the event loop's
    budget = _budget(settings, metrics, clock)
    signer = TenantSigner(settings.tenant_keys_file)
    crashes = CrashTracker(balancer, metrics, settings.resume_timeout_s, clock)
    isolation = TenantIsolation(balancer.published, signer)
    sender = Sender(balancer, session, open_direct(session), signer, clock, isolation)
    retries = Retries(settings, balancer, metrics, sender, crashes, clock=clock)
    memory, streams = _resume_memories(settings, metrics, clock, budget)
    resumption = Resumption(settings, retries, memory, metrics, clock)
    limits = TimeLimits(settings.request_timeout_s)
    demand = _demand(settings, retries, limits, clock)
    guards = guards_of(settings, balancer, metrics, session)
    queue, twins = _mirrors(
        settings,
        balancer,
        metrics,
        session,
        copies=MirrorMemory(budget.open(""), settings.mirror_max_bytes),
        signer=signer,
        isolation=isolation,
        crashes=crashes,
        is_busy=demand.is_busy,
        guards=guards,
    )
    feedback = FeedbackTokens(settings.tenant_keys_file)
    events = EventRelays(metrics, clock, silence_s=settings.idle_timeout_s, stall_s=settings.stall_timeout_s)
    relays = RelayContext(resumption, queue, crashes, clock, settings.stall_timeout_s, events)
    classifiers = _classifiers(settings, balancer, sender, metrics)
    external = external_of(settings, read_key, clock)
    balancer.key_problems = external.key_problems
    proxy = Proxy(
        settings,
        balancer,
        Fallbacks(settings, balancer, retries, metrics, external),
        crashes,
        limits=limits,
        relays=relays,
        twins=twins,
        feedback=feedback,
        inference_log=inference_log,
        experiments=experiments,
    )
    parts = (feedback, resumption, queue, twins, inference_log, crashes, signer, events)
    return Forwarding(proxy, budget, *parts, external, classifiers, streams, guards)


def adapter_runs(
    session: aiohttp.ClientSession, balancer: LoadBalancer, metrics: GatewayMetrics
) -> dict[str, tuple[Run | None, OnFailure]]:
    """The task that reads from pods which adapters they hold: without it a gateway serves all others."""
    reports = AdapterReports(session, balancer.adapters, balancer.publish_again, metrics.adapter_report)
    return {"adapters": (reports.run, OnFailure.SHOW)}


def _mirrors(
    settings: GatewaySettings,
    balancer: LoadBalancer,
    metrics: GatewayMetrics,
    session: aiohttp.ClientSession,
    *,
    copies: MirrorMemory,
    signer: TenantSigner,
    isolation: TenantIsolation,
    crashes: CrashTracker,
    is_busy: Callable[[str], bool],
    guards: GuardChecks,
) -> tuple[MirrorQueue, TwinShadows]:
    """What sends copies of requests: to mirrors of routes, and in pairs to a canary and its twin."""
    endpoints = MirrorEndpoints(balancer.in_flight, time.monotonic)
    queue = MirrorQueue(
        settings,
        balancer,
        metrics,
        session,
        is_busy,
        memory=copies,
        signer=signer,
        endpoints=endpoints,
        isolation=isolation,
        is_suspect=crashes.is_suspect,
        on_death=crashes.copy_died,
    )
    legs = LegSender(settings, session, copies, endpoints, time.monotonic, crashes.copy_died, isolation=isolation)
    twins = TwinShadows(
        settings, balancer, metrics, legs, is_busy, is_suspect=crashes.is_suspect, signer=signer, checks=guards
    )
    return queue, twins


def _classifiers(
    settings: GatewaySettings, balancer: LoadBalancer, sender: Sender, metrics: GatewayMetrics
) -> Classifiers:
    places = Places(settings.max_classifications, settings.max_client_percentage)
    return Classifiers(balancer, sender, metrics, places)


def _demand(
    settings: GatewaySettings, retries: Retries, limits: TimeLimits, clock: Callable[[], float]
) -> ClientDemand:
    return ClientDemand(
        lambda route: retries.is_awaited(namespace_of(route)),
        limits,
        ProcessorUse(clock, time.thread_time, processor_limit()),
        most_running=settings.max_inflight // 2,
        most_percentage=settings.mirror_max_cpu_percentage,
    )


def external_of(settings: GatewaySettings, read_key: ReadKey | None, clock: Callable[[], float]) -> ExternalClient:
    """What calls providers: those of the listed hosts, where their keys can be read."""
    hosts = ExternalHosts.of(settings.external_hosts if read_key and settings.external_max_inflight else ())
    limits = ExternalLimits(
        settings.external_timeout_s,
        settings.idle_timeout_s,
        settings.external_max_response_bytes,
        settings.connect_timeout_s,
    )
    places = Places(settings.external_max_inflight, settings.max_client_percentage)
    tls = partial(ssl.create_default_context, cafile=settings.external_ca_file or None)
    return ExternalClient(hosts, ProviderKeys(read_key or _no_key, clock), limits, places, tls)


async def _no_key(namespace: str, secret: str, key: str) -> str:
    raise KeyUnavailable("without a cluster there are no Secrets")


def guards_of(
    settings: GatewaySettings, balancer: LoadBalancer, metrics: GatewayMetrics, session: aiohttp.ClientSession
) -> GuardChecks:
    """`session`: for requests to pods."""
    most = settings.guard_max_inflight
    webhooks = WebhookClient(ListedHosts.of(settings.guard_hosts), GuardSecrets(settings.guard_secrets_dir), most)
    return GuardChecks(
        webhooks,
        ClassifierClient(session, balancer),
        FinderPool(settings.guard_processes),
        balancer,
        metrics,
        time.monotonic,
        most=most,
        percentage=settings.max_client_percentage,
    )


def _resume_memories(
    settings: GatewaySettings, metrics: GatewayMetrics, clock: Callable[[], float], budget: MemoryBudget
) -> tuple[ResumeMemory, ResumeMemory]:
    """Of tokens of broken streams, and of requests whose clients may come back by their ids."""
    bounds = (settings.max_remembered_bytes, settings.remember_s, clock, budget)
    memory, streams = ResumeMemory(*bounds), ResumeMemory(*bounds)
    metrics.remembered.set_function(lambda: memory.size_bytes + streams.size_bytes)
    return memory, streams


def caches_of(
    settings: GatewaySettings,
    balancer: LoadBalancer,
    metrics: GatewayMetrics,
    forwarding: Forwarding,
    shared: EntryStore | None,
) -> ResponseCaches:
    """`shared`: where gateways keep responses together; None: this one keeps its own, in the memory of requests."""
    size_bytes = max_cache_bytes(settings) if shared is None else settings.cache_max_bytes
    return ResponseCaches(
        shared or MemoryStore(size_bytes, forwarding.budget, time.monotonic),
        balancer,
        metrics,
        forwarding.proxy.forward,
        most_bytes=min(size_bytes, settings.cache_max_response_bytes),
        stall_timeout_s=settings.stall_timeout_s,
        wait_timeout_s=settings.request_timeout_s,
    )


def max_cache_bytes(settings: GatewaySettings) -> int:
    """How many bytes of responses are kept: at most a quarter of the memory for requests."""
    return min(settings.cache_max_bytes, _budget_bytes(settings) // 4)


def balancer_of(settings: GatewaySettings, metrics: GatewayMetrics, incarnation: str) -> LoadBalancer:
    rule = CutOffRule(settings.cut_off_failures, settings.cut_off_after_s, settings.cut_off_cooldown_s)
    outliers = OutlierDetection(**{field.name: getattr(settings, field.name) for field in fields(OutlierDetection)})
    return LoadBalancer(
        metrics,
        FailsafeSettings(rule, settings.failsafe_ttl_s),
        hung_after_s=settings.hung_after_s,
        incarnation=incarnation,
        outlier_detection=outliers,
        max_sessions=max_sessions(settings),
        max_prefix_blocks=max_prefix_blocks(settings),
    )


def max_sessions(settings: GatewaySettings) -> int:
    """How many sessions are remembered for the judge: those that a sixteenth of the memory for requests holds."""
    return min(MAX_ENTRIES, _budget_bytes(settings) // 16 // ENTRY_BYTES)


def max_prefix_blocks(settings: GatewaySettings) -> int:
    """How many blocks of prompts are remembered for endpoints: those that a thirty-second of that memory holds."""
    return min(MAX_BLOCKS, _budget_bytes(settings) // 32 // BLOCK_BYTES)


def _budget_bytes(settings: GatewaySettings) -> int:
    return budget_bytes(settings.memory_budget_bytes, memory_limit_bytes())


def _budget(settings: GatewaySettings, metrics: GatewayMetrics, clock: Callable[[], float]) -> MemoryBudget:
    remembered_bytes = max_sessions(settings) * ENTRY_BYTES + max_prefix_blocks(settings) * BLOCK_BYTES
    size_bytes = _budget_bytes(settings) - remembered_bytes
    share_bytes = size_bytes * settings.max_client_percentage // 100
    budget = MemoryBudget(size_bytes, share_bytes, clock, metrics.shed)
    metrics.memory_budget.set(size_bytes)
    metrics.memory_held.set_function(lambda: budget.used_bytes + metrics.held_by_lane())
    return budget
