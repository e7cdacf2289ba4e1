"""Tenants: how gateways know who sends requests, what it may use and pays, and what they report about it."""

from typing import Annotated

import msgspec
from pydantic import Field

from slipway_contracts.api.markers import ListMap, ListSet, OneOf, rule
from slipway_contracts.api.types import ApiType, Int32, Int64, Time
from slipway_contracts.guards import GuardsWithoutDeployments

# Values of contentCapture: who may get contents of the tenant's requests. With any other value no one may.
SCORERS, INFERENCE_LOG, ALL = "Scorers", "InferenceLog", "All"
# Values of generationLog: what is kept of prompts and responses. With any other value nothing is.
METADATA, FULL = "Metadata", "Full"
Amount = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$")]
PerMinute = Annotated[Int64, Field(ge=1, le=1_000_000_000_000)]


class TenantLongContext(ApiType):
    """Bound of requests with long prompts, each of which keeps a server busy for long."""

    input_tokens: Annotated[Int32, Field(ge=1, le=100_000_000)]
    """Tokens of a prompt from which a request counts as one. Gateways estimate them: a quarter of the bytes of the
    body."""
    concurrency: Annotated[Int32, Field(ge=1, le=1_000_000)]
    """Such requests at the same time."""


class TenantRequestLimits(ApiType):
    """Bounds of each single request. What is not given is not bounded."""

    context_tokens: Annotated[Int32, Field(ge=1, le=100_000_000)] | None = None
    """Tokens of the prompt, which gateways estimate as a quarter of the bytes of the body, and of the request's own
    limit of the response, together. A request with more is refused with 400."""
    output_tokens: Annotated[Int32, Field(ge=1, le=10_000_000)] | None = None
    """Generated tokens of a response. A request with a higher limit of its own, or without one, gets this one."""


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
    per_request: TenantRequestLimits = TenantRequestLimits()
    """Bounds of each single request."""
    long_context: TenantLongContext | None = None
    """Bound of requests with long prompts."""


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
    cache_hit_percentage: Annotated[Int32, Field(ge=0, le=100)] = 0
    """Percent of the price of its tokens that a response from a gateway's cache costs. 0: such a response costs
    perRequest alone, and takes no tokens from the limits."""


class TenantBudget(ApiType):
    """What a tenant may spend. Days and months are those of UTC."""

    per_day: Amount | None = None
    """Amount for a day. When it is spent, requests are refused with insufficient_quota until the next day."""
    per_month: Amount | None = None
    """Amount for a month."""


class TenantKey(ApiType):
    """API key of the tenant, without its secret. `slipway keys create` writes it and shows the key once."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{6,32}$")]
    """Second part of the key, as in slw_ID_…. Logs and tables name the key by it."""
    hash: Annotated[str, Field(pattern=r"^hmac-sha256:[0-9a-f]{64}$")]
    """HMAC-SHA-256 of the whole key with the pepper of the release, in hexadecimal digits. The key cannot be computed
    from it."""
    expires_at: Time | None = None
    """Time from which the key is refused. Without it the key is valid until it is removed."""


class TenantIssuer(ApiType):
    """Tokens of an OpenID Connect issuer (JWT) that are the tenant's."""

    issuer: Annotated[str, Field(max_length=512, pattern=r"^https://[^\s?#]+$")]
    """URL of the issuer, as in the claim iss. Gateways read its keys over HTTPS from the address in its
    .well-known/openid-configuration."""
    audiences: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, description="Audience.")], ...],
        Field(min_length=1, max_length=8),
        ListSet(),
    ]
    """Audiences of which the token needs one in its claim aud. Use one that other services do not accept."""
    claims: Annotated[
        dict[str, Annotated[str, Field(max_length=253, description="Value of the claim.")]], Field(max_length=8)
    ] = Field(default_factory=dict)
    """Claims that the token needs, with their values. Of a claim that is a list, such as groups, one item has the
    value. If tokens of several Tenants match, the oldest Tenant has them."""


class TenantServiceAccount(ApiType):
    """ServiceAccount whose tokens are the tenant's."""

    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Namespace of the ServiceAccount."""
    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]
    """Name of the ServiceAccount."""


@rule(
    "[has(self.uri), has(self.dns), has(self.commonName)].filter(given, given).size() == 1",
    "an item of clientCertificates is one name: write one of uri, dns and commonName",
)
class TenantClientCertificate(ApiType):
    """Name in client certificates that are the tenant's."""

    uri: Annotated[str, Field(max_length=2048, pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:[^\s]+$")] | None = None
    """URI in the subject alternative name, such as spiffe://example.org/team-a. It is compared exactly; a certificate
    with several URIs has none."""
    dns: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")] | None = None
    """DNS name in the subject alternative name, without wildcards."""
    common_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Common name of the subject. It is compared exactly; a certificate with several has none."""


class TenantAuth(ApiType):
    """Credentials by which gateways know the tenant."""

    keys: Annotated[tuple[TenantKey, ...], Field(max_length=32), ListMap("id")] = ()
    """API keys. Several are valid at once, so that a key is replaced without an interruption. A key that is
    removed here is refused within two seconds."""
    jwt: Annotated[tuple[TenantIssuer, ...], Field(max_length=8)] = ()
    """Issuers of tokens. They must expire; gateways accept RS, PS and ES signatures of 256 to 512 bits, and EdDSA."""
    service_accounts: Annotated[tuple[TenantServiceAccount, ...], Field(max_length=32)] = ()
    """ServiceAccounts whose tokens are the tenant's, if they have the audience of the gateways
    (auth.tokenReview.audience of the chart). The API server reviews them. If several Tenants name one, the oldest
    Tenant has it."""
    client_certificates: Annotated[tuple[TenantClientCertificate, ...], Field(max_length=32)] = ()
    """Names in client certificates, which gateways verify by the authorities of gateway.tls.clientCASecretName of the
    chart. They count for requests without other credentials. If a certificate matches several Tenants, the oldest
    Tenant has it."""


class TenantSpec(ApiType):
    """How gateways know the tenant, and what it may use."""

    disabled: bool = False
    """When true, all requests of the tenant are refused with 403."""
    weight: Annotated[Int32, Field(ge=1, le=1000)] = 1
    """Share of a server's tokens while tenants wait for it: with weight 2 a tenant gets twice as much as with weight
    1."""
    priority_limit: Annotated[Int32, Field(ge=-1000, le=1000)] | None = None
    """Most urgent priority of the tenant's requests; lower is more urgent. Requests that ask for a more urgent one, or
    for none, get this one if it is less urgent than theirs. Default is that of the gateways, which is 0."""
    auth: TenantAuth = TenantAuth()
    models: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    min_length=1,
                    max_length=317,
                    pattern=r"^[^*\s]*\*?$",
                    description="Name of a model, or its beginning and *.",
                ),
            ],
            ...,
        ],
        Field(min_length=1, max_length=64),
        ListSet(),
    ]
    """Models that the tenant may use: model names, or NAMESPACE/NAME of ModelDeployments. A * at the end stands for any
    rest, and * alone for all models. Any other model does not exist for the tenant."""
    external: bool = False
    """Whether requests of the tenant may go to APIs of other providers, where a ModelDeployment or ModelRoute names one
    as fallback. Their prices are those of the model NAMESPACE/NAME/FALLBACK."""
    limits: TenantLimits = TenantLimits()
    default_estimated_output_tokens: Annotated[Int32, Field(ge=0, le=10_000_000)] = 512
    """Output tokens that a request reserves at most. One that sets a lower limit of its own reserves that."""
    prices: Annotated[tuple[TenantPrice, ...], Field(max_length=64), ListMap("model")] = ()
    """Prices of models. What has no price costs nothing."""
    budget: TenantBudget = TenantBudget()
    content_capture: Annotated[str, OneOf(("None", SCORERS, INFERENCE_LOG, ALL))] = "None"
    """Who may get contents of the tenant's requests. Scorers: those of AnalysisTemplates whose hosts gateways list, for
    requests that a twin shadow copies. InferenceLog: the inference log of the gateways, for ModelDeployments with
    spec.traffic.inferenceLog. All: both."""
    generation_log: Annotated[str, OneOf(("None", METADATA, FULL))] = "None"
    """What the generation log of the gateways may keep of the tenant's requests for text, for ModelDeployments with
    spec.traffic.generationLog. Metadata: times, tokens, lengths and keyed hashes. Full: prompts and responses too,
    encrypted."""
    guards: GuardsWithoutDeployments = ()
    """Checks of the tenant's requests and of the responses to them, whatever the model is."""


class TenantReport(msgspec.Struct):
    """What one gateway reports of one tenant. `*_nano` are billionths of the currency."""

    generation: int = 0  # of the Tenant, as the gateway uses it; 0: it has not read the Tenant
    problem: str = ""  # why it does not use the current generation
    trouble: tuple[str, str] | None = None  # reason and message: why some of its requests cannot be authenticated
    last_minute: dict[str, int] = {}  # keys: requests, input_tokens, output_tokens
    refused: dict[str, int] = {}  # requests refused in the last minute, by limit
    running: int = 0
    day_nano: int = 0
    month_nano: int = 0
    exhausted: str = ""  # the exhausted budget, `day` or `month`; empty: none


class GatewayTenants(msgspec.Struct):
    """A response of `/internal/tenants`."""

    tenants: dict[str, TenantReport]
    authenticates: bool = True  # False: the gateway uses no Tenants
    ledger: str = ""  # id of its ledger of spending: gateways with the same id share one; empty: its own
