"""The table of OpenAI's and vLLM's fields in docs/server.md, from the types that validate requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipway_server.http.requests.bodies import UNSUPPORTED, WITHOUT_EFFECT
from slipway_server.http.requests.schemas import ChatRequest, CompletionRequest, EmbeddingRequest

PAGE = Path(__file__).with_name("server.md")
BEGIN, END = "<!-- fields: written by docs/generate.py -->\n", "<!-- end of fields -->\n"
KINDS: tuple[type[Struct], ...] = (ChatRequest, CompletionRequest, EmbeddingRequest)


def page() -> str:
    """The page with its table as it must be."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} has no place for the table of fields")
    return before + begin + "\n".join(_table()) + "\n" + end + after


def _table() -> Iterator[str]:
    yield "| field | chat completions | completions | embeddings |\n|---|---|---|---|"
    names = {name for kind in KINDS for name in kind.__struct_fields__} | UNSUPPORTED.keys()
    for name in sorted(names):
        yield f"| `{name}` | {' | '.join(_verdict(name, kind) for kind in KINDS)} |"


def _verdict(name: str, kind: type[Struct]) -> str:
    if name in kind.__struct_fields__:
        return "no effect" if name in WITHOUT_EFFECT else "yes"
    neutral = " or ".join(f"`{_json(value)}`" for value in UNSUPPORTED[name])
    return f"400, except {neutral}" if neutral else "400"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
