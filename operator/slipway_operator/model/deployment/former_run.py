"""Analyses in the form of a release without AnalysisRuns: counters packed into one text of the status.

Read for two releases. The packed text is base64 of zlib of JSON.
"""

import base64
import binascii
import zlib
from typing import Any

import msgspec

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_contracts.api.writing import to_json
from slipway_operator.api.v1alpha1.analysis_run import RunStatus
from slipway_operator.api.v1alpha1.status import AnalysisReference

Json = dict[str, Any]

MOST_BYTES = 1_500_000  # of the JSON: what was written had to fit into an object
_NAMES = {
    "w": "weight",
    "nc": "canaryUnits",
    "ns": "stableUnits",
    "kc": "canaryBad",
    "ks": "stableBad",
}
_FOUR = tuple(_NAMES.values())[1:]  # the order of the totals of one metric


def former_run(reference: AnalysisReference) -> RunStatus | None:
    """The run of a reference with counters; None where they make no sense, so that the analysis starts again.

    It has no verdict before it is read again, and no history.
    """
    try:
        packed = _unpacked(reference.counters or "")
        counts = [_named_counts(item) for item in packed.get("counts") or ()]
        names = [item["metric"] for item in counts]
        run = packed | {
            "id": reference.id,
            "template": reference.template,
            "startedAt": to_json(reference.started_at),
            "readAt": to_json(reference.read_at or reference.started_at),
            "measured": to_json(reference.measured),
            "counts": counts,
            "assigned": [_named(epoch) for epoch in packed.get("assigned") or ()],
            "seen": [_named_totals(item, names) for item in packed.get("seen") or ()],
            "trace": [],
            "decisions": [],
        }
        return read(RunStatus, encoded(run))
    except (UnreadableObject, ValueError, TypeError, KeyError, AttributeError):
        return None


def _unpacked(text: str) -> Json:
    """The JSON of a packed text.

    Raises:
        ValueError: when it is none, or one of more than MOST_BYTES.
    """
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
        fields = msgspec.json.decode(plain) if stream.eof else None
    except (binascii.Error, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no packed object, or a very large one")
    return fields


def _named(epoch: Json) -> Json:
    return {_NAMES[name]: count for name, count in epoch.items()}


def _named_counts(item: Json) -> Json:
    return {"metric": item["metric"], "epochs": [_named(epoch) for epoch in item.get("epochs") or ()]}


def _named_totals(item: Json, names: list[str]) -> Json:
    """Totals by position: two of requests that were assigned, then four for each metric.

    Raises:
        ValueError: when there is another number of them.
    """
    canary, stable, *rest = item["totals"]
    counts = {name: dict(zip(_FOUR, rest[4 * place : 4 * place + 4], strict=True)) for place, name in enumerate(names)}
    if len(rest) != 4 * len(names):
        raise ValueError("totals of other metrics than those that were counted")
    return {
        "incarnation": item["incarnation"],
        "generation": item["generation"],
        "canaryAssigned": canary,
        "stableAssigned": stable,
        "counts": counts,
    }
