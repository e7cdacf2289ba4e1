"""Header values from Secrets, which are read for each measurement, so that a rotated Secret needs no restart."""

import base64
import binascii
from collections.abc import Iterable

from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, NotFound, Refused
from slipway_operator.kube.ownership import holds_own_keys
from slipway_operator.kube.resources import SECRETS
from slipway_operator.model.analysis.measure import Header, SecretKey
from slipway_operator.providers.answers import Unanswered


async def resolved(client: Client, namespace: str, headers: Iterable[Header]) -> dict[str, str]:
    """Return the values of headers by name, with those from Secrets read now.

    Raises:
        Unanswered: when a Secret or its key is missing or may not be read; the message names both, and no value.
    """
    return {
        header.key: await text_of(client, namespace, header.secret) if header.secret else header.value
        for header in headers
    }


async def text_of(client: Client, namespace: str, wanted: SecretKey) -> str:
    """Return one value of a Secret, without white space around it.

    Raises:
        Unanswered: as `resolved` does.
    """
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
    if holds_own_keys(secret):
        raise Unanswered(f"{what} may not be read: it holds keys of Slipway")
    data = secret.get("data") or {}
    if wanted.key not in data:
        raise Unanswered(f"{what} cannot be read: the Secret has no such key")
    try:
        return base64.b64decode(data[wanted.key], validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Unanswered(f"{what} cannot be sent: it is no text") from error
