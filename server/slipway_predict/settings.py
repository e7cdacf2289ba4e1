"""Settings of the server of classic models: `--max-batch-size` is SLIPWAY_MAX_BATCH_SIZE."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from slipway_process.serving.settings import ServingSettings
from slipway_process.termination import Parser
from slipway_process.values import Bytes, Count, FilePath, Flag, PositiveCount, Seconds

PROGRAM = "slipway-predict"
# Flags of language models that the operator writes whatever the task is: they have no effect here.
LANGUAGE_FLAGS = ("dtype", "quantization", "device", "max-model-len", "tool-call-parser", "reasoning-parser")


class PredictSettings(ServingSettings):
    """Serves one classic model, or a pool of them, behind the Open Inference Protocol."""

    model_config = SettingsConfigDict(cli_prog_name=PROGRAM)

    model_revision: Annotated[str, Flag("HASH")] = Field(
        "", description="the revision of the ModelDeployment: requests may pin it in place of the version"
    )
    task: Literal["predict", "classify", "rerank"] = Field(
        "predict",
        description="what the model does; predict: a classic model, which is never found by itself; classify: the "
        "same, and it must be a classifier; rerank: a reranker of Hugging Face",
    )
    format: Literal["auto", "onnx", "xgboost", "lightgbm", "skops", "transformers"] = Field(
        "auto",
        description="of a classic model; auto: by the names and first bytes of its files; transformers: a "
        "classifier of images or texts of Hugging Face, which auto does not look for",
    )
    max_batch_size: PositiveCount = Field(64, description="rows of one batch of a classic model")
    max_queue_delay_microseconds: Count = Field(
        0, description="time that an idle classic model waits for more rows; 0: never"
    )
    max_queue_size: Count = Field(
        0,
        description="requests that may wait for a classic model; more get 429; 0: at least 256, and up to 1024 while "
        "the model computes all that wait within a second; the last quarter is for tenants of which none waits",
    )
    request_timeout_ms: Count = Field(
        0,
        description="time of a request to a classic model, from arrival to response; one that would miss it gets 429; "
        "0: none",
    )
    max_batch_s: Seconds = Field(
        30.0, description="time of one batch; a classic model that takes longer hangs, and its process is started again"
    )
    max_model_memory_bytes: Bytes = Field(
        0, description="memory that the process of a classic model may allocate; 0: 80 % of what is free at the start"
    )
    pool_config: FilePath = Field(
        "",
        description="file with the models of a pool, read again when it changes: one server has all of them, loads "
        "each on demand from its folder below --model, and evicts by use; with --task predict",
    )
    pool_memory_bytes: Bytes = Field(
        0, description="memory of all processes of a pool's models; 0: 80 % of what is free at the start"
    )
    pool_max_loaded: PositiveCount = Field(32, description="models of a pool that are in memory at a time")
    pool_min_residency_s: Seconds = Field(
        10.0, description="time that a model of a pool stays in memory before it may be evicted for another one"
    )
    pool_load_timeout_s: Seconds = Field(
        30.0, description="time that a request waits until its model of a pool is loaded; then it gets 503"
    )
    pool_max_load_s: Annotated[Seconds, Field(gt=0)] = Field(
        120.0, description="time that one model of a pool may take to load; one that takes longer has failed"
    )
    pool_parallel_loads: PositiveCount = Field(2, description="models of a pool that load at a time")
    pool_max_waiting_loads: PositiveCount = Field(
        64, description="models of a pool that may wait to be loaded; requests for more of them get 503"
    )
    max_image_pixels: Annotated[int, Field(ge=1, le=1 << 28), Flag("N")] = Field(
        1 << 24,
        description="pixels of an image for a classic model, by its header; one with more is refused before it is "
        "decoded, which takes 16 bytes for each pixel",
    )

    @field_validator("pool_config")
    @classmethod
    def _of_predict(cls, file: str, info: ValidationInfo) -> str:
        if file and info.data.get("task", "predict") != "predict":
            raise ValueError("--pool-config is for --task predict")
        return file

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """As of any process, without LANGUAGE_FLAGS."""
        ignored = Parser(prog=PROGRAM, add_help=False, allow_abbrev=False)
        for flag in LANGUAGE_FLAGS:
            ignored.add_argument(f"--{flag}")
        return super().parse(ignored.parse_known_args(arguments)[1])
