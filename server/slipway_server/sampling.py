"""The sampling parameters, each declared once: a field of `SamplingValues` with its `Parameter`.

What follows from it: the fields of requests and their refusals (`http/requests/sampling.py`), the engine's parameters
and their validation, the layout of a draw in torch, C and Triton, the tables of docs/server.md, and what the fuzzer
tries. Fields of requests that no engine sees, such as `n`, are declared with their `RequestField` in that module.
"""

import enum
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Final, get_type_hints

from msgspec import Meta

INT32, INT64 = 2**31 - 1, 2**63 - 1
LARGEST = sys.float_info.max
MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS = 256, 256
MAX_TOKEN_IDS = 1 << 18  # of one list that is no prompt
MAX_LOGPROBS = 20

Count = Annotated[int, Meta(ge=0, le=INT32)]
Positive = Annotated[int, Meta(ge=1, le=INT32)]
TokenId = Annotated[int, Meta(ge=0, le=INT32)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


class Acts(enum.Enum):
    """Where a parameter acts."""

    LENGTH = "on the length of a response"
    LOGITS = "on logits, before a draw"
    DRAW = "in the draw"
    REPORT = "on what is returned"


class Endpoint(enum.Flag):
    """Kinds of requests, by the parameters that they take. OPENAI: chat completions and completions."""

    OPENAI = enum.auto()
    RESPONSES = enum.auto()
    GENERATE = enum.auto()  # /v1/generate
    API_GENERATE = enum.auto()  # /api/v1/generate
    NAMED_GENERATE = enum.auto()  # /api/v1/models/NAME/generate


NOWHERE: Final = Endpoint(0)
EVERYWHERE: Final = ~NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """What becomes of a field where it is not taken.

    `neutral`: values that endpoints without the field accept beside null, because they demand nothing. `beams`: values
    that a beam search accepts beside false ones; None: it takes the field.
    """

    neutral: tuple[Any, ...] = ()
    beams: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Parameter(RequestField):
    """`type`: of the field in a request, with its bounds; None where no request has it under this name.

    `convert` makes the engine's value of the request's; None: the code of endpoints does. `range`: the least and the
    largest number that the engine takes. `draw`: the type in a draw, for a rule of it: numpy's f4 or i4.
    """

    acts: Acts
    type: Any = None
    endpoints: Endpoint = NOWHERE
    note: str = ""
    convert: Callable[[Any], Any] | None = lambda value: value
    range: tuple[float, float] | None = None
    draw: str = ""
    beams: tuple[Any, ...] | None = field(default=(), kw_only=True)

    @property
    def is_number(self) -> bool:
        return self.type is not None and self.type.__origin__ in (int, float)


def _pairs(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple((int(token), bias) for token, bias in biases.items())


_OPENAI, _RESPONSES, _GENERATE = Endpoint.OPENAI, Endpoint.RESPONSES, Endpoint.GENERATE


@dataclass(frozen=True, slots=True)
class SamplingValues:
    """How tokens are chosen, with the values that demand nothing. Names and meanings are vLLM's.

    Of two rules that a request breaks, the error is about the one that is here first.
    """

    max_tokens: Annotated[
        int,
        Parameter(Acts.LENGTH, Positive, ~_RESPONSES, convert=None, range=(1, INT64), beams=None),
    ]
    temperature: Annotated[
        float,
        Parameter(
            Acts.DRAW,
            Annotated[float, Meta(ge=0.0, le=2.0)],
            EVERYWHERE,
            "0 is greedy; between 0 and 0.01 it is 0.01, as in vLLM",
            neutral=(1,),
            range=(0, LARGEST),
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        Parameter(
            Acts.DRAW,
            Annotated[float, Meta(gt=0.0, le=1.0)],
            _OPENAI | _RESPONSES | _GENERATE | Endpoint.API_GENERATE,
            "of the tokens that `top_k` leaves",
            neutral=(1,),
            beams=(1.0,),
            range=(0, 1),
            draw="f4",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Parameter(
            Acts.DRAW,
            Annotated[int, Meta(ge=-1, le=INT32, description="-1 and 0: the whole vocabulary")],
            _OPENAI | _RESPONSES | _GENERATE,
            "-1 and 0: the whole vocabulary",
            neutral=(0,),
            beams=(-1,),
            convert=lambda count: max(0, count),
            range=(0, INT64),
            draw="i4",
        ),
    ] = 0
    min_p: Annotated[
        float,
        Parameter(
            Acts.DRAW,
            Annotated[float, Meta(ge=0.0, le=1.0)],
            _OPENAI | _RESPONSES,
            "of the likeliest token's probability, after `top_p`",
            neutral=(0,),
            range=(0, 1),
            draw="f4",
        ),
    ] = 0.0
    seed: Annotated[
        int,
        Parameter(
            Acts.DRAW,
            Annotated[int, Meta(ge=-INT64 - 1, le=INT64)],
            _OPENAI | _RESPONSES | _GENERATE,
            "without one it is drawn",
            convert=None,
            beams=None,
        ),
    ] = 0
    min_tokens: Annotated[
        int,
        Parameter(
            Acts.LOGITS,
            Count,
            _OPENAI,
            "stop tokens and stop strings end a response only after these",
            neutral=(0,),
            range=(0, INT64),
        ),
    ] = 0
    repetition_penalty: Annotated[
        float,
        Parameter(
            Acts.LOGITS,
            Annotated[float, Meta(ge=0.01, le=10.0)],
            _OPENAI | _RESPONSES,
            "over the prompt too",
            neutral=(1,),
            beams=(1.0,),
            range=(-LARGEST, LARGEST),
        ),
    ] = 1.0
    frequency_penalty: Annotated[
        float, Parameter(Acts.LOGITS, Penalty, _OPENAI | _GENERATE, neutral=(0,), range=(-LARGEST, LARGEST))
    ] = 0.0
    presence_penalty: Annotated[
        float, Parameter(Acts.LOGITS, Penalty, _OPENAI | _GENERATE, neutral=(0,), range=(-LARGEST, LARGEST))
    ] = 0.0
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        Parameter(
            Acts.LOGITS,
            Annotated[
                dict[Annotated[str, Meta(pattern="^[0-9]{1,10}$")], Annotated[float, Meta(ge=-100.0, le=100.0)]],
                Meta(max_length=1024, description="by token id"),
            ],
            _OPENAI,
            "by token id, -100 to 100",
            neutral=({},),
            convert=_pairs,
        ),
    ] = ()
    bad_words: Annotated[
        tuple[tuple[int, ...], ...],  # token sequences that must not be completed
        Parameter(
            Acts.LOGITS,
            Annotated[
                list[Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]],
                Meta(max_length=MAX_BAD_WORDS),
            ],
            _OPENAI,
            f"of up to {MAX_BAD_WORD_CHARACTERS} characters each",
            neutral=([],),
            convert=None,
        ),
    ] = ()
    allowed_token_ids: Annotated[
        tuple[int, ...],  # empty: all
        Parameter(
            Acts.LOGITS,
            Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_TOKEN_IDS)],
            _OPENAI,
            convert=tuple,
        ),
    ] = ()
    # A beam search considers more candidates for each of them: with hundreds a step would take seconds.
    stop_token_ids: Annotated[
        tuple[int, ...],
        Parameter(
            Acts.LENGTH,
            Annotated[list[TokenId], Meta(max_length=256)],
            _OPENAI,
            "beside the model's own",
            neutral=([],),
            convert=None,
        ),
    ] = ()
    # Alternatives for each token, beside its own log probability; -1: none at all.
    logprobs: Annotated[int, Parameter(Acts.REPORT, range=(-1, INT64), convert=None)] = -1
    prompt_logprobs: Annotated[
        int,
        Parameter(
            Acts.REPORT,
            Alternatives,
            _OPENAI,
            "in vLLM's shape; not in streams",
            convert=None,
            range=(-1, INT64),
            beams=None,
        ),
    ] = -1


def declared(kind: type) -> dict[str, Any]:
    """The RequestField of each field of a class that has one."""
    hints = get_type_hints(kind, include_extras=True)
    notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: note for name, given in notes.items() for note in given if isinstance(note, RequestField)}


PARAMETERS: Final[dict[str, Parameter]] = declared(SamplingValues)
NEUTRAL: Final[dict[str, Any]] = {
    item.name: item.default for item in fields(SamplingValues) if item.default is not MISSING
}
# Those that change logits: their value is the neutral one for all who do not use them.
OF_LOGITS: Final = tuple(name for name, parameter in PARAMETERS.items() if parameter.acts is Acts.LOGITS)
# What a draw consists of, in this order: its names and numpy's types. The rules are parameters by their own name.
DRAW_RULES: Final = {name: parameter.draw for name, parameter in PARAMETERS.items() if parameter.draw}
DRAW_FIELDS: Final = {"seed": "u8", "inverse_temperature": "f4"} | DRAW_RULES
