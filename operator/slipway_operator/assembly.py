"""Which components this installation of the operator has, made from its settings."""

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import aiohttp

from slipway_operator.adapters.runner import AdapterRunner
from slipway_operator.api.objects import ObjectKey
from slipway_operator.audit.runner import AuditRunner
from slipway_operator.audit.trail import Trail
from slipway_operator.component import Component
from slipway_operator.control_api.server import ControlApi
from slipway_operator.conversion.server import ConversionCertificate, ConversionPort
from slipway_operator.experiments.runner import Deployments, ExperimentRunner
from slipway_operator.fallbacks.runner import FallbackTargets
from slipway_operator.fetching.reader import DownloadReader
from slipway_operator.hooks.post import Poster, SecretUnreadable
from slipway_operator.hooks.runner import HookRunner
from slipway_operator.kube.client import Client
from slipway_operator.kube.lease import Lease
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.kube.secrets.certificates import Certificates, CertificateSecrets
from slipway_operator.kube.secrets.keys import Keys
from slipway_operator.kube.secrets.pepper import Pepper
from slipway_operator.kube.writing.aggregation import Host
from slipway_operator.kube.writing.disruption_budgets import DisruptionBudgets
from slipway_operator.kube.writing.leader_label import LeaderLabel
from slipway_operator.kube.writing.names import Names, NameTerms
from slipway_operator.kube.writing.network_policies import NetworkPolicies
from slipway_operator.kube.writing.pins import Pins
from slipway_operator.kube.writing.prefetches import Prefetches
from slipway_operator.kube.writing.run_history import RunHistory
from slipway_operator.metrics_api import engine_series
from slipway_operator.metrics_api.release import JobsProcesses, ReleaseLoads
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.scaling_runner import ScalingRunner
from slipway_operator.metrics_api.server import MetricsApi
from slipway_operator.metrics_api.work_reader import WorkReader
from slipway_operator.model.analysis.measure import SecretKey
from slipway_operator.model.cluster.webhook_host import WebhookHost
from slipway_operator.model_routes.runner import ModelRouteRunner, NameAccess
from slipway_operator.outbound.dialer import Dialer
from slipway_operator.planning.decided import PlanSettings
from slipway_operator.pools.runner import PoolAccess, PoolRunner, PoolSettings
from slipway_operator.providers import secrets
from slipway_operator.providers.answers import Unanswered
from slipway_operator.providers.dispatch import Providers
from slipway_operator.providers.runner import MeasurementRunner
from slipway_operator.queue import WorkQueue
from slipway_operator.registry.client import MlflowClient
from slipway_operator.registry.runner import RegistryRunner
from slipway_operator.settings import OperatorSettings, product_version
from slipway_operator.statements.runner import StatementRunner
from slipway_operator.telemetry.metrics import Metrics
from slipway_operator.tenants.runner import TenantRunner

SPREAD_S = 2.0  # all ModelDeployments are reconciled within this time after gateways came or left


@dataclass(frozen=True, slots=True)
class Process:
    """What the components of one operator share. `session`: for requests to gateways and pods."""

    settings: OperatorSettings
    client: Client
    cache: ObjectCache
    session: aiohttp.ClientSession
    queue: WorkQueue[ObjectKey]
    lease: Lease
    metrics: Metrics
    gateways: Gateways
    keys: Keys | None  # by which gateways prove tenants to pods; None where the release has none
    certificates: Certificates | None  # of pods with TLS; None where the release has no authority

    def look_at_all(self) -> None:
        """Queue all ModelDeployments and ModelAdapters, spread over SPREAD_S."""
        for key in self.cache.subjects():
            self.queue.add_after(key, random.uniform(0.0, SPREAD_S))


def components_of(process: Process, pods: aiohttp.ClientSession) -> tuple[Component, ...]:
    """The components in the order in which they have their say. `pods`: the session for pods that download.

    First come pools, whose state others read. What pods need is written before them: weights, policies, keys.
    """
    settings, client, wake = process.settings, process.client, process.queue.add
    routes = _model_routes(process)
    poster = Poster(Dialer(settings.outbound, "hooks"), settings.hook_signing_key_file, time.time)
    providers = Providers(client, Dialer(settings.outbound, "analyses"))
    components = (
        _pools(process),
        AdapterRunner(client, process.cache, process.session, process.lease.held, wake),
        Pins(client),
        RunHistory(client),
        NetworkPolicies(client, settings.network_policy) if settings.network_policy else None,
        DisruptionBudgets(client),
        process.keys,
        process.certificates,
        Prefetches(client),
        DownloadReader(pods, wake),
        FallbackTargets(process.cache.get, wake),
        _registry(process),
        _statements(process),
        _names(process, routes),
        routes,
        _experiments(process),
        HookRunner(poster, wake, process.metrics.called, partial(_secret_of_hook, client)),
        MeasurementRunner(providers, wake, process.metrics.measured),
        _tenants(process),
        *_metrics_of_pods(process),
        process.metrics.rollouts,
        process.metrics.costs,
        Pepper(client, settings.own_namespace, settings.key_pepper_secret) if settings.key_pepper_secret else None,
        _audit(process),
        _control_api(process),
        *_conversion(process),
        LeaderLabel(client, settings.own_namespace, settings.identity, process.lease.held)
        if settings.leader_label
        else None,
    )
    return tuple(component for component in components if component is not None)


def planning_of(settings: OperatorSettings) -> PlanSettings:
    lease = f"{settings.own_namespace}/{settings.lease_name}"
    tls = settings.tls_new_revisions and bool(settings.internal_ca_secret)
    return PlanSettings(
        settings.server_image,
        settings.endpoint,
        lease,
        settings.policy,
        tls,
        predict_image=settings.predict_image,
        cpu_image=settings.cpu_image,
        pull_secrets=settings.image_pull_secrets,
        tracking_url=settings.mlflow_url,
        standby_priority_class=settings.standby_priority_class,
    )


def keys_of(settings: OperatorSettings, client: Client, cache: ObjectCache) -> Keys | None:
    if not settings.keys_secret:
        return None
    return Keys(client, settings.own_namespace, settings.keys_secret, settings.key_rotation_s, cache.deployments)


def certificates_of(settings: OperatorSettings, client: Client, cache: ObjectCache) -> Certificates | None:
    if not settings.internal_ca_secret:
        return None
    own = CertificateSecrets(settings.own_namespace, settings.internal_ca_secret, settings.gateway_tls_secret)
    return Certificates(client, own, cache.deployments, issuer=settings.internal_issuer)


def gateways_of(
    settings: OperatorSettings,
    client: Client,
    session: aiohttp.ClientSession,
    keys: Keys | None = None,
    *,
    tls: bool = False,
) -> Gateways:
    """Return the client of the gateways. Each request reads the current token: from a file if set, else `keys`."""

    def token() -> str:
        if not settings.gateway_token_file:
            return keys.token() if keys else ""
        try:
            words = settings.gateway_token_file.read_text().split()
        except (OSError, UnicodeDecodeError):  # gateways that need a token report that it is missing
            words = []
        return words[0] if words else ""

    return Gateways(client, session, settings.own_namespace, settings.gateway_service, token=token, tls=tls)


async def _secret_of_hook(client: Client, namespace: str, wanted: tuple[str, str]) -> str:
    """What a hook's secretRef names, by the rules for Secrets of analyses."""
    try:
        return await secrets.text_of(client, namespace, SecretKey(*wanted))
    except Unanswered as error:
        raise SecretUnreadable(str(error)) from error


def _pools(process: Process) -> PoolRunner:
    settings = process.settings
    access = PoolAccess(process.client, process.cache, process.session, process.certificates)
    tls = planning_of(settings).tls
    terms = PoolSettings(settings.server_image, settings.namespaces, tls, settings.network_policy or None)
    return PoolRunner(access, terms, process.lease.held, process.queue.add)


def _model_routes(process: Process) -> ModelRouteRunner:
    served = process.settings.namespaces
    return ModelRouteRunner(process.client, served, process.cache.deployments, process.lease.held, _now)


def _experiments(process: Process) -> ExperimentRunner:
    deployments = Deployments(process.cache.deployments, process.cache.get)
    return ExperimentRunner(
        process.client,
        process.settings.namespaces,
        deployments,
        process.gateways,
        process.session,
        process.lease.held,
        _now,
    )


def _names(process: Process, routes: ModelRouteRunner) -> Names:
    """The names of ModelDeployments and of ModelRoutes, which join."""
    settings = process.settings
    terms = NameTerms(
        settings.own_namespace,
        settings.names_configmap,
        settings.name_retention_s,
        settings.name_grants,
        settings.name_annotations,
        settings.namespaces,
    )
    access = (process.client, process.cache, terms, process.queue.add, process.lease.held, _now)
    names = Names(*access, routes=routes.wishes)
    routes.joins(NameAccess(names.of_route, names.routes_changed))
    return names


def _tenants(process: Process) -> TenantRunner | None:
    if not process.settings.tenant_status:
        return None
    return TenantRunner(
        process.client,
        process.gateways,
        process.session,
        process.lease.held,
        _now,
        process.look_at_all,
        show=process.metrics.tenants.show,
    )


def _metrics_of_pods(process: Process) -> tuple[Component, ...]:
    """The sampler of metrics of pods, and what uses it: the metrics API for autoscalers, analyses that compare costs.

    Without use there is no sampler.
    """
    settings, metrics = process.settings, process.metrics
    prices = dict(settings.prices)
    if not settings.metrics_api_service and not settings.engine_metrics_pods:
        return (WorkReader(None, prices),)
    beside, wake = settings.engine_metrics_pods, process.queue.add
    sampler = MetricsSampler(process.gateways, process.session, beside=beside, changed=wake)
    metrics.follow_engines(lambda: engine_series.rows(sampler.every(), sampler.clock()))
    if not settings.metrics_api_service:
        return sampler, WorkReader(sampler, prices)

    def changed(providers: dict[str, str]) -> None:
        metrics.serves(providers)
        for key in sampler.known():
            wake(key)

    host = Host(settings.own_namespace, settings.metrics_api_service, settings.metrics_api_owner)
    jobs = JobsProcesses(process.client, process.session, settings.own_namespace, settings.jobs_service)
    release = ReleaseLoads(settings.own_namespace, process.gateways, jobs)
    api = MetricsApi(process.client, sampler, host, settings.metrics_api_port, changed, release)
    return sampler, WorkReader(sampler, prices), ScalingRunner(sampler, wake), api


def _control_api(process: Process) -> ControlApi | None:
    settings = process.settings
    if not settings.control_api_port:
        return None
    files = (settings.control_api_cert_file, settings.control_api_key_file)
    return ControlApi(process.client, settings.control_api_port, *files, process.metrics.control_called)


def _conversion(process: Process) -> tuple[Component, ...]:
    """The webhook that converts v1beta1; without use none of it."""
    settings = process.settings
    if not settings.conversion_service:
        return ()
    host = WebhookHost(settings.own_namespace, settings.conversion_service, settings.conversion_ca_secret)
    certificate = ConversionCertificate(process.client, host)
    return certificate, ConversionPort(settings.conversion_port, certificate, process.metrics.converted)


def _registry(process: Process) -> RegistryRunner:
    settings = process.settings
    url = settings.mlflow_url
    mlflow = MlflowClient(Dialer(settings.registry_outbound, "look-ups of models"), url) if url else None
    return RegistryRunner(
        process.client,
        mlflow,
        process.queue.add,
        process.lease.held,
        _now,
        poll_s=settings.mlflow_poll_s,
        writes=settings.mlflow_write_verdicts,
    )


def _statements(process: Process) -> StatementRunner | None:
    key_file = process.settings.verdict_signing_key_file
    if key_file is None:
        return None
    return StatementRunner(process.client, key_file, product_version(), process.queue.add, process.lease.held, _now)


def _audit(process: Process) -> AuditRunner | None:
    if not process.settings.audit:
        return None
    trail = Trail(process.settings.audit_file, _now)
    return AuditRunner(process.client, process.cache, trail, process.lease.held, _now)


def _now() -> datetime:
    return datetime.now(UTC)
