"""A ModelDeployment's spec as typed, immutable values; what cannot be read becomes `Invalid`, never an exception."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from slipway_operator.model import quantity, typed
from slipway_operator.model.autoscaling import Autoscaling, parse_autoscaling
from slipway_operator.model.hooks import Hook, parse_hooks
from slipway_operator.model.strategy import Strategy, parse_strategy
from slipway_operator.model.wire import parse_time

Json = Mapping[str, Any]

KEPT = 1024  # parsed specs
LONGEST_MESSAGE = 1024  # characters: it goes into the status, and holds what a user wrote
# What reading something else than a spec ends in; OverflowError: of numbers that no integer or time holds.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
HUB_TOKEN = "HF_TOKEN"  # the variable that the fetcher reads, and the key of a Secret that names no other


@dataclass(frozen=True, slots=True)
class Invalid:
    """A spec that the schema let through but that makes no sense."""

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
    """The server that runs the model; `image` None is the operator's default."""

    image: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    env_from: tuple[tuple[str, KeyRef], ...] = ()  # for the server alone


@dataclass(frozen=True, slots=True)
class Resources:
    """What one pod gets; quantities as Kubernetes writes them."""

    cpu: str | None = None
    memory: str | None = None
    accelerator: tuple[str, int] | None = None
    storage: str | None = None  # room for the files of a model that is downloaded


@dataclass(frozen=True)
class PodInputs:
    """All that a user writes and a pod depends on: the identity of a revision."""

    model: Model
    engine: Engine = Engine()
    resources: Resources = Resources()

    @cached_property
    def canonical(self) -> str:
        """The one text that says this: each reconcile looks for it among those of the revisions."""
        return json.dumps(inputs_to_dict(self), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Intents:
    """The user's decisions about a rollout, each naming what it is about."""

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
        written = msgspec.json.encode(obj.get("spec"))
    except _MALFORMED as error:
        return _invalid(error)
    return _parsed(obj["metadata"]["name"], written)


@lru_cache(KEPT)
def _parsed(name: str, written: bytes) -> Spec | Invalid:
    """By what is written: a spec is read in each reconcile, and seldom another one than before."""
    try:
        spec = msgspec.json.decode(written) or {}
        parsed = Spec(
            inputs=_one_device(parse_inputs(spec, name)),
            replicas=int(spec.get("replicas", 1)),
            strategy=parse_strategy(spec.get("strategy") or {}),
            drain_timeout_s=int((spec.get("drain") or {}).get("timeoutSeconds", 600)),
            paused=bool(spec.get("paused", False)),
            progress_deadline_s=int(spec.get("progressDeadlineSeconds", 600)),
            revision_history_limit=int(spec.get("revisionHistoryLimit", 5)),
            rollback_window=int((spec.get("rollbackWindow") or {}).get("revisions", 0)),
            restart_at=_time(spec.get("restartAt")),
            intents=_intents(spec.get("rollout") or {}),
            hooks=_hooks_of(spec),
            autoscaling=parse_autoscaling(spec.get("autoscaling")),
            forward_headers=tuple((spec.get("traffic") or {}).get("forwardHeaders") or ()),
        )
        typed.check(parsed)
    except _MALFORMED as error:
        return _invalid(error)
    return parsed


def _invalid(error: Exception) -> Invalid:
    return Invalid(f"the spec cannot be read: {type(error).__name__}: {error}"[:LONGEST_MESSAGE])


def parse_hooks_of(obj: Json) -> tuple[Hook, ...]:
    """The webhooks of a ModelDeployment object that the schema let through."""
    return _hooks_of(obj.get("spec") or {})


def _hooks_of(spec: Json) -> tuple[Hook, ...]:
    return parse_hooks((spec.get("strategy") or {}).get("hooks") or ())


def _one_device(inputs: PodInputs) -> PodInputs:
    """Refused in what is written now, never in the record of a revision that is there already."""
    accelerator = inputs.resources.accelerator
    if accelerator and accelerator[1] != 1:
        raise ValueError(
            f"spec.resources.accelerator.count is {accelerator[1]}: it must be 1, one engine uses one device"
        )
    return inputs


def parse_inputs(spec: Json, default_name: str) -> PodInputs:
    """Read the pod inputs from a spec, or from the snapshot that `inputs_to_dict` made of one."""
    model, engine, resources = spec["model"], spec.get("engine") or {}, spec.get("resources") or {}
    variables = engine.get("env") or ()
    accelerator = resources.get("accelerator")
    return PodInputs(
        Model(
            uri=model["uri"],
            name=model.get("name") or default_name,
            revision=model.get("revision"),
            version=model.get("version"),
            task=model.get("task", "auto"),
            dtype=model.get("dtype", "auto"),
            quantization=model.get("quantization", "none"),
            max_model_len_tokens=model.get("maxModelLen"),
            secret=_hub_token(model.get("secretRef")),
        ),
        Engine(
            image=engine.get("image"),
            args=tuple(engine.get("args") or ()),
            env=tuple((variable["name"], variable["value"]) for variable in variables if "valueFrom" not in variable),
            env_from=tuple(
                (variable["name"], _key_ref(variable["valueFrom"])) for variable in variables if "valueFrom" in variable
            ),
        ),
        Resources(
            cpu=_quantity("cpu", resources.get("cpu")),
            memory=_quantity("memory", resources.get("memory")),
            accelerator=(accelerator.get("resource", "nvidia.com/gpu"), int(accelerator["count"]))
            if accelerator is not None
            else None,
            storage=_quantity("storage", resources.get("storage")),
        ),
    )


def inputs_to_dict(inputs: PodInputs) -> dict[str, Any]:
    """The canonical form of pod inputs, in the words of the CRD.

    Whatever equals its default is left out: a default that the API server fills in, or that a later release adds,
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
                "image": engine.image,
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
            },
        }
    )
    return canonical


def _hub_token(reference: Json | None) -> KeyRef | None:
    return KeyRef(reference["name"], reference.get("key", HUB_TOKEN)) if reference else None


def _hub_token_to_dict(secret: KeyRef | None) -> dict[str, str | None] | None:
    return {"name": secret.name, "key": None if secret.key == HUB_TOKEN else secret.key} if secret else None


def _key_ref(source: Json) -> KeyRef:
    kind = "secretKeyRef" if "secretKeyRef" in source else "configMapKeyRef"
    return KeyRef(source[kind]["name"], source[kind]["key"], kind)


_REVISION, _NUMBER = "[a-z2-7]{10}", "[0-9]{1,9}"
_TOKENS = {
    "promote": re.compile(f"{_REVISION}/{_NUMBER}/{_NUMBER}"),
    "promoteFull": re.compile(_REVISION),
    "abort": re.compile(f"{_REVISION}/{_NUMBER}"),
    "retry": re.compile(f"{_REVISION}/{_NUMBER}"),
    "rollbackTo": re.compile(f"{_REVISION}/{_REVISION}"),
}


def _intents(rollout: Json) -> Intents:
    """As the CRD has them; the rules there do not bound the numbers, which the status keeps in 32 bits."""
    for name, pattern in _TOKENS.items():
        if name in rollout and not pattern.fullmatch(rollout[name]):
            raise ValueError(
                f"rollout.{name} {rollout[name][:80]!r} is no token of a rollout: see status.rollout.token"
            )
    return Intents(
        promote=rollout.get("promote"),
        promote_full=rollout.get("promoteFull"),
        abort=rollout.get("abort"),
        retry=rollout.get("retry"),
        rollback_to=rollout.get("rollbackTo"),
    )


def _time(value: str | None) -> datetime | None:
    return None if value is None else parse_time(value)


def _quantity(name: str, value: object) -> str | None:
    """As it is written, once it is known to be one."""
    if value is None:
        return None
    try:
        quantity.parse(str(value))
    except ValueError as error:
        raise ValueError(f"resources.{name}: {error}") from None
    return str(value)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, {}, [])}
    return value
