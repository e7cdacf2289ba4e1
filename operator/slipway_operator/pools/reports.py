"""What a pod of a pool reports: the index of its entries, and their memory.

Size and time of an answer are bounded, because the pod belongs to a tenant.
"""

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

import aiohttp
from yarl import URL

from slipway_operator.api.objects import Object
from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.manifests.pods.certificate import PORT_NAME
from slipway_operator.model.pool_views import MAX_ENTRIES, READY, EntryState, PoolPod
from slipway_operator.model.text import printable
from slipway_process.network.guarded import read_body
from slipway_process.network.host_names import host_name, pod_zone

TIMEOUT_S, LOAD_TIMEOUT_S = 3.0, 2.0
LARGEST_BYTES = 1 << 20
LONGEST_REASON = 512
MAX_BYTES = 1 << 60
_MEMORY = re.compile(r"^slipway_server_pool_memory(_limit)?_bytes ([0-9.e+]{1,24})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """A ready pod. `tls`: it serves HTTPS at its port."""

    name: str
    namespace: str
    address: str
    port: int = HTTP_PORT
    tls: bool = False

    @classmethod
    def of(cls, pod: Object) -> "PoolTarget":
        """The address and port of a pod, by the names of its containers' ports, as gateways choose them."""
        containers = (pod.get("spec") or {}).get("containers") or ()
        ports = {one.get("name"): one.get("containerPort") for item in containers for one in item.get("ports") or ()}
        metadata, address = pod["metadata"], str((pod.get("status") or {}).get("podIP") or "")
        encrypted = ports.get(PORT_NAME)
        port = int(encrypted or ports.get("http") or HTTP_PORT)
        return cls(metadata["name"], metadata["namespace"], address, port, bool(encrypted))

    @property
    def origin(self) -> str:
        """Scheme, host and port of the pod's server, as the start of a URL."""
        if self.tls:
            return f"https://{host_name(self.address, pod_zone(self.namespace))}:{self.port}"
        return f"http://[{self.address}]:{self.port}" if ":" in self.address else f"http://{self.address}:{self.port}"


async def read_pod(session: aiohttp.ClientSession, pod: PoolTarget) -> PoolPod:
    """Read a pod's entries, and its memory in bytes; `entries` is None where it does not answer as a pool does."""
    try:
        index, page = await asyncio.gather(
            _body(session, "POST", f"{pod.origin}/v2/repository/index"), _body(session, "GET", f"{pod.origin}/metrics")
        )
        entries = _entries(json.loads(index))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
        return PoolPod(pod.name)
    memory = {limit: _number(value) for limit, value in _MEMORY.findall(page.decode("ascii", "replace"))}
    loaded = sum(one.in_memory for one in entries.values())
    return PoolPod(pod.name, entries, loaded, memory.get("", 0), memory.get("_limit", 0))


async def load(session: aiohttp.ClientSession, pod: PoolTarget, name: str, revision: str) -> None:
    """Make a pod load an entry. Errors are ignored, and loading goes on after the timeout: the next look reads it."""
    url = URL(f"{pod.origin}/revisions/{revision}/v2/repository/models/{quote(name, safe=':')}/load", encoded=True)
    limit = aiohttp.ClientTimeout(total=LOAD_TIMEOUT_S)
    try:
        async with session.post(url, timeout=limit, allow_redirects=False) as response:
            await response.content.read(LARGEST_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return


async def _body(session: aiohttp.ClientSession, method: str, url: str) -> bytes:
    limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with session.request(method, url, timeout=limit, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"{url} answers {response.status}")
        body = await read_body(response, LARGEST_BYTES)
    if len(body) > LARGEST_BYTES:
        raise ValueError(f"{url} has more than {LARGEST_BYTES} bytes")
    return body


def _entries(index: object) -> dict[str, EntryState]:
    if not isinstance(index, list):
        raise ValueError("the index of a pool is a list")
    found: dict[str, EntryState] = {}
    for one in _objects(index[:MAX_ENTRIES]):
        revision = one.get("revision") or one.get("version")
        if isinstance(revision, str) and len(revision) <= 128:
            state, reason = str(one.get("state")), printable(str(one.get("reason") or "")[:LONGEST_REASON])
            found[revision] = EntryState(state, reason, state == READY)
    return found


def _objects(items: Iterable[object]) -> Iterable[dict[str, object]]:
    return (one for one in items if isinstance(one, dict))


def _number(text: str) -> int:
    try:
        return int(min(float(text), MAX_BYTES))
    except (ValueError, OverflowError):
        return 0
