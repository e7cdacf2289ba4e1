"""How much of a GPU's memory is left for the KV cache. Pure: the caller measures the free memory."""

from dataclasses import dataclass

# For what is not counted: the libraries' workspaces, captured graphs, and fragmentation.
SLACK_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """In bytes, after the weights were loaded."""

    total: int
    free: int


def for_cache(memory: DeviceMemory, share: float, step_bytes: int) -> int:
    """Bytes left for keys and values when all processes together may use `share` of the device's memory; at least 0.

    `step_bytes`: what the largest step needs while it is computed.
    """
    used = memory.total - memory.free
    return max(0, int(memory.total * share) - used - step_bytes - SLACK_BYTES)
