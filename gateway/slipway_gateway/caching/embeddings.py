"""Embeddings are kept by input: a request gets those that are kept, and only the others are computed (pure)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ..quotas.usage import MAX_TOKENS, Usage
from ..wire.json_values import MAX_ITEMS, UNREADABLE
from .digests import digest_of, written
from .entry import Entry

# Of all inputs of one request. A longer response is relayed, and none of it is kept.
MAX_RESPONSE_BYTES = 4 << 20
_OBJECT, _OBJECTS = msgspec.json.Decoder(dict[str, Raw]), msgspec.json.Decoder(list[dict[str, Raw]])
_INTEGER = msgspec.json.Decoder(int)


class _Usage(msgspec.Struct):
    prompt_tokens: int


_USAGE = msgspec.json.Decoder(_Usage)


class Computed(msgspec.Struct, frozen=True):
    """A response. `head`: its fields but for `data` and `usage`. `items`: in the order of the inputs."""

    head: dict[str, Raw]
    items: list[dict[str, Raw]]
    tokens: int


class KeptItem(msgspec.Struct, frozen=True):
    """The body of an entry: one embedding, with the fields of the response that it came in."""

    head: dict[str, Raw]
    item: dict[str, Raw]


_KEPT = msgspec.json.Decoder(KeptItem)


def inputs_of(fields: Mapping[str, Any]) -> list[Any] | None:
    """The inputs of a request, each a text or a list of token ids; None where they are something else."""
    given = fields.get("input")
    if isinstance(given, str) or (isinstance(given, list) and given and _are_tokens(given)):
        return [given]
    if not isinstance(given, list) or not 0 < len(given) <= MAX_ITEMS:
        return None
    sound = all(isinstance(one, str) or (isinstance(one, list) and _are_tokens(one)) for one in given)
    return given if sound else None


def item_digests(path_qs: str, formats: Sequence[str], fields: Mapping[str, Any], inputs: Sequence[Any]) -> list[bytes]:
    """A digest for each input. `fields`: those that are part of a key."""
    others = written({name: value for name, value in fields.items() if name != "input"})
    about = digest_of(("embedding", path_qs, *formats, others))
    return [digest_of((about, written(one))) for one in inputs]


def body_of(fields: Mapping[str, Any], inputs: Sequence[Any]) -> bytes:
    """The request for these inputs alone."""
    return json.dumps({**fields, "input": list(inputs)}).encode()


def read_computed(body: bytes, count: int) -> Computed | None:
    """A response to `count` inputs; None where it is not what the API promises."""
    try:
        head = _OBJECT.decode(body)
        items, usage = _OBJECTS.decode(head.pop("data")), _USAGE.decode(head.pop("usage"))
        by_index = {_INTEGER.decode(item["index"]): item for item in items if "embedding" in item}
    except (*UNREADABLE, KeyError):
        return None
    if len(items) != count or by_index.keys() != set(range(count)) or not 0 <= usage.prompt_tokens <= MAX_TOKENS:
        return None
    return Computed(head, [by_index[place] for place in range(count)], usage.prompt_tokens)


def entries_of(entry: Entry, computed: Computed, inputs: Sequence[Any]) -> list[Entry]:
    """An entry for each input. A server reports the tokens of all together: each has its part by its length."""
    tokens = apportioned(computed.tokens, [len(one) for one in inputs])
    return [
        msgspec.structs.replace(
            entry, body=msgspec.json.encode(KeptItem(computed.head, item)), usage=Usage(input_tokens=count)
        )
        for item, count in zip(computed.items, tokens, strict=True)
    ]


def apportioned(total: int, sizes: Sequence[int]) -> list[int]:
    """Whole parts of a total in proportion to sizes; their sum is the total."""
    whole, done, before, parts = max(1, sum(sizes)), 0, 0, list[int]()
    for size in sizes:
        done += size
        upto = total * done // whole
        parts.append(upto - before)
        before = upto
    if parts:
        parts[-1] += total - before
    return parts


def merged(kept: Sequence[Entry | None], computed: Computed | None) -> tuple[bytes, Usage] | None:
    """The response to all inputs, in their order, and its usage, of which `cached_tokens` were not computed now.

    `computed`: those that are not kept; None: all are. The result is None where an entry cannot be read.
    """
    try:
        found = [None if entry is None else _KEPT.decode(entry.body) for entry in kept]
    except UNREADABLE:
        return None
    fresh = iter(computed.items if computed else ())
    items = [next(fresh) if one is None else one.item for one in found]
    head = computed.head if computed else next(one.head for one in found if one is not None)
    cached = sum(entry.usage.input_tokens for entry in kept if entry is not None and entry.usage is not None)
    total = cached + (computed.tokens if computed else 0)
    data = [{**item, "index": place} for place, item in enumerate(items)]
    usage = {"prompt_tokens": total, "total_tokens": total, "prompt_tokens_details": {"cached_tokens": cached}}
    body = msgspec.json.encode({"object": "list", **head, "data": data, "usage": usage})
    return body, Usage(total, 0, cached)


def _are_tokens(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)
