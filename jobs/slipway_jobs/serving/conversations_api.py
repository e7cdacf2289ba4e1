"""OpenAI's Conversations and stored Responses: `/v1/conversations`, and what is read of `/v1/responses`."""

from typing import Any

import msgspec
from aiohttp import web

from slipway_process import json_bounds
from slipway_process.response_items import ID, items_of, shown_item

from ..store.conversation_store import ConversationStore, ItemPage, StoredConversation, StoredItem
from ..store.database import Database
from ..telemetry import JobsMetrics
from ..turns import let_others_run
from .conversation_errors import refusals
from .fields import Fields, body_of, metadata_of, page_of
from .refusal import JobsRefusal, invalid, json_response
from .tenancy import tenant_of
from .upload import new_id

MAX_ADDED = 20  # items that one request adds, as OpenAI has it
_NO_METADATA = b"{}"


class ConversationsApi:
    """Answers for the conversations and responses of a tenant."""

    def __init__(self, database: Database, store: ConversationStore, metrics: JobsMetrics) -> None:
        self._database, self._store, self._metrics = database, store, metrics

    def routes(self) -> list[web.RouteDef]:
        one, items = "/v1/conversations/{id}", "/v1/conversations/{id}/items"
        return [
            web.post("/v1/conversations", self.create),
            web.get(one, self.get),
            web.post(one, self.update),
            web.delete(one, self.delete),
            web.get(items, self.list_items),
            web.post(items, self.add_items),
            web.get(f"{items}/{{item_id}}", self.get_item),
            web.delete(f"{items}/{{item_id}}", self.delete_item),
            web.get("/v1/responses/{id}", self.get_response),
            web.delete("/v1/responses/{id}", self.delete_response),
            web.get("/v1/responses/{id}/input_items", self.list_input_items),
        ]

    # -- conversations

    async def create(self, request: web.Request) -> web.StreamResponse:
        fields = await body_of(request, ("items", "metadata")) if request.body_exists else {}
        metadata = (metadata_of(fields) or "{}").encode()
        items = await _items_of(fields) if "items" in fields else []
        with refusals():
            made = await self._database.call(self._store.create, tenant_of(request), new_id("conv_"), metadata, items)
        self._metrics.conversation_items.inc(len(items))
        return json_response(_shown_conversation(made))

    async def get(self, request: web.Request) -> web.StreamResponse:
        with refusals():
            found = await self._database.call(self._store.conversation, tenant_of(request), _id(request))
        return json_response(_shown_conversation(found))

    async def update(self, request: web.Request) -> web.StreamResponse:
        fields = await body_of(request, ("metadata",))
        if "metadata" not in fields:
            raise invalid("metadata", "metadata is missing.", "missing_required_parameter")
        metadata = (metadata_of(fields) or "{}").encode()
        with refusals():
            changed = await self._database.call(self._store.update, tenant_of(request), _id(request), metadata)
        return json_response(_shown_conversation(changed))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        with refusals():
            await self._database.call(self._store.delete, tenant_of(request), _id(request))
        return json_response({"id": _id(request), "object": "conversation.deleted", "deleted": True})

    # -- items

    async def list_items(self, request: web.Request) -> web.StreamResponse:
        limit, after, ascends = _page_of(request)
        with refusals("after" if after else "id"):
            page = await self._database.call(
                self._store.listed, tenant_of(request), _id(request), limit, after, ascends=ascends
            )
        return json_response(_listing(page))

    async def add_items(self, request: web.Request) -> web.StreamResponse:
        fields = await body_of(request, ("items", "include"))
        items = await _items_of(fields)
        with refusals():
            added = await self._database.call(self._store.add, tenant_of(request), _id(request), items)
        self._metrics.conversation_items.inc(len(items))
        return json_response(_listing(ItemPage(added)))

    async def get_item(self, request: web.Request) -> web.StreamResponse:
        with refusals("item_id"):
            found = await self._database.call(
                self._store.item, tenant_of(request), _id(request), _id(request, "item_id")
            )
        return json_response(shown_item(found.data, found.id))

    async def delete_item(self, request: web.Request) -> web.StreamResponse:
        with refusals("item_id"):
            left = await self._database.call(
                self._store.delete_item, tenant_of(request), _id(request), _id(request, "item_id")
            )
        return json_response(_shown_conversation(left))

    # -- responses

    async def get_response(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("stream", "false") != "false":
            raise invalid("stream", "A stored response is not streamed again: leave stream out.")
        with refusals("response_id"):
            found = await self._database.call(self._store.response, tenant_of(request), _id(request))
        members = msgspec.json.decode(found.data, type=dict[str, msgspec.Raw])
        return json_response(members | {"output": _shown(found.output)})

    async def delete_response(self, request: web.Request) -> web.StreamResponse:
        with refusals("response_id"):
            await self._database.call(self._store.delete_response, tenant_of(request), _id(request))
        return json_response({"id": _id(request), "object": "response", "deleted": True})

    async def list_input_items(self, request: web.Request) -> web.StreamResponse:
        limit, after, ascends = _page_of(request)
        with refusals("after" if after else "response_id"):
            page = await self._database.call(
                self._store.input_items, tenant_of(request), _id(request), limit, after, ascends=ascends
            )
        return json_response(_listing(page))


def _id(request: web.Request, name: str = "id") -> str:
    """An id in the path. Raises JobsRefusal 404: no object has such an id."""
    given = request.match_info[name]
    if ID.fullmatch(given):
        return given
    raise JobsRefusal(404, "not_found", f"Nothing has the id {given[:64]!r}.", param=name)


def _page_of(request: web.Request) -> tuple[int, str, bool]:
    """`limit`, `after`, and whether the order is ascending. Raises JobsRefusal."""
    limit, after = page_of(request)
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "order must be asc or desc.")
    return limit, after, order == "asc"


async def _items_of(fields: Fields) -> list[bytes]:
    """The field `items` in the form that is stored. Raises JobsRefusal."""
    data = bytes(fields.get("items", b"null"))
    try:
        for _ in json_bounds.slices(data):
            await let_others_run(data)
        with refusals():
            items = items_of(data, "items", MAX_ADDED) if data.startswith(b"[") else []
    except json_bounds.TooManyValues as error:
        raise invalid("items", f"items {error}.") from None
    if not items and not data.replace(b" ", b"") == b"[]":
        raise invalid("items", f"items must be a list of at most {MAX_ADDED} items.")
    return items


def _shown_conversation(found: StoredConversation) -> dict[str, Any]:
    metadata = msgspec.Raw(found.metadata or _NO_METADATA)
    return {"id": found.id, "object": "conversation", "created_at": int(found.created_at), "metadata": metadata}


def _shown(items: list[StoredItem]) -> list[msgspec.Raw]:
    return [shown_item(item.data, item.id) for item in items]


def _listing(page: ItemPage) -> dict[str, Any]:
    # OpenAI's client expects texts here.
    ends = (
        {"first_id": page.items[0].id, "last_id": page.items[-1].id} if page.items else {"first_id": "", "last_id": ""}
    )
    return {"object": "list", "data": _shown(page.items), "has_more": page.more} | ends
