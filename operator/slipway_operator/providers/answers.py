"""What an answer says: the JSON of Prometheus and of any web service, as a value; pure.

Prometheus: the HTTP API's instant query, https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries.
"""

import json
from typing import Any

from slipway_operator.model import json_path

_SAID_LIMIT = 160


class Unanswered(Exception):
    """There is no answer that can be used; the message is for people and never holds a header."""


def of_prometheus(status: int, body: bytes) -> list[float] | float:
    """The values of a vector, or the value of a scalar; NaN and infinities as they are.

    Raises:
        Unanswered: for an error of the query, a matrix, a text, or anything but the documented JSON.
    """
    answer = _json(status, body)
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        raise Unanswered(f"{status}: this is no answer of Prometheus: {_said(body)}")
    if answer["status"] == "error":
        raise Unanswered(f"{status}: {answer.get('errorType', 'error')}: {answer.get('error', 'it says no more')}")
    try:
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "scalar":
            return float(result[1])
        if kind == "vector":
            return [float(sample["value"][1]) for sample in result]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Unanswered(f"{status}: a sample has no number: {_said(body)}") from error
    raise Unanswered(
        f"the query gives a {kind}, and an analysis takes a vector or a scalar: aggregate it, or drop its range"
    )


def of_web(status: int, body: bytes, path: str) -> Any:
    """The part of a JSON answer that a path leads to.

    Raises:
        Unanswered: for a status that is not 2xx, a body that is no JSON, or a path that leads nowhere.
    """
    if not 200 <= status < 300:
        raise Unanswered(f"{status}: {_said(body)}")
    try:
        return json_path.pick(path, _json(status, body))
    except (json_path.Unreadable, json_path.Missing) as error:
        raise Unanswered(str(error)) from error


def _json(status: int, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unanswered(f"{status}: the answer is no JSON: {_said(body)}") from error


def _said(body: bytes) -> str:
    """The beginning of a body, for people."""
    text = body[: _SAID_LIMIT * 4].decode(errors="replace").strip()
    first = text.splitlines()[0] if text else "an empty answer"
    return first if len(first) <= _SAID_LIMIT else first[: _SAID_LIMIT - 1] + "…"
