"""Calls webhooks: one POST each to listed hosts, over connections that are kept, without redirects or proxies."""

import time
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from slipway_contracts.guards import GuardSecretRef, GuardWebhook
from slipway_process.network.guarded import guard_listed, read_body
from slipway_process.network.listed_hosts import ListedHosts

from ..scorers.resolver import HostResolver
from .protocol import GuardFailed

MAX_RESPONSE_BYTES = 256 << 10
_MAX_SECRET_BYTES = 4 << 10
_SECRET_S = 10.0  # for which a key that was read is used
_KEEP_S = 15.0


class GuardSecrets:
    """Keys of the Secrets that the administrator mounted into one folder, each Secret as a folder of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None
        self._read: dict[GuardSecretRef, tuple[float, str]] = {}

    def token(self, ref: GuardSecretRef) -> str:
        """The value of a key. Raises GuardFailed: there is none, or it is no token."""
        now_s = time.monotonic()
        known = self._read.get(ref)
        if known is None or now_s - known[0] > _SECRET_S:
            known = self._read[ref] = (now_s, self._load(ref))
        return known[1]

    def _load(self, ref: GuardSecretRef) -> str:
        if self._folder is None or ".." in (ref.name, ref.key):
            raise GuardFailed(f"no Secret {ref.name} is mounted")
        try:
            with open(self._folder / ref.name / ref.key, "rb") as file:
                token = file.read(_MAX_SECRET_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise GuardFailed(f"the key {ref.key} of the Secret {ref.name} is not mounted, or no text") from None
        if not token or not token.isprintable():
            raise GuardFailed(f"the key {ref.key} of the Secret {ref.name} is no token")
        return token


class WebhookClient:
    """Calls webhooks at listed hosts. `resolver`: replaces the system's resolver in tests."""

    def __init__(
        self, hosts: ListedHosts, secrets: GuardSecrets, most: int, resolver: AbstractResolver | None = None
    ) -> None:
        """`most`: connections."""
        self._hosts, self._secrets, self._most = hosts, secrets, most
        self._resolver = resolver or HostResolver("guard-names")
        self._session: aiohttp.ClientSession | None = None

    async def call(self, webhook: GuardWebhook, body: bytes) -> bytes:
        """The response to one POST. The caller limits its time.

        Raises:
            GuardFailed: there is none that may be used.
        """
        url = self._hosts.read(webhook.url)
        if url is None:
            raise GuardFailed("its host is not in --guard-hosts of the gateways")
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "slipway-gateway"}
        if webhook.secret_ref is not None:
            headers["Authorization"] = f"Bearer {self._secrets.token(webhook.secret_ref)}"
        try:
            try:
                return await self._exchange(url, body, headers)
            except aiohttp.ServerDisconnectedError:
                # The server closed a connection that was kept. A guard that is called again decides the same.
                return await self._exchange(url, body, headers)
        except (aiohttp.ClientError, OSError, ValueError):
            raise GuardFailed("it cannot be reached, or its address must not be connected to") from None

    async def _exchange(self, url: URL, body: bytes, headers: dict[str, str]) -> bytes:
        if self._session is None:
            # Each connection is checked when it is made.
            self._session = guard_listed(self._hosts).session(self._resolver, keeps=self._most, keep_s=_KEEP_S)
        # A redirect would carry contents to a host that no administrator listed.
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise GuardFailed(f"its response has status {response.status}")
            received = await read_body(response, MAX_RESPONSE_BYTES)
            if len(received) > MAX_RESPONSE_BYTES:
                raise GuardFailed(f"its response has more than {MAX_RESPONSE_BYTES >> 10} KiB")
            return received

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()
