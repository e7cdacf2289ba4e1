"""Guards: who is called before and after the model, and may block a request or a response, or redact parts of it.

Tenants, ModelRoutes and ModelDeployments have the same list of them. docs/guards.md has the protocol of a webhook.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import CelRule, ListMap, ListSet, OneOf, required, rule
from slipway_contracts.api.types import Int32, strict

INPUT, OUTPUT = STAGES = ("Input", "Output")
FAIL, IGNORE = "Fail", "Ignore"
REDACT, BLOCK = "Redact", "Block"
MOST_GUARDS, MOST_PATTERNS, MOST_ENTITIES, MOST_LABELS = 8, 16, 32, 16
MOST_WINDOW_TOKENS, MOST_WINDOW_MS = 64, 1000
LONGEST_TIMEOUT_MS = 10_000

_Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_File = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$")]


@required("name")
@strict
@dataclass(frozen=True, slots=True)
class GuardSecretRef:
    """Key of a Secret that the administrator mounted into the gateways."""

    name: _File
    """Name of the Secret, as in gateway.guards.secrets of the chart."""
    key: _File = "token"
    """Key in the Secret, whose value is sent as Authorization: Bearer. Default is token."""


@required("url")
@strict
@dataclass(frozen=True, slots=True)
class GuardWebhook:
    """Server that gets the texts in one POST, and returns whether they are allowed."""

    url: Annotated[str, Field(min_length=8, max_length=2048, pattern=r"^https?://[^\s?#]+$")]
    """URL of the server. Gateways call it only if their administrator listed its host (--guard-hosts)."""
    secret_ref: GuardSecretRef | None = None


@required("name", "block_labels")
@strict
@dataclass(frozen=True, slots=True)
class GuardDeployment:
    """ModelDeployment of the same namespace, with a classifier of texts, whose labels decide."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """Name of the ModelDeployment."""
    block_labels: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=63, description="Label of the classifier.")], ...],
        Field(min_length=1, max_length=MOST_LABELS),
        ListSet(),
    ]
    """Labels that block. A text with any other label is allowed."""
    min_confidence: Annotated[Int32, Field(ge=0, le=100)] = 0
    """Percent of confidence from which such a label blocks. A prediction without a confidence blocks. Default
    is 0."""


@required("entities")
@strict
@dataclass(frozen=True, slots=True)
class GuardPii:
    """Personal data, which Presidio recognizes. The gateways need the package presidio-analyzer."""

    entities: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,62}$", description="Name of an entity.")], ...],
        Field(min_length=1, max_length=MOST_ENTITIES),
        ListSet(),
    ]
    """Entities by Presidio's names, such as EMAIL_ADDRESS, PHONE_NUMBER, CREDIT_CARD and IBAN_CODE."""
    min_score: Annotated[Int32, Field(ge=0, le=100)] = 40
    """Percent of Presidio's score from which a text is an entity. Default is 40."""
    language: Annotated[str, Field(pattern=r"^[a-z]{2}$")] = "en"
    """Language of the texts. Default is en."""


@strict
@dataclass(frozen=True, slots=True)
class GuardJson:
    """Responses to requests that want JSON must be JSON, and fit the schema of the request. For engines that do not
    enforce it."""

    retries: Annotated[Int32, Field(ge=0, le=1)] = 1
    """How often the model is called again, with what was wrong, before the client gets an error. Default is 1."""


@rule(
    "(has(self.patterns) && self.patterns.size() > 0) || has(self.pii) || has(self.json)",
    "builtin looks for something: write patterns, pii or json",
)
@rule(
    "!has(self.json) || !(has(self.patterns) || has(self.pii))",
    "json is a guard of its own: write patterns and pii in another one",
)
@strict
@dataclass(frozen=True, slots=True)
class GuardBuiltin:
    """What gateways look for themselves, in processes of their own."""

    patterns: Annotated[
        tuple[
            Annotated[str, Field(min_length=1, max_length=512, description="Regular expression in RE2's syntax.")], ...
        ],
        Field(max_length=MOST_PATTERNS),
    ] = ()
    """Regular expressions in RE2's syntax, whose time is linear in the text."""
    pii: GuardPii | None = None
    json: GuardJson | None = None
    action: Annotated[str, OneOf((REDACT, BLOCK))] = REDACT
    """Redact, the default, replaces what was found. Block refuses the text."""
    replacement: Annotated[str, Field(max_length=64)] = "[REDACTED]"
    """Text in its place. Default is [REDACTED]."""


@strict
@dataclass(frozen=True, slots=True)
class GuardWindow:
    """How much of a stream is held back until guards have seen it. What is found within half of it is never shown."""

    tokens: Annotated[Int32, Field(ge=2, le=MOST_WINDOW_TOKENS)] = 32
    """Most tokens that are held. Default is 32."""
    milliseconds: Annotated[Int32, Field(ge=20, le=MOST_WINDOW_MS)] = 500
    """Longest time for which a token is held, besides that of the guards. Default is 500."""


@rule(
    "[has(self.webhook), has(self.deployment), has(self.builtin)].filter(given, given).size() == 1",
    "a guard is one of webhook, deployment and builtin: write exactly one of them",
)
@rule(
    "!has(self.builtin) || !has(self.builtin.json) || self.stages.all(stage, stage == 'Output')",
    "builtin.json looks at responses: its stages are [Output]",
)
@required("name", "stages")
@strict
@dataclass(frozen=True, slots=True)
class GuardSpec:
    """Check of what goes to the model, and of what comes from it."""

    name: _Name
    """Name of the guard in errors and metrics."""
    stages: Annotated[
        tuple[Annotated[str, OneOf(STAGES), Field(description="Input or Output.")], ...],
        Field(min_length=1, max_length=2),
        ListSet(),
    ]
    """Input: texts of requests, before the model. Output: texts of responses, before the client."""
    webhook: GuardWebhook | None = None
    deployment: GuardDeployment | None = None
    builtin: GuardBuiltin | None = None
    failure_policy: Annotated[str, OneOf((FAIL, IGNORE))] = FAIL
    """What happens where the guard does not decide, because it is away, slow or returns something else than its
    protocol has. Fail, the default, refuses the request with status 503. Ignore lets it pass."""
    timeout_milliseconds: Annotated[Int32, Field(ge=1, le=LONGEST_TIMEOUT_MS)] = 500
    """Time for one decision. Default is 500."""
    window: GuardWindow = GuardWindow()

    @property
    def wants_json(self) -> GuardJson | None:
        """What it wants of responses in JSON; None: it is another kind of guard."""
        return self.builtin.json if self.builtin else None

    @property
    def fails_closed(self) -> bool:
        """Whether nothing passes that the guard has not seen. Any other policy than Ignore is Fail."""
        return self.failure_policy != IGNORE


Guards = Annotated[
    tuple[GuardSpec, ...],
    Field(max_length=MOST_GUARDS),
    ListMap("name"),
]
# Of a resource without a namespace, or of another one than its target's.
GuardsWithoutDeployments = Annotated[
    tuple[GuardSpec, ...],
    Field(max_length=MOST_GUARDS),
    ListMap("name"),
    CelRule(
        "self.all(guard, !has(guard.deployment))",
        "a Tenant has no namespace, so a guard of it cannot be a ModelDeployment: write webhook or builtin",
    ),
]


def guards_refusal(guards: Collection[GuardSpec], *, deployments: bool = True) -> str:
    """What is wrong with guards that no API server has checked, with the path of the field; empty: nothing.

    `deployments`: whether one may be a ModelDeployment.
    """
    return next(_refusals(guards, deployments), "")


def _refusals(guards: Collection[GuardSpec], deployments: bool) -> Iterator[str]:
    if len({guard.name for guard in guards}) < len(guards):
        yield "guards: two have the same name"
    for number, guard in enumerate(guards):
        kinds = (guard.webhook, guard.deployment, guard.builtin)
        if sum(kind is not None for kind in kinds) != 1:
            yield f"guards[{number}] is one of webhook, deployment and builtin: write exactly one of them"
        if guard.deployment is not None and not deployments:
            yield f"guards[{number}].deployment: a Tenant has no namespace: write webhook or builtin"
        if guard.builtin is not None:
            yield from _builtin_refusals(f"guards[{number}]", guard, guard.builtin)


def _builtin_refusals(path: str, guard: GuardSpec, builtin: GuardBuiltin) -> Iterator[str]:
    if not (builtin.patterns or builtin.pii or builtin.json):
        yield f"{path}.builtin looks for something: write patterns, pii or json"
    if builtin.json and (builtin.patterns or builtin.pii):
        yield f"{path}.builtin.json is a guard of its own: write patterns and pii in another one"
    if builtin.json and set(guard.stages) != {OUTPUT}:
        yield f"{path}.builtin.json looks at responses: its stages are [Output]"
