"""What a Tenant may use at most, and what it pays: limits, prices, budget."""

from typing import Annotated

from pydantic import Field

from slipway_operator.api.types import ApiType, Int32, Int64

Amount = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$")]
PerMinute = Annotated[Int64, Field(ge=1, le=1_000_000_000_000)]


class TenantLimits(ApiType):
    """Limits of the requests of a tenant. What is not given is not limited."""

    requests_per_minute: PerMinute | None = None
    """Requests in a minute."""
    input_tokens_per_minute: PerMinute | None = None
    """Tokens of prompts in a minute."""
    output_tokens_per_minute: PerMinute | None = None
    """Generated tokens in a minute. A request reserves what it may generate and is charged what it did."""
    concurrency: Annotated[Int32, Field(ge=1, le=1_000_000)] | None = None
    """Requests at the same time, streams included."""
    burst_seconds: Annotated[Int32, Field(ge=1, le=86400)] = 60
    """A tenant that sent nothing for so many seconds may use at once what its limits per minute give in them."""


class TenantPrice(ApiType):
    """Prices of the models that a name stands for, each for a million tokens, in the currency of the budget."""

    model: Annotated[str, Field(min_length=1, max_length=317, pattern=r"^[^*\s]*\*?$")]
    """Name of a model, or NAMESPACE/NAME of a ModelDeployment. A * at the end stands for any rest. Of several that
    match, the longest one counts, and one without * before all with it."""
    input_per_million: Amount = "0"
    """Price of a million tokens of prompts."""
    cached_input_per_million: Amount | None = None
    """Price of a million tokens of prompts that the server had in its cache. Without it they cost as much as others."""
    output_per_million: Amount = "0"
    """Price of a million generated tokens."""
    per_request: Amount = "0"
    """Price of a request that is answered, besides its tokens."""


class TenantBudget(ApiType):
    """What a tenant may spend. Days and months are those of UTC."""

    per_day: Amount | None = None
    """Amount for a day. When it is spent, requests are refused with insufficient_quota until the next day."""
    per_month: Amount | None = None
    """Amount for a month."""
