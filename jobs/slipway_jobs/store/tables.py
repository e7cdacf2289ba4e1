"""Tables of files, batches and their lines, and of conversations."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

# Written by the first process that opens a database. A release that needs other tables has another number, and
# `upgrades` changes the tables of an older one.
SCHEMA_VERSION = 4

metadata = MetaData()

about = Table("slipway_jobs", metadata, Column("version", Integer, primary_key=True, autoincrement=False))


def _time(name: str) -> Column[Any]:
    """Unix time, by the clock of the database."""
    return Column(name, Double)


# Ids begin with the time, so their order is that of creation. `part`: of the result of `batch_id`, output or error.
files = Table(
    "slipway_job_files",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(253), nullable=False, index=True),
    Column("purpose", String(32), nullable=False),
    Column("filename", String(512), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("batch_id", String(64)),
    Column("part", String(8)),
)

# A file as it was uploaded: its lines, each with the byte that ends it.
inputs = Table(
    "slipway_job_inputs",
    metadata,
    Column("file_id", String(64), ForeignKey(files.c.id), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

# `outcome`: the status once its last line has ended. `epoch`, `owner`, `lease_until`: of the process that validates it.
batches = Table(
    "slipway_job_batches",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(253), nullable=False, index=True),
    Column("kind", String(8), nullable=False),
    Column("endpoint", String(600), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("outcome", String(16)),
    Column("input_file_id", String(64), nullable=False, index=True),
    Column("output_file_id", String(64)),
    Column("error_file_id", String(64)),
    Column("metadata", Text),
    Column("errors", Text),
    Column("total", Integer, nullable=False, default=0),
    Column("completed", Integer, nullable=False, default=0),
    Column("failed", Integer, nullable=False, default=0),
    Column("output_expires_s", Double),
    Column("epoch", Integer, nullable=False, default=0),
    Column("owner", String(32)),
    Column("lease_until", Double, nullable=False, default=0.0),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    *(
        _time(f"{name}_at")
        for name in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    ),
    Index("slipway_job_batches_by_turn", "status", "tenant", "id"),
)

# `epoch`: of the claim; only the process that made the last one may end the line. `ready_at`: not claimed before.
# `losses`: processes that died, or were cut off for longer than their lease, while the line was in flight there.
lines = Table(
    "slipway_job_lines",
    metadata,
    Column("batch_id", String(64), ForeignKey(batches.c.id), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", String(512), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("losses", Integer, nullable=False, server_default="0"),
    Column("epoch", Integer, nullable=False, default=0),
    Column("owner", String(32)),
    Column("lease_until", Double),
    Column("ready_at", Double, nullable=False, default=0.0),
    Column("result", LargeBinary),
    UniqueConstraint("batch_id", "custom_id"),
    Index("slipway_job_lines_by_state", "batch_id", "state", "n"),
    Index("slipway_job_lines_by_lease", "state", "lease_until"),
    Index("slipway_job_lines_by_losses", "state", "losses"),
)

# What the batches of each tenant take, as `usage.py` counts it.
usage = Table(
    "slipway_job_usage",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)

# Webhooks, one of each batch with a callback_url. `next_at`: time of the next attempt, or when this one's lease ends.
deliveries = Table(
    "slipway_job_deliveries",
    metadata,
    Column("batch_id", String(64), primary_key=True),
    Column("tenant", String(253), nullable=False),
    Column("url", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("event", String(32)),
    Column("event_at", Double),
    Column("attempts", Integer, nullable=False, default=0),
    Column("epoch", Integer, nullable=False, default=0),
    Column("next_at", Double),
    Column("status_code", Integer),
    Column("error", Text),
    Index("slipway_job_deliveries_by_time", "state", "next_at"),
    Index("slipway_job_deliveries_by_tenant", "tenant", "state"),
)

# Keys of requests that may be sent again. `owner`: of the claim that may answer, until `lease_until`; then `status` and
# `body` are the answer of the request with this `fingerprint`.
idempotency_keys = Table(
    "slipway_job_idempotency_keys",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("owner", String(32), nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
    Column("fingerprint", String(64)),
    Column("status", Integer),
    Column("body", LargeBinary),
)

# A conversation that a client made, or a chain of responses, whose id is that of the first one. Ids of responses come
# from engines, so that they are unique for a tenant at most. `items`, `bytes`: of all rows that belong to it. `next_n`:
# of the next item. Contents (`metadata`, `data`) may be sealed.
conversations = Table(
    "slipway_conversations",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("model", String(600), nullable=False),
    Column("revision", String(253), nullable=False),
    Column("next_n", BigInteger, nullable=False),
    Column("items", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
)

# `previous_id`: of the response before it in a chain. `turn_key`: hash of the request's idempotency key.
conversation_responses = Table(
    "slipway_conversation_responses",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("conversation_id", String(64), nullable=False),
    Column("previous_id", String(64)),
    Column("turn_key", String(64)),
    Column("model", String(600), nullable=False),
    Column("revision", String(253), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("slipway_conversation_responses_by_conversation", "tenant", "conversation_id"),
)

# `n`: the order. `response_id`: of the turn that it came with; none where a client added it. `part`: input or output.
conversation_items = Table(
    "slipway_conversation_items",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("conversation_id", String(64), primary_key=True),
    Column("n", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String(64), nullable=False),
    Column("response_id", String(64)),
    Column("part", String(8), nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("slipway_conversation_items_by_id", "tenant", "conversation_id", "id"),
    Index("slipway_conversation_items_by_response", "tenant", "response_id"),
)

# What the conversations of each tenant take.
conversation_usage = Table(
    "slipway_conversation_usage",
    metadata,
    Column("tenant", String(253), primary_key=True),
    Column("conversations", BigInteger, nullable=False),
    Column("items", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
