"""Counts a sample of the fast lane's requests again, by Python's functions: the judge relies on both lanes alike."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from multidict import CIMultiDict

from slipway_contracts.headers import PROMPT_TOKENS
from slipway_contracts.route_table import Backend

from ..identity.authenticate import AuthReason, AuthRefusal, RequestIdentity, authenticate
from ..identity.tenants import TenantTable
from ..judging.samples import stratum
from ..quotas.bounds import bound_of
from ..quotas.estimate import Estimate, estimate
from ..quotas.meter import Meter
from ..quotas.prices import Price
from ..quotas.usage import Usage
from ..routing.router import assign_revision
from ..routing.table import Route
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..wire import headers, request_fields
from ..wire.errors import RequestError
from ..wire.inference import is_inference_protocol
from ..wire.request_fields import RequestFields
from ..wire.responses import WITHOUT_MODEL, find_failures, is_text_path

if TYPE_CHECKING:
    from slipway_plane import _native

log = logging.getLogger(__name__)


class _Copies(Protocol):
    def differs(self, one: "_native.Recount", path: str, headers: Mapping[str, str], tenant: str) -> bool:
        """Whether a request got another response than Python would give it, as far as that is known still."""


class _Prompts(Protocol):
    def compare(
        self, one: "_native.RecountedPrompt", path: str, fields: RequestFields, route: Route, tenant: str, key: str
    ) -> dict[str, bool]:
        """Whether a prompt has the same blocks in Python, and by what was known then the same endpoint, by kind.

        `tenant`: the pseudonym that servers get. `key`: the request's sticky key.
        """


class Recounter:
    """Compares what the lane made of requests with what Python makes of them.

    `on_difference`: called at the first difference of each kind. `tenants`: the table of a publication; None: it is no
    longer in use.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
        on_difference: Callable[[], None],
        tenants: Callable[[int], TenantTable | None],
    ) -> None:
        self._settings, self._metrics, self._on_difference = settings, metrics, on_difference
        self._tenants = tenants
        self._differing: dict[str, set[str]] = {}  # kinds by route
        self.copies: _Copies | None = None  # of kept responses, where the lane has some
        self.prompts: _Prompts | None = None  # by which endpoints are chosen

    def differing(self, route: str) -> tuple[str, ...]:
        """In what requests of a route were counted differently since the process began, in alphabetical order."""
        return tuple(sorted(self._differing.get(route, ())))

    def look(self, one: "_native.Recount") -> None:
        """Counts one request again."""
        self.counted_again(one.route, self._differences(one), one.request_id)

    def counted_again(self, route: str, found: Sequence[str], request_id: str) -> None:
        """A request, or a part of a stream, was counted again. `found`: in what it differs."""
        for kind in found or ("",):
            self._metrics.recounted(kind or "same")
        for kind in set(found) - self._differing.get(route, set()):
            self._differing.setdefault(route, set()).add(kind)
            log.error(
                "the data plane and Python count a request differently: all requests are Python's now; report it",
                extra={"kind": kind, "route": route, "request_id": request_id},
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
        paid = one.paid
        own = f"key:{paid.tenant}/{paid.key}" if paid else ""
        key = request_fields.sticky_key(given, fields, request_id, settings.sticky_by, own)
        client = f"tenant:{paid.tenant}" if paid else request_fields.client(given, one.owner, settings.share_by)
        backends = tuple(Backend(revision, weight) for revision, weight in one.weights)
        route = Route(one.route, "", "", salt=one.salt, backends=backends)
        salt = settings.tenant_salt.get_secret_value()
        known = request_fields.tenant(given, fields, settings.tenant_by, salt)
        tenant = request_fields.pseudonym(client, salt) if paid else known
        same = {
            "request_id": request_id == one.request_id,
            "key": key.encode("utf-8", "surrogatepass") == one.key,
            "client": client == one.client,
            "revision": assign_revision(route, key) == one.own,
            "stratum": stratum(len(one.sent), stream=False, cached=one.prompt is not None and one.prompt.is_cached)
            == one.stratum,
            "stream": not fields.streams,
        }
        if one.hit is None:
            failures = is_text_path(path) and find_failures(one.response, wants_json=fields.wants_json)
            same["outcome"] = not failures
        elif self.copies is not None:
            same["copy"] = not self.copies.differs(one, path, given, tenant)
        if one.prompt is not None and self.prompts is not None:
            same |= self.prompts.compare(one.prompt, path, fields, route, tenant, key)
        if paid and (table := self._tenants(paid.table)):
            same |= _compare_paid(one, paid, table, _Sent(path, given, fields))
        return [kind for kind, holds in same.items() if not holds]


class _Sent(NamedTuple):
    """A request that a client sent."""

    path: str
    headers: CIMultiDict[str]
    fields: RequestFields


def _compare_paid(one: "_native.Recount", paid: "_native.Paid", table: TenantTable, request: _Sent) -> dict[str, bool]:
    """Whether the tenant of a request, what it reserved and what it paid are the same here, by kind."""
    found = authenticate(request.headers, table, time.time())
    if found == AuthRefusal(AuthReason.EXPIRED):
        return {}  # since then
    if not isinstance(found, RequestIdentity) or (found.name, found.key_id) != (paid.tenant, paid.key):
        return {"identity": False}
    policy = found.tenant.policy
    price = policy.price_of(one.route, one.model)
    if one.hit is not None:
        return _compare_hit(paid, one.hit, price)
    reserved = estimate(
        request.fields,
        request.path,
        len(one.sent),
        policy.output_tokens,
        computes=request.path not in WITHOUT_MODEL,
        writes_text=is_text_path(request.path),
    )
    bound = bound_of(request.path, one.sent, request.fields)
    meter = Meter("", paid.tenant, paid.key, estimate=reserved, bound=bound, price=price)
    meter.begin("", {} if paid.prompt_tokens is None else {PROMPT_TOKENS: str(paid.prompt_tokens)}, continues=False)
    meter.add_body(one.response)
    charge = meter.charge()
    return {
        "reserved": (reserved.input_tokens, reserved.output_tokens) == paid.reserved,
        "usage": charge is not None and (charge.usage, charge.estimated) == (Usage(*paid.usage), paid.is_estimated),
        "cost": charge is not None and charge.cost_nano == paid.cost_nano,
    }


def _compare_hit(paid: "_native.Paid", hit: "_native.RecountedHit", price: Price) -> dict[str, bool]:
    """Whether what the copy of a kept response took from limits, and what it cost, are the same here."""
    tokens, saved_nano = hit.saved
    meter = Meter("", paid.tenant, paid.key, estimate=Estimate(), price=price)
    meter.hit(hit.revision, Usage(*tokens))
    meter.admitted = True
    charge, saved = meter.charge(), meter.saved
    return {
        "reserved": (meter.estimate.input_tokens, meter.estimate.output_tokens) == paid.reserved,
        "usage": charge is not None and (charge.usage, charge.estimated) == (Usage(*paid.usage), paid.is_estimated),
        "cost": charge is not None and charge.cost_nano == paid.cost_nano,
        "saved": saved is not None and saved.cost_nano == saved_nano,
    }


def _head(head: bytes) -> tuple[str, CIMultiDict[str]]:
    """The path and the headers of a head that the lane took: its lines are ASCII."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first.split(" ")[1], CIMultiDict((name, value.strip(" \t")) for name, _, value in pairs)
