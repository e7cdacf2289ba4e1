"""Parses a fetcher's page of metrics; pure.

The page comes from a tenant's pod, so at most four numbers are taken from it, each an integer within bounds.
"""

import re

from slipway_operator.model.cluster.observed import PodDownload

LARGEST_BYTES = 4096
_LARGEST = 1 << 50  # bytes: more than any model has
_SAMPLE = re.compile(r"slipway_fetch_(downloaded_bytes|size_bytes|speed_bytes_per_second|waiting) ([0-9]{1,16})")


def parse(page: bytes) -> PodDownload | None:
    """Parse a page; None if our fetcher never sends such a page."""
    values: dict[str, int] = {}
    for line in page.decode("ascii", "replace").split("\n"):
        found = _SAMPLE.fullmatch(line)
        if found and found[1] in values:
            return None
        if found:
            values[found[1]] = min(int(found[2]), _LARGEST)
    if len(page) > LARGEST_BYTES or not values.keys() >= {"downloaded_bytes", "speed_bytes_per_second", "waiting"}:
        return None
    size = values.get("size_bytes") or None
    done = values["downloaded_bytes"] if size is None else min(values["downloaded_bytes"], size)
    return PodDownload(done, size, values["speed_bytes_per_second"], values["waiting"] == 1)
