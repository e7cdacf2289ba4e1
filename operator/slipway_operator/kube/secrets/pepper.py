"""Keeps the Secret with the pepper by which API keys are hashed: made once, never changed."""

import asyncio
import base64
import logging
import secrets
from typing import Any

from slipway_operator.component import Component
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, Fenced, NotFound
from slipway_operator.kube.resources import SECRETS
from slipway_operator.model import labels

LOOK_S = 60.0
FENCED_PAUSE_S = 2.0  # until this operator may have the lease: without the Secret no key can be made
KEY, COMPONENT = "pepper", "key-pepper"
PEPPER_BYTES = 32

log = logging.getLogger(__name__)


class Pepper(Component):
    """The pepper, kept in memory to restore a Secret that is deleted: with another pepper no API key is valid."""

    task = "pepper"

    def __init__(self, client: Client, namespace: str, secret: str) -> None:
        self._client, self._namespace, self._secret = client, namespace, secret
        self._text = ""
        self._trouble = ""

    async def run(self) -> None:
        """Call `look` every LOOK_S until cancelled."""
        while True:
            pause_s = LOOK_S
            try:
                await self.look()
                self._trouble = ""
            except Fenced:
                pause_s = FENCED_PAUSE_S  # another operator has the lease and does this
            except ApiError as error:
                if str(error) != self._trouble:
                    log.warning("the pepper of API keys cannot be kept, so none can be made: %s", error)
                self._trouble = str(error)
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Read the Secret; create it if it does not exist.

        Raises:
            ApiError: when the API server does not permit it, or is unavailable.
        """
        try:
            found = await self._client.get(SECRETS, self._namespace, self._secret)
        except NotFound:
            await self._make()
            return
        self._text = (found.get("data") or {}).get(KEY) or self._text

    async def _make(self) -> None:
        text = self._text or _encode(base64.urlsafe_b64encode(secrets.token_bytes(PEPPER_BYTES)))
        try:
            await self._client.create(SECRETS, manifest(self._namespace, self._secret, text))
        except Exists:
            return  # another operator was faster; the next look reads its pepper
        log.info("the Secret %s with the pepper of API keys was made", self._secret)
        self._text = text


def manifest(namespace: str, name: str, text: str) -> dict[str, Any]:
    """Return the Secret. `text`: the pepper in base64, as in `data`."""
    marks = {labels.MANAGED_BY: "slipway", labels.COMPONENT: COMPONENT}
    metadata = {"name": name, "namespace": namespace, "labels": marks}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": {KEY: text}}


def _encode(text: bytes) -> str:
    return base64.b64encode(text).decode()
