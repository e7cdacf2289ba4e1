"""Messages between the HTTP process and the engine process: length-prefixed msgpack, about one per step each way."""

from typing import Final

import msgspec

from .request import Request, RequestOutput

LENGTH_BYTES: Final = 4


class Start(msgspec.Struct, frozen=True, tag=True):
    """HTTP to engine, first: what to load and within which limits."""

    model: str
    task: str
    dtype: str
    quantization: str
    device: str
    context_tokens: int
    slots: int
    step_tokens: int  # 0: what suits the device
    step_s: float  # target time of a step; 0: what suits the device
    kv_tokens: int  # 0: what fits into memory
    prefix_cache: bool = True
    revision: str = ""  # of the model: cached blocks of another revision are not reused
    kv_cache_dtype: str = "auto"  # or int8
    trace: str = ""  # file that gets a line of JSON for each step
    gpu_memory: float = 0.9  # share of a GPU's memory that all processes together may use
    kernels: str = "auto"  # or native, torch, an instruction set
    allow_slow: bool = False  # a GPU may compute without the Triton kernels
    eager: bool = False  # no step is captured as a CUDA graph
    async_scheduling: str = "auto"  # or on, off: whether a step begins before the one before has ended
    log_level: str = "info"
    inter_token_s: float = 0.0  # target time of a step with answers of few requests; 0: what suits the device
    cpu_threads_bind: str = "nobind"  # or auto, a list of CPUs
    numa: str = "auto"  # or off
    stop_token_ids: tuple[int, ...] = ()  # of the model: they end an answer with a grammar
    max_loras: int = 0  # adapters that are loaded at a time; 0: there are none
    max_lora_rank: int = 0
    max_lora_bytes: int = 0
    lora_root: str = ""  # folder below which adapters lie
    lora_base_names: tuple[str, ...] = ()  # names of the model in files of adapters; empty: any
    max_perplexity_ratio: float = 0.0  # of rounded weights to plain ones; 0: it is not measured
    accuracy_tokens: tuple[int, ...] = ()  # of the text that it is measured on
    speculation: str = "none"  # or ngram, draft: what drafts tokens
    num_speculative_tokens: int = 0  # drafted of a sequence in one step
    prompt_lookup_min: int = 0  # tokens of a sequence's end that are looked up in it
    prompt_lookup_max: int = 0
    draft_model: str = ""  # folder of the model that drafts
    draft_context_tokens: int = 0  # that it was made for


class Commands(msgspec.Struct, frozen=True, tag=True):
    """HTTP to engine: new requests, and IDs of requests to cancel, since the last message."""

    submit: list[Request] = []
    cancel: list[str] = []


class EncodedCommands(msgspec.Struct, frozen=True, tag="Commands"):
    """`Commands` as the client sends them: `request_bytes` has already encoded each request."""

    submit: list[msgspec.Raw] = []
    cancel: list[str] = []


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """HTTP to engine: load the adapter in a folder. With its digest it was loaded before: it is registered alone."""

    path: str
    digest: str = ""


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """HTTP to engine: unload an adapter once its last request has ended."""

    digest: str


class Profile(msgspec.Struct, frozen=True, tag=True):
    """HTTP to engine: profile the next steps, up to a number of steps and seconds."""

    steps: int
    seconds: float
    operations: bool = False  # of torch; else functions of Python


class RoundingReport(msgspec.Struct, frozen=True):
    """What rounding the weights costs on a text: `models.accuracy`."""

    quantization: str
    perplexity_ratio: float  # to that with plain weights
    top1_agreement: float
    perplexity: float
    tokens: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: weights are loaded and the self-test passed."""

    kv_tokens: int
    block_tokens: int
    load_seconds: float
    dtype: str
    device: str
    kernels: str  # native, torch, or transformers: what computes the model
    vocab_size: int = 0  # the model's token ids are below it; its tokenizer may have more
    rounding: RoundingReport | None = None  # where weights were rounded at load


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: the model cannot be served; `reason` is one sentence."""

    reason: str


class AdapterLoaded(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: an adapter was loaded, by a command or for a request. `seconds`: to check, read and convert."""

    path: str
    digest: str
    rank: int
    size_bytes: int
    seconds: float
    commanded: bool = True


class AdapterFailed(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: a command to load an adapter failed. `field`: of its files or of the request."""

    path: str
    reason: str
    field: str


class AdapterUnloaded(msgspec.Struct, frozen=True, tag=True):
    digest: str


class AdaptersChanged(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: the bytes of each adapter that is loaded now, by digest."""

    sizes: dict[str, int]


class Profiled(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: the table of a profile that has ended."""

    table: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP, before a step: the requests that run from now on. A later crash may be their fault.

    `started`: request IDs, each with the number of prompt tokens that the prefix cache held.
    """

    started: dict[str, int]


class Step(msgspec.Struct, frozen=True, tag=True):
    """Engine to HTTP: what one step did, and the state of the scheduler after it."""

    started: dict[str, int]  # as in `Started`
    events: list[RequestOutput]
    running: int
    waiting: int
    kv_usage: float
    tokens: int  # that went through the model in this step
    seconds: float = 0.0
    # Since the step before:
    preemptions: int = 0
    prefix_queries: int = 0  # tokens
    prefix_hits: int = 0
    errors: int = 0  # requests that ended because computing them failed
    evictions: int = 0  # blocks of the prefix cache that others got
    out_of_memory: int = 0  # steps, or parts of one, that had too little memory
    drafts: int = 0  # that were verified
    draft_tokens: int = 0
    accepted_tokens: int = 0  # of the drafted ones


AdapterReport = AdapterLoaded | AdapterFailed | AdapterUnloaded | AdaptersChanged
ToEngine = Start | Commands | Profile | LoadAdapter | UnloadAdapter
FromEngine = Ready | Failed | Started | Step | Profiled | AdapterReport

_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(Request)


def request_bytes(request: Request) -> bytes:
    """Encodes one request for the socket.

    Raises:
        ValueError: a value of it cannot be encoded, or cannot be decoded by the engine.
    """
    try:
        body = _encoder.encode(request)
        _request.decode(body)
    except (OverflowError, TypeError, UnicodeError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
    return body


def encode(message: ToEngine | FromEngine | EncodedCommands) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


to_engine: Final[msgspec.msgpack.Decoder[ToEngine]] = msgspec.msgpack.Decoder(ToEngine)
from_engine: Final[msgspec.msgpack.Decoder[FromEngine]] = msgspec.msgpack.Decoder(FromEngine)
