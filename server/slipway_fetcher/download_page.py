"""Serves the progress of a fetch, in Prometheus' text format, while the fetcher runs."""

import contextlib
from collections.abc import Callable, Iterator

from . import pages
from .downloads import DownloadState

PATH = "/metrics"


@contextlib.contextmanager
def served(port: int, state: Callable[[], DownloadState]) -> Iterator[int]:
    """Serves on `port` within the context; yields the bound port, or 0: the fetch goes on without it."""

    def page_of(path: str) -> pages.Page:
        return pages.Page(page(state()).encode(), pages.METRICS) if path == PATH else pages.NOT_FOUND

    with pages.served(port, page_of, "progress") as bound:
        yield bound


def page(state: DownloadState) -> str:
    """The metrics as text. The metric of the model's size is missing while the size is not known."""
    gauges = {
        "slipway_fetch_downloaded_bytes": (state.done_bytes, "Bytes of the model that are on the disk."),
        "slipway_fetch_size_bytes": (state.size_bytes, "Bytes of the model, once they are known."),
        "slipway_fetch_speed_bytes_per_second": (state.bytes_per_second, "Speed of the last ten seconds."),
        "slipway_fetch_waiting": (int(state.waiting), "Whether another pod downloads the model into the cache."),
    }
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n"
        for name, (value, text) in gauges.items()
        if value is not None
    )
