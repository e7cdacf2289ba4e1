"""Blocks of a prompt's text, by which equal beginnings of prompts are recognized (pure).

The text is what the client wrote, in the order in which chat templates render it: tools, instructions, messages. Equal
texts give equal tokens, so no tokenizer is needed; llm-d and SGLang's router do the same. Clients write the beginning
of a conversation again in each turn, byte for byte.
"""

import hashlib
from collections.abc import Sequence
from itertools import accumulate, repeat

import msgspec

from slipway_process.chained_hash import chained_hash, encode_fields

from ..routing.router import assign_revision
from ..routing.table import Route
from ..wire.json_values import is_null
from ..wire.request_fields import RequestFields
from ..wire.responses import is_text_path

# So many blocks of a size, the short ones first: a long prompt costs no more hashes than this, and what is left of the
# last block that differs stays a small part of it. A token has some four bytes.
BLOCKS_OF_SIZE = 64
BLOCK_SIZES = (256, 1024, 4096)
BLOCK_ENDS = tuple(accumulate(size for block_size in BLOCK_SIZES for size in repeat(block_size, BLOCKS_OF_SIZE)))
MAX_TEXT_BYTES = BLOCK_ENDS[-1]  # of a prompt that are hashed


class PromptBlocks(msgspec.Struct, frozen=True):
    """A prompt as it is looked up. `hashes`: one of each full block, chained. `size`: bytes of its whole text.

    `owner`: the tenant whose prompts alone it shares a cache with; empty where none is known.
    """

    hashes: tuple[bytes, ...]
    size: int
    owner: str = ""

    @property
    def name(self) -> str:
        """The same for all prompts that begin alike, in every gateway; empty for a prompt below one block."""
        return self.hashes[0].hex() if self.hashes else ""


def prompt_of(path: str, fields: RequestFields, route: Route, tenant: str, key: str) -> PromptBlocks | None:
    """The prompt of a request by which its endpoint is chosen; None where the route does not want that.

    `tenant`: the pseudonym that servers get: they share no cache between tenants. `key`: its sticky key: pods have two
    revisions of an adapter, and what one has seen is of no use to the other.
    """
    if not route.prefix_affinity or not is_text_path(path):
        return None
    parts = (fields.tools, fields.instructions, fields.messages, fields.prompt, fields.input)
    salt = "" if is_null(fields.cache_salt) else hashlib.sha256(fields.cache_salt).hexdigest()
    scope = f"{route.name} {assign_revision(route, key)} {salt}" if route.base else f"{route.name} {salt}"
    return blocks_of(parts, owner=tenant, scope=scope)


def blocks_of(parts: Sequence[bytes], *, owner: str = "", scope: str = "") -> PromptBlocks:
    """The blocks of a prompt. `parts`: JSON of its fields, in the order in which a template renders them.

    Prompts of different owners or scopes share no block, as in the caches of engines.
    """
    size = sum(map(len, parts))
    text = b"".join(_beginning(parts))
    parent = chained_hash(b"", encode_fields({"owner": owner, "scope": scope}))
    hashes, start = [], 0
    for end in BLOCK_ENDS:
        if end > len(text):
            break
        parent = chained_hash(parent, text[start:end])
        hashes.append(parent)
        start = end
    return PromptBlocks(tuple(hashes), size, owner)


def _beginning(parts: Sequence[bytes]) -> list[bytes]:
    """As much of the parts as is hashed: a prompt of many megabytes is not copied."""
    left, taken = MAX_TEXT_BYTES, []
    for part in parts:
        taken.append(bytes(memoryview(part)[:left]))
        left -= len(taken[-1])
        if not left:
            break
    return taken
