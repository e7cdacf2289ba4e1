"""How a Redis or Valkey server is reached: one by its address, or the primary that Sentinels name."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

# Schemes of Sentinel, each with that of the servers; settings.py lists the same ones.
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}
_FAILURES = (RedisError, OSError, TimeoutError)


class ClusterNode(RedisError):
    """The server is a node of a Redis Cluster, which has only the keys of some tenants."""


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """`redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB`. `url`: the servers' options as a Redis URL."""

    sentinels: Sequence[tuple[str, int]]
    service: str
    url: str
    credentials: dict[str, str]  # of the Sentinels


def open_client(url: str, connections: int, timeout_s: float) -> Redis:
    """A client that is not connected yet. Calls and connects take `timeout_s` at most, and it never retries.

    Raises:
        ValueError: the URL is invalid; the message names what is wrong, without the password.
    """
    try:
        _check_options(url)
        pool: Any = _pool(url, connections, timeout_s)
        pool.make_connection()  # what the library refuses is found here, and not in the first call
    except (ValueError, RedisError) as error:
        raise ValueError(f"--redis-url: {error}") from None
    return Redis(connection_pool=pool)


async def drop_connections(client: Redis) -> None:
    """Closes all connections after a failure, so that the next call connects again, perhaps to a new primary."""
    pool: Any = client.connection_pool
    sentinels = pool.sentinel_manager.sentinels if isinstance(pool, SentinelConnectionPool) else ()
    for one in (pool, *(sentinel.connection_pool for sentinel in sentinels)):
        with contextlib.suppress(*_FAILURES):
            await one.disconnect()


async def refuse_cluster(client: Redis) -> None:
    """Checks that the server is no node of a cluster, where only some tenants would be counted.

    Raises:
        ClusterNode: it is one.
    """
    try:
        found = await client.info("cluster")
    except _FAILURES:
        return  # INFO may be forbidden; a server that is away fails the next call too
    if found.get("cluster_enabled"):
        raise ClusterNode("the server of --redis-url is a node of a Redis Cluster: use one server, or Sentinel")


def parse_sentinel(url: str) -> SentinelUrl:
    """
    Raises:
        ValueError: a part is missing or cannot be read.
    """
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("the path must name the service that Sentinels watch: redis+sentinel://HOST:26379/SERVICE")
    if database and not database.isdigit():
        raise ValueError("the part after the service must be the number of a database")
    given = parse_qsl(parts.query)
    credentials = {_SENTINEL_OPTIONS[name]: value for name, value in given if name in _SENTINEL_OPTIONS}
    options = urlencode([(name, value) for name, value in given if name not in _SENTINEL_OPTIONS])
    at = f"{user}@" if user else ""
    server = f"{SENTINEL_SCHEMES[parts.scheme]}://{at}sentinel/{database or 0}?{options}"
    return SentinelUrl([_address(host) for host in hosts.split(",")], unquote(service), server, credentials)


def _check_options(url: str) -> None:
    """
    Raises:
        ValueError: an option is unknown. The library accepts any value of its many options and fails later.
    """
    parts = urlsplit(url)
    known = {"db"} if parts.scheme not in SENTINEL_SCHEMES else set(_SENTINEL_OPTIONS)
    if parts.scheme.startswith("rediss"):
        known |= _TLS_OPTIONS
    for name, _ in parse_qsl(parts.query):
        if name not in known:
            raise ValueError(f"unknown option {name[:100]!r}; known ones of {parts.scheme}: {', '.join(sorted(known))}")


def _address(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ValueError("each Sentinel must be HOST or HOST:PORT, with commas between them")
    return host, SENTINEL_PORT if port is None else port


def _pool(url: str, connections: int, timeout_s: float) -> ConnectionPool:
    bounds: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if urlsplit(url).scheme not in SENTINEL_SCHEMES:
        made: ConnectionPool = BlockingConnectionPool.from_url(
            url, max_connections=connections, timeout=timeout_s, **bounds
        )
        return made
    named = parse_sentinel(url)
    options: dict[str, Any] = {**parse_url(named.url)}
    secure = options.pop("connection_class", None) is not None
    options.pop("host", None)
    of_tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    sentinels: Any = _Sentinels(  # type: ignore[no-untyped-call]
        named.sentinels, sentinel_kwargs=bounds | of_tls | {"ssl": secure, "max_connections": 1} | named.credentials
    )
    pool: Any = SentinelConnectionPool  # the library has no types of it
    of_primary: ConnectionPool = pool(
        named.service, sentinels, ssl=secure, max_connections=connections, **bounds, **options
    )
    return of_primary


class _Sentinels(Sentinel):
    """Calls all Sentinels at once, so that those that are away do not delay the answer of another one."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """
        Raises:
            MasterNotFoundError: none of them names a primary that is up.
        """
        calls = [asyncio.ensure_future(self._primary(one, service_name)) for one in self.sentinels]
        try:
            for call in asyncio.as_completed(calls):
                if address := await call:
                    return address
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        raise MasterNotFoundError(f"no Sentinel of --redis-url names a primary of {service_name!r} that is up")

    async def _primary(self, sentinel: Redis, service: str) -> tuple[str, int] | None:
        try:
            known: Any = await sentinel.sentinel_masters()
        except _FAILURES:
            return None
        state = known.get(service)
        return (state["ip"], state["port"]) if state and self.check_master_state(state, service) else None
