"""The spec of a ModelRoute: its names, rules, and what it imposes on sampling."""

from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import CelRule, ListMap, ListSet, OneOf, rule
from slipway_contracts.api.types import ApiType, Int32, Int64
from slipway_contracts.guards import Guards, guards_refusal
from slipway_contracts.resilience import MOST_FALLBACKS, ExternalProvider

KIND, PLURAL = "ModelRoute", "modelroutes"
DEPLOYMENT = "ModelDeployment"
PUBLIC, TARGET = "Public", "Target"
CREDENTIALS = ("authorization", "cookie", "api-key", "x-api-key")  # headers that no rule matches
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

MOST_RULES, MOST_MATCHES, MOST_HEADERS, MOST_TENANTS, MOST_REFS = 64, 4, 4, 16, 8
# How many ModelRoutes a request may pass: the one that it names, and three that rules lead to.
MOST_DEPTH = 4

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
PublicName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$")]
Bytes = Annotated[Int64, Field(ge=0, le=1 << 40)]
TimeOfDay = Annotated[str, Field(min_length=5, max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
MaxTokens = Annotated[Int32, Field(ge=1, le=10_000_000)]


@rule("has(self.exact) != has(self.prefix)", "a header is matched by either exact or prefix: write one of them")
class RouteHeader(ApiType):
    """Header of a request, by its whole value or by the beginning of its value."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128),
        CelRule(
            "self.matches('^[A-Za-z0-9!#$%&*+.^_|~-]+$')",
            "name is the name of an HTTP header: write for example X-Tier",
        ),
        CelRule(
            f"!(self.lowerAscii() in {list(CREDENTIALS)})",
            "rules do not match credentials: write tenants for who sends a request",
        ),
    ]
    """Name of the header, case-insensitive. Host is compared without its port."""
    exact: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Whole value of the header."""
    prefix: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Beginning of the value."""


@rule("has(self.min) || has(self.max)", "a range has a bound: write min, max or both")
@rule("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not be above max")
class RouteRange(ApiType):
    """Range of a number, with its bounds."""

    min: Bytes | None = None
    """Least number that fits."""
    max: Bytes | None = None
    """Greatest number that fits."""


@rule("self.start != self.end", "start and end are two times: leave them out for the whole day")
class RouteTime(ApiType):
    """Times of day."""

    start: TimeOfDay = "00:00"
    """First minute of the times, as HH:MM."""
    end: TimeOfDay = "23:59"
    """Last minute of the times, as HH:MM. Before start it is one of the next day."""
    days: Annotated[
        tuple[Annotated[str, OneOf(DAYS), Field(description="Day of the week.")], ...], Field(max_length=7), ListSet()
    ] = ()
    """Days on which the times begin. Default is all."""
    time_zone: Annotated[
        str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9+_-]*(/[A-Za-z0-9+_-]+)*$")
    ] = "UTC"
    """Name of the time zone in the database of IANA, for example Europe/Berlin."""


class RouteClassifierRef(ApiType):
    """ModelDeployment of the ModelRoute's namespace with a classic model that takes text."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the ModelDeployment."""


class RouteClassifier(ApiType):
    """Classifier served by Slipway that says whether a request fits. It gets the end of the last message, at most 8
    KiB, as {"input": {"text": TEXT}} at /api/v1/predict. A request calls at most four; further ones have their
    default."""

    deployment_ref: RouteClassifierRef
    label: Annotated[str, Field(min_length=1, max_length=253)]
    """Prediction with which a request fits."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0
    """Least confidence of that prediction. A prediction without a confidence has 1."""
    timeout_milliseconds: Annotated[Int32, Field(ge=1, le=5000)] = 100
    """Time after which the default counts."""
    default: bool = False
    """Whether a request fits where there is no prediction: no text, no ready pod, an error, or no response in time."""


class RouteMatch(ApiType):
    """Conditions on a request. All must hold; one that is left out holds."""

    headers: Annotated[tuple[RouteHeader, ...], Field(max_length=MOST_HEADERS)] = ()
    """Headers of the request. All must match."""
    tenants: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    min_length=1,
                    max_length=64,
                    pattern=r"^[^*\s]*\*?$",
                    description="Name of a Tenant, or its beginning and *.",
                ),
            ],
            ...,
        ],
        Field(max_length=MOST_TENANTS),
        ListSet(),
    ] = ()
    """Tenants that send the request. A request without a Tenant fits none of them."""
    prompt_bytes: RouteRange | None = None
    """Bytes of the prompt as it is written in the request: messages, instructions and tools. Of a request whose body
    gateways do not read, all bytes of the body."""
    prompt_tokens: RouteRange | None = None
    """Tokens of the prompt, estimated as a quarter of its bytes. English text has 3.5 to 4.5 bytes for a token, code
    2.5 to 4, and other languages from 1.5; an image in the request counts with its bytes."""
    has_tools: bool | None = None
    """Whether the request has tools."""
    has_images: bool | None = None
    """Whether the request has images: parts of the types image_url, input_image or image."""
    has_code: bool | None = None
    """Whether the prompt has code between fences: three backticks."""
    time: RouteTime | None = None
    """When the request arrives at the gateway."""
    classifier: RouteClassifier | None = None
    """What a classifier predicts. It is called when all other conditions of the item hold."""


class RouteRef(ApiType):
    """Target of a rule."""

    kind: Annotated[str, OneOf((DEPLOYMENT, KIND))] = DEPLOYMENT
    """ModelDeployment, or ModelRoute for another one whose rules continue. A request passes at most four of these."""
    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the object."""
    namespace: Label | None = None
    """Namespace of the object. Default is that of the ModelRoute. Another one must allow it by a ReferenceGrant."""
    weight: Annotated[Int32, Field(ge=0, le=100)] = 100
    """Percent of the requests of the rule. Requests with the same session, user or key go to the same target."""


class RouteFallback(ApiType):
    """What answers in place of a rule's target: a ModelDeployment, or the API of another provider."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the ModelDeployment. With external, the name by which headers, metrics and prices have the provider."""
    namespace: Label | None = None
    """Namespace of the ModelDeployment. Default is that of the ModelRoute. Another one must allow it by a
    ReferenceGrant."""
    external: ExternalProvider | None = None


class RouteRule(ApiType):
    """Rule of a ModelRoute."""

    name: Label
    """Name of the rule, for the response header X-Slipway-Route, metrics and `slipway route explain`."""
    matches: Annotated[tuple[RouteMatch, ...], Field(max_length=MOST_MATCHES)] = ()
    """Requests that the rule is for: those that fit any item. A rule without matches is for all requests."""
    backend_refs: Annotated[
        tuple[RouteRef, ...],
        Field(min_length=1, max_length=MOST_REFS),
        CelRule(
            "self.map(ref, ref.weight).sum() == 100",
            "the weights of a rule are percent: write weights that are 100 together",
        ),
    ]
    """Targets of the requests."""
    fallback: Annotated[tuple[RouteFallback, ...], Field(max_length=MOST_FALLBACKS)] = ()
    """What answers requests for text in place of the targets, in this order, while they cannot, as
    spec.traffic.fallback of a ModelDeployment. It takes the place of that of the target. Of several ModelRoutes on the
    way the last one with a fallback counts."""


class SamplingDefaults(ApiType):
    """Values for fields that a request leaves out."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """temperature of requests that have none."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """top_p of requests that have none."""
    top_k: Annotated[Int32, Field(ge=1, le=1_000_000)] | None = None
    """top_k of requests that have none. Engines with OpenAI's fields alone refuse it."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """frequency_penalty of requests that have none."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """presence_penalty of requests that have none."""
    max_tokens: MaxTokens | None = None
    """Maximum number of tokens of a response to requests that have no such limit."""


class SamplingCaps(ApiType):
    """Greatest values of fields. A request with more gets this value, and so does one that has none and no default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Greatest temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Greatest top_p."""
    top_k: Annotated[Int32, Field(ge=1, le=1_000_000)] | None = None
    """Greatest top_k."""
    max_tokens: MaxTokens | None = None
    """Greatest limit of the tokens of a response."""
    choices: Annotated[Int32, Field(ge=1, le=128)] | None = None
    """Greatest n: how many responses there are to a prompt."""


class RouteSampling(ApiType):
    """What the ModelRoute imposes on sampling, in requests for generated text."""

    defaults: SamplingDefaults = SamplingDefaults()
    caps: SamplingCaps = SamplingCaps()


class ModelRouteSpec(ApiType):
    """Public names, and the rules by which they lead to ModelDeployments."""

    model: PublicName | None = None
    """Name that clients send as "model". Default is metadata.name. It is claimed as that of a ModelDeployment is; a
    ModelDeployment of the same namespace yields it to the ModelRoute."""
    aliases: Annotated[
        tuple[Annotated[PublicName, Field(description="Name that clients may send.")], ...],
        Field(max_length=8),
        ListSet(),
    ] = ()
    """Other names that clients may send. They are claimed, too."""
    response_model: Annotated[str, OneOf((TARGET, PUBLIC))] = TARGET
    """Value of "model" in responses. Target: as the server of the target wrote it, byte for byte. Public: the name that
    the client sent."""
    sampling: RouteSampling = RouteSampling()
    guards: Guards = ()
    """Checks of requests for the public names, and of the responses to them, before and after those of the target. A
    ModelDeployment among them is one of the ModelRoute's namespace."""
    rules: Annotated[
        tuple[RouteRule, ...],
        Field(min_length=1, max_length=MOST_RULES),
        ListMap("name"),
        CelRule(
            "self.filter(rule, !has(rule.matches) || rule.matches.size() == 0).all(rule, "
            "rule.name == self[self.size() - 1].name)",
            "a rule without matches is for all requests, so none after it counts: write it last",
        ),
    ]
    """Rules. The first one that a request fits decides. One that fits none is refused with status 404: write a last
    rule without matches."""


def names_of(name: str, spec: ModelRouteSpec) -> tuple[str, ...]:
    """The public names of a ModelRoute, each once, its own first. `name`: metadata.name."""
    return tuple(dict.fromkeys((spec.model or name, *spec.aliases)))


def refusal(spec: ModelRouteSpec) -> str:
    """What is wrong with a spec that no API server has checked, with its field; empty: nothing.

    These are the rules that the types themselves do not check; a file of routes has only them.
    """
    for number, entry in enumerate(spec.rules):
        at = f"rules[{number}]"
        if not entry.matches and number < len(spec.rules) - 1:
            return f"{at}: a rule without matches is for all requests, so none after it counts: write it last"
        if (total := sum(ref.weight for ref in entry.backend_refs)) != 100:
            return f"{at}.backendRefs: the weights are {total} together: write weights that are 100 together"
        if any(one.namespace and one.external for one in entry.fallback):
            return f"{at}.fallback: an external provider has no namespace: remove it"
        for match_number, match in enumerate(entry.matches):
            if problem := _match_refusal(match):
                return f"{at}.matches[{match_number}].{problem}"
    if len({entry.name for entry in spec.rules}) < len(spec.rules):
        return "rules: two have the same name"
    return guards_refusal(spec.guards)


def _match_refusal(match: RouteMatch) -> str:
    for header in match.headers:
        if (header.exact is None) == (header.prefix is None):
            return "headers: a header is matched by either exact or prefix: write one of them"
        if header.name.lower() in CREDENTIALS:
            return "headers: rules do not match credentials: write tenants for who sends a request"
    for field, limits in (("promptBytes", match.prompt_bytes), ("promptTokens", match.prompt_tokens)):
        if limits is None:
            continue
        if limits.min is None and limits.max is None:
            return f"{field}: a range has a bound: write min, max or both"
        if limits.min is not None and limits.max is not None and limits.min > limits.max:
            return f"{field}: min must not be above max"
    if match.time is not None and match.time.start == match.time.end:
        return "time: start and end are two times: leave them out for the whole day"
    return ""
