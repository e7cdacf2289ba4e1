"""The list of batches for the console: states and counts, for viewers that the API server lets see them."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from slipway_contracts.batch_list import BATCH_LIST_PATH, PAGE_ROWS, BatchList, BatchRow

from ..states import ENDED_BATCHES
from ..store.batch_store import BatchStore
from ..store.database import Database
from .fields import page_of
from .refusal import invalid
from .viewers import Viewers

MOST_CODES = 8
_LONGEST_TENANT = 253


class BatchLists:
    """The answer for one path."""

    def __init__(self, database: Database, batches: BatchStore, viewers: Viewers) -> None:
        self._database, self._batches, self._viewers = database, batches, viewers

    def routes(self) -> list[web.RouteDef]:
        return [web.get(BATCH_LIST_PATH, self.list)]

    async def list(self, request: web.Request) -> web.StreamResponse:
        """One page: of the tenant that the query names, or of all."""
        tenant = request.query.get("tenant")
        if tenant is not None and not (
            tenant.isascii() and tenant.isprintable() and 0 < len(tenant) <= _LONGEST_TENANT
        ):
            raise invalid("tenant", "tenant must be the name of a Tenant; without it the list has those of all.")
        _, after = page_of(request)
        await self._viewers.check(request.headers.get("Authorization", ""), tenant)
        rows = await self._database.call(self._batches.of_all, tenant, PAGE_ROWS, after)
        found = BatchList([_row(row) for row in rows[:PAGE_ROWS]], more=len(rows) > PAGE_ROWS)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")


def _row(row: Mapping[str, Any]) -> BatchRow:
    counts, ends = row["counts"], (row[f"{status}_at"] for status in ENDED_BATCHES)
    return BatchRow(
        id=row["id"],
        tenant=row["tenant"],
        kind=row["kind"],
        endpoint=row["endpoint"],
        status=row["status"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        ended_at=next((at for at in ends if at is not None), None),
        total=counts.total,
        completed=counts.completed,
        failed=counts.failed,
        errors=_codes(row["errors"]),
    )


def _codes(errors: str | None) -> dict[str, int]:
    """How many errors have which code. Their messages may quote what a tenant sent: they are not shown."""
    found = Counter(str(error.get("code")) for error in json.loads(errors)) if errors else Counter[str]()
    return dict(found.most_common(MOST_CODES))
