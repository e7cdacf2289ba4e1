"""ModelDeployment: one model behind an OpenAI-compatible endpoint, and the way its new versions go out."""

from typing import Annotated, Literal

from pydantic import Field

from slipway_operator.api.markers import (
    CelRule,
    Definition,
    ListSet,
    PrinterColumn,
    ScaleSubresource,
    custom_resource,
    rule,
)
from slipway_operator.api.types import ApiType, Int32, Time
from slipway_operator.api.v1alpha1.autoscaling import AutoscalingSpec
from slipway_operator.api.v1alpha1.pod_inputs import InputsRecord
from slipway_operator.api.v1alpha1.status import PatchedStatus
from slipway_operator.api.v1alpha1.strategy import RolloutStrategy


class Drain(ApiType):
    """How pods leave."""

    timeout_seconds: Annotated[Int32, Field(ge=1, le=86400)] = 600
    """How long a request in progress may go on when its pod or its revision leaves. A change holds for the revisions
    that follow; it restarts nothing."""


class TrafficSpec(ApiType):
    """How gateways pass requests on."""

    forward_headers: Annotated[
        tuple[
            Annotated[
                Literal["authorization", "cookie", "api-key", "x-api-key"],
                Field(description="One header, in lower case."),
            ],
            ...,
        ],
        Field(max_length=4),
        ListSet(),
    ] = ()
    """Credentials of clients that reach the pods: none unless they are listed, for whoever runs the pods could use
    them. With cookie, clients also get the cookies that pods set. A change restarts nothing."""


class RollbackWindow(ApiType):
    """Rollbacks to a recent revision go without steps."""

    revisions: Annotated[Int32, Field(ge=0, le=100)]
    """So many revisions before the stable one are recent; those that were rejected are not."""


class RolloutIntents(ApiType):
    """Your decisions about the rollout in flight. Each names what it is about (see status.rollout.token), so
    applying it twice does nothing and an old one does no harm."""

    promote: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[0-9]+/[0-9]+$')",
                "spec.rollout.promote is REVISION/ATTEMPT/STEP: copy it from status.rollout.token",
            ),
        ]
        | None
    ) = None
    """Ends the pause it names, as REVISION/ATTEMPT/STEP."""
    promote_full: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}$')",
                "spec.rollout.promoteFull is a REVISION: copy it from status.rollout.revision",
            ),
        ]
        | None
    ) = None
    """Skips all steps of the revision it names. Readiness is still waited for."""
    abort: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[0-9]+$')",
                "spec.rollout.abort is REVISION/ATTEMPT: take the first two parts of status.rollout.token",
            ),
        ]
        | None
    ) = None
    """Rejects an attempt, as REVISION/ATTEMPT; traffic returns to the stable revision."""
    retry: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[0-9]+$')",
                (
                    "spec.rollout.retry is REVISION/ATTEMPT with the next attempt, for example the revision of "
                    "status.rollout.token followed by /2"
                ),
            ),
        ]
        | None
    ) = None
    """Starts the attempt it names of a rejected revision, as REVISION/ATTEMPT."""
    rollback_to: (
        Annotated[
            str,
            Field(max_length=64),
            CelRule(
                "self.matches('^[a-z2-7]{10}/[a-z2-7]{10}$')",
                "spec.rollout.rollbackTo is FROM/TO: status.currentRevision, a slash, and the former revision to run",
            ),
        ]
        | None
    ) = None
    """Runs a former revision in place of the one that the spec describes, as FROM/TO with FROM the revision of the
    present spec. Goes without steps; ends when the spec changes."""


@rule(
    (
        "!has(self.resources) || !has(self.resources.storage) || self.model.uri.startsWith('hf://') || "
        "self.model.uri.startsWith('https://')"
    ),
    (
        "spec.resources.storage is for models that are downloaded, hf:// and https://: remove it, for a pvc:// "
        "or file:// model is used where it lies"
    ),
)
@rule(
    (
        "!(has(self.resources) && has(self.resources.accelerator) && has(self.engine) && has(self.engine.args)) "
        "|| !self.engine.args.exists(a, a.matches('^--device(=.*)?$'))"
    ),
    (
        "spec.engine.args must not set --device beside spec.resources.accelerator: the operator sets --device "
        "cuda; remove one of the two"
    ),
)
@rule(
    (
        "!(has(self.resources) && has(self.resources.accelerator) && has(self.model.quantization) && "
        "self.model.quantization == 'int8')"
    ),
    "spec.model.quantization int8 is for CPUs: remove it, or spec.resources.accelerator",
)
class ModelDeploymentSpec(InputsRecord):
    """What to serve, how many pods serve it, and how a new version goes out."""

    replicas: Annotated[Int32, Field(ge=0, le=10000)] = 1
    """Pods that serve, over all revisions. kubectl scale and HorizontalPodAutoscalers write it: leave it out of your
    manifest where one does."""
    autoscaling: AutoscalingSpec | None = None
    strategy: RolloutStrategy | None = None
    drain: Drain | None = None
    traffic: TrafficSpec | None = None
    paused: bool = False
    """Hold the rollout where it is. Healing, scaling and abort stay live."""
    progress_deadline_seconds: Annotated[Int32, Field(ge=5, le=86400)] = 600
    """A revision whose pods make no progress for this long is rejected, with the pods' own reason."""
    rollback_window: RollbackWindow | None = None
    restart_at: Time | None = None
    """Pods made before this moment are replaced one by one, each by a new pod that is ready first."""
    revision_history_limit: Annotated[Int32, Field(ge=0, le=100)] = 5
    """How many former revisions are remembered for a rollback."""
    rollout: RolloutIntents | None = None


@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural="modeldeployments",
        short_names=("mdep",),
        categories=("slipway",),
        columns=(
            PrinterColumn(
                "Phase", "string", ".status.phase", "Pending, Progressing, Paused, Healthy, Degraded or Asleep."
            ),
            PrinterColumn(
                "Reason",
                "string",
                ".status.reason",
                "What is wrong, else where the rollout is, in one word. Empty when all is well.",
            ),
            PrinterColumn("Step", "string", ".status.step", "Step of the rollout in flight, of how many."),
            PrinterColumn(
                "Weight",
                "integer",
                ".status.weight",
                "Percent of new requests that the canary gets, as every gateway acknowledged it.",
            ),
            PrinterColumn("Ready", "string", ".status.ready", "Ready pods of all revisions, of those wanted."),
            PrinterColumn("Stable", "string", ".status.stableRevision", "The revision that was last promoted."),
            PrinterColumn("Canary", "string", ".status.canaryRevision", "The revision under test."),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
            PrinterColumn("Model", "string", ".status.model", "The name that clients send.", wide=True),
            PrinterColumn(
                "Endpoint", "string", ".status.endpoint", "Base URL for OpenAI clients inside the cluster.", wide=True
            ),
            PrinterColumn("Message", "string", ".status.message", "What is happening, and why.", wide=True),
        ),
        status=True,
        scale=ScaleSubresource(".spec.replicas", ".status.replicas", ".status.selector"),
    )
)
@rule(
    "self.metadata.name.size() <= 52",
    "metadata.name may have at most 52 characters: the names of pods and services append the revision to it",
)
@rule(
    "!(has(self.spec.strategy) && has(self.spec.strategy.canary) && has(self.spec.strategy.canary.baselinePod) && "
    "self.spec.strategy.canary.baselinePod) || self.metadata.name.size() <= 43",
    "with spec.strategy.canary.baselinePod metadata.name may have at most 43 characters: the names of the baseline's "
    "services append more to it; choose a shorter name, or remove baselinePod",
)
@rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must start with a letter and hold only a-z, 0-9 and '-', because services carry it; "
    "write for example chat-v2",
)
class ModelDeployment(ApiType):
    """One model behind an OpenAI-compatible endpoint, and the way its new versions go out."""

    spec: ModelDeploymentSpec
    status: PatchedStatus | None = None
