"""Whether requests get responses, as gateways measure it: readiness of pods and ReplicaSets is not sufficient."""

from slipway_contracts.gateway_report import ServiceReport
from slipway_operator.api.v1alpha1.status import SleepState
from slipway_operator.model.cluster.observed import Gateway
from slipway_operator.planning.facts.situation import Course, Situation

# Requests count as failing when this many of those of the last 10 to 20 seconds, and this share, got no response.
LEAST, SHARE = 3, 0.9
# Gateways see a ready pod after about a second; until then they may not have its endpoint.
NO_ENDPOINT_S = 5.0
POLL_S = 2.0
NO_GATEWAY, NO_ROUTE = "NoGateway", "NoRoute"
REQUESTS_FAILING, NO_ENDPOINTS = "RequestsFailing", "NoEndpoints"
READY, TRAFFIC_SYNCED = "Ready", "TrafficSynced"  # conditions whose times are read back
SERVING = "Serving"  # of the condition Ready
REASONS = (NO_GATEWAY, NO_ROUTE, REQUESTS_FAILING, NO_ENDPOINTS)


def trouble(course: Course, at: Situation) -> tuple[str, str] | None:
    """Why a deployment with ready pods does not serve, as reason and message; None if none is known."""
    if not _is_to_serve(course, at):
        return None
    if not any(item.ready for item in _present(at)):
        return NO_GATEWAY, "no gateway is ready, so no request gets in"
    if _lacks_route(at) and _unsynced_s(at) >= NO_ENDPOINT_S:
        return NO_ROUTE, f"no gateway has its route, for {NO_ENDPOINT_S:.0f} s or longer"
    reporting = _reporting(at)
    if failing := _failing([item.service for item in reporting]):
        return REQUESTS_FAILING, failing
    if _served_before(at) and _unserved([item.service for item in reporting]):
        return NO_ENDPOINTS, f"no gateway has an endpoint for it, for {NO_ENDPOINT_S:.0f} s or longer"
    return None


def sentence(course: Course, at: Situation) -> str:
    """The trouble as the end of a message; empty without one. That no gateway is ready is in another part of it."""
    found = trouble(course, at)
    return f"; {found[1]}" if found and found[0] != NO_GATEWAY else ""


def look_again_s(course: Course, at: Situation) -> float | None:
    """Seconds until time alone may begin or end a trouble; None when only a report of a gateway may."""
    unserved = _lacks_route(at) or any(item.service.unserved_s is not None for item in _reporting(at))
    found = trouble(course, at)
    return POLL_S if (unserved and _is_to_serve(course, at)) or (found and found[0] != NO_GATEWAY) else None


def _is_to_serve(course: Course, at: Situation) -> bool:
    """Whether the deployment should have pods and has ready ones: a lack of pods has its own condition and cause."""
    serving = course.stable or course.target
    awake = at.sleep is None or at.sleep.state is SleepState.AWAKE
    return awake and at.replicas > 0 and at.ready(serving) > 0 and at.status.traffic is not None


def _unserved(services: list[ServiceReport]) -> bool:
    since = [item.unserved_s for item in services]
    return bool(since) and all(seconds is not None and seconds >= NO_ENDPOINT_S for seconds in since)


def _served_before(at: Situation) -> bool:
    """Whether the deployment was Ready for NO_ENDPOINT_S, or has such a trouble already.

    Gateways count the time without an endpoint from the start of the route, which is before its first pod.
    """
    ready = next((item for item in at.status.conditions if item.type == READY), None)
    if ready is None or ready.status != "True":
        return ready is not None and ready.reason in REASONS
    # Ready stays True in sleep, and what gateways count then is no trouble.
    since = max(ready.last_transition_time, at.sleep.since) if at.sleep else ready.last_transition_time
    return ready.reason == SERVING and not 0 <= at.elapsed_s(since) < NO_ENDPOINT_S


def _lacks_route(at: Situation) -> bool:
    """Whether ready gateways respond, and none of them has the route."""
    answering = [item for item in _present(at) if item.ready and item.reachable]
    return bool(answering) and all(item.generation is None for item in answering)


def _unsynced_s(at: Situation) -> float:
    """Seconds for which gateways have not routed by the table, by the condition in the status."""
    synced = next((item for item in at.status.conditions if item.type == TRAFFIC_SYNCED), None)
    return at.elapsed_s(synced.last_transition_time) if synced and synced.status == "False" else 0.0


def _present(at: Situation) -> list[Gateway]:
    return [item for item in at.observed.gateways if not item.gone]


def _reporting(at: Situation) -> list[Gateway]:
    """Gateways that take requests and have the route; the others report nothing about it."""
    return [item for item in _present(at) if item.ready and item.reachable and item.generation is not None]


def _failing(services: list[ServiceReport]) -> str:
    refused = sum(item.refused for item in services)
    ended = refused + sum(item.answered for item in services)
    if refused < LEAST or refused < SHARE * ended:
        return ""
    how = sorted({item.last for item in services if item.last})
    return f"{refused} of the last {ended} requests got no answer" + (f" ({', '.join(how)})" if how else "")
