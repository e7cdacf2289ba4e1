"""What the store of conversations raises, as error responses."""

import contextlib
from collections.abc import Iterator

from slipway_contracts.conversations import (
    CONTEXT_TOO_LONG,
    CONVERSATION_NOT_FOUND,
    PREVIOUS_NOT_FOUND,
    STORAGE_EXHAUSTED,
)
from slipway_process.response_items import InvalidItem

from ..store.conversation_store import ContextTooLong, NotStored, OfConversation, OtherResponse
from ..store.conversation_usage import ConversationsFull
from .refusal import JobsRefusal, invalid

_KINDS = {
    "conversation": (CONVERSATION_NOT_FOUND, "Conversation"),
    "response": ("response_not_found", "Response"),
    "item": ("item_not_found", "Item"),
}


@contextlib.contextmanager
def refusals(param: str = "id", *, continues: bool = False) -> Iterator[None]:
    """Raises JobsRefusal for errors of the store. `param`: the field that names what is not there.

    `continues`: a response that is not there is the one that the request continues.
    """
    try:
        yield
    except NotStored as error:
        code, name = _KINDS[error.kind]
        if continues and error.kind == "response":
            code, name, param = PREVIOUS_NOT_FOUND, "Previous response", "previous_response_id"
        raise JobsRefusal(404, code, f"{name} with id {error.name[:64]!r} not found.", param=param) from None
    except OfConversation as error:
        message = f"This response belongs to the conversation {str(error)!r}: send conversation in its place."
        raise invalid("previous_response_id", message, "response_of_conversation") from None
    except ContextTooLong:
        message = "The earlier items of this conversation are more than are sent to a model: set truncation to auto."
        raise invalid("truncation", message, CONTEXT_TOO_LONG) from None
    except ConversationsFull as error:
        message = f"This tenant has {error.what}, its limit: delete conversations or responses."
        raise JobsRefusal(413, STORAGE_EXHAUSTED, message) from None
    except OtherResponse:
        raise JobsRefusal(409, "response_exists", "Another response is stored by this id.", param="id") from None
    except InvalidItem as error:
        raise invalid(error.path, str(error)) from None
