"""Metrics with a provider: query, schedule, conditions and results. Names and semantics are Argo's.

The semantics are those of Argo Rollouts' analysis (AnalysisTemplate, argoproj.io/v1alpha1): conditions decide on a
measurement, and limits on a metric: how many measurements may fail, be inconclusive, or be consecutive errors.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")

ERROR_RETRY_S = 10  # Argo's: until a measurement is repeated after an error, if the metric has no interval
LEAST_INTERVAL_S = 5  # as long as between two readings of an analysis
DEFAULT_ERROR_LIMIT = 4  # Argo's consecutiveErrorLimit
MOST_KEPT = 10  # measurements of a metric that the status keeps
JOB_DEADLINE_S = 3600  # default of activeDeadlineSeconds
JOB_KEPT_S = 3600  # after which Kubernetes deletes a finished Job, if the operator crashed before it did

_ARGUMENT = re.compile(r"\{\{\s*args\.([A-Za-z0-9_-]+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One value of a Secret in the namespace of the template."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a request; its value is given here or in a Secret."""

    key: str
    value: str = ""
    secret: SecretKey | None = None


@dataclass(frozen=True, slots=True)
class Prometheus:
    """An instant query; the result is a list of numbers (a vector) or a number (a scalar)."""

    address: str
    query: str
    headers: tuple[Header, ...] = ()
    timeout_s: int = 30


@dataclass(frozen=True, slots=True)
class Web:
    """An HTTP request with a JSON response; the result is the part that `json_path` selects."""

    url: str
    method: str = "GET"
    headers: tuple[Header, ...] = ()
    body: str = ""
    json_path: str = ""
    timeout_s: int = 10
    insecure: bool = False  # accept any certificate


@dataclass(frozen=True, slots=True)
class Job:
    """A Job to run; the measurement is successful when the Job succeeds."""

    spec: dict[str, Any]

    @property
    def deadline_s(self) -> int:
        """Seconds that the Job may run."""
        return int(self.spec.get("activeDeadlineSeconds") or JOB_DEADLINE_S)


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric with a provider; exactly one of the three providers is set."""

    name: str
    prometheus: Prometheus | None = None
    web: Web | None = None
    job: Job | None = None
    success: str = ""  # successCondition
    failure: str = ""  # failureCondition
    interval_s: int | None = None
    initial_delay_s: int = 0
    requested_count: int | None = None  # count
    failure_limit: int = 0
    inconclusive_limit: int = 0
    error_limit: int = DEFAULT_ERROR_LIMIT  # consecutiveErrorLimit
    success_limit: int = 0  # consecutiveSuccessLimit; 0: none
    dry_run: bool = False

    @property
    def provider(self) -> str:
        """Name of the provider: prometheus, web or job."""
        return "prometheus" if self.prometheus else "web" if self.web else "job"

    @property
    def count(self) -> int | None:
        """Measurements after which the metric is complete; None: it is measured until the analysis ends."""
        return 1 if self.requested_count is None and self.interval_s is None else self.requested_count

    @property
    def endless(self) -> bool:
        """Whether the metric is measured until the analysis ends: it has neither count nor success limit."""
        return self.count is None and self.success_limit == 0


@dataclass(frozen=True, slots=True)
class Argument:
    """The value of `{{args.NAME}}` in a metric, or its source."""

    name: str
    value: str | None = None
    source: str = ""  # Stable | Latest | metadata.name | metadata.namespace


@dataclass(frozen=True, slots=True)
class Question:
    """A measurement to take. `key` identifies it: plans that name the same key mean one measurement."""

    key: str
    metric: Measure  # arguments filled in
    job: dict[str, Any] | None = None  # the manifest of the Job, for a Job metric


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """The result of a measurement: a value, or why there is none."""

    value: Any = None  # JSON; numbers of Prometheus may be NaN or infinite. For a Job: whether it succeeded
    message: str = ""
    problem: str = ""  # an error: the provider was not reached, or returned no usable value


def arguments_in(value: Any) -> Iterator[str]:
    """Names of all arguments in the strings of a value, at any depth."""
    if isinstance(value, str):
        yield from _ARGUMENT.findall(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from arguments_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arguments_in(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arguments_in(getattr(value, field.name))


def filled(value: T, arguments: Mapping[str, str]) -> T:
    """Return a copy of the value with its arguments filled in; unknown arguments stay unchanged."""
    return _filled(value, arguments)  # type: ignore[no-any-return]


def _filled(value: Any, arguments: Mapping[str, str]) -> Any:
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return _ARGUMENT.sub(lambda match: arguments.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: _filled(item, arguments) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(item, arguments) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {item.name: _filled(getattr(value, item.name), arguments) for item in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
