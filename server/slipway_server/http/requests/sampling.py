"""The sampling fields of requests: the parameters that an endpoint takes, by their declaration, and what ends here."""

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Struct, defstruct

from ...engine.beams import EarlyStopping
from ...engine.request import SamplingParams
from ...sampling import PARAMETERS, Endpoint, RequestField, declared
from .fields import Choices, LengthPenalty, Priority, Stop, Timeout


def taking(endpoint: Endpoint, base: type[Struct] = Struct) -> type[Struct]:
    """The base of an endpoint's requests: an optional field for each parameter that it takes and `base` lacks."""
    optional = [
        (name, parameter.type | None, None)
        for name, parameter in PARAMETERS.items()
        if endpoint in parameter.endpoints and name not in base.__struct_fields__
    ]
    return defstruct(f"Taking{endpoint.name}", optional, bases=(base,), kw_only=True)


if TYPE_CHECKING:

    class GenerateFields(Struct, kw_only=True):
        """Of all parameters those that code of endpoints reads by name."""

        max_tokens: int | None = None
        temperature: float | None = None
        top_p: float | None = None
        seed: int | None = None
        min_tokens: int | None = None
        logit_bias: dict[str, float] | None = None
        bad_words: list[str] | None = None
        allowed_token_ids: list[int] | None = None
        stop_token_ids: list[int] | None = None
        prompt_logprobs: int | None = None
else:
    GenerateFields = taking(Endpoint.GENERATE)


class Sampling(GenerateFields, kw_only=True):
    """The fields that every generating endpoint shares."""

    stream: Annotated[bool | None, RequestField(neutral=(False,), beams=())] = False
    stop: Annotated[Stop, RequestField(neutral=([],), beams=())] = None
    ignore_eos: Annotated[bool, RequestField(neutral=(False,))] = False

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return strings_of(self.stop)

    def params(self, max_tokens: int, stop_token_ids: tuple[int, ...], seed: int) -> SamplingParams:
        """`stop_token_ids`: the model's own. `seed`: the client's, or the one that was drawn for the stream."""
        given = {name: value for name in _CONVERTED if (value := getattr(self, name, None)) is not None}
        return SamplingParams(
            max_tokens=max_tokens,
            seed=seed,
            stop_token_ids=() if self.ignore_eos else stop_token_ids,
            **{name: _CONVERTED[name](value) for name, value in given.items()},
        )


_CONVERTED: Final = {name: parameter.convert for name, parameter in PARAMETERS.items() if parameter.convert}

if TYPE_CHECKING:
    OpenAIFields = Sampling
    ResponsesFields = GenerateFields
    ApiGenerateFields = GenerateFields
    NamedGenerateFields = GenerateFields
else:
    OpenAIFields = taking(Endpoint.OPENAI, Sampling)
    ResponsesFields = taking(Endpoint.RESPONSES)
    ApiGenerateFields = taking(Endpoint.API_GENERATE)
    NamedGenerateFields = taking(Endpoint.NAMED_GENERATE)


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class OpenAISampling(OpenAIFields, kw_only=True):
    """The fields of chat completions and completions: OpenAI's further ones, and vLLM's."""

    n: Annotated[Choices | None, RequestField(neutral=(1,))] = None
    include_stop_str_in_output: Annotated[bool, RequestField(neutral=(False,))] = False
    skip_special_tokens: Annotated[bool, RequestField(neutral=(True,))] = True
    priority: Annotated[Priority | None, RequestField(neutral=(0,))] = None
    timeout: Annotated[Timeout | None, RequestField()] = None
    use_beam_search: Annotated[bool | None, RequestField(neutral=(False,))] = None
    length_penalty: Annotated[LengthPenalty | None, RequestField(neutral=(1,))] = None
    early_stopping: Annotated[EarlyStopping | None, RequestField(neutral=(False,))] = None
    stream_options: Annotated[StreamOptions | None, RequestField()] = None


# Every sampling field that some request has.
FIELDS: Final[dict[str, RequestField]] = (
    declared(Sampling)
    | {name: parameter for name, parameter in PARAMETERS.items() if parameter.type}
    | declared(OpenAISampling)
)


def strings_of(stop: Stop) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def sampling_of(body: Struct) -> Sampling:
    """The sampling fields of a body of another type; it takes no others than /v1/generate, but for `stop_tokens`."""
    taken: dict[str, Any] = {name: getattr(body, name) for name in body.__struct_fields__}
    taken.setdefault("stop", taken.get("stop_tokens"))
    return Sampling(**{name: value for name, value in taken.items() if name in Sampling.__struct_fields__})
