"""Messages of `slipway.v1.Generation`, as contracts/proto/slipway/v1/generation.proto has them (pure)."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from slipway_contracts import protobuf
from slipway_contracts.protobuf import BYTES, FIXED64, VARINT, WireField

from ..token_streams import messages
from ..token_streams.events import TokenEvent
from ..token_streams.messages import Generate, Resume
from ..wire.errors import RequestError, invalid

_MAX_POSITION = 10**9
# Of GenerateRequest: by number, the field of the body of /v1/generate, and its wire type.
_FIELDS = {
    1: ("model", BYTES),
    2: ("prompt", BYTES),
    3: ("max_tokens", VARINT),
    4: ("temperature", FIXED64),
    5: ("top_p", FIXED64),
    6: ("top_k", VARINT),
    7: ("seed", VARINT),
    8: ("frequency_penalty", FIXED64),
    9: ("presence_penalty", FIXED64),
    10: ("stop", BYTES),
    11: ("ignore_eos", VARINT),
    12: ("priority", VARINT),
    13: ("last_event_id", BYTES),
}


def start_of(message: bytes) -> Generate | Resume:
    """Reads a StreamRequest. Raises RequestError 400: it is none, or has a field that this gateway does not know."""
    try:
        generate: bytes | None = None
        resume: bytes | None = None
        id_, resumable = "", False
        for field in protobuf.fields(message):
            if field.number == 1 and field.kind == BYTES:
                generate, resume = message[field.start : field.stop], None
            elif field.number == 2 and field.kind == BYTES:
                generate, resume = None, message[field.start : field.stop]
            elif field.number == 3 and field.kind == BYTES:
                id_ = _text(message, field, "id")
            elif field.number == 4 and field.kind == VARINT:
                resumable = bool(field.value)
            else:
                raise _unknown("StreamRequest", field)
        if id_:
            messages.check_id(id_)
        if generate is not None:
            return _generate(generate, id_, resumable=resumable)
        if resume is not None:
            return _resume(resume, id_, resumable=resumable)
    except protobuf.WireError as error:
        raise invalid("invalid_message", f"The message cannot be read: {error}.") from None
    raise invalid("invalid_message", "The message has neither `generate` nor `resume`.")


def _generate(data: bytes, id_: str, *, resumable: bool) -> Generate:
    body: dict[str, Any] = {}
    for field in protobuf.fields(data):
        name, kind = _FIELDS.get(field.number, ("", -1))
        if kind != field.kind:
            raise _unknown("GenerateRequest", field)
        value = _READ[kind](data, field, name)
        if name == "stop":
            body.setdefault(name, []).append(value)
        else:
            body[name] = bool(value) if name == "ignore_eos" else value
    last_event_id = body.pop("last_event_id", "")
    return Generate(id_, msgspec.json.encode(body | {"stream": True}), resumable, last_event_id)


def _resume(data: bytes, id_: str, *, resumable: bool) -> Resume:
    if not id_:
        raise invalid("missing_required_parameter", "A resume needs `id`.", param="id")
    position = 0
    for field in protobuf.fields(data):
        if field.number != 1 or field.kind != VARINT:
            raise _unknown("ResumeRequest", field)
        position = field.value
    if position >= _MAX_POSITION:
        raise invalid("invalid_value", "`from` is the `position` of the last event that the client has.", param="from")
    return Resume(id_, position, resumable)


def event_of(id_: str, event: TokenEvent) -> bytes:
    """Encodes a StreamEvent."""
    about = protobuf.text_field(1, id_)
    if event.event_id:
        about += protobuf.number_field(2, event.position) + protobuf.text_field(3, event.event_id)
    if event.usage is None:
        return about + protobuf.bytes_field(4, event.token.encode("utf-8", "replace"))
    usage = protobuf.number_field(1, event.usage.input_tokens) + protobuf.number_field(2, event.usage.output_tokens)
    done = protobuf.bytes_field(1, usage) + protobuf.text_field(2, event.finish_reason or "")
    return about + protobuf.bytes_field(5, done)


def _unknown(name: str, field: WireField) -> RequestError:
    text = f"{name} has no field {field.number} of wire type {field.kind} at this gateway."
    return invalid("unknown_parameter", text, param=str(field.number))


def _text(data: bytes, field: WireField, name: str) -> str:
    try:
        return data[field.start : field.stop].decode()
    except UnicodeDecodeError:
        raise invalid("invalid_message", f"`{name}` is no UTF-8.", param=name) from None


def _integer(_: bytes, field: WireField, __: str) -> int:
    return field.value - (1 << 64) if field.value >= 1 << 63 else field.value


def _double(data: bytes, field: WireField, name: str) -> float:
    value = float(struct.unpack_from("<d", data, field.start)[0])
    if value - value != 0:  # an infinity, or no number: JSON has neither
        raise invalid("invalid_value", f"`{name}` is no finite number.", param=name)
    return value


_READ: dict[int, Callable[[bytes, WireField, str], Any]] = {BYTES: _text, VARINT: _integer, FIXED64: _double}
