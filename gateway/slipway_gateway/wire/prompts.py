"""What a prompt has, as far as the bytes of a request show it (pure).

Within a text of JSON quotes are escaped, so what is looked for with its quotes is a member and no text.
"""

import re
from collections.abc import Iterator

from msgspec import Raw

from .json_values import ABSENT, does_nothing
from .request_fields import RequestFields

_IMAGE = re.compile(rb'"type"\s*:\s*"(?:image_url|input_image|image)"')
_FENCE = re.compile(rb"```")


def prompt_bytes(fields: RequestFields, body_bytes: int) -> int:
    """Bytes of the prompt as it is written; of a body without one, all its bytes."""
    return sum(map(len, (fields.tools, *_texts(fields)))) or body_bytes


def has_tools(fields: RequestFields) -> bool:
    return fields.tools is not ABSENT and not does_nothing(fields.tools)


def has_images(fields: RequestFields) -> bool:
    return any(_IMAGE.search(part) for part in (fields.messages, fields.input) if part is not ABSENT)


def has_code(fields: RequestFields) -> bool:
    """Whether there is code between fences."""
    return any(_FENCE.search(part) for part in _texts(fields))


def _texts(fields: RequestFields) -> Iterator[Raw]:
    parts = (fields.instructions, fields.messages, fields.prompt, fields.input)
    others = (fields.query, fields.documents, fields.text_1, fields.text_2)
    return (part for part in (*parts, *others) if part is not ABSENT)
