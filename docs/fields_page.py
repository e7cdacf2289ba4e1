"""The tables of fields and of sampling parameters in docs/server.md, from the types that validate requests."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipway_server.http.requests.bodies import UNSUPPORTED, WITHOUT_EFFECT
from slipway_server.http.requests.schemas import ChatRequest, CompletionRequest, EmbeddingRequest
from slipway_server.sampling import NEUTRAL, PARAMETERS, Endpoint, Parameter

PAGE = Path(__file__).with_name("server.md")
KINDS: tuple[type[Struct], ...] = (ChatRequest, CompletionRequest, EmbeddingRequest)
NAMES = {
    Endpoint.OPENAI: "chat completions, completions",
    Endpoint.RESPONSES: "`/v1/responses`",
    Endpoint.GENERATE: "`/v1/generate`",
    Endpoint.API_GENERATE: "`/api/v1/generate`",
    Endpoint.NAMED_GENERATE: "`/api/v1/models/NAME/generate`",
}


def page() -> str:
    """The page with its tables as they must be."""
    return _filled(_filled(PAGE.read_text(), "fields", _fields()), "sampling", _sampling())


def _filled(text: str, name: str, lines: Iterable[str]) -> str:
    before, begin, rest = text.partition(f"<!-- {name}: written by docs/generate.py -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not end:
        raise ValueError(f"{PAGE.name} has no place for the table of {name}")
    return before + begin + "\n".join(lines) + "\n" + end + after


def _sampling() -> Iterator[str]:
    yield "| parameter | values | default | acts | where |\n|---|---|---|---|---|"
    for name, parameter in PARAMETERS.items():
        if parameter.type is not None:
            default = f"`{_json(NEUTRAL[name])}`" if parameter.convert and parameter.is_number else ""
            values = "; ".join(filter(None, (_values(parameter), parameter.note)))
            yield f"| `{name}` | {values} | {default} | {parameter.acts.value} | {_where(parameter)} |"


def _values(parameter: Parameter) -> str:
    schema = msgspec.json.schema(parameter.type)
    for kind, largest in (("array", "maxItems"), ("object", "maxProperties")):
        if schema["type"] == kind:
            return f"up to {schema[largest]}"
    least = f"above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else schema["minimum"]
    return f"{least} to {schema['maximum']}"


def _where(parameter: Parameter) -> str:
    return ", ".join(name for endpoint, name in NAMES.items() if endpoint in parameter.endpoints)


def _fields() -> Iterator[str]:
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
