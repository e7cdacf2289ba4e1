"""What gateways do while a deployment cannot answer: external providers, circuit breaker, retry budget, degradation.

Names are those of Envoy and Istio where these have them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.types import ApiType, Int32, strict
from slipway_contracts.twin_shadow import outside

LONGEST_EJECTION_S = 3600
MOST_FALLBACKS = 4


class ProviderKeyRef(ApiType):
    """Key of a Secret of the namespace, which holds the API key of a provider. Gateways read it, and need a Role there:
    see docs/routing.md."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key in the Secret."""


class ExternalProvider(ApiType):
    """API of another provider, as OpenAI's, that gets requests of Tenants with spec.external true. Its host must be one
    that the administrator of the gateways listed (gateway.externalHosts of the chart)."""

    url: Annotated[str, Field(max_length=1024, pattern=r"^https://[^\s?#@]+[^\s?#@/]$")]
    """Base URL, for example https://api.openai.com/v1. Gateways add /chat/completions, /completions or /responses."""
    model: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the model at the provider. Responses have the name that the client sent."""
    api_key_secret_ref: ProviderKeyRef
    on_quota: bool = False
    """Whether it also answers requests that the limits per minute of a Tenant refuse. Its budget still counts."""


@strict
@dataclass(frozen=True, slots=True)
class ExternalTarget:
    """API of another provider, by its name in the list of fallbacks."""

    name: str
    """Name in the list of fallbacks."""
    url: str
    """Base URL of the API."""
    model: str
    """Name of the model at the provider."""
    secret: str
    """Name of the Secret with the API key."""
    key: str
    """Key in the Secret."""
    on_quota: bool | None = None
    """Whether it answers requests that limits of a Tenant refuse."""


@strict
@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """After so many failures in a row no requests are sent for a while; then one at a time, until one succeeds."""

    consecutive_5xx_errors: Int32
    """Requests in a row that failed."""
    base_ejection_seconds: Int32
    """Seconds without requests, multiplied by the times in a row that it opened."""


@strict
@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Most retries and fallbacks in progress at one gateway."""

    budget_percent: Int32
    """Percent of the requests in progress."""
    min_retry_concurrency: Int32
    """Retries in progress that are allowed whatever the percentage gives."""


@strict
@dataclass(frozen=True, slots=True)
class Degradation:
    """What requests get less of while pods refuse some for lack of capacity, in this order."""

    name: str | None = None
    """ModelDeployment of the namespace that answers what the pods refuse."""
    max_tokens: Int32 | None = None
    """Greatest limit of the tokens of a response."""
    single_choice: bool | None = None
    """Whether n is 1."""


def external_target(name: str, provider: ExternalProvider) -> ExternalTarget:
    """A provider of a spec, as gateways have it."""
    ref = provider.api_key_secret_ref
    return ExternalTarget(name, provider.url, provider.model, ref.name, ref.key, provider.on_quota or None)


def breaker_refusals(breaker: CircuitBreaker | None) -> Iterator[str]:
    """What is outside of its bounds."""
    if breaker is not None:
        yield outside("circuitBreaker.consecutive5xxErrors", breaker.consecutive_5xx_errors, 1, 10_000)
        yield outside("circuitBreaker.baseEjectionSeconds", breaker.base_ejection_seconds, 1, LONGEST_EJECTION_S)


def budget_refusals(budget: RetryBudget | None) -> Iterator[str]:
    """What is outside of its bounds."""
    if budget is not None:
        yield outside("retryBudget.budgetPercent", budget.budget_percent, 0, 100)
        yield outside("retryBudget.minRetryConcurrency", budget.min_retry_concurrency, 0, 10_000)


def degradation_refusals(degradation: Degradation | None) -> Iterator[str]:
    """What is outside of its bounds."""
    if degradation is not None and degradation.max_tokens is not None:
        yield outside("degradation.maxTokens", degradation.max_tokens, 1, 10_000_000)
