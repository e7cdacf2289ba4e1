"""The documents of `custom.metrics.k8s.io` and `external.metrics.k8s.io`; pure.

Shapes after k8s.io/metrics (custom_metrics v1beta1 and v1beta2, external_metrics v1beta1) and meta/v1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from slipway_operator.manifests.autoscaler import CUSTOM, EXTERNAL
from slipway_operator.metrics_api.release_loads import OF_RELEASE
from slipway_operator.metrics_api.series import OF_DEPLOYMENT, OF_POD
from slipway_operator.model import labels, quantity

Document = dict[str, Any]

# The first version of a group is the preferred one.
VERSIONS: Mapping[str, tuple[str, ...]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
RELEASE = "Release"  # in place of a kind: the value is of the release's own processes
DEPLOYMENTS = f"{labels.PLURAL}.{labels.GROUP}"
_REASONS = {400: "BadRequest", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 503: "ServiceUnavailable"}


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value, and the object that it describes."""

    kind: str  # Pod | ModelDeployment | RELEASE
    namespace: str
    name: str
    value: float
    taken: datetime
    window_s: int | None = None


def group(name: str) -> Document:
    """Return the APIGroup document of one of our groups."""
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in VERSIONS[name]]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def resources(name: str, version: str) -> Document:
    """Return the APIResourceList of one version: a resource for each metric, as autoscalers look them up."""
    kind, names = "ExternalMetricValueList", sorted((*OF_DEPLOYMENT, *OF_RELEASE))
    if name == CUSTOM:
        kind = "MetricValueList"
        names = [f"{plural}/{metric}" for plural, known in _TABLES.items() for metric in sorted(known)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}",
        "resources": [
            {"name": item, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]} for item in names
        ],
    }


def custom_values(version: str, metric: str, samples: Sequence[MetricValue]) -> Document:
    """Return a MetricValueList, as the API requires also for a single object."""
    return {
        "kind": "MetricValueList",
        "apiVersion": f"{CUSTOM}/{version}",
        "metadata": {},
        "items": [_custom_value(version, metric, sample) for sample in samples],
    }


def external_values(metric: str, samples: Sequence[MetricValue]) -> Document:
    """An ExternalMetricValueList, each item labelled with its ModelDeployment, if it is of one."""
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{EXTERNAL}/{VERSIONS[EXTERNAL][0]}",
        "metadata": {},
        "items": [
            {"metricName": metric, "metricLabels": _labels(sample), **_value(sample, "window")} for sample in samples
        ],
    }


def _labels(sample: MetricValue) -> dict[str, str]:
    return {} if sample.kind == RELEASE else {labels.MODEL_DEPLOYMENT: sample.name}


def failure(code: int, message: str) -> Document:
    """A meta/v1 Status: autoscalers and kubectl show its message."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }


_TABLES: Mapping[str, Mapping[str, Any]] = {DEPLOYMENTS: OF_DEPLOYMENT, "pods": OF_POD}


def _custom_value(version: str, metric: str, sample: MetricValue) -> Document:
    api_version = "v1" if sample.kind == "Pod" else labels.API_VERSION
    about = {"kind": sample.kind, "namespace": sample.namespace, "name": sample.name, "apiVersion": api_version}
    if version == "v1beta1":
        return {"describedObject": about, "metricName": metric, **_value(sample, "window"), "selector": None}
    return {"describedObject": about, "metric": {"name": metric, "selector": None}, **_value(sample, "windowSeconds")}


def _value(sample: MetricValue, window: str) -> Document:
    taken = sample.taken.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    span = {window: sample.window_s} if sample.window_s is not None else {}
    # Rounded to a millionth: further digits are errors of floating point.
    return {"timestamp": taken, **span, "value": quantity.render(Fraction(round(sample.value * 10**6), 10**6))}
