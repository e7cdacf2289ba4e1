"""The limits of the scheduler: sequences at once, tokens of a step and tokens of the KV cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    slots: int
    step_tokens: int
    kv_tokens: int
    block_tokens: int = 32
    chunked: bool = True  # False for encoders: they see the whole input at once
    prefix_cache: bool = True
