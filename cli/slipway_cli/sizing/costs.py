"""What the pods of revisions cost in a time, and what each token and request of them costs; pure.

Prices are those of the operator's metrics; tokens and requests are those of the gateways' ledgers.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipway_cli.api import MODEL_DEPLOYMENT_LABEL, REVISION_LABEL, STANDBY_SUFFIX, Json
from slipway_cli.objects.times import parse_time

Revision = tuple[str, str, str]  # namespace, name of the ModelDeployment, revision

_HOUR_S = 3600.0
_ROW = {"model": str, "revision": str, "requests": int, "input_tokens": int, "output_tokens": int}  # of a ledger
_SERIES = re.compile(r"(slipway_cost_per_hour|slipway_pod_info)\{([^{}]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class Served:
    """Requests and tokens in the ledgers."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RevisionCost:
    """A revision: its pods with a node now, their hours in the time, and the price of one for an hour.

    `served` None: the ledgers were not read. Costs are None where the price, or what they are divided by, is unknown.
    """

    namespace: str
    name: str
    revision: str
    pods: int
    pod_hours: float
    price_of_pod: float | None
    served: Served | None

    @property
    def per_hour(self) -> float | None:
        """Of the present pods."""
        return None if self.price_of_pod is None else self.pods * self.price_of_pod

    @property
    def cost(self) -> float | None:
        """Of the hours of the present pods."""
        return None if self.price_of_pod is None else self.pod_hours * self.price_of_pod

    @property
    def per_million_tokens(self) -> float | None:
        """Of prompts and outputs together."""
        return self._by(self.served.input_tokens + self.served.output_tokens, 1e6) if self.served else None

    @property
    def per_million_output_tokens(self) -> float | None:
        """Of outputs alone."""
        return self._by(self.served.output_tokens, 1e6) if self.served else None

    @property
    def per_thousand_requests(self) -> float | None:
        """Of requests, a prediction of a classic model among them."""
        return self._by(self.served.requests, 1e3) if self.served else None

    def _by(self, count: int, unit: float) -> float | None:
        return self.cost / count * unit if self.cost and count else None


def prices_of(page: str) -> dict[Revision, float]:
    """The price of a pod for an hour by revision, from the operator's metrics: its cost by the number of its pods."""
    costs: dict[Revision, float] = {}
    pods: Counter[Revision] = Counter()
    for line in page.splitlines():
        if match := _SERIES.fullmatch(line):
            labels = dict(_LABEL.findall(match[2]))
            key = labels.get("namespace", ""), labels.get("name", ""), labels.get("revision", "")
            if match[1] == "slipway_pod_info":
                pods[key] += 1
            elif (cost := _number(match[3])) is not None:
                costs[key] = cost
    return {key: cost / pods[key] for key, cost in costs.items() if pods[key]}


def costs_of(
    pods: Iterable[Json],
    prices: Mapping[Revision, float],
    served: Mapping[Revision, Served] | None,
    start_s: float,
    now: datetime,
) -> list[RevisionCost]:
    """The revisions that have pods, and those that served in the time, sorted."""
    hours: dict[Revision, list[float]] = {}
    for key, since_s in _running(pods):
        hours.setdefault(key, []).append(max(0.0, now.timestamp() - max(since_s, start_s)) / _HOUR_S)
    return [
        RevisionCost(
            *key,
            pods=len(hours.get(key, ())),
            pod_hours=sum(hours.get(key, ())),
            price_of_pod=prices.get(key) if key in hours else None,
            served=None if served is None else served.get(key, Served()),
        )
        for key in sorted(hours.keys() | (served or {}).keys())
    ]


def names_of(objects: Iterable[Json]) -> dict[str, tuple[str, str]]:
    """The ModelDeployment, as namespace and name, of each name that ledgers have: a short one is its owner's."""
    names: dict[str, tuple[str, str]] = {}
    for item in objects:
        metadata, status = item["metadata"], item.get("status") or {}
        key = metadata["namespace"], metadata["name"]
        names["/".join(key)] = key
        conditions = status.get("conditions") or ()
        yields = any(each.get("type") == "NameConflict" and each.get("status") == "True" for each in conditions)
        if status.get("model") and not yields:
            names[str(status["model"])] = key
    return names


def served_of(rows: Iterable[Mapping[str, Any]], names: Mapping[str, tuple[str, str]]) -> dict[Revision, Served]:
    """What the rows of ledgers have of these names.

    Raises:
        ValueError: a row has another form, with the field that is wrong.
    """
    sums: dict[Revision, Served] = {}
    for row in rows:
        if wrong := next((name for name, kind in _ROW.items() if type(row.get(name)) is not kind), ""):
            raise ValueError(f"a row of the ledger has no {wrong} that can be read")
        if row["model"] in names:
            key = (*names[row["model"]], row["revision"])
            before = sums.get(key, Served())
            sums[key] = Served(
                before.requests + row["requests"],
                before.input_tokens + row["input_tokens"],
                before.output_tokens + row["output_tokens"],
            )
    return sums


def revisions_of(pods: Iterable[Json]) -> set[Revision]:
    """The revisions that have pods on nodes."""
    return {key for key, _ in _running(pods)}


def total(costs: Sequence[RevisionCost]) -> float | None:
    """The cost of all; None where a revision with pods has no price."""
    known = [each.cost for each in costs if each.pods]
    return None if any(cost is None for cost in known) else sum(cost for cost in known if cost is not None)


def _running(pods: Iterable[Json]) -> Iterator[tuple[Revision, float]]:
    """Pods that hold a node, and since when."""
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels = metadata.get("labels") or {}
        if not (pod.get("spec") or {}).get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
            continue
        conditions = status.get("conditions") or ()
        placed: Json = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
        since = parse_time(placed.get("lastTransitionTime")) or parse_time(metadata.get("creationTimestamp"))
        revision = str(labels.get(REVISION_LABEL, "")).removesuffix(STANDBY_SUFFIX)  # the operator's cost has both too
        key = metadata["namespace"], labels.get(MODEL_DEPLOYMENT_LABEL, ""), revision
        if since:  # the API server writes one with each pod
            yield key, since.timestamp()


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
