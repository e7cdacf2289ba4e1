"""The fetcher's egress: which URLs it requests, and which addresses it connects to.

The address is checked when it is connected to, not when a name is looked up: so neither a name that changes its
address nor an unusual spelling leads elsewhere. Redirects are checked before they are followed.
"""

import http.client
import ipaddress
import socket
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from slipway_process.network.addresses import LOOPBACK, Network, Reach, canonical, described

from .folder import FetchError

ALLOW_NETWORKS = "SLIPWAY_FETCHER_ALLOW_NETWORKS"
PORTS = {"https": 443, "http": 80}
# Sent again after a redirect only where it leads to the same scheme, host and port.
CREDENTIALS = ("Authorization", "Cookie", "Proxy-authorization")


class RefusedError(FetchError):
    """An address or URL that the fetcher does not go to."""


@dataclass(frozen=True, slots=True)
class EgressRules:
    """Where connections may lead.

    Public addresses always; private ones where the user wrote the host, or a setting has the network; loopback where a
    setting names the host; metadata services, link-local and reserved addresses never.
    """

    written: frozenset[str] = frozenset()  # hosts that the user wrote
    hosts: frozenset[str] = frozenset()  # from --allow-host: may be on this machine too
    networks: tuple[Network, ...] = field(default=())  # private networks that every host's address may be in

    @classmethod
    def of(cls, hosts: Iterable[str] = (), networks: Iterable[str] = ()) -> "EgressRules":
        """The rules of the settings; `networks` are written as CIDR.

        Raises:
            FetchError: for a text that is no network.
        """
        try:
            found = tuple(ipaddress.ip_network(text) for text in networks)
        except ValueError as error:
            raise FetchError(f"A network that the fetcher may reach is written like 10.0.0.0/8: {error}.") from None
        return cls(hosts=frozenset(host.lower() for host in hosts), networks=found)

    def with_written(self, *urls: str) -> "EgressRules":
        """A copy that also allows private addresses of these URLs' hosts, which the user wrote."""
        hosts = {urlsplit(url).hostname or "" for url in urls} - {""}
        return EgressRules(self.written | hosts, self.hosts, self.networks)


def shown(url: str) -> str:
    """A URL without user, password, query and fragment: these may hold secrets, and messages are read by many."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
    except ValueError:
        return "a URL that cannot be read"


def check_url(rules: EgressRules, url: str, *, insecure: bool) -> SplitResult:
    """Refuse everything but an https:// URL of a host; http:// only where `insecure`.

    Raises:
        RefusedError: with the reason.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RefusedError("The URL cannot be read: write https://host/path.") from None
    if parts.username is not None or parts.password is not None:
        raise RefusedError(f"{shown(url)} is written with a user or password: leave them out of the URL.")
    if parts.scheme not in ("https", *(("http",) if insecure else ())):
        raise RefusedError(f"{shown(url)} is not https.")
    if not parts.hostname or port == 0:
        raise RefusedError(f"{shown(url)} names no host.")
    try:
        canonical(parts.hostname)
    except ValueError:
        return parts  # a name: its address is checked when it is connected to
    check_address(rules, parts.hostname, parts.hostname)
    return parts


def check_address(rules: EgressRules, host: str, address: str) -> None:
    """Refuse an address of a host.

    Raises:
        RefusedError: with the host, the address and its kind.
    """
    found, host = canonical(address), host.lower()
    reach, kind = described(found)
    within = any(found in network for network in rules.networks)
    allowed = {
        Reach.PUBLIC: True,
        Reach.PRIVATE: host in rules.written or host in rules.hosts or within,
        Reach.RESERVED: False,
        Reach.FORBIDDEN: kind == LOOPBACK and host in rules.hosts,
    }[reach]
    if not allowed:
        advice = f": list its network in {ALLOW_NETWORKS} if it is meant" if reach is Reach.PRIVATE else ""
        raise RefusedError(f"{host} leads to {address}, {kind}, where models are not fetched from{advice}.")


def connect(
    rules: EgressRules, address: tuple[str, int], timeout: Any = None, source_address: Any = None
) -> socket.socket:
    """As `socket.create_connection`, to addresses that the rules allow."""
    host, port = address
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        check_address(rules, host, str(where[0]))
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout)
            connection.connect(where)
            check_address(rules, host, str(connection.getpeername()[0]))
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except RefusedError:
            connection.close()
            raise
    raise failure


def opener(rules: EgressRules) -> urllib.request.OpenerDirector:
    """An opener for http, https, redirects and the environment's proxies, and nothing else: no file:, ftp:, data:."""
    proxies = {scheme: url for scheme, url in urllib.request.getproxies().items() if scheme in PORTS}
    rules = rules.with_written(*(url if "://" in url else f"http://{url}" for url in proxies.values()))
    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(proxies),
        _Http(rules),
        _Https(rules),
        _Redirects(rules),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        director.add_handler(handler)
    return director


class _HttpConnection(http.client.HTTPConnection):
    def __init__(self, rules: EgressRules, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = partial(connect, rules)


class _HttpsConnection(http.client.HTTPSConnection):
    def __init__(self, rules: EgressRules, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._create_connection = partial(connect, rules)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, rules: EgressRules) -> None:
        super().__init__()
        self._rules = rules

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_HttpConnection, self._rules), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, rules: EgressRules) -> None:
        super().__init__()
        self._rules = rules

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_HttpsConnection, self._rules), req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections: ClassVar[int] = 5

    def __init__(self, rules: EgressRules) -> None:
        self._rules = rules

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        before = urlsplit(req.full_url)
        try:
            after = check_url(self._rules, newurl, insecure=before.scheme == "http")
        except RefusedError as error:
            fp.close()
            raise RefusedError(f"{shown(req.full_url)} redirects where the fetcher does not go: {error}") from None
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            for name in CREDENTIALS:
                new.remove_header(name)
                if _origin(before) == _origin(after) and (value := req.unredirected_hdrs.get(name)):
                    new.add_unredirected_header(name, value)
        return new


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)
