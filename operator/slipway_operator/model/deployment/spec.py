"""A ModelDeployment's spec as typed, immutable values; an invalid one becomes `Invalid`, never an exception."""

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from slipway_operator.api.objects import Json
from slipway_operator.api.reading import encoded, read
from slipway_operator.api.types import ApiType
from slipway_operator.api.v1alpha1 import placement as placements
from slipway_operator.api.v1alpha1 import pod_inputs
from slipway_operator.api.v1alpha1 import strategy as strategies
from slipway_operator.api.v1alpha1.model_deployment import Drain, ModelDeploymentSpec, RolloutIntents
from slipway_operator.api.v1alpha1.pod_inputs import HUB_TOKEN, InputsRecord
from slipway_operator.model import quantity
from slipway_operator.model.deployment.autoscaling import Autoscaling, autoscaling_of
from slipway_operator.model.deployment.hooks import Hook, hook_of
from slipway_operator.model.deployment.strategy import Strategy, strategy_of
from slipway_operator.model.wire import camel

SLIPWAY = "slipway"  # engine type: slipway-server
KEPT = 1024  # parsed specs
LONGEST_MESSAGE = 1024  # characters: it goes into the status, and holds what a user wrote


@dataclass(frozen=True, slots=True)
class Invalid:
    """An invalid spec that the schema accepted."""

    message: str


@dataclass(frozen=True, slots=True)
class KeyRef:
    """One value of a Secret or a ConfigMap in the namespace of the ModelDeployment: by name, never the value itself."""

    name: str
    key: str
    kind: str = "secretKeyRef"  # or configMapKeyRef


@dataclass(frozen=True, slots=True)
class Model:
    """Where the weights are and how they are served."""

    uri: str
    name: str
    revision: str | None = None
    version: str | None = None
    task: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    max_model_len_tokens: int | None = None
    secret: KeyRef | None = None  # the hub's token, for the fetcher


@dataclass(frozen=True, slots=True)
class Engine:
    """The server that runs the model; `image` None is the operator's default, which only `slipway` has."""

    image: str | None = None
    type: str = SLIPWAY
    version: str | None = None  # of vLLM, where the image's tag does not name it
    command: tuple[str, ...] = ()  # of a custom engine
    custom: Json = field(default_factory=dict)  # as the CRD has it, without defaults
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    env_from: tuple[tuple[str, KeyRef], ...] = ()  # for the server alone
    image_pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What one pod gets; quantities as Kubernetes writes them."""

    cpu: str | None = None
    memory: str | None = None
    accelerator: tuple[str, int] | None = None
    storage: str | None = None  # room for the files of a model that is downloaded
    shared_memory: str | None = None  # size of /dev/shm


@dataclass(frozen=True)
class PodInputs:
    """All user input that a pod depends on: the identity of a revision."""

    model: Model
    engine: Engine = Engine()
    resources: Resources = Resources()
    placement: Json = field(default_factory=dict)  # as a PodSpec has it, without what is not given

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON of the inputs; each reconcile compares it with those of the revisions."""
        return json.dumps(inputs_to_dict(self), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Intents:
    """The user's commands for a rollout; each names the revision, attempt or step that it applies to."""

    promote: str | None = None
    promote_full: str | None = None
    abort: str | None = None
    retry: str | None = None
    rollback_to: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec."""

    inputs: PodInputs
    replicas: int = 1
    strategy: Strategy = field(default_factory=Strategy)
    drain_timeout_s: int = 600
    paused: bool = False
    progress_deadline_s: int = 600
    revision_history_limit: int = 5
    rollback_window: int = 0  # former revisions to which a rollout goes without steps
    restart_at: datetime | None = None  # pods made before this moment are replaced
    intents: Intents = field(default_factory=Intents)
    hooks: tuple[Hook, ...] = ()
    autoscaling: Autoscaling | None = None
    forward_headers: tuple[str, ...] = ()  # credentials of clients that reach the pods


def parse(obj: Json) -> Spec | Invalid:
    """Read a ModelDeployment object."""
    try:
        written = encoded(obj.get("spec"))
    except ValueError as error:
        return _invalid(error)
    return _parsed(obj["metadata"]["name"], written)


@lru_cache(KEPT)
def _parsed(name: str, written: bytes) -> Spec | Invalid:
    """The spec, cached by content: each reconcile parses it, and it seldom changes."""
    try:
        return _spec_of(read(ModelDeploymentSpec, written, "spec"), name)
    except ValueError as error:
        return _invalid(error)


def _spec_of(spec: ModelDeploymentSpec, name: str) -> Spec:
    return Spec(
        inputs=_checked(_inputs_of(spec, name)),
        replicas=spec.replicas,
        strategy=strategy_of(spec.strategy or strategies.RolloutStrategy()),
        drain_timeout_s=(spec.drain or Drain()).timeout_seconds,
        paused=spec.paused,
        progress_deadline_s=spec.progress_deadline_seconds,
        revision_history_limit=spec.revision_history_limit,
        rollback_window=spec.rollback_window.revisions if spec.rollback_window else 0,
        restart_at=spec.restart_at,
        intents=_intents(spec.rollout or RolloutIntents()),
        hooks=tuple(map(hook_of, spec.strategy.hooks)) if spec.strategy else (),
        autoscaling=autoscaling_of(spec.autoscaling),
        forward_headers=spec.traffic.forward_headers if spec.traffic else (),
    )


def _invalid(error: Exception) -> Invalid:
    return Invalid(f"the spec cannot be read: {error}"[:LONGEST_MESSAGE])


class _Hooks(ApiType):
    hooks: tuple[strategies.Webhook, ...] = ()


class _Hooked(ApiType):
    """A spec of which only the hooks are read."""

    strategy: _Hooks | None = None


def parse_hooks_of(obj: Json) -> tuple[Hook, ...]:
    """The webhooks of a ModelDeployment object: also of one with an invalid spec, for its Events."""
    spec = parse(obj)
    if isinstance(spec, Spec):
        return spec.hooks
    try:
        alone = read(_Hooked, encoded(obj.get("spec")), "spec")
    except ValueError:
        return ()
    return tuple(map(hook_of, alone.strategy.hooks)) if alone.strategy else ()


def _checked(inputs: PodInputs) -> PodInputs:
    """The inputs, refused when no pod can be made of them. Only for a present spec, never for a revision's record."""
    if inputs.engine.type != SLIPWAY and not inputs.engine.image:
        raise ValueError(f"spec.engine.image is required for the engine type {inputs.engine.type}")
    accelerator = inputs.resources.accelerator
    if inputs.engine.type == SLIPWAY and accelerator and accelerator[1] != 1:
        raise ValueError(
            f"spec.resources.accelerator.count is {accelerator[1]}: it must be 1, one engine uses one device"
        )
    return inputs


def parse_inputs(record: Json, default_name: str) -> PodInputs:
    """Parse the pod inputs in a record that `inputs_to_dict` made.

    Raises:
        ValueError: when the record is invalid.
    """
    return _recorded(encoded(record), default_name)


@lru_cache(KEPT)
def _recorded(written: bytes, default_name: str) -> PodInputs:
    return _inputs_of(read(InputsRecord, written, "inputs"), default_name)


def _inputs_of(written: InputsRecord, default_name: str) -> PodInputs:
    return PodInputs(
        _model(written.model, default_name),
        _engine(written.engine or pod_inputs.EngineSpec()),
        _resources(written.resources or placements.ResourcesSpec()),
        _placement(written.placement),
    )


def _model(model: pod_inputs.ModelSpec, default_name: str) -> Model:
    return Model(
        uri=model.uri,
        name=model.name or default_name,
        revision=model.revision,
        version=model.version,
        task=model.task,
        dtype=model.dtype,
        quantization=model.quantization,
        max_model_len_tokens=model.max_model_len,
        secret=KeyRef(model.secret_ref.name, model.secret_ref.key) if model.secret_ref else None,
    )


def _engine(engine: pod_inputs.EngineSpec) -> Engine:
    return Engine(
        image=engine.image,
        type=engine.type,
        version=engine.version,
        command=engine.command,
        custom=_dumped(engine.custom),
        args=engine.args,
        env=tuple((variable.name, _value(variable)) for variable in engine.env if not variable.value_from),
        env_from=tuple(
            (variable.name, _key_ref(variable.value_from)) for variable in engine.env if variable.value_from
        ),
        image_pull_secrets=tuple(secret.name for secret in engine.image_pull_secrets),
    )


def _value(variable: pod_inputs.EnvVar) -> str:
    if variable.value is None:
        raise ValueError(f"spec.engine.env: {variable.name} has neither value nor valueFrom: write one of them")
    return variable.value


def _resources(resources: placements.ResourcesSpec) -> Resources:
    accelerator = resources.accelerator
    return Resources(
        cpu=_quantity("cpu", resources.cpu),
        memory=_quantity("memory", resources.memory),
        accelerator=(accelerator.resource, accelerator.count) if accelerator else None,
        storage=_quantity("storage", resources.storage),
        shared_memory=_quantity("sharedMemory", resources.shared_memory),
    )


def _dumped(part: pod_inputs.CustomEngine | None) -> Json:
    written: Json = _without_empty(part.model_dump(mode="json", by_alias=True, exclude_defaults=True)) if part else {}
    return written


def _placement(placement: placements.Placement | None) -> Json:
    written: Json = (
        _without_empty(placement.model_dump(mode="json", by_alias=True, exclude_none=True)) if placement else {}
    )
    return written


def _key_ref(source: pod_inputs.EnvSource) -> KeyRef:
    if source.secret_key_ref:
        return KeyRef(source.secret_key_ref.name, source.secret_key_ref.key)
    if source.config_map_key_ref:
        return KeyRef(source.config_map_key_ref.name, source.config_map_key_ref.key, "configMapKeyRef")
    raise ValueError("spec.engine.env: valueFrom has neither secretKeyRef nor configMapKeyRef: write one of them")


def inputs_to_dict(inputs: PodInputs) -> dict[str, Any]:
    """The canonical form of pod inputs, with the field names of the CRD.

    Values that equal their default are left out: a default that the API server fills in, or that a later release adds,
    changes no identity.
    """
    model, engine, resources = inputs.model, inputs.engine, inputs.resources
    accelerator = resources.accelerator
    canonical: dict[str, Any] = _without_empty(
        {
            "model": {
                "uri": model.uri,
                "name": model.name,
                "revision": model.revision,
                "version": model.version,
                "task": None if model.task == "auto" else model.task,
                "dtype": None if model.dtype == "auto" else model.dtype,
                "quantization": None if model.quantization == "none" else model.quantization,
                "maxModelLen": model.max_model_len_tokens,
                "secretRef": _hub_token_to_dict(model.secret),
            },
            "engine": {
                "type": None if engine.type == SLIPWAY else engine.type,
                "version": engine.version,
                "image": engine.image,
                "command": list(engine.command),
                "custom": engine.custom,
                "imagePullSecrets": [{"name": name} for name in engine.image_pull_secrets],
                "args": list(engine.args),
                "env": [
                    *({"name": name, "value": value} for name, value in engine.env),
                    *(
                        {"name": name, "valueFrom": {ref.kind: {"name": ref.name, "key": ref.key}}}
                        for name, ref in engine.env_from
                    ),
                ],
            },
            "resources": {
                "cpu": resources.cpu,
                "memory": resources.memory,
                "accelerator": {"resource": accelerator[0], "count": accelerator[1]} if accelerator else None,
                "storage": resources.storage,
                "sharedMemory": resources.shared_memory,
            },
            "placement": inputs.placement,
        }
    )
    return canonical


def _hub_token_to_dict(secret: KeyRef | None) -> dict[str, str | None] | None:
    return {"name": secret.name, "key": None if secret.key == HUB_TOKEN else secret.key} if secret else None


_REVISION, _NUMBER = "[a-z2-7]{10}", "[0-9]{1,9}"
_TOKENS = {
    "promote": re.compile(f"{_REVISION}/{_NUMBER}/{_NUMBER}"),
    "promote_full": re.compile(_REVISION),
    "abort": re.compile(f"{_REVISION}/{_NUMBER}"),
    "retry": re.compile(f"{_REVISION}/{_NUMBER}"),
    "rollback_to": re.compile(f"{_REVISION}/{_REVISION}"),
}


def _intents(written: RolloutIntents) -> Intents:
    """The commands. The CRD's rules do not bound their numbers, which the status keeps in 32 bits."""
    tokens: dict[str, str | None] = {name: getattr(written, name) for name in _TOKENS}
    for name, pattern in _TOKENS.items():
        token = tokens[name]
        if token is not None and not pattern.fullmatch(token):
            raise ValueError(f"spec.rollout.{camel(name)} {token!r} is no token of a rollout: see status.rollout.token")
    return Intents(**tokens)


def _quantity(name: str, value: object) -> str | None:
    """A quantity as written, after a check that it is one."""
    if value is None:
        return None
    try:
        quantity.parse(str(value))
    except ValueError as error:
        raise ValueError(f"spec.resources.{name}: {error}") from None
    return str(value)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {}, [])}
    return value
