"""The pages of the loader: what its pod holds, whether that was loaded at the start, and counts."""

import time
from collections import Counter
from typing import get_args, get_type_hints

import msgspec

from slipway_contracts.adapters import ADAPTERS_PATH, AdapterState

from ..pages import JSON, METRICS, NOT_FOUND, Page
from .follow import AdapterLoader

STALLED_S = 120.0  # the engine's list takes at most some seconds
_UNAVAILABLE = "503 Service Unavailable"
_STATES = get_args(get_type_hints(AdapterState)["state"])


def page_of(loader: AdapterLoader, path: str, restarts: int) -> Page:
    """The page of a path; threads call it while the loader goes on."""
    if path == ADAPTERS_PATH:
        return Page(msgspec.json.encode(loader.report), JSON)
    if path == "/ready":
        waiting = b"adapters that the file listed at the start are not loaded yet"
        return Page(b"ok") if loader.ready else Page(loader.wrong.encode() or waiting, status=_UNAVAILABLE)
    if path == "/live":
        stalled = time.monotonic() - loader.looked_s > STALLED_S
        return Page(b"the loop stalled", status=_UNAVAILABLE) if stalled else Page(b"ok")
    return Page(metrics(loader, restarts).encode(), METRICS) if path == "/metrics" else NOT_FOUND


def metrics(loader: AdapterLoader, restarts: int) -> str:
    """Prometheus' text format."""
    states = Counter(adapter.state for adapter in loader.report.adapters)
    counts = loader.counts
    families = (
        (
            "slipway_adapter_loader_adapters",
            "gauge",
            "Adapters of the file.",
            {f'state="{s}"': states[s] for s in _STATES},
        ),
        ("slipway_adapter_loader_fetches_total", "counter", "Downloads that ended.", _by_result(counts.fetches)),
        ("slipway_adapter_loader_loads_total", "counter", "Loads by the engine that ended.", _by_result(counts.loads)),
        ("slipway_adapter_loader_unloads_total", "counter", "Adapters that left.", {"": counts.unloads}),
        ("slipway_adapter_loader_file_wrong", "gauge", "Whether the file is wrong.", {"": int(bool(loader.wrong))}),
        ("slipway_adapter_loader_task_restarts_total", "counter", "Restarts of the loop.", {"": restarts}),
    )
    lines = []
    for name, kind, text, values in families:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def _by_result(counts: dict[str, int]) -> dict[str, int]:
    return {f'result="{result}"': count for result, count in counts.items()}
