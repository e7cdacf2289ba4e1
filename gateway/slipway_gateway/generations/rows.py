"""A row of the generation log, as it waits for the database (pure)."""

import msgspec

# Why a row has no prompt or response: owner or tenant allows lengths alone, there are no keys to encrypt it with, it is
# longer than a row may have, or its request had no memory for it.
NOT_ALLOWED, NO_KEYS, TOO_LONG, NO_MEMORY = OMISSIONS = ("not_allowed", "no_keys", "too_long", "no_memory")


class LoggedGeneration(msgspec.Struct, array_like=True):
    """A request for text whose client got a response with status 200, or the beginning of one.

    `input`: the request as it was sent to the model; `output`: the response as the client got it; both after guards
    have redacted them. `*_hash`: HMAC-SHA-256, see `capture.hash_of`.
    """

    id: str
    at: str
    tenant: str
    route: str
    revision: str
    request_id: str
    path: str
    status: int
    outcome: str
    seconds: float
    stream: bool
    input_tokens: int | None
    output_tokens: int | None
    input_bytes: int
    output_bytes: int
    input_hash: str
    output_hash: str
    output_encoding: str = ""
    input: bytes | None = None
    output: bytes | None = None
    input_omitted: str | None = None
    output_omitted: str | None = None
