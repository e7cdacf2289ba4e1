"""Follows objects as a client does: list, then watch; each event goes to a function."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from slipway_operator.kube.auth import Credentials
from slipway_operator.kube.resources import Resource

Json = dict[str, Any]
OnEvent = Callable[[str, Json], None]

WHOLE = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def session(credentials: Credentials) -> aiohttp.ClientSession:
    """Connections to the API server that last as long as a watch."""
    tls = ssl.create_default_context(cafile=credentials.ca_path)
    if credentials.certificate_path:
        tls.load_cert_chain(credentials.certificate_path, credentials.key_path)
    return aiohttp.ClientSession(
        credentials.server,
        connector=aiohttp.TCPConnector(ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=1 << 22,
    )


async def follow(calls: aiohttp.ClientSession, resource: Resource, on_event: OnEvent, accept: str = WHOLE) -> None:
    """Until cancelled. `on_event(type, object)`: of a list the type is LISTED.

    Raises:
        aiohttp.ClientError: when the API server does not answer any more.
    """
    listing = {"Accept": _METADATA_LIST if accept == METADATA else accept}
    while True:
        async with calls.get(resource.path(), headers=listing) as answer:
            answer.raise_for_status()
            listed = msgspec.json.decode(await answer.read())
        for item in listed.get("items") or ():
            on_event("LISTED", item)
        parameters = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
        async with calls.get(resource.path(), params=parameters, headers={"Accept": accept}) as stream:
            stream.raise_for_status()
            while line := await stream.content.readline():
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    break
                on_event(event["type"], event["object"])
        await asyncio.sleep(0)
