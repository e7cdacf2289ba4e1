"""The label that a response of a classic model predicts, where it is a single one (pure)."""

from typing import Any

import msgspec

from ..wire import inference

MAX_BYTES = 64 << 10  # of a response: that of one row is far shorter
_WHOLE = ("INT", "UINT", "BOOL", "BYTES")  # beginnings of the data types of labels


class _Output(msgspec.Struct):
    datatype: str = ""
    data: Any = None


class _Answer(msgspec.Struct):
    prediction: Any = None
    predictions: list[Any] | None = None
    outputs: list[_Output] | None = None


_DECODER = msgspec.json.Decoder(_Answer)


def predicted_label(path: str, body: bytes) -> str | None:
    """The label of the one row in a response; None for numbers, several rows, binary outputs and other paths."""
    if not inference.is_predict(path) or len(body) > MAX_BYTES:
        return None
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if found.outputs is not None:
        data = [one.data for one in found.outputs if one.datatype.startswith(_WHOLE)]
        rows = data[0] if len(data) == 1 and isinstance(data[0], list) else []
    else:
        rows = [found.prediction] if found.predictions is None else found.predictions
    return written(rows[0]) if len(rows) == 1 and isinstance(rows[0], str | int) else None


def written(label: str | int) -> str:
    """A label as a text: 2 and "2" are the same one."""
    return str(label).lower() if isinstance(label, bool) else str(label)
