"""Jobs → console: batches and jobs of all tenants or of one, in states and counts. Contents are no part of it."""

import msgspec

BATCH_LIST_PATH = "/internal/batches"
# What the API server decides about a viewer's token: the verb `list` for all tenants, `get` for the named one.
GROUP, RESOURCE, SUBRESOURCE = "slipway.dev", "tenants", "batches"
PAGE_ROWS = 20


class BatchRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """`kind`: batch, job or inputs. `tenant`: "" of requests without a key. Times are Unix time in seconds.

    `errors`: how many lines of its file are invalid, by the code of the error.
    """

    id: str
    tenant: str
    kind: str
    endpoint: str
    status: str
    created_at: float
    expires_at: float
    ended_at: float | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: dict[str, int] = {}


class BatchList(msgspec.Struct, frozen=True, omit_defaults=True):
    """One page, the newest first. `more`: whether older ones follow the last row."""

    batches: list[BatchRow]
    more: bool = False
