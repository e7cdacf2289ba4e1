"""Counts a sample of the fast lane's requests again, by Python's functions: the judge relies on both lanes alike."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from multidict import CIMultiDict

from slipway_contracts.route_table import Backend

from ..judging.samples import stratum
from ..routing.router import assign_revision
from ..routing.table import Route
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..wire import headers, request_fields
from ..wire.errors import RequestError
from ..wire.inference import is_inference_protocol
from ..wire.request_fields import RequestFields
from ..wire.responses import find_failures, is_text_path

if TYPE_CHECKING:
    from slipway_plane import _native

log = logging.getLogger(__name__)


class Recounter:
    """Compares what the lane made of requests with what Python makes of them.

    `on_difference`: called at the first difference of each kind.
    """

    def __init__(self, settings: GatewaySettings, metrics: GatewayMetrics, on_difference: Callable[[], None]) -> None:
        self._settings, self._metrics, self._on_difference = settings, metrics, on_difference
        self._differing: dict[str, set[str]] = {}  # kinds by route

    def differing(self, route: str) -> tuple[str, ...]:
        """In what requests of a route were counted differently since the process began, in alphabetical order."""
        return tuple(sorted(self._differing.get(route, ())))

    def look(self, one: "_native.Recount") -> None:
        """Counts one request again."""
        found = self._differences(one)
        for kind in found or ("",):
            self._metrics.recounted(kind or "same")
        for kind in set(found) - self._differing.get(one.route, set()):
            self._differing.setdefault(one.route, set()).add(kind)
            log.error(
                "the data plane and Python count a request differently: all requests are Python's now; report it",
                extra={"kind": kind, "route": one.route, "request_id": one.request_id},
            )
            self._on_difference()

    def _differences(self, one: "_native.Recount") -> list[str]:
        head, _, body = one.request.partition(b"\r\n\r\n")
        path, given = _head(head)
        try:
            # The lane reads the body of no path with a model in it.
            fields = RequestFields() if is_inference_protocol(path) else request_fields.parse(body)
        except RequestError:
            return ["refused"]
        settings = self._settings
        request_id = headers.request_id(given) or one.request_id
        key = request_fields.sticky_key(given, fields, request_id, settings.sticky_by)
        backends = tuple(Backend(revision, weight) for revision, weight in one.weights)
        route = Route(one.route, "", "", salt=one.salt, backends=backends)
        same = {
            "request_id": request_id == one.request_id,
            "key": key.encode("utf-8", "surrogatepass") == one.key,
            "client": request_fields.client(given, one.owner, settings.share_by) == one.client,
            "revision": assign_revision(route, key) == one.own,
            "stratum": stratum(len(one.sent), stream=False) == one.stratum,
            "stream": not fields.streams,
            "outcome": not (is_text_path(path) and find_failures(one.response, wants_json=fields.wants_json)),
        }
        return [kind for kind, holds in same.items() if not holds]


def _head(head: bytes) -> tuple[str, CIMultiDict[str]]:
    """The path and the headers of a head that the lane took: its lines are ASCII."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first.split(" ")[1], CIMultiDict((name, value.strip(" \t")) for name, _, value in pairs)
