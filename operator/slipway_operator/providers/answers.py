"""Parses responses, the JSON of Prometheus and of any web service, into values; pure.

Prometheus: the HTTP API's instant query, https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries.
"""

import json
from typing import Any

from slipway_operator.model.analysis import json_path

# Error types of Prometheus' API; a response with another one is not from Prometheus.
_ERROR_TYPES = frozenset(
    {"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable"}
)
_RESULT_TYPES = frozenset({"matrix", "string"})


class Unanswered(Exception):
    """There is no usable response; the message is for users and holds neither a header nor the body."""


def of_prometheus(status: int, body: bytes) -> list[float] | float:
    """Return the values of a vector, or the value of a scalar; NaN and infinities are kept.

    Raises:
        Unanswered: for an error of the query, a matrix, a text, or anything but the documented JSON.
    """
    answer = _json(status, body)
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        raise Unanswered(f"{status}: {_size(body)} that are no answer of Prometheus")
    if answer["status"] == "error":
        kind = answer.get("errorType")
        known = kind if isinstance(kind, str) and kind in _ERROR_TYPES else "error"
        raise Unanswered(f"{status}: {known}: ask this query of Prometheus itself to read why")
    try:
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "scalar":
            return float(result[1])
        if kind == "vector":
            return [float(sample["value"][1]) for sample in result]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Unanswered(f"{status}: a sample has no number") from error
    shown = kind if isinstance(kind, str) and kind in _RESULT_TYPES else "result of another type"
    raise Unanswered(
        f"the query gives a {shown}, and an analysis takes a vector or a scalar: aggregate it, or drop its range"
    )


def of_web(status: int, body: bytes, path: str) -> Any:
    """Return the part of a JSON response at a path.

    Raises:
        Unanswered: for a status that is not 2xx, a body that is no JSON, or a path that matches nothing.
    """
    if not 200 <= status < 300:
        raise Unanswered(f"{status}: no measurement, for the status is not 2xx ({_size(body)})")
    try:
        return json_path.pick(path, _json(status, body))
    except (json_path.InvalidPath, json_path.PathNotFound) as error:
        raise Unanswered(str(error)) from error


def _json(status: int, body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise Unanswered(f"{status}: the answer of {_size(body)} is no JSON from character {error.pos} on") from error
    except (ValueError, RecursionError) as error:
        raise Unanswered(f"{status}: the answer of {_size(body)} is no JSON") from error


def _size(body: bytes) -> str:
    """Describe a body by its size. Its content is not shown, because it may be another tenant's secret."""
    return f"{len(body)} bytes"
