"""A request to `/generate`, `/generate_stream` or `/`, as text-generation-inference documents it.

Types and ranges are checked here, because an engine would name its own fields. What no engine behind the gateway is
known to have is a field all the same: its value must be one that demands nothing. Unknown fields are refused by name.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
AboveZero = Annotated[float, Meta(gt=0.0)]
Share = Annotated[float, Meta(gt=0.0, le=1.0)]
Texts = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=64)]


class Grammar(Struct, forbid_unknown_fields=True):
    """`value`: a JSON schema, also as a text, or a regular expression; of `json_schema` an object with the schema."""

    type: Literal["json", "regex", "json_schema"]
    value: Raw


class Parameters(Struct, kw_only=True, forbid_unknown_fields=True):
    max_new_tokens: Positive | None = None
    do_sample: bool | None = None
    temperature: AboveZero | None = None
    top_k: Positive | None = None
    top_p: Share | None = None
    repetition_penalty: AboveZero | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    stop: Texts | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    return_full_text: bool | None = None
    details: bool | None = None
    grammar: Grammar | None = None
    # What is refused, unless it demands nothing.
    adapter_id: str | None = None
    best_of: int | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: int | None = None
    truncate: int | None = None
    typical_p: float | None = None
    watermark: bool | None = None


class GenerateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """`inputs`: a text, whose JSON is kept as it was written. `model`: not of TGI, which serves one."""

    inputs: Raw
    parameters: Parameters | None = None
    stream: bool | None = None
    model: str | None = None


REQUEST = msgspec.json.Decoder(GenerateRequest)
