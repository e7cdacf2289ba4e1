"""The inputs of a pod as typed, immutable values: they identify a revision; and their canonical record."""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from slipway_contracts.adapters import adapter_of
from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.types import ApiType
from slipway_contracts.api.writing import camel
from slipway_operator.api.inputs import pod_inputs, pod_spec
from slipway_operator.api.inputs.model import HUB_TOKEN, ModelSpec, ObjectStoreSpec
from slipway_operator.api.inputs.pod_inputs import InputsRecord, RecordedInputs, SpeculationSpec
from slipway_operator.api.objects import Json
from slipway_operator.api.v1alpha1.model_adapter import AdapterModelSpec, AdapterRecord
from slipway_operator.model import quantity
from slipway_operator.model.inputs.adapters import AdapterRoom, room_of, room_to_dict
from slipway_operator.model.inputs.classic import Batching, PoolMember, batching_of, pool_of, pool_to_dict
from slipway_operator.model.inputs.registry import RegistrySource, is_reference, read_reference

SLIPWAY = "slipway"  # engine type: slipway-server
VLLM, SGLANG, CUSTOM = "vllm", "sglang", "custom"
WITH_ADAPTERS = (SLIPWAY, VLLM, SGLANG)  # engines that load LoRA adapters while they run
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of its --max-lora-rank
RERANK = "rerank"
MIG = "nvidia.com/mig-"  # beginning of the resources of MIG devices
TIME_SLICING, MPS = "TimeSlicing", "MPS"
CLASSIC = ("predict", "classify", RERANK)  # tasks of a classic model
WITHOUT_TORCH = ("onnx", "xgboost", "lightgbm", "skops")  # formats whose runtimes do without it
NO_CACHE, NODE_CACHE, IMAGE_CACHE = "none", "node", "image"
NODE_CACHE_CLAIM = "slipway-model-cache"  # claim that the chart creates in each namespace with a node cache
DRAFT = "draft"  # spec.engine.speculation.method
SPECULATIVE_TOKENS = SpeculationSpec.model_fields["num_speculative_tokens"].default
KEPT = 1024  # parsed records


@dataclass(frozen=True, slots=True)
class KeyRef:
    """One value of a Secret or a ConfigMap in the namespace of the ModelDeployment: by name, never the value itself."""

    name: str
    key: str
    kind: str = "secretKeyRef"  # or configMapKeyRef


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Address of an object store that is not the cloud provider's default."""

    endpoint: str | None = None
    region: str | None = None
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """Where the weights are and how they are served."""

    uri: str
    name: str
    revision: str | None = None
    version: str | None = None
    task: str = "auto"
    format: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    max_model_len_tokens: int | None = None
    secret: KeyRef | None = None  # credentials for the fetcher; `key` is only used for a token of a hub
    object_store: ObjectStore = field(default_factory=ObjectStore)
    cache: str = NO_CACHE
    cache_claim: str | None = None  # claim of the user, with `cache: claim`
    draft: "DraftSource | None" = None

    @property
    def scheme(self) -> str:
        return self.uri.partition("://")[0]

    @property
    def is_downloaded(self) -> bool:
        """Whether pods download the model; others read it from a claim, an image volume or the engine's image."""
        return self.scheme not in ("pvc", "file") and self.cache != IMAGE_CACHE

    @property
    def cache_claim_name(self) -> str | None:
        """Name of the PersistentVolumeClaim with the cache; None without one."""
        return NODE_CACHE_CLAIM if self.cache == NODE_CACHE else self.cache_claim


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Where the model is that drafts tokens."""

    uri: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How many pods are one replica (`nodes`), and tensor and pipeline parallel size; None: the profile's default."""

    nodes: int = 1
    tensor: int | None = None
    pipeline: int | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafts tokens of responses, how many in a step, and the tokens of an end that is looked up."""

    method: str
    tokens: int = SPECULATIVE_TOKENS
    lookup_min: int | None = None
    lookup_max: int | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """The server that runs the model; `image` None is the operator's default, which only `slipway` has."""

    image: str | None = None
    type: str = SLIPWAY
    version: str | None = None  # of vLLM, if the image's tag does not name it
    command: tuple[str, ...] = ()  # command of a custom engine
    custom: Json = field(default_factory=dict)  # spec.engine.custom with the field names of the CRD, without defaults
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    env_from: tuple[tuple[str, KeyRef], ...] = ()  # variables that only the server gets, not the fetcher
    env_sources: tuple[Json, ...] = ()  # whole Secrets and ConfigMaps, as envFrom of a container
    volume_mounts: tuple[Json, ...] = ()  # as a container has them
    image_pull_secrets: tuple[str, ...] = ()
    parallelism: Parallelism = Parallelism()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What one pod gets; quantities as Kubernetes writes them."""

    cpu: str | None = None
    memory: str | None = None
    accelerator: tuple[str, int] | None = None  # resource and count
    storage: str | None = None  # size limit for the files of a downloaded model
    shared_memory: str | None = None  # size of /dev/shm
    accelerator_type: str | None = None  # name of the type; the revision's record has what it stood for
    claim_template: str | None = None  # name of a ResourceClaimTemplate for the devices
    claim: str | None = None  # name of a ResourceClaim for the devices, which pods share
    device_memory: str | None = None  # of each device
    sharing: str | None = None  # how the administrator has divided the devices

    @property
    def has_claim(self) -> bool:
        """Whether devices come by a ResourceClaim, and not as an extended resource."""
        return self.claim_template is not None or self.claim is not None


@dataclass(frozen=True)
class PodInputs:
    """All user input that a pod depends on. It identifies a revision: equal inputs are the same revision."""

    model: Model
    engine: Engine = Engine()
    resources: Resources = Resources()
    placement: Json = field(default_factory=dict)  # as in a PodSpec, only the given fields
    pod: Json = field(default_factory=dict)  # spec.pod, only the given fields
    batching: Batching = field(default_factory=Batching)
    pool: PoolMember | None = None  # the pool whose pods serve it; None: it has its own pods
    adapters: AdapterRoom | None = None  # room for adapters in its pods; None: none
    base: str = ""  # of an adapter: the ModelDeployment whose pods serve it
    registry: RegistrySource | None = None  # the version of a registered model whose files `model.uri` has

    @property
    def has_pods(self) -> bool:
        """Whether a revision has pods of its own; else those of a pool or of another ModelDeployment serve it."""
        return self.pool is None and not self.base

    @property
    def devices(self) -> int:
        """Number of devices of a replica; a pod without accelerators counts as one device."""
        each = self.resources.accelerator[1] if self.resources.accelerator else 1
        return self.engine.parallelism.nodes * each

    @property
    def needs_no_torch(self) -> bool:
        """Whether the spec names a format that needs none: what `auto` finds is known in the pod alone."""
        return self._runs_ours and self.model.task in CLASSIC and self.model.format in WITHOUT_TORCH

    @property
    def needs_no_device(self) -> bool:
        """Whether the pods get no accelerator in any of the ways in which a spec names one."""
        resources = self.resources
        return self._runs_ours and not (resources.accelerator or resources.accelerator_type or resources.has_claim)

    @property
    def _runs_ours(self) -> bool:
        # A pool's pods have an image of their own.
        return self.engine.type == SLIPWAY and self.has_pods

    @property
    def speculation(self) -> Speculation | None:
        """What drafts tokens: as the spec has it, or the draft model where the spec names one alone."""
        return self.engine.speculation or (Speculation(DRAFT) if self.model.draft else None)

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON of the inputs; each reconcile compares it with the JSON of existing revisions."""
        return json.dumps(inputs_to_dict(self), sort_keys=True, separators=(",", ":"))


def checked(inputs: PodInputs) -> PodInputs:
    """Return the inputs; raises ValueError if no pod can be made of them. Only for a spec, not for records."""
    if inputs.engine.type != SLIPWAY and not inputs.engine.image:
        raise ValueError(f"spec.engine.image is required for the engine type {inputs.engine.type}")
    accelerator = inputs.resources.accelerator
    if inputs.engine.type == SLIPWAY and accelerator and accelerator[1] != 1:
        raise ValueError(
            f"spec.resources.accelerator.count is {accelerator[1]}: it must be 1, one engine uses one device"
        )
    _check_sharing(inputs)
    _check_parallelism(inputs)
    _check_adapters(inputs)
    _check_registry(inputs)
    _check_speculation(inputs)
    return inputs


def _check_sharing(inputs: PodInputs) -> None:
    resources = inputs.resources
    if resources.accelerator is None:
        return
    name, count = resources.accelerator
    if count > 1 and resources.sharing:
        raise ValueError("spec.resources.accelerator.count must be 1 with sharing")
    if count > 1 and name.startswith(MIG) and inputs.engine.type in (VLLM, SGLANG):
        raise ValueError(
            f"spec.resources.accelerator.count is {count}, and a process uses one MIG device at most: write 1 and a "
            "larger profile"
        )
    if resources.sharing == MPS and resources.shared_memory:
        raise ValueError(
            "spec.resources.sharedMemory does not go with accelerator.sharing: MPS, which has its own /dev/shm: remove "
            "it"
        )


def _check_speculation(inputs: PodInputs) -> None:
    speculation, engine, draft = inputs.speculation, inputs.engine.type, inputs.model.draft
    if speculation is None:
        return
    if (speculation.method == DRAFT) != bool(draft):
        raise ValueError("spec.engine.speculation.method: draft and spec.model.draft go together: write both, or none")
    if draft and (engine == CUSTOM or inputs.pool or inputs.model.task not in ("auto", "generate")):
        raise ValueError("spec.model.draft is for language models of slipway, vllm and sglang: remove it")
    if engine == CUSTOM:
        raise ValueError("spec.engine.speculation is not for the engine type custom: remove it")
    if inputs.model.task not in ("auto", "generate"):
        raise ValueError("spec.engine.speculation is for models that generate text: remove it")
    if engine == SGLANG and (speculation.lookup_min or speculation.lookup_max):
        raise ValueError("spec.engine.speculation.promptLookupMin and promptLookupMax are not for sglang: remove them")


def _check_adapters(inputs: PodInputs) -> None:
    room, engine = inputs.adapters, inputs.engine
    if room is None:
        return
    if inputs.pool or inputs.model.task not in ("auto", "generate"):
        raise ValueError("spec.adapters is for language models with pods of their own: remove it")
    if engine.type not in WITH_ADAPTERS or engine.parallelism.nodes > 1:
        raise ValueError(f"spec.adapters is for replicas of one pod with an engine of {', '.join(WITH_ADAPTERS)}")
    if engine.type == VLLM and room.max_rank not in VLLM_RANKS:
        raise ValueError(f"spec.adapters.maxRank of vllm is one of {', '.join(map(str, VLLM_RANKS))}")
    if engine.type != SLIPWAY and room.memory:
        raise ValueError("spec.adapters.memory is for the engine type slipway: remove it")


def _check_registry(inputs: PodInputs) -> None:
    model = inputs.model
    if not is_reference(model.uri):
        return
    if inputs.pool:
        raise ValueError(
            "spec.model.uri of a model with spec.pool is no models:/ URI, because its pods download at different "
            "times: write the location of the files, and their digest in spec.model.revision"
        )
    if read_reference(model.uri).alias and model.revision:
        raise ValueError("spec.model.revision does not go with an alias, which may move: remove it")


def _check_parallelism(inputs: PodInputs) -> None:
    wanted, devices = inputs.engine.parallelism, inputs.devices
    if inputs.engine.type == SLIPWAY and wanted != Parallelism():
        raise ValueError("spec.engine.parallelism is for vllm, sglang and custom: slipway-server uses one device")
    product = (wanted.tensor or 1) * (wanted.pipeline or 1)
    fits = product == devices if wanted.tensor and wanted.pipeline else devices % product == 0
    if not fits:
        raise ValueError(
            f"spec.engine.parallelism divides the model by {product}, and a replica has {devices} devices: correct "
            "tensor, pipeline or nodes, or spec.resources.accelerator.count"
        )


def parse_inputs(record: Json, default_name: str) -> PodInputs:
    """Parse the pod inputs in a record that `inputs_to_dict` made.

    Raises:
        ValueError: when the record is invalid.
    """
    return _recorded(encoded(record), default_name)


@lru_cache(KEPT)
def _recorded(written: bytes, default_name: str) -> PodInputs:
    if adapter := adapter_of(default_name):
        of_adapter = read(AdapterRecord, written, "inputs")
        return adapter_inputs(of_adapter.model, of_adapter.base, adapter)
    record = read(RecordedInputs, written, "inputs")
    source = RegistrySource(record.registry.name, record.registry.version) if record.registry else None
    return replace(inputs_of(record, default_name), registry=source)


def inputs_of(written: InputsRecord, default_name: str) -> PodInputs:
    """Return the inputs that a spec describes."""
    return PodInputs(
        _model(written.model, default_name),
        _engine(written.engine or pod_inputs.EngineSpec()),
        _resources(written.resources or pod_spec.ResourcesSpec()),
        _dumped(written.placement),
        _dumped(written.pod),
        batching_of(written.batching),
        pool_of(written.pool),
        room_of(written.adapters),
    )


def adapter_inputs(model: AdapterModelSpec, base: str, default_name: str) -> PodInputs:
    """Return the inputs of an adapter that the pods of the ModelDeployment `base` serve."""
    store, name = _object_store(model.object_store), model.name or default_name
    return PodInputs(Model(model.uri, name, model.revision, model.version, object_store=store), base=base)


def _model(model: ModelSpec, default_name: str) -> Model:
    return Model(
        uri=model.uri,
        name=model.name or default_name,
        revision=model.revision,
        version=model.version,
        task=model.task,
        format="transformers" if model.task == RERANK else model.format,
        dtype=model.dtype,
        quantization=model.quantization,
        max_model_len_tokens=model.max_model_len,
        secret=KeyRef(model.secret_ref.name, model.secret_ref.key) if model.secret_ref else None,
        object_store=_object_store(model.object_store),
        cache=model.cache,
        cache_claim=model.cache_claim_name,
        draft=DraftSource(model.draft.uri, model.draft.revision) if model.draft else None,
    )


def _object_store(written: ObjectStoreSpec | None) -> ObjectStore:
    return ObjectStore(written.endpoint, written.region, written.account) if written else ObjectStore()


def _engine(engine: pod_inputs.EngineSpec) -> Engine:
    return Engine(
        image=engine.image,
        type=engine.type,
        version=engine.version,
        command=engine.command,
        custom=_dumped(engine.custom, exclude_defaults=True),
        args=engine.args,
        env=tuple((variable.name, _value(variable)) for variable in engine.env if not variable.value_from),
        env_from=tuple(
            (variable.name, _key_ref(variable.value_from)) for variable in engine.env if variable.value_from
        ),
        image_pull_secrets=tuple(secret.name for secret in engine.image_pull_secrets),
        env_sources=tuple(map(_dumped, engine.env_from)),
        volume_mounts=tuple(map(_dumped, engine.volume_mounts)),
        parallelism=_parallelism(engine.parallelism),
        tool_parser=engine.tool_parser,
        reasoning_parser=engine.reasoning_parser,
        speculation=_speculation(engine.speculation),
    )


def _speculation(written: pod_inputs.SpeculationSpec | None) -> Speculation | None:
    if written is None:
        return None
    return Speculation(
        written.method, written.num_speculative_tokens, written.prompt_lookup_min, written.prompt_lookup_max
    )


def _parallelism(written: pod_inputs.ParallelismSpec | None) -> Parallelism:
    return Parallelism(written.nodes, written.tensor, written.pipeline) if written else Parallelism()


def _value(variable: pod_inputs.EnvVar) -> str:
    if variable.value is None:
        raise ValueError(f"spec.engine.env: {variable.name} has neither value nor valueFrom: write one of them")
    return variable.value


def _resources(resources: pod_spec.ResourcesSpec) -> Resources:
    accelerator = resources.accelerator
    return Resources(
        cpu=_quantity("cpu", resources.cpu),
        memory=_quantity("memory", resources.memory),
        accelerator=(_device(accelerator), accelerator.count) if accelerator else None,
        claim_template=accelerator.resource_claim_template_name if accelerator else None,
        claim=accelerator.resource_claim_name if accelerator else None,
        device_memory=_quantity("accelerator.memory", accelerator.memory) if accelerator else None,
        sharing=accelerator.sharing if accelerator else None,
        accelerator_type=accelerator.type if accelerator else None,
        storage=_quantity("storage", resources.storage),
        shared_memory=_quantity("sharedMemory", resources.shared_memory),
    )


def _device(accelerator: pod_spec.Accelerator) -> str:
    """Return the resource name of the device, as prices and messages use it."""
    claim = accelerator.resource_claim_template_name or accelerator.resource_claim_name
    return f"resource.k8s.io/{claim}" if claim else accelerator.resource


def _dumped(part: ApiType | None, *, exclude_defaults: bool = False) -> Json:
    """Return a part of the spec with the field names of the CRD, without empty and missing fields."""
    if part is None:
        return {}
    written: Json = _without_empty(
        part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=exclude_defaults)
    )
    return written


def _key_ref(source: pod_inputs.EnvSource) -> KeyRef:
    if source.secret_key_ref:
        return KeyRef(source.secret_key_ref.name, source.secret_key_ref.key)
    if source.config_map_key_ref:
        return KeyRef(source.config_map_key_ref.name, source.config_map_key_ref.key, "configMapKeyRef")
    raise ValueError("spec.engine.env: valueFrom has neither secretKeyRef nor configMapKeyRef: write one of them")


def inputs_to_dict(inputs: PodInputs) -> dict[str, Any]:
    """Return the canonical form of pod inputs, with the field names of the CRD.

    Values that equal their default are left out, so that a default that the API server fills in, or that a later
    release adds, does not make another revision.
    """
    engine, resources = inputs.engine, inputs.resources
    accelerator = resources.accelerator
    canonical: dict[str, Any] = _without_empty(
        {
            "model": _model_to_dict(inputs.model),
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
                "envFrom": list(engine.env_sources),
                "volumeMounts": list(engine.volume_mounts),
                "toolParser": engine.tool_parser,
                "reasoningParser": engine.reasoning_parser,
                "speculation": _speculation_to_dict(engine.speculation),
                "parallelism": {**asdict(engine.parallelism), "nodes": _unless(engine.parallelism.nodes, 1)},
            },
            "resources": {
                "cpu": resources.cpu,
                "memory": resources.memory,
                "accelerator": {
                    "type": resources.accelerator_type,
                    "resource": None if resources.accelerator_type or resources.has_claim else accelerator[0],
                    "resourceClaimTemplateName": resources.claim_template,
                    "resourceClaimName": resources.claim,
                    "memory": resources.device_memory,
                    "sharing": resources.sharing,
                    "count": accelerator[1],
                }
                if accelerator
                else None,
                "storage": resources.storage,
                "sharedMemory": resources.shared_memory,
            },
            "placement": inputs.placement,
            "pod": inputs.pod,
            "pool": pool_to_dict(inputs.pool),
            "adapters": room_to_dict(inputs.adapters),
            "base": inputs.base or None,
            "registry": asdict(inputs.registry) if inputs.registry else None,
            "batching": {camel(name): value for name, value in asdict(inputs.batching).items()},
        }
    )
    return canonical


def _model_to_dict(model: Model) -> dict[str, Any]:
    return {
        "uri": model.uri,
        "name": model.name,
        "revision": model.revision,
        "version": model.version,
        "task": None if model.task == "auto" else model.task,
        "format": None if model.format == "auto" else model.format,
        "dtype": None if model.dtype == "auto" else model.dtype,
        "quantization": None if model.quantization == "none" else model.quantization,
        "maxModelLen": model.max_model_len_tokens,
        "secretRef": _hub_token_to_dict(model.secret),
        "objectStore": asdict(model.object_store),
        "cache": None if model.cache == NO_CACHE else model.cache,
        "cacheClaimName": model.cache_claim,
        "draft": {"uri": model.draft.uri, "revision": model.draft.revision} if model.draft else None,
    }


def _speculation_to_dict(speculation: Speculation | None) -> dict[str, str | int | None] | None:
    if speculation is None:
        return None
    return {
        "method": speculation.method,
        "numSpeculativeTokens": _unless(speculation.tokens, SPECULATIVE_TOKENS),
        "promptLookupMin": speculation.lookup_min,
        "promptLookupMax": speculation.lookup_max,
    }


def _unless(number: int, default: int) -> int | None:
    return None if number == default else number


def _hub_token_to_dict(secret: KeyRef | None) -> dict[str, str | None] | None:
    return {"name": secret.name, "key": None if secret.key == HUB_TOKEN else secret.key} if secret else None


def _quantity(name: str, value: object) -> str | None:
    """Return the quantity as text, as written; None if not given. Raises ValueError if it is no quantity."""
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
