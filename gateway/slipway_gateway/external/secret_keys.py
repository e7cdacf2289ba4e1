"""API keys in Secrets, which the gateway reads with its own credentials: a Role of the namespace has to allow it."""

import base64
import binascii
import logging
from urllib.parse import quote

from ..routing.reflector import TROUBLES, KubernetesApiError, KubernetesClient, KubernetesObject
from .keys import KeyUnavailable
from .provider_request import is_key

log = logging.getLogger(__name__)
_FAILURES = (*TROUBLES, RuntimeError)  # the last one: another call closed the client, to read its credentials again
_MANAGED_BY = "app.kubernetes.io/managed-by"


class SecretKeys:
    """Reads keys from the API server."""

    def __init__(self, kubeconfig: str) -> None:
        self._api = KubernetesClient(kubeconfig)

    async def read(self, namespace: str, secret: str, key: str) -> str:
        """The value of a key, without white space around it.

        Raises:
            KeyUnavailable: there is no such Secret or key, it may not be read, or its value is no API key.
        """
        try:
            return await self._read(namespace, secret, key)
        except KeyUnavailable as error:
            log.warning("a provider is not called: %s", error)
            raise

    async def _read(self, namespace: str, secret: str, key: str) -> str:
        what = f"Secret {secret!r} of namespace {namespace}, key {key!r},"
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{quote(secret, safe='')}"
        try:
            found = await self._api.get(path, {})
        except KubernetesApiError as error:
            raise KeyUnavailable(f"{what} {_why(error.status, secret)}") from None
        except _FAILURES as error:
            raise KeyUnavailable(f"{what} cannot be read: {type(error).__name__}") from None
        return _value(found, key, what)

    async def close(self) -> None:
        await self._api.close()


def _why(status: int, secret: str) -> str:
    if status == 404:
        return "cannot be read: there is no such Secret"
    if status == 403:
        return f"may not be read: allow the gateways to get it by a Role with resourceNames: [{secret}]"
    return f"cannot be read: the API server answers with {status}"


def _value(secret: KubernetesObject, key: str, what: str) -> str:
    if ((secret.get("metadata") or {}).get("labels") or {}).get(_MANAGED_BY) == "slipway":
        raise KeyUnavailable(f"{what} may not be read: it holds keys of Slipway")
    try:
        value = base64.b64decode((secret.get("data") or {})[key], validate=True).decode().strip()
    except KeyError:
        raise KeyUnavailable(f"{what} cannot be read: the Secret has no such key") from None
    except (binascii.Error, UnicodeDecodeError, TypeError, AttributeError):
        raise KeyUnavailable(f"{what} cannot be sent: it is no text") from None
    if not is_key(value):
        raise KeyUnavailable(
            f"{what} cannot be sent: it is empty, too long, or has other characters than printable ASCII"
        )
    return value
