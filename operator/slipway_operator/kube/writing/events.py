"""Events about transitions: a repeated one increments its count in place of filling the list."""

import hashlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from slipway_contracts.api.times import format_time
from slipway_operator.api.objects import Object
from slipway_operator.api.v1alpha1.status import Decision
from slipway_operator.kube import subjects
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists
from slipway_operator.kube.resources import EVENTS
from slipway_operator.model import labels
from slipway_operator.model.cluster.plan import Event

MESSAGE_LIMIT = 1024  # the API server's limit
NEWS_S = 600.0

log = logging.getLogger(__name__)


async def post_missing(client: Client, obj: Object, decisions: Sequence[Decision], now: datetime) -> bool:
    """Post Events that may be missing: those of the last decisions, which were written at the same moment.

    An Event that exists stays as it is. Decisions older than NEWS_S are skipped, as their Events may have expired.
    Returns False when one could not be posted.
    """
    last = decisions[-1].at if decisions else now
    news = (item for item in decisions if item.reason and item.at == last and (now - last).total_seconds() < NEWS_S)
    missing = [Event(item.type or "Normal", item.reason or "", item.message) for item in news]
    return await post_all(client, obj, missing, last)


async def post_all(client: Client, obj: Object, events: Sequence[Event], now: datetime) -> bool:
    """Post Events in their order, a microsecond apart. Returns False when one could not be posted."""
    moments = (now + timedelta(microseconds=number) for number in range(len(events)))
    return all([await post(client, obj, event, moment) for event, moment in zip(events, moments, strict=True)])


async def post(client: Client, obj: Object, event: Event, now: datetime) -> bool:
    """Post an Event. A failure is logged and returns False: the work does not depend on it."""
    try:
        await _post(client, render(obj, event, now))
    except ApiError as error:
        log.warning("event %s was not posted: %s", event.reason, error)
        return False
    return True


def render(obj: Object, event: Event, now: datetime) -> Object:
    """Return the event as a v1 Event; the same one about the same object gets the same name.

    `eventTime` is when it was seen last, in microseconds: many have the same `lastTimestamp`, which has whole seconds.
    """
    metadata = subjects.as_stored(obj)["metadata"]
    # Events about objects without a namespace are in the namespace default.
    place = {"namespace": metadata["namespace"]} if "namespace" in metadata else {}
    moment = format_time(now)
    message = event.message[:MESSAGE_LIMIT]
    identity = hashlib.sha256("\0".join((metadata["uid"], event.type, event.reason, message)).encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{identity}", "namespace": metadata.get("namespace", "default")},
        "involvedObject": {
            "apiVersion": labels.API_VERSION,
            "kind": obj.get("kind") or labels.KIND,
            **place,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "source": {"component": labels.FIELD_MANAGER},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        **_precise(now),
    }


def _precise(now: datetime) -> Object:
    """The time in microseconds, and the fields that an Event with such a time must have."""
    return {
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "action": "Reconcile",
        "reportingComponent": labels.FIELD_MANAGER,
        "reportingInstance": labels.FIELD_MANAGER,
    }


async def _post(client: Client, body: Object) -> None:
    try:
        await client.create(EVENTS, body)
    except Exists:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        known = await client.get(EVENTS, namespace, name)
        if (known.get("lastTimestamp") or "") >= body["lastTimestamp"]:
            return  # posted already: the response was lost, or the process that posted it died
        again = ("lastTimestamp", "eventTime", "action", "reportingComponent", "reportingInstance")
        count = {"count": int(known.get("count") or 1) + 1}
        await client.patch(EVENTS, namespace, name, count | {field: body[field] for field in again})
