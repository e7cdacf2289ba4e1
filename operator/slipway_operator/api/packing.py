"""Fields whose numbers only programs read, packed into one text: `kubectl describe` prints a line for each number.

A packed text is base64 of zlib of JSON. The operator and `slipway analyze` unpack it; docs/judge.md has a
command that does.
"""

import base64
import binascii
import zlib
from typing import Any

import msgspec

from slipway_contracts.api.markers import PackedFields

Json = dict[str, Any]

# etcd takes objects of up to 1.5 MiB: what was written fits in it also before it is packed.
MAX_BYTES = 1_500_000
MAX_PACKED = 1 << 20


class Unpackable(ValueError):
    """A text is no packed object."""


def pack(fields: Json) -> str:
    """Pack JSON; empty when there is nothing, or more than `unpack` takes."""
    written = msgspec.json.encode(fields) if fields else b""
    packed = base64.b64encode(zlib.compress(written)).decode() if len(written) <= MAX_BYTES else ""
    return packed if written and len(packed) <= MAX_PACKED else ""


def unpack(text: object) -> Json:
    """The JSON of a packed text.

    Raises:
        Unpackable: when it is none, or one of more than `MAX_BYTES`.
    """
    if not isinstance(text, str):
        raise Unpackable("it is no text")
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
        fields = msgspec.json.decode(found) if stream.eof else None
    except (binascii.Error, zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unpackable(f"it cannot be unpacked: {error}") from None
    if not isinstance(fields, dict):
        raise Unpackable("it is no packed object, or a very large one")
    return fields


def with_packed(value: Json, fields: PackedFields) -> Json:
    """An object with some of its fields packed into one; when all are too large, without the last of them."""
    inside = {name: value[name] for name in fields.names if name in value}
    outside = {name: item for name, item in value.items() if name not in inside}
    packed = pack(inside) or pack({name: item for name, item in inside.items() if name != fields.names[-1]})
    return outside | ({fields.field: packed} if packed else {})


def with_unpacked(value: Json, fields: PackedFields) -> Json:
    """The object as it was before `with_packed`; one without the packed field is returned as it is.

    Raises:
        Unpackable: when the field is no packed object.
    """
    if fields.field not in value:
        return value
    found = unpack(value[fields.field])
    outside = {name: item for name, item in value.items() if name != fields.field}
    return outside | {name: found[name] for name in fields.names if name in found}
