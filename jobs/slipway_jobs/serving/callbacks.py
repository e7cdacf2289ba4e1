"""The callback_url of batches and jobs: which URLs are accepted, the state of its webhook, and the tenant's secret."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from slipway_process.network.listed_hosts import MAX_URL_CHARACTERS

from ..store.database import Database
from ..store.delivery_store import PENDING, DeliveryStore
from ..webhooks.receivers import Receivers
from ..webhooks.signing import secret_of, shown
from .fields import Fields, text_of
from .refusal import JobsRefusal, invalid, json_response
from .tenancy import tenant_of

CALLBACK_URL = "callback_url"


class Callbacks:
    """Answers for webhooks. `secrets`: of the release; without one there are no webhooks."""

    def __init__(
        self, database: Database, store: DeliveryStore, receivers: Receivers, secrets: Sequence[bytes]
    ) -> None:
        self._database, self._store, self._receivers, self._secrets = database, store, receivers, secrets

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/jobs/webhook_secret", self.secret)]

    async def secret(self, request: web.Request) -> web.StreamResponse:
        if not self._secrets:
            raise JobsRefusal(404, "webhooks_off", "There are no webhooks: no secret is set (jobs.webhooks.secret).")
        made = shown(secret_of(self._secrets[0], tenant_of(request)))
        return json_response({"object": "webhook_secret", "secret": made})

    def url_of(self, fields: Fields) -> str | None:
        """The callback_url in a request's fields; None without one.

        Raises:
            JobsRefusal: there are no webhooks, or the URL is invalid, or its host is not listed.
        """
        if CALLBACK_URL not in fields:
            return None
        url = text_of(fields, CALLBACK_URL, MAX_URL_CHARACTERS)
        if not self._secrets:
            raise invalid(
                CALLBACK_URL, "There are no webhooks: no secret is set (jobs.webhooks.secret).", "webhooks_off"
            )
        if not self._receivers.may_call(url):
            message = "callback_url must be http:// or https:// with a host that is listed (--webhook-hosts)."
            raise invalid(CALLBACK_URL, message)
        return url

    async def shown(self, batch_id: str) -> dict[str, Any]:
        """The field `webhook` of a batch or job; empty where it has no webhook."""
        row = await self._database.call(self._store.get, batch_id)
        if row is None:
            return {}
        named = ("url", "event", "attempts", "status_code", "error")
        again = row["next_at"] if row["state"] == PENDING else None
        found = {"status": row["state"]} | {name: row[name] for name in named}
        return {"webhook": found | {"next_attempt_at": None if again is None else int(again)}}
