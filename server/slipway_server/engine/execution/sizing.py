"""How much a step and the KV cache may take: limits from settings, device and free memory."""

from typing import Any

import torch

from slipway_process.machine import free_memory_bytes

from ...kernels import cuda
from ...kernels.api import BLOCK_TOKENS, Kernels
from ...models.decoder import Decoder
from ...models.devices import LoadError
from ..messages import Start
from ..scheduling.config import SchedulerConfig
from ..scheduling.model_drafting import CATCH_UP_TOKENS
from ..scheduling.scheduler import MAX_PROMPT_LOGPROBS
from .memory import DeviceMemory, for_cache

CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 8192
# KV cache's share of the memory that is free after the weights are loaded. Activations, the tokenizer and the page
# cache need the rest.
CPU_SHARE = 0.5
# Share of the free memory for the steps of models that transformers computes: their need is not known.
FOREIGN_STEP_SHARE = 0.15


def limits_for(start: Start, device: torch.device, blocks: int) -> SchedulerConfig:
    kv_tokens = start.kv_tokens or start.slots * start.context_tokens
    return SchedulerConfig(
        slots=start.slots,
        step_tokens=step_tokens(start, device),
        kv_tokens=min(max(1, kv_tokens // BLOCK_TOKENS), blocks) * BLOCK_TOKENS if blocks else 0,
        block_tokens=BLOCK_TOKENS,
        chunked=start.task == "generate",
        prefix_cache=start.prefix_cache,
    )


def step_tokens(start: Start, device: torch.device) -> int:
    """The most tokens of a step: at least one for each slot, for its decode, and one more for a prefill."""
    default = CPU_STEP_TOKENS if device.type == "cpu" else GPU_STEP_TOKENS
    return max(start.step_tokens or default, start.slots + 1)


def num_blocks_that_fit(decoder: Any, start: Start, draft: Decoder | None = None) -> int:
    """How many KV cache blocks fit into memory beside the weights. On a CPU, pages are allocated when first written.

    `draft`: a draft model, whose cache has as many blocks.

    Raises:
        LoadError: a GPU has no room for any block.
    """
    kernels: Kernels = decoder.kernels
    block_bytes = kernels.bytes_per_block + (draft.kernels.bytes_per_block if draft else 0)
    if kernels.device.type == "cpu":
        return max(1, int(free_memory_bytes() * CPU_SHARE) // block_bytes)
    free, total = cuda.memory_bytes()
    step_bytes = int(free * FOREIGN_STEP_SHARE)
    if isinstance(decoder, Decoder):
        drafted = start.num_speculative_tokens if start.speculation != "none" else 0
        rows = start.slots * (1 + drafted) + MAX_PROMPT_LOGPROBS
        step_bytes = decoder.shape.step_bytes(step_tokens(start, kernels.device), rows, kernels.dtype.itemsize)
    if (
        draft
    ):  # it runs before the step and never beside it, but its memory may be in fragments that the step cannot use
        rows = start.slots + CATCH_UP_TOKENS
        step_bytes += draft.shape.step_bytes(rows, start.slots, draft.kernels.dtype.itemsize)
    fit = for_cache(DeviceMemory(total, free), start.gpu_memory, step_bytes) // block_bytes
    if fit < 2:  # one of them is the scratch block
        raise LoadError(
            f"The GPU has no room for keys and values beside the weights: of {total >> 20} MiB {free >> 20} are free, "
            f"--gpu-memory-utilization is {start.gpu_memory}, and a step needs {step_bytes >> 20} MiB."
        )
    return fit - 1
