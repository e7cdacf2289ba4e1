"""What a server reports of its load in the header of a response, as ORCA has it: Envoy, vLLM and Triton know it too.

https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto: a client sends LOAD_FORMAT: TEXT and
gets `TEXT named_metrics.NAME=VALUE,…`.
"""

import math
from collections.abc import Mapping

LOAD_FORMAT, LOAD = "Endpoint-Load-Metrics-Format", "Endpoint-Load-Metrics"
TEXT = "TEXT"
# Names of metrics: the first two are vLLM's, the last one is Slipway's.
CACHE_USAGE, WAITING_REQUESTS, WAITING_TOKENS = "kv_cache_usage_perc", "num_requests_waiting", "waiting_prompt_tokens"
# LoRA adapters in memory; and a number that changes with them: a list of GET /v1/models is right while it is the same.
ADAPTERS, ADAPTERS_VERSION = "adapters_loaded", "adapters_version"
_PREFIX = "named_metrics."
_MAX_CHARACTERS, _MAX_METRICS = 2048, 64


def written(metrics: Mapping[str, float]) -> str:
    """The value of the header LOAD."""
    return f"{TEXT} " + ",".join(f"{_PREFIX}{name}={value:g}" for name, value in metrics.items())


def read(header: str) -> dict[str, float]:
    """The named metrics of a header; what is no finite number from 0 on is left out, and so is any other form.

    The header is a workload's: it may be anything.
    """
    form, _, listed = header[:_MAX_CHARACTERS].partition(" ")
    if form.upper() != TEXT or len(header) > _MAX_CHARACTERS:
        return {}
    metrics: dict[str, float] = {}
    for item in listed.split(",")[:_MAX_METRICS]:
        name, _, text = item.strip().partition("=")
        try:
            value = float(text)
        except ValueError:
            continue
        if name.startswith(_PREFIX) and math.isfinite(value) and value >= 0:
            metrics[name.removeprefix(_PREFIX)] = value
    return metrics
