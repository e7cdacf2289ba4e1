"""Which rule of a ModelRoute a request fits, and why it does not fit the others (pure).

All comparisons are of whole texts and of beginnings, so their time is linear in what people wrote. The schema bounds
how many there are: 64 rules with 4 matches of 4 headers and 16 tenants.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from slipway_contracts.model_routes.spec import (
    DAYS,
    RouteClassifier,
    RouteHeader,
    RouteMatch,
    RouteRange,
    RouteRule,
    RouteTime,
)

# By which tokens are estimated from bytes; see `RouteMatch.prompt_tokens` for the error.
BYTES_PER_TOKEN = 4
_ONE_DAY = timedelta(days=1)


class RoutedRequest(Protocol):
    """What rules look at. Each is read only where a rule needs it.

    `headers`: by their names, case-insensitive. `tenant`: empty without one. `arrived`: with a time zone.
    """

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def tenant(self) -> str: ...
    @property
    def prompt_bytes(self) -> int: ...
    @property
    def has_tools(self) -> bool: ...
    @property
    def has_images(self) -> bool: ...
    @property
    def has_code(self) -> bool: ...
    @property
    def arrived(self) -> datetime: ...


Classified = Callable[[RouteClassifier], bool]  # whether a request fits by a classifier


def assumed(classifier: RouteClassifier) -> bool:
    """Whether a request fits where its classifier is not called."""
    return classifier.default


class Explained(NamedTuple):
    """One rule and a request. `reasons`: for each match why the request does not fit it; empty: it fits the rule."""

    rule: RouteRule
    reasons: tuple[str, ...]


def select(rules: Collection[RouteRule], request: RoutedRequest, classified: Classified = assumed) -> RouteRule | None:
    """The first rule that a request fits; None: it fits none. `classified`: calls a classifier when a rule needs it."""
    return next((rule for rule in rules if not rule.matches or _fits_any(rule, request, classified)), None)


def explain(rules: Collection[RouteRule], request: RoutedRequest) -> Iterator[Explained]:
    """The rules up to the one that decides, with the reasons why a request does not fit them.

    No classifier is called: each has its default.
    """
    for rule in rules:
        reasons = tuple(why_not(match, request) for match in rule.matches)
        fits = not reasons or "" in reasons
        yield Explained(rule, () if fits else reasons)
        if fits:
            return


def why_not(match: RouteMatch, request: RoutedRequest, classified: Classified = assumed) -> str:
    """The first condition of a match that a request does not meet; empty: it meets all."""
    return next(_unmet(match, request, classified), "")


def tokens_of(prompt_bytes: int) -> int:
    """The estimated tokens of a prompt."""
    return -(-prompt_bytes // BYTES_PER_TOKEN)


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of a name; None: there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # the last two of names that no file can have
        return None


def fits_header(header: RouteHeader, headers: Mapping[str, str]) -> bool:
    """Whether a request has a header. `headers` is case-insensitive."""
    value = headers.get(header.name)
    if value is None:
        return False
    exact, prefix = header.exact, header.prefix
    if header.name.lower() == "host":
        value, exact, prefix = host_name(value), exact and exact.lower(), prefix and prefix.lower()
    return value == exact if exact is not None else prefix is not None and value.startswith(prefix)


def host_name(host: str) -> str:
    """The host in lower case and without the port; an IPv6 address keeps its colons."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() and not name.endswith(":") else host).lower()


def is_within(times: RouteTime, moment: datetime) -> bool:
    """Whether a moment is within times of day, by the clock of their time zone. One that is unknown has no times."""
    zone = zone_of(times.time_zone)
    if zone is None:
        return False
    local = moment.astimezone(zone)
    clock = f"{local:%H:%M}"
    if times.start <= times.end:
        return times.start <= clock <= times.end and _is_on(times, local)
    # The times go over midnight: before their end they began on the day before.
    return (clock >= times.start and _is_on(times, local)) or (clock <= times.end and _is_on(times, local - _ONE_DAY))


def _is_on(times: RouteTime, local: datetime) -> bool:
    return not times.days or DAYS[local.weekday()] in times.days


def _fits_any(rule: RouteRule, request: RoutedRequest, classified: Classified) -> bool:
    return any(not why_not(match, request, classified) for match in rule.matches)


def _unmet(match: RouteMatch, request: RoutedRequest, classified: Classified) -> Iterator[str]:
    """The conditions that a request does not meet. Those that need no look at its body come first."""
    if match.tenants and not _is_one_of(request.tenant, match.tenants):
        yield f"tenant {request.tenant} is none of {', '.join(match.tenants)}" if request.tenant else "it has no tenant"
    for header in match.headers:
        if not fits_header(header, request.headers):
            yield _shown(header)
    if match.time is not None and not is_within(match.time, request.arrived):
        yield _times(match.time)
    if match.prompt_bytes is not None and not _is_in(match.prompt_bytes, request.prompt_bytes):
        yield f"its prompt has {request.prompt_bytes} bytes, not {_range(match.prompt_bytes)}"
    if match.prompt_tokens is not None and not _is_in(match.prompt_tokens, tokens_of(request.prompt_bytes)):
        yield f"its prompt has about {tokens_of(request.prompt_bytes)} tokens, not {_range(match.prompt_tokens)}"
    for wanted, name in ((match.has_tools, "tools"), (match.has_images, "images"), (match.has_code, "code")):
        if wanted is not None and wanted != getattr(request, f"has_{name}"):
            yield f"it has {'no ' if wanted else ''}{name}"
    if match.classifier is not None and not classified(match.classifier):
        yield f"{match.classifier.deployment_ref.name} does not predict {match.classifier.label}"


def _is_one_of(tenant: str, patterns: Collection[str]) -> bool:
    return bool(tenant) and any(
        tenant.startswith(pattern[:-1]) if pattern.endswith("*") else tenant == pattern for pattern in patterns
    )


def _is_in(limits: RouteRange, number: int) -> bool:
    return (limits.min is None or number >= limits.min) and (limits.max is None or number <= limits.max)


def _range(limits: RouteRange) -> str:
    bounds = ((limits.min, "at least"), (limits.max, "at most"))
    return " and ".join(f"{word} {bound}" for bound, word in bounds if bound is not None)


def _shown(header: RouteHeader) -> str:
    if header.exact is not None:
        return f"header {header.name} is not {header.exact}"
    return f"header {header.name} does not begin with {header.prefix}"


def _times(times: RouteTime) -> str:
    if zone_of(times.time_zone) is None:
        return f"time zone {times.time_zone} is not known"
    days = f" on {', '.join(times.days)}" if times.days else ""
    return f"it is not from {times.start} to {times.end}{days} in {times.time_zone}"
