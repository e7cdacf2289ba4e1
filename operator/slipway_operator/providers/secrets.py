"""Headers with the values that Secrets hold, read again for each measurement: a rotated one needs no restart."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound, Refused
from slipway_operator.kube.resources import SECRETS
from slipway_operator.model import labels
from slipway_operator.model.analysis.measure import Header, SecretKey
from slipway_operator.providers.answers import Unanswered


async def resolved(client: Client, namespace: str, headers: Iterable[Header]) -> dict[str, str]:
    """Names and values of headers.

    Raises:
        Unanswered: when a Secret, or its key, is not there or may not be read; it names both, and no value.
    """
    return {
        header.key: await _read(client, namespace, header.secret) if header.secret else header.value
        for header in headers
    }


def is_own(secret: Mapping[str, Any]) -> bool:
    """Whether Slipway keeps its own keys in it: the operator may read these, and no template's author."""
    return (secret["metadata"].get("labels") or {}).get(labels.MANAGED_BY) == "slipway"


async def _read(client: Client, namespace: str, wanted: SecretKey) -> str:
    what = f"Secret {wanted.name!r}, key {wanted.key!r},"
    try:
        secret = await client.get(SECRETS, namespace, wanted.name)
    except NotFound as error:
        raise Unanswered(f"{what} cannot be read: there is no such Secret in namespace {namespace}") from error
    except Refused as error:
        raise Unanswered(
            f"{what} may not be read: allow the operator to get it by a Role in namespace {namespace} "
            f"with resourceNames: [{wanted.name}]"
        ) from error
    except ApiError as error:
        raise Unanswered(f"{what} cannot be read: {error}") from error
    if is_own(secret):
        raise Unanswered(f"{what} may not be read: it holds keys of Slipway")
    data = secret.get("data") or {}
    if wanted.key not in data:
        raise Unanswered(f"{what} cannot be read: the Secret has no such key")
    try:
        return base64.b64decode(data[wanted.key], validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Unanswered(f"{what} cannot be sent: it is no text") from error
