"""One signed POST to a webhook; its result depends on the status alone, and the body is never shown."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipway_contracts.headers import SIGNATURE
from slipway_operator.outbound.dialer import Blocked, Dialer, NoAnswer, OutboundRequest, Response, TooLate

_AGAIN = frozenset({408, 425, 429})  # statuses with which, as with 5xx, the call is tried again


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one try. `outcome` is the label of the metric: ok, refused, timeout, blocked or error."""

    outcome: str
    message: str
    again: bool = False  # another try may succeed

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return self.outcome == "ok"


class KeyUnreadable(Exception):
    """A signing key is configured and cannot be read: the call is not sent, as it would be unsigned."""


class SecretUnreadable(Exception):
    """A Secret that a hook names cannot be read; the message names it, and holds no value."""


class Poster:
    """The HTTP client of the hooks."""

    def __init__(self, dialer: Dialer, key_file: Path | None, clock: Callable[[], float]) -> None:
        """`clock` returns Unix seconds. `key_file` is read for every try, so a new signing key needs no restart."""
        self._dialer, self._key_file, self._clock = dialer, key_file, clock

    async def post(self, url: str, body: bytes, key: str, timeout_s: float) -> Reply:
        """Send one request with the idempotency key `key`; every failure is a Reply, none an exception."""
        try:
            request = OutboundRequest("POST", url, headers=self._headers(body, key), body=body, timeout_s=timeout_s)
            return _meaning(await self._dialer.send(request))
        except KeyUnreadable as error:
            return Reply("error", str(error), again=True)
        except TooLate as error:
            return Reply("timeout", str(error), again=True)
        except Blocked as error:
            return Reply("blocked", str(error))
        except NoAnswer as error:
            return Reply("error", str(error), again=True)

    def _headers(self, body: bytes, key: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        if self._key_file is not None:
            headers[SIGNATURE] = signature(_read_key(self._key_file), int(self._clock()), body)
        return headers


def signature(key: bytes, moment_s: int, body: bytes) -> str:
    """Return the value of the header X-Slipway-Signature; docs/hooks.md shows how to verify it."""
    signed = hmac.new(key, f"{moment_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment_s},v1={signed}"


def _meaning(answer: Response) -> Reply:
    if 300 <= answer.status < 400:
        return Reply("refused", f"{answer.phrase}: redirects are not followed; write the final URL")
    if 200 <= answer.status < 300:
        return Reply("ok", answer.phrase)
    return Reply("refused", answer.phrase, again=answer.status >= 500 or answer.status in _AGAIN)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise KeyUnreadable(f"the signing key cannot be read: {error.strerror}") from error
    if not key:
        raise KeyUnreadable("the signing key is empty")
    return key
