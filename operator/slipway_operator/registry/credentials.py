"""Credentials of a namespace for the tracking server: those of spec.model.secretRef, read for each look."""

import base64
import binascii

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound, Refused
from slipway_operator.kube.ownership import holds_own_keys
from slipway_operator.kube.resources import SECRETS
from slipway_operator.planning.facts import registry
from slipway_operator.registry.client import Credentials, RegistryError

TOKEN, USER, PASSWORD = "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
LONGEST = 8192  # characters of a value


async def read(client: Client, namespace: str, name: str) -> Credentials:
    """Read a Secret; without a name there are no credentials. Its other keys are not looked at.

    Raises:
        RegistryError: it is missing, may not be read, or holds what no header can have; the message has no value.
    """
    if not name:
        return Credentials()
    what = f"Secret {name!r} of spec.model.secretRef"
    try:
        secret = await client.get(SECRETS, namespace, name)
    except NotFound as error:
        raise RegistryError(registry.DENIED, f"{what} is not in namespace {namespace}") from error
    except Refused as error:
        raise RegistryError(
            registry.DENIED,
            f"{what} may not be read: allow the operator to get it by a Role in namespace {namespace} with "
            f"resourceNames: [{name}]",
        ) from error
    except ApiError as error:
        raise RegistryError(registry.UNAVAILABLE, f"{what} cannot be read: {error}") from error
    if holds_own_keys(secret):
        raise RegistryError(registry.DENIED, f"{what} may not be read: it holds keys of Slipway")
    token, user, password = (_value(secret.get("data") or {}, key, what) for key in (TOKEN, USER, PASSWORD))
    if not token and bool(user) != bool(password):
        raise RegistryError(registry.DENIED, f"{what} needs both {USER} and {PASSWORD}")
    return Credentials(token, user, password)


def _value(data: dict[str, str], key: str, what: str) -> str:
    try:
        text = base64.b64decode(data.get(key) or "", validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError, TypeError) as error:
        raise RegistryError(registry.DENIED, f"{what}: {key} is no text") from error
    if len(text) > LONGEST or not text.isprintable() or (key == TOKEN and (not text.isascii() or " " in text)):
        raise RegistryError(registry.DENIED, f"{what}: {key} has characters that no header has")
    if key == USER and ":" in text:
        raise RegistryError(registry.DENIED, f"{what}: {key} has a colon")
    return text
