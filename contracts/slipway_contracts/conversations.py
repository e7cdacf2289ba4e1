"""Gateway ↔ jobs: the context of a turn of a conversation, and the turn itself, with what a model has answered.

A conversation is one that a client made (`/v1/conversations`), or a chain of responses that name one another by
`previous_response_id`. The tenant is in the pass of the request (`passes`), never in these bodies.
"""

import msgspec
from msgspec import Raw

CONTEXT_PATH = "/internal/conversations/context"
TURNS_PATH = "/internal/conversations/turns"
# Codes of errors.
PREVIOUS_NOT_FOUND, CONVERSATION_NOT_FOUND = "previous_response_not_found", "conversation_not_found"
CONTEXT_TOO_LONG, STORAGE_EXHAUSTED = "context_length_exceeded", "storage_exhausted"
MAX_TURN_BYTES = 8 << 20  # of the body with a turn

# Members of a response's metadata, which the gateway adds.
MOVED_FROM, DROPPED_ITEMS = "slipway_moved_from", "slipway_dropped_items"


class ContextQuery(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Which earlier items a request continues: those of a chain up to a response, or of a conversation.

    `without`: id of a response of the same request, an earlier attempt. `key`: likewise, its idempotency key.
    `max_bytes`: of the items. `truncates`: of more only the newest ones are wanted, else it is an error.
    """

    previous_response_id: str = ""
    conversation: str = ""
    without: str = ""
    key: str = ""
    max_bytes: int = 0
    truncates: bool = False


class Context(msgspec.Struct, omit_defaults=True):
    """Items in their order. `dropped`: how many older ones did not fit. `model`, `revision`: of the last turn."""

    items: list[Raw]
    dropped: int = 0
    model: str = ""
    revision: str = ""


class ConversationTurn(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One response with its input. `response`: OpenAI's object without `output`. The rest is as in ContextQuery.

    `model`: namespace/name of the deployment that answered, `revision`: its revision.
    """

    id: str
    response: Raw
    input: list[Raw]
    output: list[Raw]
    model: str = ""
    revision: str = ""
    previous_response_id: str = ""
    conversation: str = ""
    key: str = ""


class TurnStored(msgspec.Struct):
    """The answer to a ConversationTurn that is stored, now or before."""

    items: int
    bytes: int
