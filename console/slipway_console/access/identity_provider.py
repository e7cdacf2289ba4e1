"""An OpenID provider: where it signs users in, and the ID token for a code; bounded in time and bytes."""

import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus, urlsplit

import aiohttp
import msgspec
from oauthlib.oauth2 import OAuth2Error, WebApplicationClient

from slipway_console.access.oidc import Flow, IdToken, check_id_token
from slipway_console.access.reading import read_whole
from slipway_console.access.refusal import ApiRefusal, unavailable
from slipway_process import json_bounds

MOST_BYTES = 256 << 10
MOST_NUMBERS = 4096
FRESH_S = 300.0  # of what the provider says about itself
_DISCOVERY = "/.well-known/openid-configuration"
_FORM = "application/x-www-form-urlencoded"


class Described(msgspec.Struct):
    """What a provider says about itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


@dataclass(frozen=True, slots=True)
class Client:
    """The console as a client of its provider. `secret`: "" of a public client, which PKCE alone protects."""

    issuer: str
    id: str
    redirect_uri: str
    scopes: tuple[str, ...]
    secret: str = field(default="", repr=False)


class IdentityProvider:
    """Each method raises ApiRefusal with a sentence for the viewer."""

    def __init__(
        self, session: aiohttp.ClientSession, client: Client, clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._session, self.client, self._clock, self._unix_time = session, client, clock, unix_time
        self._described: tuple[float, Described] | None = None

    async def address(self, flow: Flow) -> str:
        """Where the browser signs in."""
        endpoint = (await self._description()).authorization_endpoint
        requests = WebApplicationClient(self.client.id)
        challenge = requests.create_code_challenge(flow.verifier, "S256")
        address: str = requests.prepare_request_uri(
            endpoint, self.client.redirect_uri, list(self.client.scopes), flow.state,
            code_challenge=challenge, code_challenge_method="S256", nonce=flow.nonce,
        )  # fmt: skip
        return address

    async def id_token(self, code: str, flow: Flow) -> IdToken:
        """The token of the user who has signed in."""
        described, client = await self._description(), self.client
        text = await self._exchange(described, code, flow)
        keys = _object(await self._read("GET", described.jwks_uri))
        return check_id_token(text, keys, client.issuer, client.id, flow.nonce, self._unix_time())

    async def _exchange(self, described: Described, code: str, flow: Flow) -> str:
        requests, client = WebApplicationClient(self.client.id), self.client
        headers, more = {"Content-Type": _FORM, "Accept": "application/json"}, {}
        by_header = "client_secret_basic" in described.token_endpoint_auth_methods_supported
        if client.secret and by_header:
            headers["Authorization"] = aiohttp.encode_basic_auth(quote_plus(client.id), quote_plus(client.secret))
        elif client.secret:
            more["client_secret"] = client.secret
        body = requests.prepare_request_body(
            code, client.redirect_uri, include_client_id=not (client.secret and by_header),
            code_verifier=flow.verifier, **more,
        )  # fmt: skip
        answer = await self._read("POST", described.token_endpoint, body, headers, refusals=(400, 401))
        try:
            tokens = requests.parse_request_body_response(answer.decode())
        except (OAuth2Error, ValueError, Warning) as error:
            sentence = "The identity provider gave no token for this sign-in: begin it again."
            raise ApiRefusal(403, sentence, getattr(error, "error", "")) from None
        text = tokens.get("id_token")
        if not isinstance(text, str):
            raise ApiRefusal(
                502, "The identity provider gave no ID token: the scope `openid` has to be among its scopes."
            )
        return text

    async def _description(self) -> Described:
        if self._described and self._clock() - self._described[0] < FRESH_S:
            return self._described[1]
        answer = await self._read("GET", self.client.issuer.rstrip("/") + _DISCOVERY)
        try:
            found = msgspec.convert(_object(answer), Described)
        except msgspec.ValidationError as error:
            raise unavailable("The identity provider does not describe itself.", str(error)) from None
        addresses = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
        if found.issuer != self.client.issuer or not all(map(_is_https, addresses)):
            raise unavailable("The identity provider describes another issuer, or endpoints without HTTPS.")
        self._described = self._clock(), found
        return found

    async def _read(
        self, method: str, url: str, body: str | None = None, headers: Mapping[str, str] | None = None,
        refusals: tuple[int, ...] = (),
    ) -> bytes:  # fmt: skip
        """`refusals`: statuses whose body is read too."""
        try:
            # A redirect would carry the code, or the secret, to another address.
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer:
                text = await read_whole(answer, MOST_BYTES)
                status = answer.status
        except TimeoutError:
            raise unavailable("The identity provider does not answer in time.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise unavailable("The identity provider cannot be reached.", str(error)) from None
        if text is None:
            raise unavailable(f"An answer of the identity provider has more than {MOST_BYTES >> 10} KiB.")
        if status != 200 and status not in refusals:
            raise unavailable(f"The identity provider answers {urlsplit(url).path} by status {status}.")
        return text


def _object(text: bytes) -> dict[str, Any]:
    """Raises ApiRefusal: it is no object of JSON."""
    try:
        json_bounds.check(text, max_numbers=MOST_NUMBERS)
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (json_bounds.TooManyValues, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise unavailable("An answer of the identity provider is no object of JSON.", str(error)) from None
    return found


def _is_https(url: str) -> bool:
    where = urlsplit(url)
    return where.scheme == "https" and bool(where.hostname) and not where.fragment


@contextlib.asynccontextmanager
async def open_provider_session(ca_file: str, timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to the provider, verified; by the environment's proxies, because providers may be outside.

    Raises:
        OSError: the file of certificates cannot be read, or has none.
    """
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca_file or None), limit=16)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=True
    ) as session:
        yield session
