"""Joins the fast lane of the compiled data plane with what it shares with Python, where this gateway has one."""

import time
from functools import partial

from ..authentication.authenticator import Authenticator
from ..balancing.load_balancer import LoadBalancer
from ..caching.lane_copies import PART
from ..fast_lane.lane import FastLane, Tenants
from ..forwarding.proxy import Forwarding
from ..plane.port import PlanePort
from ..serving.admission import Admission
from ..serving.api import PublicApi
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from .forwarding import max_cache_bytes, max_prefix_blocks, max_sessions


def join_lane(
    settings: GatewaySettings,
    plane: PlanePort | None,
    metrics: GatewayMetrics,
    balancer: LoadBalancer,
    forwarding: Forwarding,
    edge: PublicApi,
    authenticator: Authenticator,
) -> FastLane | None:
    """The fast lane; None where all requests are Python's. Must come before the first table and the first connection.

    Pages of other origins need headers that the lane does not write, and without a time for idle connections each one
    ends with its response.
    """
    if plane is None or not settings.plane_max_body_bytes:
        return None
    if settings.allowed_origins or not settings.keepalive_timeout_s:
        return None
    lane = FastLane(
        settings,
        metrics,
        budget_bytes=edge.budget.limit_bytes,
        max_sessions=max_sessions(settings),
        max_prefix_blocks=max_prefix_blocks(settings),
        logs=edge.access_log.is_on,
        trace_share=edge.traces.share,
        tenants=partial(_tenants_of, authenticator, edge.admission),
        charging=edge.admission,
        traces_per_s=edge.traces.most_per_s,
    )
    edge.admission.join(lane)
    balancer.join(lane)
    edge.join(lane)
    if edge.caches is not None:
        edge.caches.join(lane, max_cache_bytes(settings) // PART, edge.budget, time.monotonic)
    crashes, signer = forwarding.crashes, forwarding.signer
    crashes.join(lane)
    forwarding.events.join(lane.native, lane.recounter.counted_again)
    lane.on_doubt = forwarding.events.doubt
    signer.join(lane.native.sign_with)
    authenticator.known.on_change = lane.tenants_changed
    plane.relays_paused = forwarding.events.paused
    plane.join(lane, edge.access_log, edge.traces, signer.refresh, crashes.forget, lane.tenants_changed)
    lane.tenants_changed()
    return lane


def _tenants_of(authenticator: Authenticator, admission: Admission) -> Tenants | None:
    """The tenants by which requests are authenticated now; None: they are not known."""
    if authenticator.needs_none:
        return Tenants(None, admission.share)
    table = authenticator.known.current
    return Tenants(table, admission.share) if table is not None else None
